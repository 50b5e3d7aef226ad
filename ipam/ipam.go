// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cadastre/cadastre/ledger"
)

// IPAM is the address manager of a node. Use New or NewIPAM; any goroutine may
// call its methods.
type IPAM struct {
	// IPv6Allocator allocates IPv6 addresses; nil if they are disabled. Before its
	// first call of the IPAM, a caller may set its own allocator here, or nil. The
	// IPAM then calls that allocator, one call at a time, and the ledger has none of
	// its addresses.
	IPv6Allocator Allocator
	// IPv4Allocator allocates IPv4 addresses, under the same rules.
	IPv4Allocator Allocator

	broken   error // of New in NewIPAM, which returns no error
	deps     Deps
	mode     Mode
	named    string // the mode's published name
	log      *slog.Logger
	pool     ledger.Pool
	families families
	replays  ledger.Replays

	snapshot atomic.Pointer[snapshot] // of resources: allocations take no lock
	restored [2]atomic.Bool
	wake     chan struct{} // Sync has something to report
	changed  chan struct{} // the same for a Source

	replacedMu sync.Mutex // held while an allocator of the caller is called

	change    sync.Mutex // held during a change of blocks
	resources resources
	unsure    bool          // the last grant of single addresses has failed
	updated   chan struct{} // closed and replaced when a NetResourceSet was applied
}

var (
	_ IPAMAllocator = (*IPAM)(nil)
	_ StatusObject  = (*IPAM)(nil)
)

// Deps holds the dependencies and parameters of an IPAM.
type Deps struct {
	Name   string           // of the node's NetResourceSet
	Node   NodeAddressing   // required in host scope
	Config Configuration    // required
	Owner  Owner            // may be nil
	Events K8sEventRegister // may be nil: then the program calls Update
	Ledger *ledger.Ledger   // nil: a new one in memory
	Grants Granter          // nil: the IPAM is the only owner of the ledger's pools
	Pool   ledger.Pool      // of the ledger; without a name: DefaultPool
	Door   string           // the network in the keys of leases; "": DefaultDoor
	UUID   func() string    // of expiration timers; nil: random ones
	Log    *slog.Logger     // nil: none
	// Metrics counts the calls; nil: none do.
	Metrics *Metrics
}

// DefaultDoor is the network in the keys of an IPAM's leases.
const DefaultDoor = "ipam"

// DefaultPool returns the ledger's pool of an IPAM that is given none. It has no
// cool-down.
func DefaultPool() ledger.Pool { return ledger.Pool{Name: "ipam", ReserveEdges: true} }

// LedgerOwner is an Owner that provides the ledger of NewIPAM.
type LedgerOwner interface {
	// Ledger returns the ledger to allocate from.
	Ledger() *ledger.Ledger
}

// NewIPAM returns an IPAM as the published function does. If New fails, where the
// published function ends the process, every call of the IPAM returns the error,
// as Err does. The IPAM allocates from the owner's ledger if the owner is a
// LedgerOwner, otherwise from one in memory. If the addresses are those of a NetResourceSet,
// NewIPAM subscribes to it, and then calls UpdateNetResourceSetResource of the owner, which
// waits until the object exists. A Source is an owner and a
// K8sEventRegister that connects the IPAM with the node's NetResourceSet. With a
// Source, NewIPAM returns when the IPAM is Ready, as the published function does:
// then the program restores the addresses of its running pods. It also returns
// when the Source ends.
func NewIPAM(
	networkResourceSetName string,
	nodeAddressing NodeAddressing,
	c Configuration,
	owner Owner,
	k8sEventReg K8sEventRegister,
	_ MtuConfiguration,
) *IPAM {
	deps := Deps{Name: networkResourceSetName, Node: nodeAddressing, Config: c, Owner: owner, Events: k8sEventReg}
	if provider, ok := owner.(LedgerOwner); ok {
		deps.Ledger = provider.Ledger()
	}
	if provider, ok := owner.(MetricsOwner); ok {
		deps.Metrics = provider.Metrics()
	}
	m, err := New(context.Background(), deps)
	if err != nil {
		return &IPAM{broken: err}
	}
	if source, ok := owner.(*Source); ok {
		source.await(m)
	} else if owner != nil && m.followsSets() {
		owner.UpdateNetResourceSetResource()
	}
	return m
}

// New returns an IPAM with the leases of earlier processes.
func New(ctx context.Context, deps Deps) (*IPAM, error) {
	err := context.Cause(ctx)
	var m *IPAM
	if err == nil {
		m, err = build(ctx, deps)
	}
	if err == nil {
		err = m.open(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("make an IPAM: %w", err)
	}
	return m, nil
}

// build returns an IPAM without blocks.
func build(ctx context.Context, deps Deps) (*IPAM, error) {
	if deps.Config == nil {
		return nil, errors.New("a configuration is needed")
	}
	mode, err := ParseMode(deps.Config.IPAMMode())
	if err != nil {
		return nil, err
	}
	if deps.Ledger == nil {
		if deps.Ledger, err = ledger.Open(ctx, ledger.NullJournal{}, ledger.Options{Log: deps.Log}); err != nil {
			return nil, err
		}
	}
	deps.defaults()
	m := &IPAM{
		deps:     deps,
		mode:     mode,
		named:    deps.Config.IPAMMode(),
		log:      deps.Log,
		pool:     deps.Pool,
		families: makeFamilies(),
		wake:     make(chan struct{}, 1),
		changed:  make(chan struct{}, 1),
		updated:  make(chan struct{}),
	}
	m.snapshot.Store(&snapshot{})
	deps.Metrics.of(m)
	if mode == Given {
		m.pool.ReserveEdges = false // each block is one address
	}
	enabled := func(f ledger.Family, on bool) Allocator {
		switch {
		case !on:
			m.restored[f].Store(true)
			return nil
		case mode == Delegated:
			return delegated{}
		}
		return &allocator{m, f}
	}
	m.IPv4Allocator = enabled(ledger.IPv4, deps.Config.IPv4Enabled())
	m.IPv6Allocator = enabled(ledger.IPv6, deps.Config.IPv6Enabled())
	return m, nil
}

func (d *Deps) defaults() {
	if d.Grants == nil {
		d.Grants = NewDirectGranter(d.Ledger)
	}
	if d.Pool.Name == "" {
		d.Pool = DefaultPool()
	}
	if d.Door == "" {
		d.Door = DefaultDoor
	}
	if d.UUID == nil {
		d.UUID = randomUUID
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
}

// randomUUID returns a UUID of version 4.
func randomUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// open grants the known blocks and subscribes to NetResourceSets.
func (m *IPAM) open(ctx context.Context) error {
	m.replays.Begin(m.leases())
	switch m.mode {
	case HostScope:
		blocks, err := m.nodeBlocks()
		if err != nil {
			return err
		}
		if err := m.deps.Grants.Grant(ctx, m.pool, blocks); err != nil {
			return err
		}
		m.notifyOwner(blocks)
	case ClusterPool, Given:
		if err := m.reload(ctx); err != nil {
			return err
		}
		if m.deps.Events != nil {
			m.deps.Events.RegisterNetResourceSetSubscriber(subscriber{m})
		}
	}
	return nil
}

// nodeBlocks returns the blocks of a node in host scope.
func (m *IPAM) nodeBlocks() (blocks []netip.Prefix, err error) {
	if m.deps.Node == nil {
		return nil, errors.New("host scope: the node's addressing is needed")
	}
	for f, addressing := range []func() NodeAddressingFamily{m.deps.Node.IPv4, m.deps.Node.IPv6} {
		if m.allocatorOf(ledger.Family(f)) == nil {
			continue
		}
		var cidr *CIDR
		if a := addressing(); a != nil {
			cidr = a.AllocationCIDR()
		}
		p := cidr.Prefix()
		switch {
		case !p.IsValid() || ledger.FamilyOf(p.Addr()) != ledger.Family(f):
			return nil, fmt.Errorf("host scope: allocation CIDR %v: want a CIDR of family %s", cidr, ledger.Family(f))
		case !hasPodAddress(p):
			return nil, fmt.Errorf(
				"host scope: allocation CIDR %s has no address beside its first and last one: want at least a /30 (IPv4) or /126 (IPv6)",
				p,
			)
		}
		blocks = append(blocks, p)
	}
	return blocks, nil
}

// hasPodAddress reports whether a CIDR has more than its first and last address.
func hasPodAddress(p netip.Prefix) bool { return p.Addr().BitLen()-p.Bits() >= 2 }

// Err returns the error of New in NewIPAM, or nil.
func (m *IPAM) Err() error { return m.broken }

// Mode returns the mode of the IPAM.
func (m *IPAM) Mode() Mode { return m.mode }

func (m *IPAM) allocatorOf(f ledger.Family) Allocator {
	if f == ledger.IPv4 {
		return m.IPv4Allocator
	}
	return m.IPv6Allocator
}

// usable returns why addresses of f cannot be allocated, or nil.
func (m *IPAM) usable(f ledger.Family) error {
	switch {
	case m.broken != nil:
		return m.broken
	case m.allocatorOf(f) == nil:
		return disabled(f)
	case m.mode == Delegated:
		if _, ok := m.replaced(f); !ok {
			return ErrDelegated
		}
	}
	return nil
}

// leases returns the leases of the pool without the cooling ones.
func (m *IPAM) leases() []ledger.Lease {
	return slices.DeleteFunc(m.deps.Ledger.LeasesOf(m.pool.Name), func(l ledger.Lease) bool {
		return l.State == ledger.Cooling
	})
}

// ours reports whether this IPAM has claimed a lease.
func (m *IPAM) ours(l *ledger.Lease) bool { return l.Key.Network == m.deps.Door }

func (m *IPAM) key(owner string) ledger.Key {
	return ledger.Key{Network: m.deps.Door, ContainerID: owner}
}

// poke wakes Sync and the Source.
func (m *IPAM) poke() {
	for _, ch := range []chan struct{}{m.wake, m.changed} {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}
