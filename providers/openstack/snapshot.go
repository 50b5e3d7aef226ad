// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/gophercloud/gophercloud/v2/openstack/networking/v2/ports"

	"github.com/cadastre/cadastre/cloud"
)

// Read implements cloud.Cloud: with one list of ports and one of subnets.
func (c *Cloud) Read(ctx context.Context) (*cloud.Snapshot, error) {
	all, err := c.list(ctx, query{networks: c.config.Networks})
	if err != nil {
		return nil, fmt.Errorf("read the machines: %w", err)
	}
	networks, err := c.readNetworks(ctx, c.config.Networks)
	if err != nil {
		return nil, fmt.Errorf("read the machines: %w", err)
	}
	return c.snapshot(all, networks, true)
}

// ReadInstance implements cloud.Cloud: with two lists of ports and one of subnets.
func (c *Cloud) ReadInstance(ctx context.Context, instance string) (*cloud.Snapshot, error) {
	all, err := c.portsOf(ctx, instance)
	if err != nil {
		return nil, fmt.Errorf("read machine %q: %w", instance, err)
	}
	var ids []string
	for _, p := range all {
		if !slices.Contains(ids, p.NetworkID) {
			ids = append(ids, p.NetworkID)
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("read machine %q: %w", instance, cloud.ErrNoInstance)
	}
	networks, err := c.readNetworks(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read machine %q: %w", instance, err)
	}
	s, err := c.snapshot(all, networks, false)
	if err == nil && s.Instances[instance] == nil {
		err = fmt.Errorf("read machine %q: %w", instance, cloud.ErrNoInstance)
	}
	return s, err
}

// portsOf returns the ports of a machine, and those that the cluster owns for it.
func (c *Cloud) portsOf(ctx context.Context, instance string) ([]ports.Port, error) {
	all, err := c.list(ctx, query{networks: c.config.Networks, device: instance})
	if err != nil {
		return nil, err
	}
	kept, err := c.list(ctx, query{networks: c.config.Networks, name: c.name(instance)})
	if err != nil {
		return nil, err
	}
	for _, p := range kept {
		if !slices.ContainsFunc(all, func(q ports.Port) bool { return q.ID == p.ID }) {
			all = append(all, p)
		}
	}
	return all, nil
}

// snapshot puts ports and subnets into the form of package cloud. whole reports whether
// these are all ports of the networks.
func (c *Cloud) snapshot(
	all []ports.Port,
	networks map[string]*networkState,
	whole bool,
) (*cloud.Snapshot, error) {
	s := &cloud.Snapshot{Instances: map[string]*cloud.Instance{}, Subnets: map[string]*cloud.Subnet{}}
	used := map[string]map[netip.Addr]bool{} // by ID of the subnet
	machines := map[string][]ports.Port{}
	blocks, err := c.reservations(all)
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		for _, ip := range p.FixedIPs {
			addr, err := netip.ParseAddr(ip.IPAddress)
			if err != nil {
				return nil, fmt.Errorf("port %s: %w", p.ID, err)
			}
			if used[ip.SubnetID] == nil {
				used[ip.SubnetID] = map[netip.Addr]bool{}
			}
			used[ip.SubnetID][addr] = true
		}
		if isOfMachine(p) {
			machines[p.DeviceID] = append(machines[p.DeviceID], p)
		}
	}
	for _, n := range networks {
		for _, neutron := range n.subnets {
			offer := n.offered(neutron)
			if whole {
				offer.Free = neutron.free(used[neutron.id])
			}
			s.Subnets[neutron.id] = offer
		}
	}
	for id, ports := range machines {
		machine, err := c.machine(id, ports, networks, blocks)
		if err != nil {
			return nil, err
		}
		if machine != nil {
			s.Instances[id] = machine
		}
	}
	return s, nil
}

// machine returns a machine with its interfaces; nil if the configuration does not select it.
func (c *Cloud) machine(
	id string,
	all []ports.Port,
	networks map[string]*networkState,
	blocks []reservation,
) (*cloud.Instance, error) {
	c.byDevice(all)
	for _, tag := range c.config.PortTags {
		if !slices.Contains(all[0].Tags, tag) {
			return nil, nil //nolint:nilnil // it is not selected
		}
	}
	m := &cloud.Instance{ID: id, Limits: cloud.Limits{
		Interfaces: c.config.MaxInterfaces,
		Addresses:  [2]int{c.config.MaxAddresses, c.config.MaxAddresses},
		PrefixBits: c.config.PrefixBits,
	}}
	for at, p := range all {
		n := networks[p.NetworkID]
		if n == nil {
			n = &networkState{} // its subnets are younger than the list of them
		}
		i, err := c.iface(p, at, n, blocks)
		if err != nil {
			return nil, err
		}
		m.Interfaces = append(m.Interfaces, i)
	}
	slices.SortStableFunc(m.Interfaces, func(a, b *cloud.Interface) int { return a.Device - b.Device })
	return m, nil
}

// iface returns a port in the form of package cloud.
func (c *Cloud) iface(p ports.Port, at int, n *networkState, blocks []reservation) (*cloud.Interface, error) {
	i := &cloud.Interface{
		ID:      p.ID,
		Device:  c.device(p, at),
		MAC:     p.MACAddress,
		Exclude: c.config.ExcludeTag != "" && slices.Contains(p.Tags, c.config.ExcludeTag),
		Owned:   c.owned(p),
		Created: p.CreatedAt,
	}
	home := n.home(p)
	if home != nil {
		i.Subnet = home.id
	}
	for _, ip := range p.FixedIPs {
		prefix, err := fixed(ip)
		if err != nil {
			return nil, fmt.Errorf("port %s: %w", p.ID, err)
		}
		s := n.find(ip.SubnetID)
		i.Blocks = append(i.Blocks, cloud.Block{
			Prefix:  prefix,
			Subnet:  n.offeredBy(home, s, ip.SubnetID),
			Primary: own(p, ip) || s != nil && s.auto,
		})
	}
	have, err := pairs(p)
	if err != nil {
		return nil, err
	}
	for _, prefix := range have {
		r := reservationOf(blocks, p.NetworkID, prefix)
		if r != nil && r.port.Name == c.name(p.DeviceID) {
			s := n.find(r.subnet())
			i.Blocks = append(i.Blocks, cloud.Block{Prefix: prefix, Subnet: n.offeredBy(home, s, r.subnet())})
		}
	}
	return i, nil
}

// home returns the subnet of the port's own first address, IPv4 before IPv6; nil: none is known.
func (n *networkState) home(p ports.Port) (home *subnet) {
	for _, ip := range p.FixedIPs {
		s := n.find(ip.SubnetID)
		if s != nil && own(p, ip) && (home == nil || home.is6() && !s.is6()) {
			home = s
		}
	}
	return home
}

// offeredBy returns the ID of the subnet, in the form of package cloud, that an address of s
// belongs to: home's, if home stands for s too.
func (n *networkState) offeredBy(home, s *subnet, id string) string {
	if home != nil && s != nil && n.companion(home, s.is6()) == s {
		return home.id
	}
	return id
}
