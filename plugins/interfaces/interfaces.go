// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/backoff"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// Deps lists the dependencies of the plugin.
type Deps struct {
	Log       *slog.Logger
	Config    contivconf.Interfaces
	Families  []ledger.Family // of which pods get addresses
	Ledger    *ledger.Ledger
	EventLoop controller.EventLoop
	Records   Records // the plugin is the only writer
	// Open returns the cloud. It is called until it succeeds.
	Open func(ctx context.Context) (cloud.Cloud, error)
	// Instance returns the ID of this machine, "" if neither the configuration nor the
	// Node object has it.
	Instance func(ctx context.Context) (string, error)
	// Unschedulable reports whether the node takes no further pods: it is cordoned. nil:
	// never.
	Unschedulable func(ctx context.Context) (bool, error)
	Now           func() time.Time
	Uptime        func() time.Duration // time since boot; never goes back
	After         func(time.Duration) <-chan time.Time
}

// Records stores the records of the interfaces.
type Records interface {
	// Load calls f for every record.
	Load(ctx context.Context, f func(key string, value []byte) error) error
	// Commit puts and deletes all of these or none, and returns when that is durable.
	Commit(ctx context.Context, put map[string][]byte, del []string) error
}

const (
	every        = 5 * time.Second        // period of the comparison with the targets
	gather       = 200 * time.Millisecond // from a change of leases to the comparison
	shrinkEvery  = 30 * time.Second       // least time between two returns of addresses
	confirm      = 30 * time.Second       // from a reading that lacks something to the one that confirms it
	lateness     = time.Minute            // for which a reading may show the state before a change
	exhaustedFor = 2 * time.Minute        // for which the cloud is not asked again after it had no address
	surprise     = 10 * time.Second       // from an error of the cloud that it is full to the reading that confirms it
	orphanEvery  = 5 * time.Minute        // period of the deletion of orphans
	orphanAge    = 10 * time.Minute       // of an interface without a machine that is deleted
	nodeEvery    = 10 * time.Second       // least time between two questions whether the node is schedulable
	nodeTimeout  = 5 * time.Second        // of one question
	callTimeout  = time.Minute            // of one call of the cloud
)

// retries returns the pauses after errors.
func retries() backoff.Policy { return backoff.Policy{First: time.Second, Limit: 30 * time.Second} }

// Interfaces keeps addresses of this machine's interfaces free. Use New. Run has the only
// goroutine that changes it; any goroutine may call the other methods.
type Interfaces struct {
	deps    Deps
	log     *slog.Logger
	targets targets
	metrics *metrics
	wake    chan struct{}
	known   ipam.InterfaceState // of the last process

	// of Run's goroutine
	cloud    cloud.Cloud
	instance string
	replaced bool // the records have interfaces of another machine, which had this node before
	view     view
	readAt   time.Time // begin of the reading

	machine   machine                        // as the ledger and the records have it
	stored    map[string]record              // as they are stored, by interface
	returning map[netip.Prefix]returning     // blocks on their way back to the cloud
	deleted   map[string]time.Duration       // interfaces that were removed or deleted: uptime
	removed   map[netip.Prefix]time.Duration // blocks that the cloud no longer has: uptime
	imported  []lease                        // of the checkpoint, not claimed yet

	unconfirmed   map[string][]netip.Prefix       // blocks that only one reading has lacked, by interface
	found         bool                            // a reading is being adopted
	unschedulable bool                            // the node, when it was asked last
	toDelete      map[string]bool                 // interfaces that the cloud has to delete
	refused       []ipam.RefusedBlock             // of the last grant: pods cannot have their addresses
	exhausted     map[ledger.Family]time.Duration // uptime until which the cloud is not asked
	unwanted      map[string][]netip.Prefix       // refused blocks that the cloud has just given, by interface
	failures      int                             // of the cloud in a row
	failedReturns map[string]time.Duration        // interfaces from which the last return has failed: uptime
	returns       returns
	next          next
	exported      *checkpoint

	mu     sync.Mutex
	status Status
}

// returns holds the failures of returns to the cloud. They do not keep pods from getting
// addresses: the machine may lack only the permission to return.
type returns struct {
	failures int           // in a row
	next     time.Duration // uptime of the next try
	err      string        // of the last try; "": it has succeeded
}

// next holds the uptimes at which something is due.
type next struct{ call, reading, shrink, orphans, node time.Duration }

var (
	_ ipam.Interfaces      = (*Interfaces)(nil)
	_ controller.Committer = (*Interfaces)(nil)
)

// New returns a plugin with the interfaces of the last process. It calls no cloud.
func New(ctx context.Context, deps Deps) (*Interfaces, error) {
	c := deps.Config
	p := &Interfaces{
		deps: deps,
		log:  deps.Log,
		targets: targets{
			warmInterfaces: c.WarmInterfaces,
			warmIPs:        c.WarmIPs,
			minimumIPs:     c.MinimumIPs,
			warmPrefixes:   c.WarmPrefixes,
			maxPods:        c.MaxPods,
			prefixes:       c.Prefixes,
		},
		wake:          make(chan struct{}, 1),
		view:          newView(),
		machine:       machine{},
		stored:        map[string]record{},
		returning:     map[netip.Prefix]returning{},
		deleted:       map[string]time.Duration{},
		removed:       map[netip.Prefix]time.Duration{},
		toDelete:      map[string]bool{},
		exhausted:     map[ledger.Family]time.Duration{},
		unwanted:      map[string][]netip.Prefix{},
		failedReturns: map[string]time.Duration{},
	}
	p.metrics = newMetrics(p.Status)
	if err := p.load(ctx); err != nil {
		return nil, fmt.Errorf("load the interfaces: %w", err)
	}
	p.known = p.lastKnown()
	p.publish()
	return p, nil
}

// Metrics returns the metrics, to be registered.
func (p *Interfaces) Metrics() prometheus.Collector { return p.metrics }

// Commit wakes the comparison with the targets. The loop calls it after the ledger's
// stage.
func (p *Interfaces) Commit(context.Context) error {
	p.Wake()
	return nil
}

// Undo does nothing.
func (p *Interfaces) Undo() {}

// Wake brings the next comparison with the targets forward.
func (p *Interfaces) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run keeps the addresses at their targets until ctx ends.
func (p *Interfaces) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		wait := p.round(ctx)
		select {
		case <-ctx.Done():
		case <-p.deps.After(wait):
		case <-p.wake:
			select { // further changes of leases come together
			case <-ctx.Done():
			case <-p.deps.After(gather):
			}
		}
	}
	p.export()
	return nil
}

// round does all that is due, and returns the time until the next round.
func (p *Interfaces) round(ctx context.Context) time.Duration {
	defer p.publish()
	p.export()
	if now := p.deps.Uptime(); now < p.next.call {
		return min(every, p.next.call-now)
	}
	err := p.work(ctx)
	switch {
	case ctx.Err() != nil:
		return 0
	case err != nil:
		p.failed(err)
	default:
		p.failures = 0
		p.setError(p.returns.err)
	}
	return every
}

// work calls the cloud for all that is due. After an error the outcome of the last call
// is not known, and the next work begins with a reading.
func (p *Interfaces) work(ctx context.Context) error {
	now := p.deps.Uptime()
	if now >= p.next.reading || !p.view.valid() {
		if err := p.read(ctx); err != nil {
			return err
		}
	}
	if err := p.goBack(now, func() error { return p.giveBack(ctx) }); err != nil {
		return err
	}
	for _, f := range p.deps.Families {
		if err := p.grow(ctx, f); err != nil {
			return err
		}
	}
	if now >= p.next.shrink {
		p.next.shrink = now + shrinkEvery
		if err := p.goBack(now, func() error { return p.shrink(ctx) }); err != nil {
			return err
		}
	}
	if now >= p.next.orphans {
		p.next.orphans = now + orphanEvery
		return p.deleteOrphans(ctx)
	}
	return nil
}

// goBack runs a return to the cloud, unless one has failed a short time ago. It returns only
// the error of a cloud that wants fewer calls.
func (p *Interfaces) goBack(now time.Duration, give func() error) error {
	if now < p.returns.next {
		return nil
	}
	err := give()
	switch {
	case err == nil:
		p.returns = returns{}
	case errors.Is(err, cloud.ErrThrottled):
		return err
	default:
		p.returns.failures++
		p.metrics.failed("return")
		if p.returns.failures == 1 {
			p.log.Warn("addresses cannot be returned to the cloud, trying again", "error", err)
		}
		p.returns.err = err.Error()
		p.returns.next = p.deps.Uptime() + retries().After(p.returns.failures)
		p.next.reading = min(p.next.reading, p.returns.next) // the outcome is not known
	}
	return nil
}

// failed notes an error, and waits longer after each one.
func (p *Interfaces) failed(err error) {
	p.failures++
	p.metrics.failed("round")
	if p.failures == 1 {
		p.log.Warn("the interfaces of this machine cannot be changed, trying again", "error", err)
	}
	now := p.deps.Uptime()
	p.next.call = now + retries().After(p.failures)
	p.next.reading = p.next.call
	p.setError(err.Error())
}

// call runs one call of the cloud within its time, and counts it.
func (p *Interfaces) call(ctx context.Context, name string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := f(ctx); err != nil {
		p.metrics.failed(name)
		return fmt.Errorf("cloud %s: %s: %w", p.cloud.Name(), name, err)
	}
	return nil
}
