// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"
)

var (
	// ErrUnknownOutcome is returned for a call of the provider that has not been answered
	// by its deadline. Reading the provider shows what it has done.
	ErrUnknownOutcome = errors.New(
		"netresource: the provider has not answered in time: what the call has done is not known before the provider is read",
	)
	// ErrPanicked is returned for a call of the provider that has panicked.
	ErrPanicked = errors.New("netresource: the provider has panicked")
	// ErrRefused is returned by State for a node that the provider does not serve.
	ErrRefused = errors.New("netresource: the provider does not serve the node")
)

// call calls the provider with a deadline, and makes an error of a panic. what names the
// call. If the deadline has ended it, its outcome is unknown.
func call[T any](
	ctx context.Context,
	m *NetResourceSetManager,
	what string,
	within time.Duration,
	do func(context.Context) (T, error),
) (value T, err error) {
	if m.open.Err() != nil {
		return value, fmt.Errorf("call %s: %w", what, ErrClosed)
	}
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	value, err = guarded(m.config.Log, what, func() (T, error) { return do(ctx) })
	if err == nil || ctx.Err() == nil || errors.Is(err, ErrUnderWay) {
		return value, err
	}
	m.unanswered.Add(1)
	if !errors.Is(err, ErrUnknownOutcome) {
		err = fmt.Errorf("call %s: %w: %w", what, ErrUnknownOutcome, err)
	}
	return value, err
}

// guarded makes an error of a panic.
func guarded[T any](log *slog.Logger, what any, do func() (T, error)) (value T, err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("the provider has panicked", "call", fmt.Sprint(what), "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("call %s: %w: %v", what, ErrPanicked, p)
		}
	}()
	return do()
}

// short limits a call of a caller that must not be held up: the more calls have not been
// answered since the last reading, the shorter.
func (n *NetResourceSetManager) short() time.Duration {
	return n.config.CallTimeout / 30 / time.Duration(1+n.unanswered.Load())
}

// nodeCall makes a call for the node. The caller has the node's turn. If an earlier
// NetResourceSet of that name was deleted, the provider first forgets it.
func nodeCall[T any](
	ctx context.Context,
	n *NetResource,
	what string,
	do func(context.Context) (T, error),
) (none T, err error) {
	m := n.manager
	if err := m.forget(ctx, n.name); err != nil {
		return none, err
	}
	if n.isRemoved() {
		return none, fmt.Errorf("call %s for node %s: its NetResourceSet is gone", what, n.name)
	}
	return call(ctx, m, what+" for node "+n.name, m.config.CallTimeout, do)
}
