// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cloudpool is the provider of netresource over any cloud.Cloud: it gives a node
// addresses, or prefixes, of the interfaces of its machine.
//
// One reading of the cloud serves all nodes. Between readings the provider keeps its own
// changes in mind, by interface and by address, until a reading is known to show them
// (Config.Consistency). Something that one reading lacks without a call of this provider
// stays for as long: absence in one reading proves nothing. An address that a reading shows
// on two machines is given to neither, but stays with a node that has it in its pool.
//
// More addresses come from the interface with the most room. If none has room, they come
// from a new interface in the usable subnet of the machine's zone with the most free
// addresses. A call that takes addresses takes as many as are wanted in one request, and a
// new interface is created with them. With Config.Prefixes the unit is a prefix of the
// cloud; a subnet that has no whole prefix left gives single addresses. A dual-stack node
// gets the IPv6 addresses first: the manager counts the IPv4 addresses, and so repeats a
// call of which the second half has failed.
//
// Released are whole free prefixes and addresses, those of the interface with the highest
// device number and the highest address first. An interface that the provider has
// created and that has become empty by that is deleted, unless it is the first one, a
// trunk or an Elastic Fabric Adapter. Each reading is followed by a sweep, at most once a
// minute, or once in OrphanAge if that is less. After Config.OrphanAge the sweep deletes
// orphans, and such interfaces of the nodes' machines that have been empty for that time.
// It leaves machines without a NetResourceSet alone: their agents may ask the cloud
// themselves.
//
// Any goroutine may call any method. No lock is held during a call of the cloud. An error
// of the cloud leaves the provider's state as it was; the manager reads the outcome back.
package cloudpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/operator/netresource"
)

// Config holds the cloud and the settings of a provider. Cloud is needed.
type Config struct {
	Cloud    cloud.Cloud
	IPv4     bool // neither IPv4 nor IPv6: IPv4
	IPv6     bool // with IPv4: a node gets as many addresses of both
	Prefixes bool // nodes get prefixes where the machine's limits permit them
	Pre      int  // free addresses of a node whose NetResourceSet has no preAllocate
	// Consistency limits the time for which a reading may show the state before a change;
	// 0: 1 minute, less: readings are never late.
	Consistency time.Duration
	// OrphanAge is the age of an interface without a machine, and the time for which an
	// interface was empty, before a sweep deletes it; 0: 10 minutes, less: no sweeps.
	OrphanAge time.Duration
	// Fence returns nil if the program still led at some moment after the call. It is
	// called before each deletion of a sweep, and before the second call of an Allocate; the
	// manager has its own. nil: always.
	Fence func(context.Context) error
	Now   func() time.Time // nil: the clock
	Log   *slog.Logger     // nil: slog's default
}

const (
	fullFor       = 2 * time.Minute  // an interface or subnet that was full is not asked again
	fragmentedFor = 10 * time.Minute // a subnet without a whole prefix gives single addresses
	sweepInterval = time.Minute      // between two sweeps; OrphanAge if that is less
	sweepTimeout  = 20 * time.Second // of one sweep
)

// Provider implements netresource.Provider over a cloud. Use New.
type Provider struct {
	config Config

	mu         sync.Mutex
	view       inventory
	nodes      map[string]*node          // by name
	owners     map[string]map[*node]bool // nodes by machine; more than one is an error
	full       map[[2]string]time.Time   // machine, and interface or subnet: until when
	fragmented map[string]time.Time      // subnets: until when
	busy       map[string]int            // interfaces: calls that add to them
	deleting   map[string]bool           // interfaces that are being deleted
	empty      map[item]time.Time        // interfaces without addresses for pods: since when
	sweptAt    time.Time                 // of the last sweep; zero: none yet
}

var _ netresource.Provider = (*Provider)(nil)

// New returns a provider that knows no machine before Read.
func New(c Config) *Provider {
	c.IPv4 = c.IPv4 || !c.IPv6
	c.Consistency = max(cmp.Or(c.Consistency, time.Minute), 0)
	c.OrphanAge = cmp.Or(c.OrphanAge, 10*time.Minute)
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Provider{
		config:     c,
		view:       newInventory(c.Consistency),
		nodes:      map[string]*node{},
		owners:     map[string]map[*node]bool{},
		full:       map[[2]string]time.Time{},
		fragmented: map[string]time.Time{},
		busy:       map[string]int{},
		deleting:   map[string]bool{},
		empty:      map[item]time.Time{},
	}
}

// Traits implements netresource.Provider: the cloud's answers say what it has done.
func (p *Provider) Traits() netresource.Traits { return netresource.Traits{TracksChanges: true} }

// Forget implements netresource.Provider.
func (p *Provider) Forget(_ context.Context, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.nodes[name]; n != nil {
		n.leave()
		delete(p.nodes, name)
	}
	return nil
}

// Quotas implements netresource.Provider. It leaves out subnets whose free addresses the cloud
// does not tell.
func (p *Provider) Quotas(context.Context) (v1alpha1.PoolQuotaMap, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	quotas := v1alpha1.PoolQuotaMap{}
	for id, s := range p.view.subnets {
		if s.Free >= 0 {
			quotas[v1alpha1.PoolID(id)] = v1alpha1.PoolQuota{AvailabilityZone: s.Zone, AvailableIPs: s.Free}
		}
	}
	return quotas, nil
}

// Read implements netresource.Provider: it reads all machines.
func (p *Provider) Read(ctx context.Context) (time.Time, error) {
	begun := p.config.Now()
	read, err := p.config.Cloud.Read(ctx)
	if err == nil && read == nil {
		err = errors.New("neither a snapshot nor an error: want one of them")
	}
	if err != nil {
		return begun, fmt.Errorf("read the machines of the cloud %s: %w", p.config.Cloud.Name(), translated(err))
	}
	p.mu.Lock()
	p.view.read(begun, read)
	first := p.sweptAt.IsZero()
	due := p.config.OrphanAge > 0 && begun.Sub(p.sweptAt) >= p.sweepEvery()
	if due {
		p.sweptAt = begun
	}
	p.mu.Unlock()
	if due && !first {
		p.sweep(ctx)
	}
	return begun, nil
}

// sweepEvery returns the time between two sweeps.
func (p *Provider) sweepEvery() time.Duration { return min(sweepInterval, p.config.OrphanAge) }

// isFull reports whether the cloud has said that an interface, or a subnet for a machine, is
// full. The caller holds mu.
func (p *Provider) isFull(instance, id string) bool {
	return p.config.Now().Before(p.full[[2]string{instance, id}])
}

// isFragmented reports whether a subnet has no whole prefix. The caller holds mu.
func (p *Provider) isFragmented(subnet string) bool {
	return p.config.Now().Before(p.fragmented[subnet])
}

// failed records an error of a call that adds addresses, and returns it as one of
// netresource.
func (p *Provider) failed(instance, id string, err error) error {
	if errors.Is(err, cloud.ErrFull) {
		now := p.config.Now()
		p.mu.Lock()
		for key, until := range p.full {
			if !now.Before(until) {
				delete(p.full, key)
			}
		}
		p.full[[2]string{instance, id}] = now.Add(fullFor)
		p.mu.Unlock()
	}
	return translated(err)
}

// translated adds the error of netresource that one of the cloud stands for.
func translated(err error) error {
	switch {
	case errors.Is(err, cloud.ErrThrottled):
		return fmt.Errorf("%w: %w", netresource.ErrThrottled, err)
	case errors.Is(err, cloud.ErrNoInstance):
		return fmt.Errorf("%w: %w", netresource.ErrInstanceNotFound, err)
	}
	return err
}
