// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
)

// givenIPs are the single addresses of a NetResourceSet.
type givenIPs struct {
	about map[netip.Addr]PoolIP
	lends map[netip.Addr]bool   // those that can be lent
	back  map[netip.Addr]string // those in a handshake, and the answer to it; "": none yet
}

func errNoSet() error { return errors.New("the NetResourceSet of this node is not available") }

// offered is why an address that somebody names is not lent.
func (v *view) offered(a netip.Addr, mode Mode) error {
	if mode != Given {
		return nil
	}
	if v.set == nil {
		return errNoSet()
	}
	if len(v.given.about) == 0 {
		return errors.New("no IPs available")
	}
	switch about, ok := v.given.about[a]; {
	case !ok:
		return NewIPNotAvailableInPoolError(a.AsSlice())
	case v.given.lends[a]:
		return nil
	case !handshake.Lendable(handshake.State(v.given.back[a])):
		return ErrGivenBack
	case v.strict && !about.Subnet.IsValid():
		return fmt.Errorf("its subnet is not known")
	}
	return NewIPNotAvailableInPoolError(a.AsSlice())
}

// describe adds what is known of an address.
func (v *view) describe(a netip.Addr, r *AllocationResult) {
	if v.given.about == nil {
		return
	}
	about, ok := v.given.about[a]
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

// readGiven reads the addresses of a NetResourceSet.
func (m *IPAM) readGiven(set *NetResourceSet) givenIPs {
	g := givenIPs{about: map[netip.Addr]PoolIP{}, lends: map[netip.Addr]bool{}, back: map[netip.Addr]string{}}
	for text, about := range set.Pool {
		a, err := netip.ParseAddr(text)
		a = a.Unmap()
		switch {
		case err != nil || a.Zone() != "":
			m.log.Error("an address of the NetResourceSet is none", "name", set.Name, "address", text)
		case m.allocatorOf(ledger.FamilyOf(a)) == nil:
		case m.named == vpcENI && !about.Subnet.IsValid():
			m.log.Error("an address of the NetResourceSet is not lent: its subnet is not known", "name", set.Name, "address", text)
			g.about[a] = about
		default:
			g.about[a], g.lends[a] = about, true
		}
	}
	return g
}

// updateGiven lends the addresses of a NetResourceSet. One that is to go back
// is lent no more, durably, before its giver hears that it is ready; one that
// was lent in the meantime does not go back.
func (m *IPAM) updateGiven(ctx context.Context, next *source) error {
	g := m.readGiven(next.set)
	var ready []netip.Addr
	for text, state := range next.set.Status.ReleaseIPs {
		a, err := netip.ParseAddr(text)
		if a = a.Unmap(); err != nil {
			continue
		}
		_, ours := g.about[a]
		if state == MarkedForRelease && !m.isRestored() {
			g.back[a] = "" // nobody knows yet who uses it
			continue
		}
		next := handshake.Answer(handshake.State(state), handshake.Seen{InPool: ours, Leased: m.inUse(a)})
		if next == handshake.None {
			continue
		}
		g.back[a] = string(next)
		if !handshake.Lendable(next) {
			delete(g.lends, a)
		}
		if next == handshake.Ready {
			ready = append(ready, a)
		}
	}
	if err := m.grantGiven(ctx, g); err != nil {
		return err
	}
	late := slices.DeleteFunc(ready, func(a netip.Addr) bool { return !m.inUse(a) })
	for _, a := range late {
		g.back[a], g.lends[a] = DoNotRelease, true
	}
	if len(late) > 0 {
		if err := m.grantGiven(ctx, g); err != nil {
			return err
		}
	}
	next.given = g
	return nil
}

// inUse is true for an address that somebody holds, or has held just now.
func (m *IPAM) inUse(a netip.Addr) bool {
	_, ok := m.deps.Ledger.Lookup(m.pool.Name, a)
	return ok
}

// grantGiven grants the addresses that can be lent, if they are others than
// before: there may be many.
func (m *IPAM) grantGiven(ctx context.Context, g givenIPs) error {
	if m.source.granted != nil && maps.Equal(m.source.granted, g.lends) {
		return nil
	}
	m.source.granted = nil // after an error it is not known
	blocks := make([]netip.Prefix, 0, len(g.lends))
	for a := range g.lends {
		blocks = append(blocks, netip.PrefixFrom(a, a.BitLen()))
	}
	slices.SortFunc(blocks, netip.Prefix.Compare)
	if err := m.deps.Grants.Grant(ctx, m.pool, blocks); err != nil {
		return err
	}
	m.source.granted = maps.Clone(g.lends)
	return nil
}

// reviewGiven is who holds which address, and the answers of the handshake. An
// address that has gone back and left the pool is no longer spoken of.
func (m *IPAM) reviewGiven(ctx context.Context) (used map[string]Use, back map[string]string, err error) {
	if slices.Contains(slices.Collect(maps.Values(m.source.given.back)), "") { // from before it was restored
		if err := m.updateGiven(ctx, &m.source); err != nil {
			return nil, nil, err
		}
		m.show()
	}
	used, back = map[string]Use{}, map[string]string{}
	for _, l := range m.leases() {
		used[l.Addr.String()] = Use{m.holder(&l), m.source.given.about[l.Addr].Interface}
	}
	for a, state := range m.source.given.back {
		back[a.String()] = state
	}
	return used, back, nil
}
