// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"sync"

	"google.golang.org/grpc/stats"
)

// lines counts how often a connection was made to where there had been one
// before. What stays at the other end of one connection is one process, and
// that process does not change its past.
type lines struct {
	mu    sync.Mutex
	known map[string]bool
	again int
}

var _ stats.Handler = (*lines)(nil)

func (l *lines) replaced() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.again
}

// TagConn implements stats.Handler; it is called before a connection is used.
func (l *lines) TagConn(ctx context.Context, info *stats.ConnTagInfo) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = map[string]bool{}
	}
	to := info.RemoteAddr.String()
	if l.known[to] {
		l.again++
	}
	l.known[to] = true
	return ctx
}

// HandleConn implements stats.Handler.
func (l *lines) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements stats.Handler.
func (l *lines) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (l *lines) HandleRPC(context.Context, stats.RPCStats) {}
