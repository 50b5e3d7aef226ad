// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package dockeripam is Docker's IPAM driver: it serves the engine's remote
// protocol on a unix socket, and the event loop opens and closes the pools of Docker
// networks. Addresses are leases of the same ledger as those of pods.
//
// The plugin owns its socket and the driver (package ipamapi). It starts the driver
// after the loop's first resync; earlier requests wait, and fail after
// Deps.Patience. The event handler belongs to the loop. An answer is sent after its
// changes are durable. The engine may send a request twice: a request that names its
// pool or address gets the same answer again, and a release of an unknown pool or
// address succeeds. If the engine hangs up before it has the answer, the plugin
// releases the pool or the address that it has chosen for the request.
//
// The plugin takes part in the rounds of the witnesses. It is the door through which
// leases of containers that are gone are reclaimed. It gives up requests for pools
// that no network of the engine accounts for.
package dockeripam

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
)

// Deps holds the dependencies of the plugin.
type Deps struct {
	controller.PluginDeps
	EventLoop controller.EventLoop // nil: NewDriver gets no opener
	Stage     *ledger.Stage        // committed by the loop
	// NewDriver returns the driver, which uses the opener. It may wait for the loop.
	NewDriver func(context.Context, ipamapi.PoolOpener) (Driver, error)
	Socket    string
	Listener  net.Listener                         // used instead of Socket, as with socket activation; may be nil
	Patience  time.Duration                        // limit for a request that waits for the driver; 0: 10 s
	After     func(time.Duration) <-chan time.Time // nil: time.After
	Limits    httpserver.Limits
	// Around wraps the handler of the socket; nil: nothing does.
	Around func(http.Handler) http.Handler
}

// Driver answers the engine, lists, keeps and ends its pools for an administrator, and
// releases what the witnesses show to be gone.
// It needs MACs, and no replays.
type Driver interface {
	ipamapi.Ipam
	Pools() []ipamapi.Pool
	EndPool(ctx context.Context, poolID string, force bool) ([]ledger.Lease, error)
	KeepPool(ctx context.Context, poolID string) error
	Observe(ctx context.Context, o ipamapi.Observation) error
	Busy(ledger.Key) bool
	Reclaim(ctx context.Context, l ledger.Lease, reason string) (freed bool, err error)
}

// DockerIPAM is the plugin.
type DockerIPAM struct {
	Deps
	driver Driver
	ready  chan struct{} // closed when driver is set
}

var _ controller.EventHandler = (*DockerIPAM)(nil)

// NewPlugin returns the plugin.
func NewPlugin(deps Deps) *DockerIPAM {
	deps.Name = "dockeripam"
	if deps.Patience == 0 {
		deps.Patience = 10 * time.Second
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.After == nil {
		deps.After = time.After
	}
	return &DockerIPAM{Deps: deps, ready: make(chan struct{})}
}

// Init does nothing.
func (p *DockerIPAM) Init() error { return nil }

// AfterInit does nothing.
func (p *DockerIPAM) AfterInit() error { return nil }

// Close does nothing: networks outlive the process.
func (p *DockerIPAM) Close() error { return nil }

// HandlesEvent selects the changes of Docker's pools. A resync does not change them:
// the ledger keeps them.
func (p *DockerIPAM) HandlesEvent(event controller.Event) bool {
	_, ok := event.(*PoolsChange)
	return ok
}

// Resync is never called.
func (p *DockerIPAM) Resync(controller.Event, controller.KubeStateData, int, controller.ResyncOperations) error {
	return nil
}

// Update stages a change of pools.
func (p *DockerIPAM) Update(event controller.Event, _ controller.UpdateOperations) (string, error) {
	ev := event.(*PoolsChange)
	if err := ev.Change.Stage(p.Stage); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d pools opened, %d closed", len(ev.Change.Open), len(ev.Change.Close)), nil
}

// Revert does nothing: what was staged is undone with the event.
func (p *DockerIPAM) Revert(controller.Event) error { return nil }

// Run starts the driver and returns when ctx ends.
func (p *DockerIPAM) Run(ctx context.Context) error {
	for {
		driver, err := p.start(ctx)
		if err == nil {
			p.driver = driver
			close(p.ready)
			<-ctx.Done()
			return nil
		}
		if ctx.Err() == nil {
			p.Log.Error("the Docker driver cannot start yet, trying again", "error", err)
		}
		select {
		case <-p.After(time.Second):
		case <-ctx.Done():
			return nil
		}
	}
}

// start returns the driver after the loop's first resync: the loop takes no change of
// pools before it.
func (p *DockerIPAM) start(ctx context.Context) (Driver, error) {
	if p.EventLoop == nil {
		return p.NewDriver(ctx, nil)
	}
	pools := opener{p.EventLoop}
	if err := pools.push(ctx, ipamapi.PoolChange{}); err != nil {
		return nil, err
	}
	return p.NewDriver(ctx, pools)
}

// errNotStarted is returned for requests that need the driver before it exists.
var errNotStarted = errors.New("the agent has had no first resync yet: see cadastre status")

// started returns the driver, or errNotStarted.
func (p *DockerIPAM) started() (Driver, error) {
	select {
	case <-p.ready:
		return p.driver, nil
	default:
		return nil, errNotStarted
	}
}

// Pools returns the pools of Docker's networks.
func (p *DockerIPAM) Pools() ([]ipamapi.Pool, error) {
	d, err := p.started()
	if err != nil {
		return nil, fmt.Errorf("list Docker's pools: %w", err)
	}
	return d.Pools(), nil
}

// EndPool ends a pool that the engine does not release, and returns the leases
// that end with it; a pool with leases is ended only with force.
func (p *DockerIPAM) EndPool(ctx context.Context, poolID string, force bool) ([]ledger.Lease, error) {
	d, err := p.started()
	if err != nil {
		return nil, fmt.Errorf("end Docker's pool %q: %w", poolID, err)
	}
	return d.EndPool(ctx, poolID, force)
}

// Serve answers the engine until ctx ends, then finishes the open requests.
func (p *DockerIPAM) Serve(ctx context.Context) error {
	l := p.Listener
	if l == nil {
		var err error
		if l, err = p.listen(); err != nil {
			return err
		}
		defer func() { _ = os.Remove(p.Socket) }()
	}
	handler := p.Handler()
	if p.Around != nil {
		handler = p.Around(handler)
	}
	// Base ends the requests that wait for the driver.
	server := httpserver.New(httpserver.Config{
		Listener: l,
		Handler:  handler,
		Limits:   p.Limits,
		Log:      p.Log,
		Base:     ctx,
	})
	return server.Serve(ctx)
}

// maxSocketPath is the longest path of a socket that first has a temporary name.
const maxSocketPath = 107 - len(".new")

// listen creates the socket. It gets its mode before it gets its name.
func (p *DockerIPAM) listen() (net.Listener, error) {
	fail := func(err error) (net.Listener, error) {
		return nil, fmt.Errorf("listen for Docker on %s: %w", p.Socket, err)
	}
	if len(p.Socket) > maxSocketPath {
		return fail(fmt.Errorf("its path has %d bytes, and Linux takes %d: set cadastre.docker.socket",
			len(p.Socket), maxSocketPath))
	}
	if err := os.MkdirAll(filepath.Dir(p.Socket), 0o755); err != nil {
		return fail(err)
	}
	if c, err := net.DialTimeout("unix", p.Socket, time.Second); err == nil {
		_ = c.Close()
		return fail(errors.New("another program answers there: set cadastre.docker.socket"))
	}
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
		return fail(errors.Join(err, l.Close(), os.Remove(tmp)))
	}
	return l, nil
}
