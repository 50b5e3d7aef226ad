// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/cadastre/cadastre/ledger"
)

// IPBlacklist reports which addresses are never allocated. Its zero value has none.
type IPBlacklist struct {
	ledger *ledger.Ledger
	pool   string
}

// Contains reports whether an address is never allocated.
func (blacklist *IPBlacklist) Contains(ip net.IP) bool {
	a, err := addrOf(ip)
	if err != nil || blacklist == nil || blacklist.ledger == nil {
		return false
	}
	_, ok := blacklist.ledger.Excluded(blacklist.pool, a)
	return ok
}

// Blacklist returns the blacklist. It follows later changes.
func (m *IPAM) Blacklist() *IPBlacklist { return &IPBlacklist{m.deps.Ledger, m.pool.Name} }

// BlacklistIP excludes an address from allocation, even if no block has it yet. A
// lease of it stays. The exclusion outlives a restart. An error is logged, since
// the published call returns none; Exclude returns it.
func (m *IPAM) BlacklistIP(ip net.IP, owner string) {
	a, err := addrOf(ip)
	if err != nil || m.broken != nil {
		return
	}
	if err := m.Exclude(context.Background(), a, owner, ""); err != nil {
		m.log.Error("an address could not be blacklisted", "address", a, "owner", owner, "error", err)
	}
}

// Exclude is BlacklistIP with a context and a reason.
func (m *IPAM) Exclude(ctx context.Context, a netip.Addr, owner, reason string) error {
	if m.broken != nil {
		return m.broken
	}
	return m.deps.Ledger.Exclude(ctx, ledger.Exclusion{Pool: m.pool.Name, Addr: a, Owner: owner, Reason: reason})
}

// Readmit removes an address from the blacklist, if it is on it.
func (m *IPAM) Readmit(ctx context.Context, a netip.Addr) error {
	if m.broken != nil {
		return m.broken
	}
	return m.deps.Ledger.Readmit(ctx, m.pool.Name, a)
}

// blacklisted returns the error for a blacklisted address, or nil.
func (m *IPAM) blacklisted(a netip.Addr) error {
	if e, ok := m.deps.Ledger.Excluded(m.pool.Name, a); ok {
		return fmt.Errorf("%w by %q", ErrBlacklisted, e.Owner)
	}
	return nil
}
