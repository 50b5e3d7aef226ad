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

// IPAM is an address manager. Use New or NewIPAM; any goroutine may call it.
type IPAM struct {
	// IPv6Allocator allocates IPv6 addresses; nil if they are disabled. A caller may
	// put an allocator of its own here, or nil, before it calls the IPAM: that one is
	// asked then, one call at a time, and the ledger has none of its addresses.
	IPv6Allocator Allocator
	// IPv4Allocator allocates IPv4 addresses, likewise.
	IPv4Allocator Allocator

	broken   error // why New failed, for NewIPAM, which cannot say it
	deps     Deps
	mode     Mode
	named    string // the mode's published name
	log      *slog.Logger
	pool     ledger.Pool
	families families
	replays  ledger.Replays

	// view is what the last NetResourceSet says; allocations read it without a lock.
	view     atomic.Pointer[view]
	restored [2]atomic.Bool
	wake     chan struct{} // there may be something to report

	externals externals // addresses of allocators of the caller

	change  sync.Mutex // one change of blocks at a time
	source  source
	updated chan struct{} // closed and made anew when a NetResourceSet has come
}

var (
	_ IPAMAllocator = (*IPAM)(nil)
	_ StatusObject  = (*IPAM)(nil)
)

// Deps is what an IPAM is made of.
type Deps struct {
	Name   string           // of the node's NetResourceSet
	Node   NodeAddressing   // needed in host scope
	Config Configuration    // needed
	Owner  Owner            // may be nil
	Events K8sEventRegister // may be nil: then NetResourceSets come through Update
	Ledger *ledger.Ledger   // the book; nil: one in memory, which forgets
	Grants Granter          // nil: nobody else changes the ledger's pools
	Pool   ledger.Pool      // of the ledger; without a name: DefaultPool
	Door   string           // under which the leases are kept; "": DefaultDoor
	UUID   func() string    // of expiration timers; nil: random ones
	Log    *slog.Logger     // nil: none
}

// DefaultDoor is the network in the keys of an IPAM's leases.
const DefaultDoor = "ipam"

// DefaultPool is the ledger's pool of an IPAM that is given none: an address
// that is released can be lent again at once.
func DefaultPool() ledger.Pool { return ledger.Pool{Name: "ipam", ReserveEdges: true} }

// Lender is an Owner that has a ledger, for NewIPAM.
type Lender interface {
	// Ledger is the book to be used.
	Ledger() *ledger.Ledger
}

// NewIPAM makes an IPAM as the published function does. Where that would end
// the process, every call of the IPAM returns the reason, as Err does. Its book
// is the owner's, if that is a Lender, else one in memory.
func NewIPAM(networkResourceSetName string, nodeAddressing NodeAddressing, c Configuration, owner Owner, k8sEventReg K8sEventRegister, _ MtuConfiguration) *IPAM {
	deps := Deps{Name: networkResourceSetName, Node: nodeAddressing, Config: c, Owner: owner, Events: k8sEventReg}
	if lender, ok := owner.(Lender); ok {
		deps.Ledger = lender.Ledger()
	}
	m, err := New(context.Background(), deps)
	if err != nil {
		return &IPAM{broken: err}
	}
	return m
}

// New makes an IPAM. Leases of an earlier process are there again.
func New(ctx context.Context, deps Deps) (*IPAM, error) {
	m, err := build(ctx, deps)
	if err == nil {
		err = m.open(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("make an IPAM: %w", err)
	}
	return m, nil
}

// build makes an IPAM that has no block yet.
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
		deps: deps, mode: mode, named: deps.Config.IPAMMode(), log: deps.Log, pool: deps.Pool, families: makeFamilies(),
		wake: make(chan struct{}, 1), updated: make(chan struct{}),
	}
	m.view.Store(&view{})
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

// randomUUID is an UUID of version 4.
func randomUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// open gives the pool the blocks that are known, and begins to listen for more.
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
		m.tellOwner(blocks)
	case ClusterPool, Given:
		if err := m.adopt(ctx); err != nil {
			return err
		}
		if m.deps.Events != nil {
			m.deps.Events.RegisterNetResourceSetSubscriber(subscriber{m})
		}
	}
	return nil
}

// nodeBlocks are the blocks of a node in host scope.
func (m *IPAM) nodeBlocks() (blocks []netip.Prefix, err error) {
	if m.deps.Node == nil {
		return nil, errors.New("host scope: the node's addressing is needed")
	}
	for f, side := range []func() NodeAddressingFamily{m.deps.Node.IPv4, m.deps.Node.IPv6} {
		if m.allocatorOf(ledger.Family(f)) == nil {
			continue
		}
		var cidr *CIDR
		if s := side(); s != nil {
			cidr = s.AllocationCIDR()
		}
		p := cidr.Prefix()
		switch {
		case !p.IsValid() || ledger.FamilyOf(p.Addr()) != ledger.Family(f):
			return nil, fmt.Errorf("host scope: allocation CIDR %v of %s is none of that family", cidr, ledger.Family(f))
		case !lendable(p):
			return nil, fmt.Errorf("host scope: allocation CIDR %s has no address to lend beside its first and last one: a /30 (IPv4) or /126 (IPv6) is the least", p)
		}
		blocks = append(blocks, p)
	}
	return blocks, nil
}

// lendable is true for a CIDR that has more than its first and its last address.
func lendable(p netip.Prefix) bool { return p.Addr().BitLen()-p.Bits() >= 2 }

// Err is why NewIPAM could not make the IPAM work; nil where it did.
func (m *IPAM) Err() error { return m.broken }

// Mode is where addresses come from.
func (m *IPAM) Mode() Mode { return m.mode }

func (m *IPAM) allocatorOf(f ledger.Family) Allocator {
	if f == ledger.IPv4 {
		return m.IPv4Allocator
	}
	return m.IPv6Allocator
}

// usable is why addresses of f cannot be had.
func (m *IPAM) usable(f ledger.Family) error {
	switch {
	case m.broken != nil:
		return m.broken
	case m.allocatorOf(f) == nil:
		return disabled(f)
	case m.mode == Delegated:
		if _, ok := m.external(f); !ok {
			return ErrDelegated
		}
	}
	return nil
}

// leases are the ledger's leases of the pool, but those that are cooling.
func (m *IPAM) leases() []ledger.Lease {
	return slices.DeleteFunc(m.deps.Ledger.Leases(), func(l ledger.Lease) bool {
		return l.Pool != m.pool.Name || l.State == ledger.Cooling
	})
}

// ours is true for a lease that was taken through this door.
func (m *IPAM) ours(l *ledger.Lease) bool { return l.Key.Network == m.deps.Door }

func (m *IPAM) key(owner string) ledger.Key {
	return ledger.Key{Network: m.deps.Door, ContainerID: owner}
}

// poke wakes Sync.
func (m *IPAM) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}
