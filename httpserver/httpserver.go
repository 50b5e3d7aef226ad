// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package httpserver runs the HTTP servers of all programs, with limits of time,
// of connections and of bodies. So the callers of one listener can stop neither
// another listener nor the program.
//
// A connection that sends or reads too slowly is closed, whatever it asked for. The
// time that a handler takes is not limited, and an answer may be as long as it likes
// (a stream of events, a backup) while its caller reads. Callers beyond the limit of
// connections wait in the kernel's queue and cost the program no descriptor; [Share]
// keeps the sum of all limits below what the process may open.
//
// Serve owns the listener and all connections. Any goroutine may call it, once.
package httpserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Limits bound what the callers of one listener may use. A field that is zero has
// the default of its comment.
type Limits struct {
	Connections int           // at one time; 256
	Header      time.Duration // from the first byte that is awaited to the end of the header; 5s
	Read        time.Duration // the same to the end of the body; 15s
	Write       time.Duration // for the caller to take one part of an answer; 15s
	Idle        time.Duration // between two requests on one connection; 30s
	Body        int64         // bytes; 4 MiB
}

func (l Limits) withDefaults() Limits {
	l.Connections = cmp.Or(l.Connections, 256)
	l.Header = cmp.Or(l.Header, 5*time.Second)
	l.Read = cmp.Or(l.Read, 15*time.Second)
	l.Write = cmp.Or(l.Write, 15*time.Second)
	l.Idle = cmp.Or(l.Idle, 30*time.Second)
	l.Body = cmp.Or(l.Body, 4<<20)
	return l
}

// maxHeader is the size of a request's header. The default of net/http is 1 MiB, so
// that the callers that one listener accepts could make the program hold 256 MiB.
const maxHeader = 64 << 10

// grace is the time that requests have to end after the server's context.
const grace = 5 * time.Second

// Config holds what a Server needs. Listener and Handler are required.
type Config struct {
	Listener net.Listener
	TLS      *tls.Config // nil: plain text
	Handler  http.Handler
	Limits   Limits
	Log      *slog.Logger
	// Base is the context of all requests; nil: one that does not end. A request's own
	// context also ends when its caller closes the connection.
	Base context.Context
	// Accepted is called for each connection that the listener has accepted, in their
	// order. It returns the context of the connection's requests, and what is to be done
	// when the connection is closed. It may be nil.
	Accepted func(context.Context, net.Conn) (_ context.Context, closed func())
}

// Server answers requests on one listener.
type Server struct {
	http     *http.Server
	listener net.Listener
	log      *slog.Logger
}

// New returns a server that does not answer yet.
func New(c Config) *Server {
	limits := c.Limits.withDefaults()
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Base == nil {
		c.Base = context.Background()
	}
	bounded := newListener(c.Listener, limits)
	s := &Server{listener: bounded, log: c.Log}
	if c.TLS != nil {
		s.listener = tls.NewListener(bounded, c.TLS)
	}
	s.http = &http.Server{
		Handler:           bound(c.Handler, bounded, limits.Body),
		MaxHeaderBytes:    maxHeader,
		ReadHeaderTimeout: limits.Header, ReadTimeout: limits.Read, IdleTimeout: limits.Idle,
		ErrorLog:    slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return c.Base },
	}
	if c.Accepted != nil {
		s.http.ConnContext = func(ctx context.Context, accepted net.Conn) context.Context {
			own := ownConn(accepted)
			ctx, own.closed = c.Accepted(ctx, own.Conn)
			return ctx
		}
	}
	return s
}

// bound limits the bodies of requests. If no further caller would be accepted, the
// connection ends with the answer: one that only waits makes room for one that asks.
func bound(next http.Handler, l *listener, body int64) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, body)
		if l.full() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// Serve answers until ctx ends, and then gives the requests that are under way some
// seconds to end.
func (s *Server) Serve(ctx context.Context) error {
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if err := s.http.Shutdown(end); err != nil {
			s.log.Warn("connections are closed before their requests have ended: the program ends",
				"listener", s.listener.Addr())
			stopped <- s.http.Close()
			return
		}
		stopped <- nil
	})
	err := s.http.Serve(s.listener)
	if !stop() {
		return <-stopped
	}
	return fmt.Errorf("answer on %s: %w", s.listener.Addr(), err)
}
