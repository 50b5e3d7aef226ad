// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"context"
	"errors"
	"time"
)

// errGone is the error of a request whose caller has hung up. No caller reads it.
var errGone = errors.New("the caller has hung up")

// caller is one connection to the agent. Its ticket is the uptime at which it was accepted:
// the requests of one attachment take effect in the order of the tickets of their callers.
type caller struct {
	ticket time.Duration
	gone   func() bool // reports whether the caller has hung up
}

// callerKey is the key of the caller in the context of a request.
type callerKey struct{}

// Accept notes a connection: its first request has its place in the order of requests from
// now on. The goroutine that accepts connections calls it, in their order. Serve gets the
// context. left must be called when the connection has ended, or its first request is known
// not to be a CNI request. gone reports whether the caller has hung up.
func (p *PodManager) Accept(ctx context.Context, gone func() bool) (_ context.Context, left func()) {
	c := caller{ticket: p.seq.accept(), gone: gone}
	return context.WithValue(ctx, callerKey{}, c), func() { p.seq.leave(c.ticket) }
}

// callerOf returns the caller of a request, and a function that ends it. A further request
// of one connection, and a request without a connection, are accepted now.
func (p *PodManager) callerOf(ctx context.Context) (caller, func()) {
	c := caller{gone: func() bool { return false }}
	if accepted, ok := ctx.Value(callerKey{}).(caller); ok {
		c = accepted
	}
	if !p.seq.waits(c.ticket) {
		c.ticket = p.seq.accept()
	}
	return c, func() { p.seq.leave(c.ticket) }
}
