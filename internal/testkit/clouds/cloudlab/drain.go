// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import "net/netip"

// Live returns the number of pods.
func (c *Crowd) Live() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.live)
}

// Drain deletes all pods, after Stop, and fails the test if a DEL fails.
func (c *Crowd) Drain() {
	c.l.t.Helper()
	for _, n := range c.l.nodes {
		for _, p := range c.of(n) {
			c.remove(p)
		}
	}
	c.Verify()
}

// kinds returns the kinds of exchanges that a crowd must have had: with pods and with the
// gateways of each family. The crowd sends no packets to a gateway that is of its link only.
func (l *Lab) kinds() (all []string) {
	seen := map[string]bool{}
	add := func(kind string, a netip.Addr) {
		if kind += map[bool]string{true: " ipv4", false: " ipv6"}[a.Is4()]; !seen[kind] {
			seen[kind] = true
			all = append(all, kind)
		}
	}
	for _, n := range l.config.Networks {
		for _, s := range n.Subnets {
			add("pod", s.CIDR.Addr())
		}
	}
	for _, gateway := range l.Gateways() {
		add("gateway", gateway.Address)
	}
	return all
}
