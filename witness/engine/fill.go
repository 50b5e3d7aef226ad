// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	apinetwork "github.com/moby/moby/api/types/network"

	"github.com/cadastre/cadastre/witness"
)

// fill adds networks and containers to a view.
func fill(v *witness.EngineView, networks []network, containers []container.Summary) {
	byName := map[string]int{}
	for i, n := range networks {
		byName[n.ID] = i
		v.Networks = append(v.Networks, n.value())
	}
	for i, n := range networks { // a name before an ID, as the engine resolves them
		byName[n.Name] = i
	}
	for _, c := range containers {
		x := witness.EngineContainer{
			ID:      c.ID,
			Name:    nameOf(c),
			Running: c.State == container.StateRunning || c.State == container.StatePaused,
			Fixed:   map[string][]netip.Addr{},
		}
		if c.NetworkSettings != nil {
			for _, name := range slices.Sorted(maps.Keys(c.NetworkSettings.Networks)) {
				s := c.NetworkSettings.Networks[name]
				if s == nil {
					continue
				}
				i, ok := byName[name]
				if !ok {
					i, ok = byName[s.NetworkID]
				}
				if ok {
					attach(&v.Networks[i], &x, s)
				}
			}
		}
		v.Containers = append(v.Containers, x)
	}
	for i := range v.Networks {
		slices.SortFunc(v.Networks[i].Endpoints, func(a, b witness.EngineEndpoint) int {
			return cmp.Compare(a.ID, b.ID)
		})
	}
}

// nameOf returns the name of a container: that without a link's prefix.
func nameOf(c container.Summary) string {
	for _, n := range c.Names {
		if n = strings.TrimPrefix(n, "/"); !strings.Contains(n, "/") {
			return n
		}
	}
	return c.ID
}

// value returns the network with the endpoints that the engine has listed in it.
func (n network) value() witness.EngineNetwork {
	v := witness.EngineNetwork{
		ID:          n.ID,
		Name:        n.Name,
		Driver:      n.Driver,
		Scope:       n.Scope,
		IPAMDriver:  n.IPAM.Driver,
		IPAMOptions: n.IPAM.Options,
	}
	for _, c := range n.IPAM.Config {
		if !c.Subnet.IsValid() {
			continue
		}
		p := witness.EnginePool{Subnet: c.Subnet.Masked(), Gateway: c.Gateway.Unmap(), Aux: map[string]netip.Addr{}}
		if c.IPRange.IsValid() {
			p.Range = c.IPRange.Masked()
		}
		for name, a := range c.AuxiliaryAddresses {
			p.Aux[name] = a.Unmap()
		}
		v.Pools = append(v.Pools, p)
	}
	for _, id := range slices.Sorted(maps.Keys(n.Containers)) {
		c := n.Containers[id]
		e := witness.EngineEndpoint{
			ID:          c.EndpointID,
			ContainerID: id,
			Name:        c.Name,
			MAC:         strings.ToLower(c.MacAddress),
		}
		if strings.HasPrefix(id, "ep-") { // the engine knows no container of the endpoint
			e.ContainerID = ""
		}
		for _, p := range []netip.Prefix{c.IPv4Address, c.IPv6Address} {
			if p.IsValid() {
				e.Addrs = append(e.Addrs, p.Addr().Unmap())
			}
		}
		v.Endpoints = append(v.Endpoints, e)
	}
	return v
}

// attach adds what a container says about its place in a network.
func attach(n *witness.EngineNetwork, c *witness.EngineContainer, s *apinetwork.EndpointSettings) {
	if s.IPAMConfig != nil {
		for _, a := range []netip.Addr{s.IPAMConfig.IPv4Address, s.IPAMConfig.IPv6Address} {
			if a.IsValid() {
				c.Fixed[n.ID] = append(c.Fixed[n.ID], a.Unmap())
			}
		}
	}
	if s.EndpointID == "" || !c.Running { // after a crash of the engine a stopped one names its last endpoint
		return
	}
	for _, g := range []netip.Addr{s.Gateway, s.IPv6Gateway} {
		for i := range n.Pools {
			if p := &n.Pools[i]; !p.Gateway.IsValid() && g.IsValid() && p.Subnet.Contains(g.Unmap()) {
				p.Gateway = g.Unmap()
			}
		}
	}
	known := func(e witness.EngineEndpoint) bool { return e.ID == s.EndpointID }
	if slices.ContainsFunc(n.Endpoints, known) {
		return
	}
	e := witness.EngineEndpoint{ID: s.EndpointID, ContainerID: c.ID, Name: c.Name, MAC: s.MacAddress.String()}
	for _, a := range []netip.Addr{s.IPAddress, s.GlobalIPv6Address} {
		if a.IsValid() {
			e.Addrs = append(e.Addrs, a.Unmap())
		}
	}
	n.Endpoints = append(n.Endpoints, e)
}
