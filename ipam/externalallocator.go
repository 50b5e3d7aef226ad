// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// externals are the addresses of allocators that the caller has put into an IPAM,
// with their owners and timers, in memory. mu is held while such an allocator is
// asked, so that it is asked by one goroutine at a time, as the published package does.
type externals struct {
	mu   sync.Mutex
	held map[netip.Addr]*externalLease
}

// externalLease is an address of an allocator of the caller.
type externalLease struct {
	owner     string
	container string // "": it was not taken for a container
	result    *AllocationResult
	timer     *time.Timer // nil: none runs
	token     string      // of the timer
}

// claim holds a request to several allocators at once.
type claim struct {
	owner     string
	container string
	key       ledger.Key // for what comes from the ledger
	more      bool       // likewise: more addresses for a key that has some
	timeout   time.Duration
}

// external returns the allocator that the caller has put in the place of the IPAM's own.
func (m *IPAM) external(f ledger.Family) (Allocator, bool) {
	if m.broken != nil {
		return nil, false
	}
	switch a := m.allocatorOf(f).(type) {
	case nil:
		return nil, false
	case *allocator:
		return a, a.m != m || a.family != f
	case delegated:
		return a, m.mode != Delegated
	default:
		return a, true
	}
}

func (m *IPAM) hasExternal(fs []ledger.Family) bool {
	return slices.ContainsFunc(fs, func(f ledger.Family) bool {
		_, ok := m.external(f)
		return ok
	})
}

// holdsOwn reports whether the ledger has a lease of the address, and no allocator
// of the caller does.
func (m *IPAM) holdsOwn(a netip.Addr) bool {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	if m.externals.held[a] != nil {
		return false
	}
	l, ok := m.deps.Ledger.Lookup(m.pool.Name, a)
	return ok && m.ours(&l)
}

// takeExternal takes a certain address.
func (m *IPAM) takeExternal(x Allocator, a netip.Addr, owner string, report bool) (*AllocationResult, error) {
	if e, ok := m.deps.Ledger.Excluded(m.pool.Name, a); ok {
		return nil, allocation(a.String(), owner, fmt.Errorf("%w by %q", ErrBlacklisted, e.Owner))
	}
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	take := x.AllocateWithoutSyncUpstream
	if report {
		take = x.Allocate
	}
	r, err := take(a.AsSlice(), owner)
	if err == nil {
		_, err = m.record(r, claim{owner: owner})
	}
	if err != nil {
		return nil, allocation(a.String(), owner, err)
	}
	return r, nil
}

// record notes the owner of an address. The lock of externals is held.
func (m *IPAM) record(r *AllocationResult, c claim) (netip.Addr, error) {
	if r == nil {
		return netip.Addr{}, errors.New("the allocator has returned neither an address nor an error")
	}
	a, ok := netip.AddrFromSlice(r.IP)
	if !ok {
		return netip.Addr{}, badBytes(r.IP)
	}
	if m.externals.held == nil {
		m.externals.held = map[netip.Addr]*externalLease{}
	}
	a = a.Unmap()
	m.externals.held[a] = &externalLease{owner: c.owner, container: c.container, result: r}
	return a, nil
}

// nextExternal takes any address. A blacklisted one stays with its allocator, so
// that the next one is another.
func (m *IPAM) nextExternal(x Allocator, f ledger.Family, c claim, report bool) (*AllocationResult, error) {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	next := x.AllocateNextWithoutSyncUpstream
	if report {
		next = x.AllocateNext
	}
	for {
		r, err := next(c.owner)
		if err != nil {
			return nil, err
		}
		a, err := m.record(r, c)
		if err != nil {
			return nil, err
		}
		if ledger.FamilyOf(a) != f {
			return nil, errors.Join(fmt.Errorf("the allocator of family %s has returned %s", f, a), m.giveBack(x, a))
		}
		if _, excluded := m.deps.Ledger.Excluded(m.pool.Name, a); excluded {
			m.externals.held[a].owner, m.externals.held[a].container = c.owner+" (blacklisted)", ""
			continue
		}
		if c.timeout != 0 {
			e := ledger.Expiry{Token: m.deps.UUID(), After: c.timeout}
			m.start(x, a, e)
			r.ExpirationUUID = e.Token
		}
		return r, nil
	}
}

// nextOfEach takes an address of each family, all or none, IPv6 first. A container
// that has one of a family keeps it.
func (m *IPAM) nextOfEach(fs []ledger.Family, c claim) (ipv4Result, ipv6Result *AllocationResult, err error) {
	var undo func() error
	for _, f := range []ledger.Family{ledger.IPv6, ledger.IPv4} {
		if !slices.Contains(fs, f) {
			continue
		}
		r, back, err := m.nextFrom(f, c)
		if err != nil {
			if undo != nil {
				err = errors.Join(err, undo())
			}
			return nil, nil, err
		}
		if undo = back; f == ledger.IPv4 {
			ipv4Result = r
		} else {
			ipv6Result = r
		}
	}
	return ipv4Result, ipv6Result, nil
}

// nextFrom takes an address from the allocator of a family; undo gives it back, and
// is nil if the container had it before.
func (m *IPAM) nextFrom(f ledger.Family, c claim) (r *AllocationResult, undo func() error, err error) {
	x, ok := m.external(f)
	if !ok {
		return m.nextFromLedger(f, c)
	}
	if r := m.heldBy(f, c); r != nil {
		return r, nil, nil
	}
	if r, err = m.nextExternal(x, f, c, true); err != nil {
		return nil, nil, err
	}
	a, _ := netip.AddrFromSlice(r.IP)
	return r, func() error { return m.releaseExternal(x, a.Unmap()) }, nil
}

// nextFromLedger is nextFrom of a family without an allocator of the caller.
func (m *IPAM) nextFromLedger(f ledger.Family, c claim) (r *AllocationResult, undo func() error, err error) {
	v := m.view.Load()
	if v.strict && v.set == nil {
		return nil, nil, errNoSet()
	}
	var e ledger.Expiry
	if c.timeout != 0 {
		e = ledger.Expiry{Token: m.deps.UUID(), After: c.timeout}
	}
	ctx := context.Background()
	leases, fresh, err := m.deps.Ledger.Claim(ctx, ledger.Request{
		Pool: m.pool.Name, Key: c.key, Families: m.families.one[f], Within: v.within, More: c.more, Expiry: e,
	})
	if err != nil {
		return nil, nil, err
	}
	i := slices.IndexFunc(leases, func(l ledger.Lease) bool { return ledger.FamilyOf(l.Addr) == f })
	if i < 0 {
		return nil, nil, fmt.Errorf("%w: it was given addresses before, and none of %s", ledger.ErrKeyHeld, f)
	}
	m.poke()
	if fresh {
		undo = func() error {
			_, err := m.deps.Ledger.Free(ctx, ledger.Selector{Addr: leases[i].Addr, Pool: m.pool.Name, Network: c.key.Network})
			return err
		}
	}
	return m.result(v, leases[i].Addr, leases[i].Expiry.Token), undo, nil
}

// heldBy returns what a container has of a family.
func (m *IPAM) heldBy(f ledger.Family, c claim) *AllocationResult {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	for a, l := range m.externals.held {
		if c.container != "" && l.container == c.container && l.owner == c.owner && ledger.FamilyOf(a) == f {
			return l.result
		}
	}
	return nil
}

// releaseExternal gives an address back to its allocator.
func (m *IPAM) releaseExternal(x Allocator, a netip.Addr) error {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	return m.giveBack(x, a)
}

// giveBack is releaseExternal with the lock held. Only when the allocator has the
// address its owner and its timer are forgotten.
func (m *IPAM) giveBack(x Allocator, a netip.Addr) error {
	if err := x.Release(a.AsSlice()); err != nil {
		return &callError{"release", a.String(), "", err}
	}
	if l := m.externals.held[a]; l != nil && l.timer != nil {
		l.timer.Stop()
	}
	delete(m.externals.held, a)
	return nil
}

// releaseOwner gives back what an owner, or one of its containers, has of
// allocators of the caller, and returns how many addresses those are.
func (m *IPAM) releaseOwner(owner, container string) (n int, err error) {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	for a, l := range m.externals.held {
		if l.owner != owner || l.container != container {
			continue
		}
		if x, ok := m.external(ledger.FamilyOf(a)); ok {
			n++
			err = errors.Join(err, m.giveBack(x, a))
		}
	}
	return n, err
}

// startTimer has an address given back after a time.
func (m *IPAM) startTimer(x Allocator, a netip.Addr, e ledger.Expiry) error {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	switch l := m.externals.held[a]; {
	case l == nil:
		return fmt.Errorf("start an expiration timer for %s: it is not allocated", a)
	case l.timer != nil:
		return fmt.Errorf("start an expiration timer for %s: one is already registered", a)
	}
	m.start(x, a, e)
	return nil
}

// start is startTimer for an address that has no timer. The lock is held.
func (m *IPAM) start(x Allocator, a netip.Addr, e ledger.Expiry) {
	l := m.externals.held[a]
	l.token = e.Token
	l.timer = time.AfterFunc(e.After, func() {
		m.externals.mu.Lock()
		defer m.externals.mu.Unlock()
		if m.externals.held[a] != l || l.token != e.Token || l.timer == nil {
			return
		}
		l.timer = nil
		if err := m.giveBack(x, a); err != nil {
			m.log.Warn("an address whose timer has expired could not be released", "address", a, "owner", l.owner, "error", err)
		}
	})
}

// stopTimer keeps an address from being given back.
func (m *IPAM) stopTimer(a netip.Addr, token string) error {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	switch l := m.externals.held[a]; {
	case l == nil || l.timer == nil:
		return fmt.Errorf("stop the expiration timer of %s: none is registered", a)
	case l.token != token:
		return fmt.Errorf("stop the expiration timer of %s: UUID %q does not match", a, token)
	default:
		l.timer.Stop()
		l.timer = nil
		return nil
	}
}

// dumpExternal returns what an allocator of the caller has, with the owners that
// are known.
func (m *IPAM) dumpExternal(x Allocator) (d familyDump) {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	all, status := x.Dump()
	d = familyDump{held: map[string]string{}, status: status}
	for text := range all {
		d.held[text] = ""
		if a, err := netip.ParseAddr(text); err == nil && m.externals.held[a.Unmap()] != nil {
			d.held[text] = m.externals.held[a.Unmap()].owner
		}
	}
	return d
}
