// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// ReleaseIP releases an address. Without a lease of the address it succeeds.
func (m *IPAM) ReleaseIP(ip net.IP) error {
	a, err := addrOf(ip)
	if err != nil {
		return fmt.Errorf("release an address: %w", err)
	}
	return m.release(a)
}

// release releases an address to the allocator of its family. The ledger may
// have a lease of it from before the caller set its own allocator.
func (m *IPAM) release(a netip.Addr) error {
	if x, ok := m.replaced(ledger.FamilyOf(a)); ok && !m.inLedger(a) {
		return m.releaseReplaced(x, a)
	}
	return m.releaseLease(a)
}

// releaseLease releases the lease of an address.
func (m *IPAM) releaseLease(a netip.Addr) error {
	if err := m.usable(ledger.FamilyOf(a)); err != nil {
		return err
	}
	n, err := m.deps.Ledger.Free(context.Background(), m.selector(a))
	if err != nil {
		m.deps.Metrics.failed(m.deps.Name, err)
		return &callError{"release", a.String(), "", err}
	}
	m.deps.Metrics.count(actionRelease, ledger.FamilyOf(a), n)
	m.poke()
	return nil
}

// selector selects the lease of an address that this IPAM has claimed.
func (m *IPAM) selector(a netip.Addr) ledger.Selector {
	return ledger.Selector{Addr: a, Pool: m.pool.Name, Network: m.deps.Door}
}

// ReleaseIPString releases the address that releaseArg is. If it is not an
// address, it names an owner, and all addresses of the owner are released, all or
// none.
func (m *IPAM) ReleaseIPString(releaseArg string) (err error) {
	if a, err := netip.ParseAddr(releaseArg); err == nil && a.Zone() == "" {
		return m.release(a.Unmap())
	}
	n, err := m.releaseAll("all addresses", m.key(releaseArg), releaseArg)
	if err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("Invalid IP address or owner name: %q", releaseArg) //nolint:staticcheck // the published text
	}
	return nil
}

// releaseAll releases the addresses of a key, and returns their number.
func (m *IPAM) releaseAll(what string, key ledger.Key, owner string) (int, error) {
	if err := m.releases(); err != nil {
		return 0, err
	}
	n, err := m.releaseKey(key)
	if err != nil {
		m.deps.Metrics.failed(m.deps.Name, err)
		return 0, &callError{"release", what, owner, err}
	}
	m.poke()
	return n, nil
}

// releaseKey releases the leases of a key and returns their number.
func (m *IPAM) releaseKey(key ledger.Key) (int, error) {
	if m.deps.Metrics == nil {
		return m.deps.Ledger.Free(context.Background(), ledger.Selector{Key: key})
	}
	leases, err := m.deps.Ledger.Release(context.Background(), ledger.Selector{Key: key})
	for _, l := range leases {
		m.deps.Metrics.count(actionRelease, ledger.FamilyOf(l.Addr), 1)
	}
	return len(leases), err
}

// releases returns why no address can be released, or nil.
func (m *IPAM) releases() error {
	switch {
	case m.broken != nil:
		return m.broken
	case m.mode == Delegated && !m.hasReplaced(m.families.both):
		return ErrDelegated
	}
	return nil
}

// StartExpirationTimer starts a timer that releases an address after timeout,
// unless StopExpirationTimer is called with the UUID before. The address must be
// allocated and must have no timer.
func (m *IPAM) StartExpirationTimer(ip net.IP, timeout time.Duration) (string, error) {
	a, err := m.usableAddr(ip)
	if err != nil {
		return "", fmt.Errorf("start an expiration timer: %w", err)
	}
	e := ledger.Expiry{Token: m.deps.UUID(), After: timeout}
	if _, ok := m.replaced(ledger.FamilyOf(a)); ok && !m.inLedger(a) {
		return "", fmt.Errorf("start an expiration timer for %s: %w", a, errReplaced)
	}
	if err := m.deps.Ledger.StartExpiry(context.Background(), m.selector(a), e); err != nil {
		return "", err
	}
	return e.Token, nil
}

// StopExpirationTimer stops the timer of an address.
func (m *IPAM) StopExpirationTimer(ip net.IP, allocationUUID string) error {
	a, err := m.usableAddr(ip)
	if err != nil {
		return fmt.Errorf("stop an expiration timer: %w", err)
	}
	if _, ok := m.replaced(ledger.FamilyOf(a)); ok && !m.inLedger(a) {
		return fmt.Errorf("stop the expiration timer of %s: %w", a, errReplaced)
	}
	return m.deps.Ledger.StopExpiry(context.Background(), m.selector(a), allocationUUID)
}

// usableAddr converts ip, whose family must be enabled.
func (m *IPAM) usableAddr(ip net.IP) (netip.Addr, error) {
	a, err := addrOf(ip)
	if err != nil {
		return a, err
	}
	return a, m.usable(ledger.FamilyOf(a))
}
