// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// AllocateIP allocates a named address.
func (m *IPAM) AllocateIP(ip net.IP, owner string) (err error) {
	_, err = m.allocateIP(ip, owner, true)
	return err
}

// AllocateIPWithAllocationResult allocates a named address and returns its
// interface and networks.
func (m *IPAM) AllocateIPWithAllocationResult(ip net.IP, owner string) (result *AllocationResult, err error) {
	return m.allocateIP(ip, owner, true)
}

// AllocateIPWithoutSyncUpstream allocates a named address without a report
// upstream. Callers that restore the addresses of running pods use it.
func (m *IPAM) AllocateIPWithoutSyncUpstream(ip net.IP, owner string) (result *AllocationResult, err error) {
	return m.allocateIP(ip, owner, false)
}

// AllocateIPString is AllocateIP of a text.
func (m *IPAM) AllocateIPString(ipAddr, owner string) error {
	a, err := netip.ParseAddr(ipAddr)
	if err != nil || a.Zone() != "" {
		return fmt.Errorf("Invalid IP address: %s", ipAddr) //nolint:staticcheck // the published text
	}
	_, err = m.allocateAddr(a.Unmap(), owner, true)
	return err
}

func (m *IPAM) allocateIP(ip net.IP, owner string, report bool) (*AllocationResult, error) {
	a, err := addrOf(ip)
	if err != nil {
		return nil, err
	}
	return m.allocateAddr(a, owner, report)
}

// addrOf converts ip, which may be an IPv4 address in 16 bytes.
func addrOf(ip net.IP) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		//nolint:staticcheck // the published text
		return a, fmt.Errorf("Invalid IP address: %s has %d bytes, want 4 or 16", ip, len(ip))
	}
	return a.Unmap(), nil
}

// allocateAddr allocates a named address from the allocator of its family.
func (m *IPAM) allocateAddr(a netip.Addr, owner string, report bool) (*AllocationResult, error) {
	if x, ok := m.replaced(ledger.FamilyOf(a)); ok {
		return m.allocateReplaced(x, a, owner, report)
	}
	return m.claimAddr(a, owner, report)
}

// claimAddr claims a named address in the ledger. A repeated claim of an address
// that the owner has from an earlier process succeeds once: owners are restored
// that way.
func (m *IPAM) claimAddr(a netip.Addr, owner string, report bool) (*AllocationResult, error) {
	if err := m.usable(ledger.FamilyOf(a)); err != nil {
		return nil, err
	}
	s := m.snapshot.Load()
	l, ok, err := m.restore(a, owner)
	switch {
	case err != nil:
		return nil, m.allocation(a.String(), owner, err)
	case ok:
		m.deps.Metrics.count(actionAllocate, ledger.FamilyOf(a), 1)
		return m.result(s, a, l.Expiry.Token), nil
	}
	if err := m.refuses(s, a); err != nil {
		return nil, m.allocation(a.String(), owner, err)
	}
	_, _, err = m.deps.Ledger.ClaimAddr(context.Background(), &ledger.Request{
		Pool:   m.pool.Name,
		Key:    m.key(owner),
		Wanted: []netip.Addr{a},
		More:   true,
	})
	if errors.Is(err, ledger.ErrTaken) {
		err = fmt.Errorf("IP already in use: %w", err)
	}
	if err != nil {
		return nil, m.allocation(a.String(), owner, err)
	}
	m.deps.Metrics.count(actionAllocate, ledger.FamilyOf(a), 1)
	if report {
		m.poke()
	}
	return m.result(s, a, ""), nil
}

// restore returns the lease of an address that the owner has from an earlier
// process and has not asked for since. The empty commit writes what a failed one
// has left to write.
func (m *IPAM) restore(a netip.Addr, owner string) (l ledger.Lease, ok bool, err error) {
	if !m.replays.Any() {
		return l, false, nil
	}
	l, ok = m.deps.Ledger.Lookup(m.pool.Name, a)
	if !ok || l.Key != m.key(owner) || !m.replays.Open(l.Generation) {
		return l, false, nil
	}
	if err := m.deps.Ledger.Begin().Commit(context.Background()); err != nil {
		return l, false, err
	}
	return l, m.replays.Confirm(l.Generation), nil
}

// refuses returns why an address must not be allocated, or nil.
func (m *IPAM) refuses(s *snapshot, a netip.Addr) error {
	if err := m.blacklisted(a); err != nil {
		return err
	}
	if m.mode != Given {
		return nil
	}
	return s.refuses(a)
}

// AllocateNext allocates an address of each enabled family, all or none, or of
// the named family.
func (m *IPAM) AllocateNext(family, owner string) (ipv4Result, ipv6Result *AllocationResult, err error) {
	return m.AllocateNextWithExpiration(family, owner, 0)
}

// AllocateNextWithExpiration is AllocateNext with an expiration timer: the
// addresses are released unless StopExpirationTimer is called for each of them
// within the timeout. A timeout of 0 starts no timer.
func (m *IPAM) AllocateNextWithExpiration(
	family, owner string,
	timeout time.Duration,
) (ipv4Result, ipv6Result *AllocationResult, err error) {
	fs, err := m.wanted(family)
	if err == nil {
		ipv4Result, ipv6Result, err = m.allocateNext(
			fs,
			request{key: m.key(owner), owner: owner, more: true, timeout: timeout},
		)
	}
	if err != nil {
		return nil, nil, m.allocation("the next address", owner, err)
	}
	return ipv4Result, ipv6Result, nil
}

// AllocateNextFamily allocates any address of a family.
func (m *IPAM) AllocateNextFamily(family Family, owner string) (result *AllocationResult, err error) {
	return m.allocateFamily(family, owner, true)
}

// AllocateNextFamilyWithoutSyncUpstream allocates any address of a family without
// a report upstream.
func (m *IPAM) AllocateNextFamilyWithoutSyncUpstream(
	family Family,
	owner string,
) (result *AllocationResult, err error) {
	return m.allocateFamily(family, owner, false)
}

func (m *IPAM) allocateFamily(family Family, owner string, report bool) (r *AllocationResult, err error) {
	var fs []ledger.Family
	if family == "" {
		err = unknownFamily("")
	} else {
		fs, err = m.wanted(string(family))
	}
	if err == nil {
		if x, ok := m.replaced(fs[0]); ok {
			r, err = m.nextReplaced(x, fs[0], owner, report)
		} else {
			r, err = m.claimNext(fs, owner, report)
		}
	}
	if err != nil {
		return nil, m.allocation("the next address", owner, err)
	}
	return r, nil
}

// claimNext claims any address of the one family of fs in the ledger.
func (m *IPAM) claimNext(fs []ledger.Family, owner string, report bool) (*AllocationResult, error) {
	s := m.snapshot.Load()
	if s.strict && s.set == nil {
		return nil, errNoSet()
	}
	a, _, err := m.deps.Ledger.ClaimAddr(context.Background(), &ledger.Request{
		Pool:     m.pool.Name,
		Key:      m.key(owner),
		Families: fs,
		Listed:   s.listed,
		More:     true,
	})
	if err != nil {
		return nil, err
	}
	m.deps.Metrics.count(actionAllocate, ledger.FamilyOf(a), 1)
	if report {
		m.poke()
	}
	return m.result(s, a, ""), nil
}

func unknownFamily(family string) error {
	return fmt.Errorf("unknown address family %q: want %q or %q", family, IPv4, IPv6)
}

// wanted returns the family of a name; all enabled families, if it is "".
func (m *IPAM) wanted(family string) ([]ledger.Family, error) {
	four, six := m.usable(ledger.IPv4), m.usable(ledger.IPv6)
	switch {
	case family == string(IPv4):
		return m.families.one[ledger.IPv4], four
	case family == string(IPv6):
		return m.families.one[ledger.IPv6], six
	case family != "":
		return nil, unknownFamily(family)
	case four == nil && six == nil:
		return m.families.both, nil
	case four == nil:
		return m.families.one[ledger.IPv4], nil
	case six == nil:
		return m.families.one[ledger.IPv6], nil
	}
	return nil, four
}

// request is an allocation of any address of some families.
type request struct {
	key       ledger.Key // of leases in the ledger
	owner     string
	container string        // "": the addresses are of no container
	more      bool          // also if the key has leases
	timeout   time.Duration // 0: no expiration timer
}

// allocateNext allocates an address of each family, all or none.
func (m *IPAM) allocateNext(fs []ledger.Family, r request) (ipv4Result, ipv6Result *AllocationResult, err error) {
	if m.hasReplaced(fs) {
		return m.nextOfEach(fs, r)
	}
	results, err := m.claim(fs, r)
	return results[ledger.IPv4], results[ledger.IPv6], err
}

// claim claims an address of each family in the ledger, all or none. A key that
// has leases gets these, unless r wants more; fresh tells the two apart.
func (m *IPAM) claim(fs []ledger.Family, r request) (results [2]*AllocationResult, err error) {
	s := m.snapshot.Load()
	if s.strict && s.set == nil {
		return results, errNoSet()
	}
	var expiry ledger.Expiry
	if r.timeout != 0 {
		expiry = ledger.Expiry{Token: m.deps.UUID(), After: r.timeout}
	}
	leases, fresh, err := m.deps.Ledger.Claim(context.Background(), ledger.Request{
		Pool:     m.pool.Name,
		Key:      r.key,
		Families: fs,
		Listed:   s.listed,
		More:     r.more,
		Expiry:   expiry,
	})
	if err != nil {
		return results, err
	}
	m.poke()
	for _, f := range fs {
		i := slices.IndexFunc(leases, func(l ledger.Lease) bool { return ledger.FamilyOf(l.Addr) == f })
		if i < 0 {
			return [2]*AllocationResult{}, fmt.Errorf(
				"%w: its earlier addresses include none of %s",
				ledger.ErrKeyHeld,
				f,
			)
		}
		if fresh {
			m.deps.Metrics.count(actionAllocate, f, 1)
		}
		results[f] = m.result(s, leases[i].Addr, leases[i].Expiry.Token)
	}
	return results, nil
}

// result describes an address, in one allocation of memory. token is that of its
// expiration timer.
func (m *IPAM) result(s *snapshot, at netip.Addr, token string) *AllocationResult {
	x := new(struct {
		AllocationResult
		ip [net.IPv6len]byte
	})
	if at.Is4() {
		a := at.As4()
		x.IP = x.ip[:copy(x.ip[:], a[:])]
	} else {
		x.ip = at.As16()
		x.IP = x.ip[:]
	}
	x.ExpirationUUID = token
	s.describe(at, &x.AllocationResult)
	return &x.AllocationResult
}
