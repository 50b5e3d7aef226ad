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

// externals holds the addresses of allocators that the caller has set in the
// IPAM, with their owners and timers, in memory: the ledger has no blocks of them.
// mu is locked while such an allocator is called, so that one goroutine calls it
// at a time, as in the published package.
type externals struct {
	mu   sync.Mutex
	held map[netip.Addr]*externalLease
}

// externalLease is an address of an allocator of the caller.
type externalLease struct {
	owner     string
	container string // "": it is of no container
	result    *AllocationResult
	timer     *time.Timer // nil: no timer runs
	token     string      // of the timer
}

// external returns the allocator that the caller has set instead of the IPAM's.
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

// inLedger reports whether the ledger has a lease of the address, and no allocator
// of the caller has the address.
func (m *IPAM) inLedger(a netip.Addr) bool {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	if m.externals.held[a] != nil {
		return false
	}
	l, ok := m.deps.Ledger.Lookup(m.pool.Name, a)
	return ok && m.ours(&l)
}

// allocateExternal allocates a named address.
func (m *IPAM) allocateExternal(x Allocator, a netip.Addr, owner string, report bool) (*AllocationResult, error) {
	if err := m.blacklisted(a); err != nil {
		return nil, m.allocation(a.String(), owner, err)
	}
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	allocate := x.AllocateWithoutSyncUpstream
	if report {
		allocate = x.Allocate
	}
	r, err := allocate(a.AsSlice(), owner)
	if err == nil {
		_, err = m.record(r, request{owner: owner})
	}
	if err != nil {
		return nil, m.allocation(a.String(), owner, err)
	}
	return r, nil
}

// record notes the owner of an address. m.externals is locked.
func (m *IPAM) record(r *AllocationResult, req request) (netip.Addr, error) {
	if r == nil {
		return netip.Addr{}, errors.New("the allocator has returned neither an address nor an error")
	}
	a, err := addrOf(r.IP)
	if err != nil {
		return a, err
	}
	if m.externals.held == nil {
		m.externals.held = map[netip.Addr]*externalLease{}
	}
	m.externals.held[a] = &externalLease{owner: req.owner, container: req.container, result: r}
	m.deps.Metrics.count(actionAllocate, ledger.FamilyOf(a), 1)
	return a, nil
}

// nextExternal allocates any address. A blacklisted one stays allocated, so that
// the allocator returns another one next.
func (m *IPAM) nextExternal(x Allocator, f ledger.Family, req request, report bool) (*AllocationResult, error) {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	next := x.AllocateNextWithoutSyncUpstream
	if report {
		next = x.AllocateNext
	}
	for {
		r, err := next(req.owner)
		if err != nil {
			return nil, err
		}
		a, err := m.record(r, req)
		if err != nil {
			return nil, err
		}
		if ledger.FamilyOf(a) != f {
			err := fmt.Errorf("the allocator of family %s has returned %s", f, a)
			return nil, errors.Join(err, m.releaseLocked(x, a))
		}
		if _, excluded := m.deps.Ledger.Excluded(m.pool.Name, a); excluded {
			m.externals.held[a].owner, m.externals.held[a].container = req.owner+" (blacklisted)", ""
			continue
		}
		if req.timeout != 0 {
			e := ledger.Expiry{Token: m.deps.UUID(), After: req.timeout}
			m.start(x, a, e)
			r.ExpirationUUID = e.Token
		}
		return r, nil
	}
}

// nextOfEach allocates an address of each family, all or none, IPv6 first. A
// container that has one of a family keeps it.
func (m *IPAM) nextOfEach(fs []ledger.Family, req request) (ipv4Result, ipv6Result *AllocationResult, err error) {
	var undo func() error
	for _, f := range []ledger.Family{ledger.IPv6, ledger.IPv4} {
		if !slices.Contains(fs, f) {
			continue
		}
		r, release, err := m.nextOf(f, req)
		if err != nil {
			if undo != nil {
				err = errors.Join(err, undo())
			}
			return nil, nil, err
		}
		if undo = release; f == ledger.IPv4 {
			ipv4Result = r
		} else {
			ipv6Result = r
		}
	}
	return ipv4Result, ipv6Result, nil
}

// nextOf allocates an address from the allocator of a family. undo releases it,
// and is nil if the container had it before.
func (m *IPAM) nextOf(f ledger.Family, req request) (r *AllocationResult, undo func() error, err error) {
	x, ok := m.external(f)
	if ok {
		if r := m.heldBy(f, req); r != nil {
			return r, nil, nil
		}
		if r, err = m.nextExternal(x, f, req, true); err != nil {
			return nil, nil, err
		}
		a, _ := addrOf(r.IP)
		return r, func() error { return m.releaseExternal(x, a) }, nil
	}
	results, fresh, err := m.claim(m.families.one[f], req)
	if fresh {
		a, _ := addrOf(results[f].IP)
		undo = func() error {
			sel := ledger.Selector{Addr: a, Pool: m.pool.Name, Network: req.key.Network}
			_, err := m.deps.Ledger.Free(context.Background(), sel)
			return err
		}
	}
	return results[f], undo, err
}

// heldBy returns the address that a container has of a family, or nil.
func (m *IPAM) heldBy(f ledger.Family, req request) *AllocationResult {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	for a, l := range m.externals.held {
		if req.container != "" && l.container == req.container && l.owner == req.owner && ledger.FamilyOf(a) == f {
			return l.result
		}
	}
	return nil
}

// releaseExternal releases an address to its allocator.
func (m *IPAM) releaseExternal(x Allocator, a netip.Addr) error {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	return m.releaseLocked(x, a)
}

// releaseLocked is releaseExternal with m.externals locked. The owner and the
// timer of an address are forgotten after its release has succeeded.
func (m *IPAM) releaseLocked(x Allocator, a netip.Addr) error {
	if err := x.Release(a.AsSlice()); err != nil {
		return &callError{"release", a.String(), "", err}
	}
	if l := m.externals.held[a]; l != nil && l.timer != nil {
		l.timer.Stop()
	}
	delete(m.externals.held, a)
	m.deps.Metrics.count(actionRelease, ledger.FamilyOf(a), 1)
	return nil
}

// releaseAllExternal releases the addresses of an owner, or of one of its
// containers, and returns their number.
func (m *IPAM) releaseAllExternal(owner, container string) (n int, err error) {
	m.externals.mu.Lock()
	defer m.externals.mu.Unlock()
	for a, l := range m.externals.held {
		if l.owner != owner || l.container != container {
			continue
		}
		if x, ok := m.external(ledger.FamilyOf(a)); ok {
			n++
			err = errors.Join(err, m.releaseLocked(x, a))
		}
	}
	return n, err
}

// startTimer starts the expiration timer of an address.
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

// start starts the timer of an address that has none. m.externals is locked.
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
		if err := m.releaseLocked(x, a); err != nil {
			m.log.Warn("an expired address could not be released", "address", a, "owner", l.owner, "error", err)
		}
	})
}

// stopTimer stops the expiration timer of an address.
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

// dumpExternal returns the addresses of an allocator of the caller with their
// owners, as far as they are known.
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
