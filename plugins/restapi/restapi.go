// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package restapi serves the agent's local HTTP API: one unix socket for the CNI
// plugin, the command line and curl. If they are configured, it also has a
// read-only TLS listener and one for metrics and probes.
//
// The socket has mode 0600, and the plugin answers only root and the agent's own user,
// by the credentials of the peer. The plugin keeps no state but the last answers for the
// page, which its callers share. Requests run in
// goroutines of the HTTP server, which Serve owns: Serve returns when all of them have
// ended.
package restapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cadastre/cadastre/addrmap"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// RESTAPI represents the plugin.
type RESTAPI struct {
	Deps
	unheard  unheard
	findings comparisons
	views    addrmap.Cache
}

// NewPlugin returns a plugin that does not serve yet.
func NewPlugin(deps Deps) *RESTAPI {
	deps.Name = "restapi"
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Listen.After == nil {
		deps.Listen.After = time.After
	}
	return &RESTAPI{Deps: deps}
}

// Init fails if a dependency is missing that has no default.
func (p *RESTAPI) Init() error {
	switch {
	case p.Agent == nil:
		return errors.New("init restapi: Deps.Agent is nil: want a description of the agent")
	case p.Ledger == nil:
		return errors.New("init restapi: Deps.Ledger is nil: want the ledger of the node")
	case p.Metrics == nil:
		return errors.New("init restapi: Deps.Metrics is nil: want a registry")
	}
	return nil
}

// now returns the time in the agent's time zone.
func (p *RESTAPI) now() time.Time {
	now := p.Now
	if now == nil {
		now = time.Now
	}
	return now()
}

// AfterInit does nothing.
func (p *RESTAPI) AfterInit() error { return nil }

// Close does nothing.
func (p *RESTAPI) Close() error { return nil }

// connection holds the facts about a caller of the socket.
type connection struct {
	allowed bool   // to send requests
	left    func() // of Pods.Accept
}

// connectionKey is the key of the connection in the context of a request.
type connectionKey struct{}

func (p *RESTAPI) accepted(ctx context.Context, c net.Conn) (context.Context, func()) {
	conn := connection{allowed: peerAllowed(c), left: func() {}}
	if p.Pods != nil {
		ctx, conn.left = p.Pods.Accept(ctx, hungUp(c))
	}
	return context.WithValue(ctx, connectionKey{}, conn), conn.left
}

// stopping is the key of a context with a channel that closes when the agent stops.
type stopping struct{}

// Serve answers until ctx ends, then finishes what is under way.
func (p *RESTAPI) Serve(ctx context.Context) error {
	unix, err := p.listen()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx) // ends the streams, and one listener if the other fails
	defer cancel()
	// A request that is under way when the agent stops is answered by the loop;
	// only streams end at once.
	base := context.WithValue(context.Background(), stopping{}, ctx.Done())
	local := httpserver.New(httpserver.Config{
		Listener: unix,
		Handler:  p.guard(p.Handler()),
		Limits:   p.Listen.Limits,
		Log:      p.Log,
		Base:     base,
		Accepted: p.accepted,
	})
	if p.Listen.Opened != nil {
		p.Listen.Opened()
	}
	servers := []func() error{func() error { return local.Serve(ctx) }}
	for _, e := range []endpoint{{"rest.listen", p.Listen.REST, p.ReadOnlyHandler()}, {"metrics.listen", p.Listen.Metrics, p.metricsHandler()}} {
		if e.tcp != nil {
			servers = append(servers, func() error { return p.serveTCP(ctx, base, e) })
		}
	}
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, serve := range servers {
		wg.Go(func() {
			errs[i] = serve()
			cancel()
		})
	}
	wg.Wait()
	p.findings.work.Wait()
	return errors.Join(errs...)
}

// maxSocketPath bounds the path of a socket, which first has a temporary name.
const maxSocketPath = 107 - len(".new")

// listen makes the socket. It replaces one that no process answers on.
func (p *RESTAPI) listen() (net.Listener, error) {
	fail := func(err error) (net.Listener, error) {
		return nil, fmt.Errorf("listen on %s: %w", p.Listen.Socket, err)
	}
	if len(p.Listen.Socket) > maxSocketPath {
		return fail(
			fmt.Errorf(
				"its path has %d bytes, and Linux takes %d: give the agent a shorter run directory",
				len(p.Listen.Socket),
				maxSocketPath,
			),
		)
	}
	if err := os.MkdirAll(filepath.Dir(p.Listen.Socket), 0o700); err != nil {
		return fail(err)
	}
	if c, err := net.DialTimeout("unix", p.Listen.Socket, time.Second); err == nil {
		c.Close()
		return fail(errors.New("another agent answers there: give this one a run directory of its own"))
	}
	if err := os.Remove(p.Listen.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(err)
	}
	// It gets its mode before it gets its name: no other user connects in between.
	tmp := p.Listen.Socket + ".new"
	_ = os.Remove(tmp)
	l, err := net.Listen("unix", tmp)
	if err != nil {
		return fail(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err = os.Chmod(tmp, 0o600); err == nil {
		err = os.Rename(tmp, p.Listen.Socket)
	}
	if err != nil {
		return fail(errors.Join(err, l.Close()))
	}
	return &ownSocket{l, p.Listen.Socket}, nil
}

// ownSocket removes its file when it is closed.
type ownSocket struct {
	net.Listener
	path string
}

func (l *ownSocket) Close() error {
	_ = os.Remove(l.path)
	return l.Listener.Close()
}

func (p *RESTAPI) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connectionKey{}).(connection)
		switch {
		case !c.allowed:
			writeError(w, http.StatusForbidden, errors.New("the peer is neither root nor the agent's own user"))
			return
		case r.URL.Path == localapi.PathCNI:
			defer c.left()
		default:
			c.left() // a stream may go on for long
		}
		next.ServeHTTP(w, r)
	})
}
