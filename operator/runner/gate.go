// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Gate asks one question for all callers that wait at the same time: a question
// that begins after the last of them came answers all of them. An answer from
// before a call is never used for it: the caller may have read something newer
// since. Any goroutine may call Check. It waits no longer than its context, except for
// the caller that asks. That caller also waits for the question before its own and for
// the answer, so twice the timeout at most.
type Gate struct {
	ask     func(context.Context) error // nil: every answer is nil
	timeout time.Duration               // of one question

	mu      sync.Mutex
	waiting *question // not asked yet
	current *question // being asked, or answered
}

type question struct {
	done chan struct{}
	err  error
}

// errNoAnswer is the answer to a question that has ended its goroutine (runtime.Goexit).
var errNoAnswer = errors.New("the question has ended without an answer")

// NewGate returns a gate that calls ask. Without ask, Check always succeeds.
func NewGate(ask func(context.Context) error, timeout time.Duration) *Gate {
	return &Gate{ask: ask, timeout: timeout}
}

// Check returns the answer to a question that began after the call.
func (g *Gate) Check(ctx context.Context) error {
	if g.ask == nil {
		return ctx.Err()
	}
	g.mu.Lock()
	q, before := g.waiting, g.current
	first := q == nil
	if first {
		q = &question{done: make(chan struct{})}
		g.waiting = q
	}
	g.mu.Unlock()
	if first {
		if before != nil {
			<-before.done
		}
		g.mu.Lock()
		g.waiting, g.current = nil, q
		g.mu.Unlock()
		g.answer(ctx, q)
	}
	select {
	case <-q.done:
		return q.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// answer asks. The question outlives the context of the caller that asks it,
// because other callers wait for the answer.
func (g *Gate) answer(ctx context.Context, q *question) {
	defer close(q.done)
	q.err = errNoAnswer // if the question ends its goroutine
	_, q.err = Within(context.WithoutCancel(ctx), g.timeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, g.ask(ctx)
	})
}
