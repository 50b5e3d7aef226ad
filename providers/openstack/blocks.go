// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"github.com/cadastre/cadastre/cloud"
)

const (
	slotsTried  = 1 << 16 // of a subnet, in search for a free block
	blocksTried = 16      // that other allocators have taken first
)

// reservation is a port that keeps a block from all other users of a subnet. Its fixed IPs
// tell the block; for IPv6 they and the description do.
type reservation struct {
	port  ports.Port
	block netip.Prefix
}

func (r reservation) subnet() string {
	if len(r.port.FixedIPs) == 0 {
		return ""
	}
	return r.port.FixedIPs[0].SubnetID
}

// reservations returns the reservations among ports, those of other clusters too.
func (c *Cloud) reservations(all []ports.Port) ([]reservation, error) {
	var found []reservation
	for _, p := range all {
		if !isBlock(p) {
			continue
		}
		block, ok, err := c.reserved(p)
		if err != nil {
			return nil, err
		}
		if ok {
			found = append(found, reservation{p, block})
		}
	}
	return found, nil
}

// reserved returns the block of a reservation; false if it has no address. Another client may
// have replaced the description: then the length of an IPv6 block is that of the configuration.
func (c *Cloud) reserved(p ports.Port) (netip.Prefix, bool, error) {
	if len(p.FixedIPs) == 0 {
		return netip.Prefix{}, false, nil
	}
	var first netip.Addr
	for _, ip := range p.FixedIPs {
		addr, err := netip.ParseAddr(ip.IPAddress)
		if err != nil {
			return netip.Prefix{}, false, fmt.Errorf("fixed IP of reservation %s: %w", p.ID, err)
		}
		if !first.IsValid() || addr.Less(first) {
			first = addr
		}
	}
	length := first.BitLen() - bits.Len(uint(len(p.FixedIPs)-1))
	if first.Is6() {
		length = c.config.PrefixBits[1]
		if length == 0 {
			length = DefaultPrefix6
		}
		if told, err := netip.ParsePrefix(p.Description); err == nil && told.Addr() == first && told.Masked() == told {
			length = told.Bits()
		}
	}
	return netip.PrefixFrom(first, length).Masked(), true, nil
}

func reservationOf(all []reservation, network string, block netip.Prefix) *reservation {
	for i := range all {
		if all[i].block == block && all[i].port.NetworkID == network {
			return &all[i]
		}
	}
	return nil
}

// assignBlocks reserves up to want.Count blocks and routes them to a port.
func (c *Cloud) assignBlocks(
	ctx context.Context,
	instance string,
	iface string,
	want cloud.Want,
) ([]cloud.Block, error) {
	p, err := ports.Get(ctx, c.network, iface).Extract()
	if err != nil {
		return nil, fmt.Errorf("read port %s: %w", iface, failure(err))
	}
	if err := attached(*p, instance); err != nil {
		return nil, err
	}
	n, err := c.networkOf(ctx, p.NetworkID)
	if err != nil {
		return nil, err
	}
	from, err := n.choose(*p, want)
	if err != nil {
		return nil, err
	}
	count, err := c.room(*p, n, want)
	if err != nil {
		return nil, err
	}
	reserved, err := c.reserve(ctx, instance, from, c.config.PrefixBits[index(want.IPv6)], count)
	if len(reserved) == 0 {
		return nil, err
	}
	if reserved, err = c.route(ctx, instance, iface, n, want.IPv6, reserved); err != nil {
		return nil, err
	}
	home := n.home(*p)
	added := make([]cloud.Block, len(reserved))
	for i, r := range reserved {
		added[i] = cloud.Block{Prefix: r.block, Subnet: n.offeredBy(home, from, from.id)}
	}
	return added, nil
}

// route adds reserved blocks to the pairs of a port, as many as it has room for when it is
// written, and returns those. The other reservations are deleted. After an unknown outcome
// all stay, because the pairs may be there.
func (c *Cloud) route(
	ctx context.Context,
	instance string,
	iface string,
	n *networkState,
	ipv6 bool,
	reserved []reservation,
) (routed []reservation, err error) {
	refused := false
	var surplus []reservation
	_, _, err = c.change(ctx, iface, func(p ports.Port) (opts *ports.UpdateOpts, err error) {
		defer func() { refused = err != nil }()
		if err := attached(p, instance); err != nil {
			return nil, err
		}
		// Neutron may repeat an update within a request, and refuse the repetition: then the pairs
		// are there although it has answered that they are not.
		there, missing, err := routedTo(p, reserved)
		if err != nil {
			return nil, err
		}
		room := 0
		if len(missing) > 0 {
			room, err = c.room(p, n, cloud.Want{Count: len(missing), IPv6: ipv6, Prefixes: true})
		}
		if err != nil && len(there) == 0 {
			return nil, err
		}
		routed, surplus = append(there, missing[:room]...), missing[room:]
		if room == 0 {
			return nil, nil
		}
		all := slices.Clone(p.AllowedAddressPairs)
		for _, r := range missing[:room] {
			all = append(all, ports.AddressPair{IPAddress: r.block.String()})
		}
		return &ports.UpdateOpts{AllowedAddressPairs: &all}, nil
	})
	switch {
	case err == nil:
	case refused || certain(err):
		routed, surplus = nil, reserved
	default:
		return nil, err
	}
	for _, r := range surplus {
		if failed := c.remove(ctx, r.port.ID); failed != nil {
			c.config.Log.Warn("a reservation stays until orphans are deleted", "port", r.port.ID, "error", failed)
		}
	}
	return routed, err
}

// routedTo divides reservations into those whose blocks are pairs of a port, and the others.
func routedTo(p ports.Port, all []reservation) (there, missing []reservation, err error) {
	has, err := pairs(p)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range all {
		if slices.Contains(has, r.block) {
			there = append(there, r)
		} else {
			missing = append(missing, r)
		}
	}
	return there, missing, nil
}

// reserve creates up to count reservations. It returns an error if it has created none.
func (c *Cloud) reserve(
	ctx context.Context,
	instance string,
	from *subnet,
	bits int,
	count int,
) (made []reservation, err error) {
	all, err := c.list(ctx, query{networks: []string{from.network}})
	if err != nil {
		return nil, err
	}
	free, err := c.slots(all, from, bits)
	if err != nil {
		return nil, err
	}
	for tries := 0; len(made) < count && tries < count+blocksTried; tries++ {
		block, found := free.next()
		if !found {
			err = fmt.Errorf(
				"%w: subnet %s has no free block of length %d; IPv6 blocks lie outside of its allocation pools",
				cloud.ErrFull,
				from.id,
				bits,
			)
			break
		}
		p, failed := c.createReservation(ctx, instance, from, block)
		if isKind(failed, inUse) {
			err = fmt.Errorf("reserve %s: %w", block, failed)
			continue // another allocator has a part of it
		}
		if failed != nil {
			err = fmt.Errorf("reserve %s: %w", block, failure(failed))
			break
		}
		made = append(made, reservation{*p, block})
	}
	return made, err
}

// createReservation creates the port of a block: with all addresses of an IPv4 block, and
// the first one of an IPv6 block, whose other addresses Neutron does not give to ports that
// ask for no certain address.
func (c *Cloud) createReservation(
	ctx context.Context,
	instance string,
	from *subnet,
	block netip.Prefix,
) (*ports.Port, error) {
	ips := []ports.IP{{SubnetID: from.id, IPAddress: block.Addr().String()}}
	if block.Addr().Is4() {
		for a := block.Addr().Next(); block.Contains(a); a = a.Next() {
			ips = append(ips, ports.IP{SubnetID: from.id, IPAddress: a.String()})
		}
	}
	down := false
	return ports.Create(ctx, c.network, ports.CreateOpts{
		NetworkID:      from.network,
		Name:           c.name(instance),
		Description:    block.String(),
		DeviceOwner:    ownerOfBlocks,
		AdminStateUp:   &down,
		SecurityGroups: &[]string{},
		FixedIPs:       ips,
	}).Extract()
}

// slots iterates over the free blocks of a subnet, from a place that is chosen at random.
type slots struct {
	from  *subnet
	bits  int
	taken map[netip.Prefix]bool // blocks of which a part is in use
	large []netip.Prefix        // prefixes in use that are larger than a block
	start uint64
	tried uint64
	pass  int // 0: outside of the allocation pools; 1: inside too
}

// slots returns the blocks of a subnet that no port has a part of.
func (c *Cloud) slots(all []ports.Port, from *subnet, bits int) (*slots, error) {
	s := &slots{from: from, bits: bits, taken: map[netip.Prefix]bool{}}
	if bits <= from.cidr.Bits() {
		return nil, fmt.Errorf("subnet %s is %s: it has no blocks of length %d", from.id, from.cidr, bits)
	}
	s.start = c.config.Random(s.count())
	whole := netip.PrefixFrom(from.cidr.Addr(), from.cidr.Addr().BitLen())
	s.take(whole)
	if !from.is6() {
		s.take(netip.PrefixFrom(last(from.cidr), 32))
	}
	if from.gateway.IsValid() {
		s.take(netip.PrefixFrom(from.gateway, from.gateway.BitLen()))
	}
	reserved, err := c.reservations(all)
	if err != nil {
		return nil, err
	}
	for _, r := range reserved {
		s.take(r.block)
	}
	for _, p := range all {
		used, err := pairs(p)
		if err != nil {
			return nil, err
		}
		for _, ip := range p.FixedIPs {
			prefix, err := fixed(ip)
			if err != nil {
				return nil, err
			}
			used = append(used, prefix)
		}
		for _, u := range used {
			s.take(u)
		}
	}
	return s, nil
}

// count returns the number of blocks, or the number of the first ones if these are more than
// a search looks at.
func (s *slots) count() uint64 { return 1 << min(s.bits-s.from.cidr.Bits(), 32) }

// take excludes a prefix that is in use. One that contains the whole subnet only permits a
// port to use any address, and excludes nothing.
func (s *slots) take(p netip.Prefix) {
	switch {
	case !s.from.cidr.Overlaps(p) || p.Bits() <= s.from.cidr.Bits():
	case p.Bits() >= s.bits:
		s.taken[netip.PrefixFrom(p.Addr(), s.bits).Masked()] = true
	default:
		s.large = append(s.large, p)
	}
}

// next returns the next free block.
func (s *slots) next() (netip.Prefix, bool) {
	for ; s.pass < 2; s.pass, s.tried = s.pass+1, 0 {
		for s.tried < min(s.count(), slotsTried) {
			block := s.at((s.start + s.tried) % s.count())
			s.tried++
			if s.free(block) {
				s.taken[block] = true
				return block, true
			}
		}
	}
	return netip.Prefix{}, false
}

// at returns a block by its place in the subnet.
func (s *slots) at(n uint64) netip.Prefix {
	bytes := s.from.cidr.Addr().AsSlice()
	for bit := s.bits - 1; n > 0; bit, n = bit-1, n>>1 {
		bytes[bit/8] |= byte(n&1) << (7 - bit%8)
	}
	addr, _ := netip.AddrFromSlice(bytes) // it has the length of an address
	return netip.PrefixFrom(addr, s.bits)
}

func (s *slots) free(block netip.Prefix) bool {
	if s.taken[block] {
		return false
	}
	for _, p := range s.large {
		if p.Overlaps(block) {
			return false
		}
	}
	if !s.from.is6() && s.pass == 1 {
		return true
	}
	for _, pool := range s.from.pools {
		if pool.overlaps(block) {
			return false
		}
	}
	return true
}
