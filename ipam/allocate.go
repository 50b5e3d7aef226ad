// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// AllocateIP takes a certain address.
func (m *IPAM) AllocateIP(ip net.IP, owner string) (err error) {
	_, err = m.certain(ip, owner, true)
	return err
}

// AllocateIPWithAllocationResult takes a certain address and says what is known of it.
func (m *IPAM) AllocateIPWithAllocationResult(ip net.IP, owner string) (result *AllocationResult, err error) {
	return m.certain(ip, owner, true)
}

// AllocateIPWithoutSyncUpstream takes a certain address; nothing is reported
// because of it. It is what those call who restore what was in use before.
func (m *IPAM) AllocateIPWithoutSyncUpstream(ip net.IP, owner string) (result *AllocationResult, err error) {
	return m.certain(ip, owner, false)
}

// AllocateIPString is AllocateIP of a text.
func (m *IPAM) AllocateIPString(ipAddr, owner string) error {
	a, err := netip.ParseAddr(ipAddr)
	if err != nil || a.Zone() != "" {
		return fmt.Errorf("Invalid IP address: %s", ipAddr)
	}
	_, err = m.take(a.Unmap(), owner, true)
	return err
}

func (m *IPAM) certain(ip net.IP, owner string, report bool) (*AllocationResult, error) {
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		return nil, badBytes(ip)
	}
	return m.take(a.Unmap(), owner, report)
}

func badBytes(ip net.IP) error {
	return fmt.Errorf("Invalid IP address: %s has %d bytes, 4 or 16 would be right", ip, len(ip))
}

// take takes a certain address from the allocator of its family.
func (m *IPAM) take(a netip.Addr, owner string, report bool) (*AllocationResult, error) {
	if x, ok := m.external(ledger.FamilyOf(a)); ok {
		return m.takeExternal(x, a, owner, report)
	}
	return m.takeOwn(a, owner, report)
}

// takeOwn takes a certain address from the ledger. One that an earlier process has
// taken for the same owner is taken once more: that is how owners are restored.
func (m *IPAM) takeOwn(a netip.Addr, owner string, report bool) (*AllocationResult, error) {
	if err := m.usable(ledger.FamilyOf(a)); err != nil {
		return nil, err
	}
	v := m.view.Load()
	if l, ok := m.restore(a, owner); ok {
		return m.result(v, a, l.Expiry.Token), nil
	}
	if err := m.barred(v, a); err != nil {
		return nil, allocation(a.String(), owner, err)
	}
	_, _, err := m.deps.Ledger.ClaimAddr(context.Background(), &ledger.Request{
		Pool: m.pool.Name, Key: m.key(owner), Wanted: []netip.Addr{a}, More: true,
	})
	if errors.Is(err, ledger.ErrTaken) {
		err = fmt.Errorf("IP already in use: %w", err)
	}
	if err != nil {
		return nil, allocation(a.String(), owner, err)
	}
	if report {
		m.poke()
	}
	return m.result(v, a, ""), nil
}

// restore is the lease of an address that the owner has from an earlier process
// and has not asked for since.
func (m *IPAM) restore(a netip.Addr, owner string) (ledger.Lease, bool) {
	if !m.replays.Any() {
		return ledger.Lease{}, false
	}
	l, ok := m.deps.Ledger.Lookup(m.pool.Name, a)
	return l, ok && l.Key == m.key(owner) && m.replays.Confirm(l.Generation)
}

// barred is why an address is lent to nobody.
func (m *IPAM) barred(v *view, a netip.Addr) error {
	if e, ok := m.deps.Ledger.Excluded(m.pool.Name, a); ok {
		return fmt.Errorf("%w by %q", ErrBlacklisted, e.Owner)
	}
	return v.offered(a, m.mode)
}

// AllocateNext takes an address of each enabled family, all or none, or of the
// one named.
func (m *IPAM) AllocateNext(family, owner string) (ipv4Result, ipv6Result *AllocationResult, err error) {
	return m.AllocateNextWithExpiration(family, owner, 0)
}

// AllocateNextWithExpiration is AllocateNext, and the addresses are given back
// unless StopExpirationTimer is called for each of them within the timeout. A
// timeout of 0 starts no timer.
func (m *IPAM) AllocateNextWithExpiration(family, owner string, timeout time.Duration) (ipv4Result, ipv6Result *AllocationResult, err error) {
	fs, err := m.wanted(family)
	if err != nil {
		return nil, nil, allocation("the next address", owner, err)
	}
	if m.hasExternal(fs) {
		c := claim{owner: owner, key: m.key(owner), more: true, timeout: timeout}
		if ipv4Result, ipv6Result, err = m.nextOfEach(fs, c); err != nil {
			return nil, nil, allocation("the next address", owner, err)
		}
		return ipv4Result, ipv6Result, nil
	}
	var e ledger.Expiry
	if timeout != 0 {
		e = ledger.Expiry{Token: m.deps.UUID(), After: timeout}
	}
	v := m.view.Load()
	leases, err := m.next(v, fs, owner, e)
	if err != nil {
		return nil, nil, err
	}
	m.poke()
	for i := range leases {
		if leases[i].Addr.Is4() {
			ipv4Result = m.result(v, leases[i].Addr, e.Token)
		} else {
			ipv6Result = m.result(v, leases[i].Addr, e.Token)
		}
	}
	return ipv4Result, ipv6Result, nil
}

// AllocateNextFamily takes any address of a family.
func (m *IPAM) AllocateNextFamily(family Family, owner string) (result *AllocationResult, err error) {
	return m.nextOf(family, owner, true)
}

// AllocateNextFamilyWithoutSyncUpstream takes any address of a family; nothing
// is reported because of it.
func (m *IPAM) AllocateNextFamilyWithoutSyncUpstream(family Family, owner string) (result *AllocationResult, err error) {
	return m.nextOf(family, owner, false)
}

func (m *IPAM) nextOf(family Family, owner string, report bool) (*AllocationResult, error) {
	if family == "" {
		return nil, allocation("the next address", owner, unknownFamily(""))
	}
	fs, err := m.wanted(string(family))
	if err != nil {
		return nil, allocation("the next address", owner, err)
	}
	if x, ok := m.external(fs[0]); ok {
		r, err := m.nextExternal(x, fs[0], claim{owner: owner}, report)
		if err != nil {
			return nil, allocation("the next address", owner, err)
		}
		return r, nil
	}
	return m.nextOwn(fs, owner, report)
}

// nextOwn takes any address of a family from the ledger.
func (m *IPAM) nextOwn(fs []ledger.Family, owner string, report bool) (*AllocationResult, error) {
	v := m.view.Load()
	if v.strict && v.set == nil {
		return nil, allocation("the next address", owner, errNoSet())
	}
	a, _, err := m.deps.Ledger.ClaimAddr(context.Background(), &ledger.Request{
		Pool: m.pool.Name, Key: m.key(owner), Families: fs, Within: v.within, More: true,
	})
	if err != nil {
		return nil, allocation("the next address", owner, err)
	}
	if report {
		m.poke()
	}
	return m.result(v, a, ""), nil
}

func unknownFamily(family string) error {
	return fmt.Errorf("unknown address family %q: %q or %q would be right", family, IPv4, IPv6)
}

// wanted are the families of a name; all that are enabled, if it is "".
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

// next takes any address of each family, all or none.
func (m *IPAM) next(v *view, fs []ledger.Family, owner string, e ledger.Expiry) ([]ledger.Lease, error) {
	if v.strict && v.set == nil {
		return nil, allocation("the next address", owner, errNoSet())
	}
	leases, _, err := m.deps.Ledger.Claim(context.Background(), ledger.Request{
		Pool: m.pool.Name, Key: m.key(owner), Families: fs, Within: v.within, More: true, Expiry: e,
	})
	if err != nil {
		return nil, allocation("the next address", owner, err)
	}
	return leases, nil
}

// result is what is known of an address, in one piece of memory. A token is of
// its timer.
func (m *IPAM) result(v *view, at netip.Addr, token string) *AllocationResult {
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
	v.describe(at, &x.AllocationResult)
	return &x.AllocationResult
}

// ReleaseIP gives an address back. One that is not held is released already.
func (m *IPAM) ReleaseIP(ip net.IP) error {
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		return fmt.Errorf("release an address: %s has %d bytes, 4 or 16 would be right", ip, len(ip))
	}
	return m.release(a.Unmap())
}

// release gives an address back to the allocator of its family. Before the caller
// has put another one there it may have been taken from the ledger.
func (m *IPAM) release(a netip.Addr) error {
	if x, ok := m.external(ledger.FamilyOf(a)); ok && !m.holdsOwn(a) {
		return m.releaseExternal(x, a)
	}
	return m.releaseOwn(a)
}

// releaseOwn gives an address back to the ledger.
func (m *IPAM) releaseOwn(a netip.Addr) error {
	if err := m.usable(ledger.FamilyOf(a)); err != nil {
		return err
	}
	if _, err := m.deps.Ledger.Free(context.Background(), m.selector(a)); err != nil {
		return &callError{"release", a.String(), "", err}
	}
	m.poke()
	return nil
}

// selector selects the lease of an address that was taken through this door.
func (m *IPAM) selector(a netip.Addr) ledger.Selector {
	return ledger.Selector{Addr: a, Pool: m.pool.Name, Network: m.deps.Door}
}

// ReleaseIPString gives an address back, or, where the text is none, all
// addresses of the owner of that name, all or none.
func (m *IPAM) ReleaseIPString(releaseArg string) (err error) {
	if a, err := netip.ParseAddr(releaseArg); err == nil && a.Zone() == "" {
		return m.release(a.Unmap())
	}
	switch {
	case m.broken != nil:
		return m.broken
	case m.mode == Delegated && !m.hasExternal(m.families.both):
		return ErrDelegated
	}
	others, err := m.releaseOwner(releaseArg, "")
	if err != nil {
		return &callError{"release", "all addresses", releaseArg, err}
	}
	n, err := m.deps.Ledger.Free(context.Background(), ledger.Selector{Key: m.key(releaseArg)})
	if err != nil {
		return &callError{"release", "all addresses", releaseArg, err}
	}
	if n+others == 0 {
		return fmt.Errorf("Invalid IP address or owner name: %q", releaseArg)
	}
	m.poke()
	return nil
}

// StartExpirationTimer has an address given back after timeout, unless
// StopExpirationTimer is called with the UUID before. The address must be
// allocated and must have no timer.
func (m *IPAM) StartExpirationTimer(ip net.IP, timeout time.Duration) (string, error) {
	a, err := m.timed(ip)
	if err != nil {
		return "", fmt.Errorf("start an expiration timer: %w", err)
	}
	e := ledger.Expiry{Token: m.deps.UUID(), After: timeout}
	if x, ok := m.external(ledger.FamilyOf(a)); ok && !m.holdsOwn(a) {
		if err := m.startTimer(x, a, e); err != nil {
			return "", err
		}
		return e.Token, nil
	}
	if err := m.deps.Ledger.StartExpiry(context.Background(), m.selector(a), e); err != nil {
		return "", err
	}
	return e.Token, nil
}

// StopExpirationTimer keeps an address from being given back.
func (m *IPAM) StopExpirationTimer(ip net.IP, allocationUUID string) error {
	a, err := m.timed(ip)
	if err != nil {
		return fmt.Errorf("stop an expiration timer: %w", err)
	}
	if _, ok := m.external(ledger.FamilyOf(a)); ok && !m.holdsOwn(a) {
		return m.stopTimer(a, allocationUUID)
	}
	return m.deps.Ledger.StopExpiry(context.Background(), m.selector(a), allocationUUID)
}

func (m *IPAM) timed(ip net.IP) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		return a, fmt.Errorf("%s has %d bytes, 4 or 16 would be right", ip, len(ip))
	}
	a = a.Unmap()
	return a, m.usable(ledger.FamilyOf(a))
}
