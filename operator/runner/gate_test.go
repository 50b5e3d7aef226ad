// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/operator/runner"
)

var errDeposed = errors.New("another process leads")

// lease answers after a second with what was true when it was asked.
type lease struct {
	lost  atomic.Bool
	asked atomic.Int32
}

func (l *lease) check(ctx context.Context) error {
	l.asked.Add(1)
	lost := l.lost.Load()
	select {
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	if lost {
		return errDeposed
	}
	return nil
}

func TestGateAsksOnceForConcurrentCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, l := NewWithT(t), &lease{}
		gate := runner.NewGate(l.check, time.Minute)
		errs := make(chan error, 100)
		go func() { errs <- gate.Check(t.Context()) }()
		synctest.Wait() // the question is under way
		l.lost.Store(true)
		for range 50 {
			go func() { errs <- gate.Check(t.Context()) }()
		}
		g.Expect(<-errs).To(Succeed(), "asked before")
		for range 50 {
			g.Expect(<-errs).To(MatchError(errDeposed), "asked after")
		}
		g.Expect(l.asked.Load()).To(Equal(int32(2)))
	})
}

func TestGateAnswersOtherCallersAfterOneGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, l := NewWithT(t), &lease{}
		gate := runner.NewGate(l.check, time.Minute)
		errs, gone := make(chan error, 1), make(chan error, 2)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { gone <- gate.Check(t.Context()) }() // asks
		synctest.Wait()
		go func() { gone <- gate.Check(ctx) }() // asks next, for the last caller too
		synctest.Wait()
		go func() { errs <- gate.Check(t.Context()) }()
		synctest.Wait()
		cancel()
		g.Expect(<-errs).To(Succeed())
		g.Expect(<-gone).To(Succeed())
		<-gone
	})
}

func TestGateQuestionTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		gate := runner.NewGate((&lease{}).check, time.Millisecond)
		g.Expect(gate.Check(t.Context())).To(MatchError(context.DeadlineExceeded))
		g.Expect(runner.NewGate(nil, time.Second).Check(t.Context())).To(Succeed(), "there is nothing to ask")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		g.Expect(runner.NewGate(nil, time.Second).Check(ctx)).NotTo(Succeed())
	})
}
