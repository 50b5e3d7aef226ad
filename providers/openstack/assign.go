// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"github.com/cadastre/cadastre/cloud"
)

// errUnmarked is returned for a port whose own addresses have been tagged just now: it is
// read again.
var errUnmarked = errors.New("the machine's own addresses are tagged")

func index(ipv6 bool) int {
	if ipv6 {
		return 1
	}
	return 0
}

// Assign implements cloud.Cloud. The subnet of addresses is the one of the interface's own
// address, or the network's subnet for IPv6. If the subnet has fewer addresses than Count,
// half of the number is tried, and so on.
func (c *Cloud) Assign(
	ctx context.Context,
	instance string,
	iface string,
	want cloud.Want,
) ([]cloud.Block, error) {
	assign := c.assignAddresses
	if want.Prefixes {
		assign = c.assignBlocks
	}
	added, err := assign(ctx, instance, iface, want)
	if has(err, 404) {
		err = fmt.Errorf("%w: %w", cloud.ErrNoInstance, err)
	}
	if err != nil {
		return nil, fmt.Errorf("assign to port %s of machine %q: %w", iface, instance, err)
	}
	return added, nil
}

func (c *Cloud) assignAddresses(
	ctx context.Context,
	instance string,
	iface string,
	want cloud.Want,
) ([]cloud.Block, error) {
	n := want.Count
	for tries := 1; ; tries++ {
		want.Count = n
		added, asked, err := c.tryAddresses(ctx, instance, iface, want)
		switch {
		case errors.Is(err, errUnmarked): // the next reading may be too old to show the tags
			if err := sleep(ctx, c.retry.After(tries)); err != nil {
				return nil, err
			}
		case isKind(err, exhausted) && asked > 1:
			n = asked / 2
		default:
			return added, err
		}
	}
}

// tryAddresses adds addresses to a port, and returns for how many it has asked.
func (c *Cloud) tryAddresses(
	ctx context.Context,
	instance string,
	iface string,
	want cloud.Want,
) (added []cloud.Block, asked int, err error) {
	var n *networkState
	var from *subnet
	before, after, err := c.change(ctx, iface, func(p ports.Port) (*ports.UpdateOpts, error) {
		err := attached(p, instance)
		if err != nil {
			return nil, err
		}
		if n, err = c.networkOf(ctx, p.NetworkID); err != nil {
			return nil, err
		}
		if from, err = n.choose(p, want); err != nil {
			return nil, err
		}
		if asked, err = c.room(p, n, want); err != nil {
			return nil, err
		}
		if !marked(p) {
			if err := c.mark(ctx, p); err != nil {
				return nil, err
			}
			return nil, errUnmarked
		}
		ips := n.kept(p, nil)
		for range asked {
			ips = append(ips, ports.IP{SubnetID: from.id})
		}
		return &ports.UpdateOpts{FixedIPs: ips}, nil
	})
	if err != nil {
		return nil, asked, err
	}
	home := n.home(*after)
	for _, ip := range after.FixedIPs {
		prefix, err := fixed(ip)
		if err != nil {
			return nil, asked, err
		}
		if ip.SubnetID == from.id && !slices.Contains(before.FixedIPs, ip) {
			added = append(added, cloud.Block{Prefix: prefix, Subnet: n.offeredBy(home, from, from.id)})
		}
	}
	return added, asked, nil
}

// kept returns the fixed IPs of a port in the form of an update, without some. Those that
// Neutron derives from the MAC address stay without being named, and must not be.
func (n *networkState) kept(p ports.Port, without map[netip.Addr]bool) []ports.IP {
	kept := []ports.IP{}
	for _, ip := range p.FixedIPs {
		addr, err := netip.ParseAddr(ip.IPAddress)
		s := n.find(ip.SubnetID)
		if err == nil && !without[addr] && (s == nil || !s.auto) {
			kept = append(kept, ip)
		}
	}
	return kept
}

// choose returns the subnet for addresses or blocks of a port.
func (n *networkState) choose(p ports.Port, want cloud.Want) (*subnet, error) {
	home := n.home(p)
	if want.Subnet != "" {
		home = n.find(want.Subnet)
	}
	if home == nil {
		return nil, fmt.Errorf("network %s has no subnet %q for port %s", p.NetworkID, want.Subnet, p.ID)
	}
	from := n.companion(home, want.IPv6)
	if from == nil || from.auto {
		return nil, fmt.Errorf("%w: network %s has no subnet of the family (IPv6: %t) whose addresses can be asked for",
			cloud.ErrFull, p.NetworkID, want.IPv6)
	}
	return from, nil
}

// room returns how many of the wanted addresses or prefixes an interface can have.
func (c *Cloud) room(p ports.Port, n *networkState, want cloud.Want) (int, error) {
	if want.Count < 1 {
		return 0, fmt.Errorf("%d addresses: want at least 1", want.Count)
	}
	if want.Prefixes && c.config.PrefixBits[index(want.IPv6)] == 0 {
		return 0, fmt.Errorf("%w: the configuration has no prefixes of the family (IPv6: %t)", cloud.ErrFull, want.IPv6)
	}
	have := 0
	for _, ip := range p.FixedIPs {
		addr, err := netip.ParseAddr(ip.IPAddress)
		s := n.find(ip.SubnetID)
		if err == nil && addr.Is6() == want.IPv6 && !own(p, ip) && (s == nil || !s.auto) {
			have++
		}
	}
	all, err := pairs(p)
	if err != nil {
		return 0, err
	}
	for _, prefix := range all {
		if prefix.Addr().Is6() == want.IPv6 && prefix.Bits() == c.config.PrefixBits[index(want.IPv6)] {
			have++
		}
	}
	if have >= c.config.MaxAddresses {
		return 0, fmt.Errorf("%w: port %s has %d of %d addresses and prefixes", cloud.ErrFull, p.ID, have,
			c.config.MaxAddresses)
	}
	return min(want.Count, c.config.MaxAddresses-have), nil
}

// Unassign implements cloud.Cloud. Addresses and pairs go with one update. The reservation
// of a prefix is deleted after that.
func (c *Cloud) Unassign(ctx context.Context, instance, iface string, blocks []netip.Prefix) error {
	without, prefixes := map[netip.Addr]bool{}, map[netip.Prefix]bool{}
	for _, b := range blocks {
		if b.IsSingleIP() {
			without[b.Addr()] = true
		} else {
			prefixes[b.Masked()] = true
		}
	}
	reserved, err := c.reservedFor(ctx, instance, prefixes)
	if err != nil {
		return fmt.Errorf("unassign from port %s of machine %q: %w", iface, instance, err)
	}
	_, _, err = c.change(ctx, iface, func(p ports.Port) (*ports.UpdateOpts, error) {
		if err := attached(p, instance); err != nil {
			return nil, err
		}
		n, err := c.networkOf(ctx, p.NetworkID)
		if err != nil {
			return nil, err
		}
		return n.withoutBlocks(p, without, prefixes, reserved)
	})
	if err != nil && !has(err, 404) {
		return fmt.Errorf("unassign from port %s of machine %q: %w", iface, instance, err)
	}
	for _, r := range reserved {
		if err := c.remove(ctx, r.port.ID); err != nil {
			return fmt.Errorf("unassign from port %s of machine %q: %w", iface, instance, err)
		}
	}
	return nil
}

// reservedFor returns the reservations of some prefixes for a machine.
func (c *Cloud) reservedFor(
	ctx context.Context,
	instance string,
	prefixes map[netip.Prefix]bool,
) (some []reservation, err error) {
	if len(prefixes) == 0 {
		return nil, nil
	}
	named, err := c.list(ctx, query{networks: c.config.Networks, name: c.name(instance)})
	if err != nil {
		return nil, err
	}
	all, err := c.reservations(named)
	for _, r := range all {
		if prefixes[r.block] {
			some = append(some, r)
		}
	}
	return some, err
}

// withoutBlocks returns the update that removes addresses and prefixes from a port. If the
// port has none of them it changes nothing but the description: the condition of the update
// proves that the reading was not too old. A reservation whose pair is still there must not
// be deleted.
func (n *networkState) withoutBlocks(
	p ports.Port,
	without map[netip.Addr]bool,
	prefixes map[netip.Prefix]bool,
	reserved []reservation,
) (*ports.UpdateOpts, error) {
	opts := &ports.UpdateOpts{}
	found := false
	for _, ip := range p.FixedIPs {
		addr, err := netip.ParseAddr(ip.IPAddress)
		if err != nil || !without[addr] {
			continue
		}
		if s := n.find(ip.SubnetID); own(p, ip) || s != nil && s.auto {
			return nil, fmt.Errorf("%s is the machine's own address: want one that Assign has added", addr)
		}
		found = true
	}
	if found {
		opts.FixedIPs = n.kept(p, without)
	}
	kept := []ports.AddressPair{}
	for _, a := range p.AllowedAddressPairs {
		prefix, err := pair(a)
		if err != nil {
			return nil, err
		}
		if prefixes[prefix] && reservationOf(reserved, p.NetworkID, prefix) != nil {
			opts.AllowedAddressPairs = &kept
			continue
		}
		kept = append(kept, a)
	}
	return opts, nil
}
