// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// poolIPs holds the single addresses, and blocks of them, of a NetResourceSet. It is a
// value.
type poolIPs struct {
	about   map[netip.Prefix]PoolIP
	lengths [2][]int // of the keys of about, by family, the longest first
	nodeset.Usable
	restoring bool // addresses of running pods may not be leased yet
}

// of returns the description of an address: that of the longest block that contains it.
func (ips *poolIPs) of(a netip.Addr) (about PoolIP, ok bool) {
	for _, bits := range ips.lengths[ledger.FamilyOf(a)] {
		if about, ok = ips.about[netip.PrefixFrom(a, bits).Masked()]; ok {
			return about, true
		}
	}
	return PoolIP{}, false
}

// size returns the number of addresses that are allocated from.
func (ips *poolIPs) size() (n uint64) {
	for _, p := range ips.Open {
		n = add(n, addrspace.Size(p))
	}
	return n
}

func errNoSet() error { return errors.New("the NetResourceSet of this node is not available") }

// errNoSubnet is the reason to refuse an address that is useless without its subnet.
var errNoSubnet = errors.New("its subnet is not known")

// refuses returns why a single address must not be allocated, or nil.
func (s *snapshot) refuses(a netip.Addr) error {
	if s.set == nil {
		return errNoSet()
	}
	if len(s.ips.about) == 0 {
		return errors.New("no IPs available")
	}
	about, ok := s.ips.of(a)
	switch {
	case !ok:
		return NewIPNotAvailableInPoolError(a.AsSlice())
	case nodeset.Contains(s.ips.Open, a):
		return nil
	case s.strict && !about.Subnet.IsValid():
		return errNoSubnet
	}
	return ErrGivenBack
}

// describe adds the interface and the networks of an address.
func (s *snapshot) describe(a netip.Addr, r *AllocationResult) {
	if s.ips.about == nil {
		return
	}
	about, ok := s.ips.of(a)
	if !ok {
		return
	}
	r.InterfaceNumber, r.PrimaryMAC = about.Interface, about.MAC
	if about.Subnet.IsValid() {
		subnet := about.Subnet.Masked().String()
		r.CIDRs = append(make([]string, 0, 1+len(s.vpc[ledger.FamilyOf(a)])), subnet)
		for _, cidr := range s.vpc[ledger.FamilyOf(a)] {
			if cidr != subnet {
				r.CIDRs = append(r.CIDRs, cidr)
			}
		}
		if !about.Gateway.IsValid() {
			about.Gateway, _ = addrspace.Nth(about.Subnet.Masked(), 1)
		}
	}
	if about.Gateway.IsValid() {
		r.GatewayIP = about.Gateway.String()
	}
}

// readPoolIPs reads the addresses of a NetResourceSet.
func (m *IPAM) readPoolIPs(set *NetResourceSet) poolIPs {
	ips := poolIPs{about: map[netip.Prefix]PoolIP{}, restoring: !m.isRestored()}
	refuse := func(key string, p netip.Prefix) error {
		family := ledger.FamilyOf(p.Addr())
		if m.allocatorOf(family) == nil {
			return nodeset.ErrNotWanted
		}
		ips.about[p] = set.Pool[key]
		if !slices.Contains(ips.lengths[family], p.Bits()) {
			ips.lengths[family] = append(ips.lengths[family], p.Bits())
		}
		if m.named == vpcENI && !set.Pool[key].Subnet.IsValid() {
			return errNoSubnet
		}
		return nil
	}
	used := nodeset.ReadUsage(m.deps.Ledger, m.pool.Name, nodeset.Names{})
	ips.Usable = nodeset.Read(set.message(), nodeset.Rules{
		Refuse:    refuse,
		Leased:    used.Leased,
		Restoring: ips.restoring,
	})
	for _, x := range ips.Problems {
		m.log.Error("an address of the NetResourceSet is not allocated",
			"name", set.Name, "address", x.Key, "error", x.Text)
	}
	for _, lengths := range ips.lengths {
		slices.SortFunc(lengths, func(x, y int) int { return cmp.Compare(y, x) })
	}
	return ips
}

// updatePoolIPs grants the addresses of a NetResourceSet. An address that the operator
// wants back is taken out of the pool, durably, unless it is leased.
func (m *IPAM) updatePoolIPs(ctx context.Context, next *resources) error {
	next.ips = m.readPoolIPs(next.set)
	return m.grantPoolIPs(ctx, next.ips.Open)
}

// grantPoolIPs grants the allocatable addresses, unless the ledger has exactly
// these: they may be very many. A grant that has failed may be applied later, so
// the next one is made in any case.
func (m *IPAM) grantPoolIPs(ctx context.Context, blocks []netip.Prefix) error {
	if !m.unsure && slices.Equal(blocks, m.deps.Ledger.Blocks(m.pool.Name)) {
		return nil
	}
	err := m.deps.Grants.Grant(ctx, m.pool, blocks)
	m.unsure = err != nil
	return err
}

// reportPoolIPs returns set with the use of each leased address, and the answers to the
// operator.
func (m *IPAM) reportPoolIPs(ctx context.Context, set *kv.NetResourceSet) (*kv.NetResourceSet, error) {
	if m.resources.set == nil {
		return set, nil
	}
	if m.resources.ips.restoring { // from before RestoreFinished
		next := m.resources
		if err := m.updatePoolIPs(ctx, &next); err != nil {
			return nil, err
		}
		m.resources = next
		m.publish()
	}
	used := nodeset.ReadUsage(m.deps.Ledger, m.pool.Name, nodeset.Names{Holder: m.holder})
	granted := nodeset.Granted{Set: m.resources.set.message(), Usable: m.resources.ips.Usable}
	return nodeset.Report(set, granted, used), nil
}
