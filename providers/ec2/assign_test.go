// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ec2_test

import (
	"net/netip"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsec2 "github.com/aws/aws-sdk-go-v2/service/ec2"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/providers/ec2"
	"github.com/cadastre/cadastre/providers/ec2/mototest"
)

func testAssign(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	id := n.machine("m5.large")
	first := n.first(id)
	ctx := t.Context()
	blocks, err := n.cloud.Assign(ctx, id, first.ID, cloud.Want{Count: 7})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(blocks).To(HaveLen(7))
	g.Expect(blocks[0].Subnet).To(Equal(n.subnet))
	g.Expect(prefixes(n.first(id).Blocks)).To(Equal(prefixes(blocks)))

	more, err := n.cloud.Assign(ctx, id, first.ID, cloud.Want{Count: 5})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(more).To(HaveLen(1), "there is no room for 5, so one is asked for")
	_, err = n.cloud.Assign(ctx, id, first.ID, cloud.Want{Count: 1})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = n.cloud.Assign(ctx, id, first.ID, cloud.Want{Count: 1})
	g.Expect(err).To(And(MatchError(cloud.ErrFull), MatchError(And(ContainSubstring("PrivateIpAddressLimitExceeded"), ContainSubstring("a larger type")))))

	taken := []netip.Prefix{blocks[0].Prefix, blocks[1].Prefix}
	g.Expect(n.cloud.Unassign(ctx, id, first.ID, taken)).To(Succeed())
	g.Expect(n.first(id).Blocks).To(HaveLen(1 + 7))
	taken = append(taken, blocks[2].Prefix)
	g.Expect(n.cloud.Unassign(ctx, id, first.ID, taken)).To(Succeed(), "two of them are not there")
	g.Expect(n.first(id).Blocks).To(HaveLen(1 + 6))
	g.Expect(n.cloud.Unassign(ctx, id, first.ID, taken)).To(Succeed(), "none of them is there")

	own := first.Blocks[0].Prefix
	g.Expect(n.cloud.Unassign(ctx, id, first.ID, []netip.Prefix{blocks[3].Prefix, own})).To(MatchError(ContainSubstring("own address")))
	g.Expect(n.open().Unassign(ctx, id, first.ID, []netip.Prefix{own})).To(MatchError(ContainSubstring("own address")), "without an earlier reading")
	g.Expect(n.first(id).Blocks).To(HaveLen(1 + 6))

	g.Expect(n.cloud.Unassign(ctx, id, "eni-0123456789abcdef0", taken)).To(Succeed(), "the interface is gone")
	_, err = n.cloud.Assign(ctx, id, "eni-0123456789abcdef0", cloud.Want{Count: 1})
	g.Expect(err).To(MatchError(ContainSubstring("InvalidNetworkInterfaceID.NotFound")))
	_, err = n.cloud.Assign(ctx, id, first.ID, cloud.Want{Count: 1, Subnet: "subnet-1"})
	g.Expect(err).To(MatchError(cloud.ErrFull), "EC2 assigns addresses of the interface's subnet only")
	_, err = n.cloud.Assign(ctx, id, first.ID, cloud.Want{})
	g.Expect(err).To(MatchError(ContainSubstring("want at least 1")))
}

func testAssignIPv6(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	id := n.machine("m5.large")
	ctx := t.Context()
	first := n.first(id)
	answer, err := server.Client().AssignIpv6Addresses(ctx, &awsec2.AssignIpv6AddressesInput{NetworkInterfaceId: &first.ID, Ipv6AddressCount: aws.Int32(2)})
	g.Expect(err).NotTo(HaveOccurred())
	own := netip.PrefixFrom(netip.MustParseAddr(answer.AssignedIpv6Addresses[0]), 128)
	ownBlock := cloud.Block{Prefix: own, Subnet: n.subnet, Primary: true}
	g.Expect(n.first(id).Blocks).To(ContainElement(ownBlock), "the machine itself uses its IPv6 addresses")
	g.Expect(n.cloud.Unassign(ctx, id, first.ID, []netip.Prefix{own})).To(MatchError(ContainSubstring("own address")))
	pods, err := n.cloud.Assign(ctx, id, first.ID, cloud.Want{Count: 2, IPv6: true})
	g.Expect(err).NotTo(HaveOccurred())
	for _, c := range []*ec2.Cloud{n.cloud, n.open()} {
		n.cloud = c
		g.Expect(n.first(id).Blocks).To(ContainElement(ownBlock))
		g.Expect(prefixes(n.first(id).Blocks)).To(Equal(prefixes(pods)))
		g.Expect(c.Unassign(ctx, id, first.ID, []netip.Prefix{own})).To(MatchError(ContainSubstring("own address")))
	}
	g.Expect(n.open().Unassign(ctx, id, first.ID, []netip.Prefix{own})).To(MatchError(ContainSubstring("own address")))
	more, err := n.open().Assign(ctx, id, first.ID, cloud.Want{Count: 1, IPv6: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(prefixes(n.first(id).Blocks)).To(ConsistOf(prefixes(append(pods, more...))))
	g.Expect(n.open().Unassign(ctx, id, first.ID, parsed(append(pods, more...)))).To(Succeed())
	g.Expect(prefixes(n.first(id).Blocks)).To(BeEmpty())

	second, err := n.cloud.CreateInterface(ctx, id, cloud.NewInterface{Subnet: n.subnet, Want: cloud.Want{Count: 2, IPv6: true}, Device: 1})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(prefixes(second.Blocks)).To(HaveLen(2))
	blocks, err := n.cloud.Assign(ctx, id, second.ID, cloud.Want{Count: 3, IPv6: true})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(blocks).To(HaveLen(3))
	g.Expect(n.cloud.Unassign(ctx, id, second.ID, append(parsed(blocks), pfx("2001:db8::1/128")))).To(Succeed())
	g.Expect(prefixes(n.read(id).Interfaces[1].Blocks)).To(Equal(prefixes(second.Blocks)))
}

func testSubnetIsFull(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	n.subnet = server.Subnet(t, n.vpc, "10.7.9.0/28", "", nil)
	one, two := n.machine("m5.large"), n.machine("m5.large")
	ctx := t.Context()
	_, err := n.cloud.Assign(ctx, one, n.first(one).ID, cloud.Want{Count: 9})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = n.cloud.Assign(ctx, two, n.first(two).ID, cloud.Want{Count: 1})
	g.Expect(err).To(And(MatchError(cloud.ErrFull), MatchError(And(ContainSubstring("InsufficientFreeAddressesInSubnet"), ContainSubstring("--ec2-subnet-tags")))))
	_, err = n.cloud.CreateInterface(ctx, two, cloud.NewInterface{Subnet: n.subnet, Want: cloud.Want{Count: 2}})
	g.Expect(err).To(MatchError(cloud.ErrFull))
	g.Expect(n.interfaces()).To(HaveLen(2))
	s, err := n.cloud.ReadInstance(ctx, two)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Subnets[n.subnet].Free).To(Equal(0))
}

func testPrefixes(t *testing.T, server *mototest.Server) {
	g := NewWithT(t)
	n := newNetwork(t, server, nil)
	id := n.machine("m5.large")
	ctx := t.Context()
	first := n.first(id)
	v4, err := n.cloud.Assign(ctx, id, first.ID, cloud.Want{Count: 2, Prefixes: true})
	g.Expect(err).NotTo(HaveOccurred())
	v6, err := n.cloud.Assign(ctx, id, first.ID, cloud.Want{Count: 1, Prefixes: true, IPv6: true})
	g.Expect(err).NotTo(HaveOccurred())
	for _, b := range v4 {
		g.Expect(b.Prefix.Bits()).To(Equal(28))
	}
	g.Expect(v6[0].Prefix.Bits()).To(Equal(80))
	g.Expect(prefixes(n.first(id).Blocks)).To(ConsistOf(prefixes(append(v4, v6...))))
	second, err := n.cloud.CreateInterface(ctx, id, cloud.NewInterface{Subnet: n.subnet, Want: cloud.Want{Count: 1, Prefixes: true}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second.Device).To(Equal(1))
	g.Expect(prefixes(second.Blocks)).To(HaveLen(1))
	expectNoBlockTwice(g, n.interfaces())
	gone := append(parsed(v4[:1]), v6[0].Prefix)
	g.Expect(n.cloud.Unassign(ctx, id, first.ID, gone)).To(Succeed())
	g.Expect(n.cloud.Unassign(ctx, id, first.ID, gone)).To(Succeed(), "repeated")
	g.Expect(prefixes(n.first(id).Blocks)).To(Equal(prefixes(v4[1:])))
	_, err = n.cloud.Assign(ctx, id, first.ID, cloud.Want{Count: 9, Prefixes: true})
	g.Expect(err).NotTo(HaveOccurred(), "one at least")
	server.Subnet(t, n.vpc, "10.7.8.0/26", "", nil)
}
