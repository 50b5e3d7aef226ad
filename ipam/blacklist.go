// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"net"
	"net/netip"

	"github.com/cadastre/cadastre/ledger"
)

// IPBlacklist is the addresses that are never lent. Its zero value has none.
type IPBlacklist struct {
	ledger *ledger.Ledger
	pool   string
}

// Contains is true for an address that is never lent.
func (blacklist *IPBlacklist) Contains(ip net.IP) bool {
	a, ok := netip.AddrFromSlice(ip)
	if !ok || blacklist == nil || blacklist.ledger == nil {
		return false
	}
	_, ok = blacklist.ledger.Excluded(blacklist.pool, a.Unmap())
	return ok
}

// Blacklist is the addresses that are never lent, as they are at each call.
func (m *IPAM) Blacklist() *IPBlacklist { return &IPBlacklist{m.deps.Ledger, m.pool.Name} }

// BlacklistIP keeps an address from being lent, also where no block has it yet.
// Who holds it keeps it. It outlives a restart. What cannot be recorded is
// logged, since the published call returns nothing: Exclude tells.
func (m *IPAM) BlacklistIP(ip net.IP, owner string) {
	a, ok := netip.AddrFromSlice(ip)
	if !ok || m.broken != nil {
		return
	}
	if err := m.Exclude(context.Background(), a.Unmap(), owner, ""); err != nil {
		m.log.Error("an address could not be blacklisted", "address", a, "owner", owner, "error", err)
	}
}

// Exclude is BlacklistIP with a reason and an answer.
func (m *IPAM) Exclude(ctx context.Context, a netip.Addr, owner, reason string) error {
	if m.broken != nil {
		return m.broken
	}
	return m.deps.Ledger.Exclude(ctx, ledger.Exclusion{Pool: m.pool.Name, Addr: a, Owner: owner, Reason: reason})
}

// Readmit takes an address off the blacklist, if it is on it.
func (m *IPAM) Readmit(ctx context.Context, a netip.Addr) error {
	if m.broken != nil {
		return m.broken
	}
	return m.deps.Ledger.Readmit(ctx, m.pool.Name, a)
}
