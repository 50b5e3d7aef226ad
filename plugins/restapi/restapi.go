// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package restapi is the agent's local HTTP API: one unix socket for the CNI
// plugin, the command line and curl, and, if they are configured, a read-only TLS
// listener and one for metrics and probes.
//
// The socket is 0600, and only root and the agent's own user are answered, by
// the credentials of the peer. The plugin keeps no state; it asks what it is
// given. Requests run in goroutines of the HTTP server, which Serve owns: it
// returns when all of them have ended. What the plugin is given is called from
// there, by several at once.
//
// Example:
//
//	api := restapi.NewPlugin(restapi.Deps{Socket: "/run/cadastre/agent.sock", ...})
//	err := api.Serve(ctx)
package restapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Deps is what the plugin is given.
type Deps struct {
	controller.PluginDeps
	Socket    string
	Limits    httpserver.Limits // of the socket
	Listening func()            // called when the socket is there; may be nil
	TCP       *TCP              // the read-only listener; nil: none
	// MetricsTCP is the listener for what a scraper reads; nil: none.
	MetricsTCP *TCP
	After      func(time.Duration) <-chan time.Time // until it tries again to listen; nil: time.After
	CNI        func(context.Context, cni.Request) (cni.Reply, error)
	// Delivered is told whether the answer of CNI has reached its caller; may be nil.
	Delivered func(cni.Request, cni.Reply, error)
	Delete    func(context.Context, ledger.Lease) error // of a pod, through the loop
	Status    func() localapi.Status
	Ledger    *ledger.Ledger
	Events    func(seq uint64) ([]controller.Record, <-chan struct{})
	Resync    func(context.Context) error
	Backup    func(io.Writer) (int64, error)
	// Accept returns what a database in doubt may not know and, unless dryRun is
	// set, trusts it from then on. It may be nil.
	Accept  func(ctx context.Context, dryRun bool) (localapi.AcceptReport, error)
	Dump    func(context.Context) (map[string]proto.Message, error)
	Metrics prometheus.Gatherer

	// What of these is nil is answered with 501. An error that is a
	// *localapi.StatusError is answered with its status.

	History     func(controller.HistoryQuery) ([]controller.Record, error)
	Dispatch    func() error                        // asks for a resync and returns at once
	IPAM        func() (localapi.ContivIPAM, error) // an error is 503: not yet known
	Nodes       func(context.Context) ([]localapi.Node, error)
	ReleaseNode func(ctx context.Context, name string, force bool) (localapi.NodeReleaseReply, error)
	Pools       func(context.Context) ([]localapi.Pool, error)
	// Apply changes nothing if dryRun is set, if the result says Refused, or if
	// there is an error.
	Apply func(ctx context.Context, file []byte, dryRun bool) (localapi.ApplyResult, error)

	DockerPools   func() ([]ipamapi.Pool, error)
	EndDockerPool func(ctx context.Context, poolID string, force bool) ([]ledger.Lease, error)
}

// RESTAPI is the plugin.
type RESTAPI struct {
	Deps
	unheard unheard
}

// NewPlugin makes the plugin.
func NewPlugin(deps Deps) *RESTAPI {
	deps.Name = "restapi"
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.After == nil {
		deps.After = time.After
	}
	return &RESTAPI{Deps: deps}
}

// Init does nothing.
func (p *RESTAPI) Init() error { return nil }

// AfterInit does nothing.
func (p *RESTAPI) AfterInit() error { return nil }

// Close does nothing.
func (p *RESTAPI) Close() error { return nil }

// allowed is whether the peer of a connection may ask anything.
type allowed struct{}

// stopping is the channel that is closed when the agent stops.
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
		Listener: unix, Handler: p.guard(p.Handler()), Limits: p.Limits, Log: p.Log, Base: base,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, allowed{}, peerAllowed(c))
		},
	})
	if p.Listening != nil {
		p.Listening()
	}
	servers := []func() error{func() error { return local.Serve(ctx) }}
	for _, e := range []endpoint{{"rest.listen", p.TCP, p.ReadOnlyHandler()}, {"metrics.listen", p.MetricsTCP, p.MetricsHandler()}} {
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
	return errors.Join(errs...)
}

// maxSocketPath is the longest path of a socket that first has a temporary name.
const maxSocketPath = 107 - len(".new")

// listen makes the socket. One that nobody answers on any more is replaced.
func (p *RESTAPI) listen() (net.Listener, error) {
	fail := func(err error) (net.Listener, error) {
		return nil, fmt.Errorf("listen on %s: %w", p.Socket, err)
	}
	if len(p.Socket) > maxSocketPath {
		return fail(fmt.Errorf("its path has %d bytes, and Linux takes %d: give the agent a shorter run directory", len(p.Socket), maxSocketPath))
	}
	if err := os.MkdirAll(filepath.Dir(p.Socket), 0o700); err != nil {
		return fail(err)
	}
	if c, err := net.DialTimeout("unix", p.Socket, time.Second); err == nil {
		c.Close()
		return fail(errors.New("another agent answers there: give this one a run directory of its own"))
	}
	if err := os.Remove(p.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fail(err)
	}
	// It gets its mode before it gets its name: nobody connects in between.
	tmp := p.Socket + ".new"
	_ = os.Remove(tmp)
	l, err := net.Listen("unix", tmp)
	if err != nil {
		return fail(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err = os.Chmod(tmp, 0o600); err == nil {
		err = os.Rename(tmp, p.Socket)
	}
	if err != nil {
		return fail(errors.Join(err, l.Close()))
	}
	return &ownSocket{l, p.Socket}, nil
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
		if ok, _ := r.Context().Value(allowed{}).(bool); !ok {
			writeError(w, http.StatusForbidden, errors.New("only root and the agent's own user may ask"))
			return
		}
		next.ServeHTTP(w, r)
	})
}
