// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
)

// poolIPs holds the single addresses of a NetResourceSet.
type poolIPs struct {
	about       map[netip.Addr]PoolIP
	allocatable map[netip.Addr]bool
	answers     map[netip.Addr]string // to the operator's requests to release; "": not decided yet
}

func errNoSet() error { return errors.New("the NetResourceSet of this node is not available") }

// refuses returns why a single address must not be allocated, or nil.
func (s *snapshot) refuses(a netip.Addr) error {
	if s.set == nil {
		return errNoSet()
	}
	if len(s.ips.about) == 0 {
		return errors.New("no IPs available")
	}
	switch about, ok := s.ips.about[a]; {
	case !ok:
		return NewIPNotAvailableInPoolError(a.AsSlice())
	case s.ips.allocatable[a]:
		return nil
	case !handshake.Allocatable(handshake.State(s.ips.answers[a])):
		return ErrGivenBack
	case s.strict && !about.Subnet.IsValid():
		return errors.New("its subnet is not known")
	}
	return NewIPNotAvailableInPoolError(a.AsSlice())
}

// describe adds the interface and the networks of an address.
func (s *snapshot) describe(a netip.Addr, r *AllocationResult) {
	if s.ips.about == nil {
		return
	}
	about, ok := s.ips.about[a]
	if !ok {
		return
	}
	r.InterfaceNumber, r.PrimaryMAC = about.Interface, about.MAC
	if about.Subnet.IsValid() {
		r.CIDRs = []string{about.Subnet.Masked().String()}
		if !about.Gateway.IsValid() {
			about.Gateway, _ = addrspace.Nth(about.Subnet.Masked(), 1)
		}
	}
	if about.Gateway.IsValid() {
		r.GatewayIP = about.Gateway.String()
	}
}

// readPoolIPs reads the single addresses of a NetResourceSet.
func (m *IPAM) readPoolIPs(set *NetResourceSet) poolIPs {
	ips := poolIPs{
		about:       map[netip.Addr]PoolIP{},
		allocatable: map[netip.Addr]bool{},
		answers:     map[netip.Addr]string{},
	}
	for text, about := range set.Pool {
		a, err := netip.ParseAddr(text)
		a = a.Unmap()
		switch {
		case err != nil || a.Zone() != "":
			m.log.Error("a text in the pool of the NetResourceSet is not an address", "name", set.Name, "text", text)
		case m.allocatorOf(ledger.FamilyOf(a)) == nil:
		case m.named == vpcENI && !about.Subnet.IsValid():
			m.log.Error("an address of the NetResourceSet has no subnet: it is not allocated",
				"name", set.Name, "address", text)
			ips.about[a] = about
		default:
			ips.about[a], ips.allocatable[a] = about, true
		}
	}
	return ips
}

// updatePoolIPs grants the single addresses of a NetResourceSet. An address that
// the operator wants to release is taken out of the pool, durably, before the
// answer "ready"; an address that was allocated meanwhile stays.
func (m *IPAM) updatePoolIPs(ctx context.Context, next *resources) error {
	ips := m.readPoolIPs(next.set)
	var ready []netip.Addr
	for text, state := range next.set.Status.ReleaseIPs {
		a, err := netip.ParseAddr(text)
		if a = a.Unmap(); err != nil {
			continue
		}
		_, inPool := ips.about[a]
		if state == MarkedForRelease && !m.isRestored() {
			ips.answers[a] = "" // running pods may not be restored yet
			continue
		}
		answer := handshake.Answer(handshake.State(state), handshake.Seen{InPool: inPool, Leased: m.leased(a)})
		if answer == handshake.None {
			continue
		}
		ips.answers[a] = string(answer)
		if !handshake.Allocatable(answer) {
			delete(ips.allocatable, a)
		}
		if answer == handshake.Ready {
			ready = append(ready, a)
		}
	}
	if err := m.grantPoolIPs(ctx, ips); err != nil {
		return err
	}
	late := slices.DeleteFunc(ready, func(a netip.Addr) bool { return !m.leased(a) })
	for _, a := range late {
		ips.answers[a], ips.allocatable[a] = DoNotRelease, true
	}
	if len(late) > 0 {
		if err := m.grantPoolIPs(ctx, ips); err != nil {
			return err
		}
	}
	next.ips = ips
	return nil
}

// leased reports whether an address has a lease, held or cooling.
func (m *IPAM) leased(a netip.Addr) bool {
	_, ok := m.deps.Ledger.Lookup(m.pool.Name, a)
	return ok
}

// grantPoolIPs grants the allocatable addresses, unless the ledger has exactly
// these: they may be very many. A grant that has failed may be applied later, so
// the next one is made in any case.
func (m *IPAM) grantPoolIPs(ctx context.Context, ips poolIPs) error {
	blocks := make([]netip.Prefix, 0, len(ips.allocatable))
	for a := range ips.allocatable {
		blocks = append(blocks, netip.PrefixFrom(a, a.BitLen()))
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	if !m.unsure && slices.Equal(blocks, m.deps.Ledger.Blocks(m.pool.Name)) {
		return nil
	}
	err := m.deps.Grants.Grant(ctx, m.pool, blocks)
	m.unsure = err != nil
	return err
}

// reviewPoolIPs returns the use of each leased address, and the answers to the
// operator. An address that has left the pool after its release has no answer.
func (m *IPAM) reviewPoolIPs(ctx context.Context) (used map[string]Use, answers map[string]string, err error) {
	if slices.Contains(slices.Collect(maps.Values(m.resources.ips.answers)), "") { // from before RestoreFinished
		if err := m.updatePoolIPs(ctx, &m.resources); err != nil {
			return nil, nil, err
		}
		m.publish()
	}
	used, answers = map[string]Use{}, map[string]string{}
	for _, l := range m.leases() {
		used[l.Addr.String()] = Use{m.holder(&l), m.resources.ips.about[l.Addr].Interface}
	}
	for a, state := range m.resources.ips.answers {
		answers[a.String()] = state
	}
	return used, answers, nil
}
