// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package openstack_test

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/providers/openstack"
)

func disjointBlocks(s *site) {
	var wait sync.WaitGroup
	for n := range 4 {
		machine := fmt.Sprint("m", n)
		port := s.boot(machine)
		wait.Go(func() {
			c := s.open(func(c *openstack.Config) { c.Cluster = machine; c.Random = func(uint64) uint64 { return 0 } })
			for range 4 {
				if _, err := c.Assign(s.t.Context(), machine, port, cloud.Want{Count: 1, Prefixes: true}); err != nil &&
					!errors.Is(err, cloud.ErrFull) {
					s.t.Errorf("assign: %v", err)
				}
				if _, err := c.Assign(s.t.Context(), machine, port, cloud.Want{Count: 3}); err != nil && !errors.Is(err, cloud.ErrFull) {
					s.t.Errorf("assign: %v", err)
				}
			}
		})
	}
	wait.Wait()
	used := map[netip.Prefix]string{}
	blocks := 0
	for _, p := range s.Ports(s.t) {
		if p.NetworkID != s.network.ID {
			continue
		}
		for _, a := range p.AllowedAddressPairs {
			used[netip.MustParsePrefix(a.IPAddress)] = p.ID
			blocks++
		}
	}
	s.g.Expect(blocks).To(BeNumerically(">", 4))
	s.g.Expect(used).To(HaveLen(blocks), "no block is held twice")
	for _, p := range s.Ports(s.t) {
		if p.NetworkID == s.network.ID && p.DeviceOwner != "cadastre:block" {
			for _, ip := range p.FixedIPs {
				block := netip.PrefixFrom(netip.MustParseAddr(ip.IPAddress), 28).Masked()
				s.g.Expect(used).NotTo(HaveKey(block), "an address of port %s lies in a block", p.ID)
			}
		}
	}
	for n := range 4 { // all of them are returned
		machine := fmt.Sprint("m", n)
		c := s.open(func(c *openstack.Config) { c.Cluster = machine })
		one, err := c.ReadInstance(s.t.Context(), machine)
		s.g.Expect(err).NotTo(HaveOccurred())
		i := one.Instances[machine].Interfaces[0]
		s.g.Expect(c.Unassign(s.t.Context(), machine, i.ID, given(i))).To(Succeed())
	}
	for _, p := range s.Ports(s.t) {
		if p.NetworkID == s.network.ID {
			s.g.Expect(p.DeviceOwner).NotTo(Equal("cadastre:block"))
			s.g.Expect(p.AllowedAddressPairs).To(BeEmpty())
			s.g.Expect(p.FixedIPs).To(HaveLen(1))
		}
	}
}

func blocksOutsideOfPools(s *site) {
	s.network.Subnets = append(s.network.Subnets, s.Subnet(s.t, s.network.ID, "10.0.0.0/24", pool("10.0.0.2", "10.0.0.200")))
	port := s.boot("m1")
	outside := netip.MustParsePrefix("10.0.0.208/28").Addr()
	for range 2 {
		for _, p := range s.assign("m1", port, cloud.Want{Count: 1, Prefixes: true}) {
			s.g.Expect(p.Bits()).To(Equal(28))
			s.g.Expect(p.Addr().Less(outside)).To(BeFalse(), "%s", p)
		}
	}
	more := s.assign("m1", port, cloud.Want{Count: 1, Prefixes: true}) // .240 holds the broadcast address
	s.g.Expect(more[0].Addr().Less(outside)).To(BeTrue(), "%s", more[0])
}

func blocks6(s *site) {
	s.network.Subnets = append(s.network.Subnets, s.Subnet(s.t, s.network.ID, "fd00::/64", pool("fd00::2", "fd00::ffff")))
	port := s.boot("m1")
	blocks := s.assign("m1", port, cloud.Want{Count: 3, Prefixes: true, IPv6: true})
	s.g.Expect(blocks).To(HaveLen(3))
	for _, b := range blocks {
		s.g.Expect(b.Bits()).To(Equal(80))
		s.g.Expect(b.Contains(netip.MustParseAddr("fd00::2"))).To(BeFalse())
	}
	s.g.Expect(given(s.machine("m1").Interfaces[0])).To(ConsistOf(blocks))

	whole := *s
	whole.network = s.Network(s.t, "fd02::/64")
	whole.cloud = whole.open(func(*openstack.Config) {})
	_, err := whole.cloud.Assign(s.t.Context(), "m2", whole.boot("m2"), cloud.Want{Count: 1, Prefixes: true, IPv6: true})
	s.g.Expect(err).To(And(MatchError(cloud.ErrFull), MatchError(ContainSubstring("allocation pools"))))
}

func foreignPairs(s *site) {
	port, other := s.boot("m1"), s.boot("m2")
	s.pairTo(port, "10.0.0.0/24", "192.168.1.0/24")
	s.pairTo(other, "10.0.0.64/26", "10.0.0.240")
	var all []netip.Prefix
	for {
		added, err := s.cloud.Assign(s.t.Context(), "m1", port, cloud.Want{Count: 1, Prefixes: true})
		if err != nil {
			s.g.Expect(err).To(MatchError(cloud.ErrFull))
			break
		}
		all = append(all, prefixesOf(added)...)
	}
	s.g.Expect(len(all)).To(BeNumerically(">", 3))
	for _, p := range all {
		s.g.Expect(p.Overlaps(netip.MustParsePrefix("10.0.0.64/26"))).To(BeFalse(), "%s", p)
		s.g.Expect(p).NotTo(Equal(netip.MustParsePrefix("10.0.0.240/28")))
	}
	s.g.Expect(given(s.machine("m1").Interfaces[0])).To(ConsistOf(all), "a person's pair is not for pods")
	s.g.Expect(s.cloud.Unassign(s.t.Context(), "m1", port, append(all, netip.MustParsePrefix("192.168.1.0/24")))).To(Succeed())
	var left []string
	for _, a := range s.port(port).AllowedAddressPairs {
		left = append(left, a.IPAddress)
	}
	s.g.Expect(left).To(ConsistOf("10.0.0.0/24", "192.168.1.0/24"))
}
