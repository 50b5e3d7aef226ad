// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
)

// errReplaced is the error for what needs the owner of an address that a replaced
// allocator has.
var errReplaced = errors.New(
	"the allocator of the family was replaced: it has no owners and no timers here: keep them beside it, and call ReleaseIP",
)

// replaced returns the allocator that the caller has set instead of the IPAM's. It is
// called under m.replacedMu, one goroutine at a time, as in the published package. Whose its
// addresses are is the caller's matter: the ledger has no blocks of them.
func (m *IPAM) replaced(f ledger.Family) (Allocator, bool) {
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

func (m *IPAM) hasReplaced(fs []ledger.Family) bool {
	return slices.ContainsFunc(fs, func(f ledger.Family) bool {
		_, ok := m.replaced(f)
		return ok
	})
}

// inLedger reports whether the ledger has a lease of the address, such as one from before
// the caller has set its allocator.
func (m *IPAM) inLedger(a netip.Addr) bool {
	l, ok := m.deps.Ledger.Lookup(m.pool.Name, a)
	return ok && m.ours(&l)
}

// allocateReplaced allocates a named address.
func (m *IPAM) allocateReplaced(x Allocator, a netip.Addr, owner string, report bool) (*AllocationResult, error) {
	if err := m.blacklisted(a); err != nil {
		return nil, m.allocation(a.String(), owner, err)
	}
	m.replacedMu.Lock()
	defer m.replacedMu.Unlock()
	allocate := x.AllocateWithoutSyncUpstream
	if report {
		allocate = x.Allocate
	}
	r, err := allocate(a.AsSlice(), owner)
	if err == nil {
		_, err = addrIn(r)
	}
	if err != nil {
		return nil, m.allocation(a.String(), owner, err)
	}
	return r, nil
}

// addrIn returns the address of a result.
func addrIn(r *AllocationResult) (netip.Addr, error) {
	if r == nil {
		return netip.Addr{}, errors.New("the allocator has returned neither an address nor an error")
	}
	return addrOf(r.IP)
}

// nextReplaced allocates any address. A blacklisted one stays allocated, so that
// the allocator returns another one next.
func (m *IPAM) nextReplaced(x Allocator, f ledger.Family, owner string, report bool) (*AllocationResult, error) {
	m.replacedMu.Lock()
	defer m.replacedMu.Unlock()
	next := x.AllocateNextWithoutSyncUpstream
	if report {
		next = x.AllocateNext
	}
	for {
		r, err := next(owner)
		if err != nil {
			return nil, err
		}
		a, err := addrIn(r)
		if err != nil {
			return nil, err
		}
		if ledger.FamilyOf(a) != f {
			err := fmt.Errorf("the allocator of family %s has returned %s", f, a)
			return nil, errors.Join(err, x.Release(a.AsSlice()))
		}
		if _, excluded := m.deps.Ledger.Excluded(m.pool.Name, a); !excluded {
			return r, nil
		}
	}
}

// nextOfEach allocates an address of each family, all or none, IPv6 first.
func (m *IPAM) nextOfEach(fs []ledger.Family, req request) (ipv4Result, ipv6Result *AllocationResult, err error) {
	if req.timeout != 0 || req.container != "" {
		return nil, nil, errReplaced
	}
	var results [2]*AllocationResult
	for _, f := range []ledger.Family{ledger.IPv6, ledger.IPv4} {
		if !slices.Contains(fs, f) {
			continue
		}
		if x, ok := m.replaced(f); ok {
			results[f], err = m.nextReplaced(x, f, req.owner, true)
		} else {
			var all [2]*AllocationResult
			all, err = m.claim(m.families.one[f], req)
			results[f] = all[f]
		}
		if err != nil {
			if first := results[ledger.IPv6]; f == ledger.IPv4 && first != nil {
				err = errors.Join(err, m.ReleaseIP(first.IP))
			}
			return nil, nil, err
		}
	}
	return results[ledger.IPv4], results[ledger.IPv6], nil
}

// releaseReplaced releases an address to its allocator.
func (m *IPAM) releaseReplaced(x Allocator, a netip.Addr) error {
	m.replacedMu.Lock()
	defer m.replacedMu.Unlock()
	if err := x.Release(a.AsSlice()); err != nil {
		return &callError{"release", a.String(), "", err}
	}
	return nil
}

// dumpReplaced returns what an allocator of the caller shows.
func (m *IPAM) dumpReplaced(x Allocator) familyDump {
	m.replacedMu.Lock()
	defer m.replacedMu.Unlock()
	all, status := x.Dump()
	return familyDump{held: all, status: status}
}
