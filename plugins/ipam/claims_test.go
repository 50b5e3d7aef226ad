// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// claimer is a node's claims: those of other nodes block them.
type claimer struct {
	others map[claims.Target]string
	absent bool // the store was not asked yet
	wanted []claims.Target
}

func (c *claimer) Hold(t claims.Target) claims.Standing { return c.Standing(t) }

func (c *claimer) Want(_ string, targets []claims.Target) { c.wanted = targets }

func (c *claimer) Standing(t claims.Target) claims.Standing {
	if c.absent {
		return claims.Standing{}
	}
	if node, ok := c.others[t]; ok {
		return claims.Standing{Blocker: &claims.Blocker{Target: t, Node: node}}
	}
	return claims.Standing{Held: true}
}

// heldBy is a claimer that finds blocks held by node b.
func heldBy(node string, blocks ...string) *claimer {
	c := &claimer{others: map[claims.Target]string{}}
	for _, b := range blocks {
		c.others[block(b)] = node
	}
	return c
}

func block(text string) claims.Target { return claims.Block(netip.MustParsePrefix(text)) }

// claiming is a node, with claims, before its first resync.
func claiming(t *testing.T, conf string, c *claimer, cidrs ...string) *node {
	t.Helper()
	n := newNode(t, conf, 5)
	n.Claims = c
	if cidrs != nil {
		n.podCIDRs(cidrs...)
	}
	return n
}

// claimChange hands the change of a claim to the plugin, and returns what follows.
func (n *node) claimChange() (names []string) {
	follow, err := n.update(&nodesync.ClaimChange{})
	n.g.Expect(err).NotTo(HaveOccurred())
	for _, ev := range follow {
		names = append(names, ev.GetName())
	}
	return names
}

// A block opens once its claim is held. Until then the node says which node has it,
// and what ends that.
func TestABlockOpensWhenItsClaimIsHeld(t *testing.T) {
	for _, c := range []struct{ name, conf string }{
		{"of the Node object", external}, {"of the configuration", "cadastre: {podBlocks: static, staticPodCIDRs: [10.1.77.0/24]}"}, {"of the node ID, as there is no podCIDR", impatient},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			cidr, cidrs := "10.1.77.0/24", []string{"10.1.77.0/24"}
			if c.conf == impatient {
				cidr, cidrs = "10.1.5.0/24", nil
			}
			others := heldBy("b", cidr)
			others.absent = true
			n := claiming(t, c.conf, others, cidrs...)
			g.Expect(n.resync()).To(Succeed())
			g.Expect(n.Pending()).To(Equal("waiting for the claim of " + cidr))
			others.absent = false
			g.Expect(n.Pending()).To(And(HavePrefix("waiting for the claim of "+cidr+": node b holds "+cidr), ContainSubstring("cadastre node release b")))
			_, err := n.update(add("p1"))
			g.Expect(err).To(MatchError(ContainSubstring("node b holds " + cidr)))
			g.Expect(n.blocks()).To(BeEmpty())
			g.Expect(n.IPAM.Commit(t.Context())).To(Succeed())
			g.Expect(others.wanted).To(ConsistOf(block(cidr)))
			g.Expect(n.claimChange()).To(BeEmpty(), "the change is not of this block")

			delete(others.others, block(cidr))
			g.Expect(n.Pending()).To(Equal("this node holds the claim of " + cidr + ", and is about to open it"))
			g.Expect(n.claimChange()).To(Equal([]string{"Pod CIDR Change"}))
			g.Expect(n.resync()).To(Succeed())
			g.Expect(n.Pending()).To(BeEmpty())
			g.Expect(n.add("p1")).To(HaveSuffix(".2"))
			g.Expect(n.claimChange()).To(BeEmpty())
		})
	}
}

// A claim that was lost closes its block for new leases; those that are there stay.
func TestAClaimIsLost(t *testing.T) {
	g := NewWithT(t)
	others := heldBy("b")
	n := claiming(t, external, others, "10.1.77.0/24")
	g.Expect(n.resync()).To(Succeed())
	a := n.add("p1")
	others.others[block("10.1.77.0/24")] = "b"
	g.Expect(n.claimChange()).To(Equal([]string{"Pod CIDR Change"}))
	g.Expect(n.resync()).To(Succeed())
	_, err := n.update(add("p2"))
	g.Expect(err).To(MatchError(ContainSubstring("node b holds 10.1.77.0/24")))
	g.Expect(n.leases(ledger.ForPod, ledger.Held)).To(Equal([]string{a}))
	g.Expect(n.add("p1")).To(Equal(a))
}

// A change of claims before the first resync, and one without claims of blocks, has no
// effect.
func TestAnIrrelevantChangeOfClaims(t *testing.T) {
	g := NewWithT(t)
	n := claiming(t, external, heldBy("b"), "10.1.77.0/24")
	g.Expect(n.claimChange()).To(BeEmpty())
	follow, err := running(t, defaults, 5).update(&nodesync.ClaimChange{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(follow).To(BeEmpty())
}

// updated is the event by which the plugin learns of the Node object of kube.
func (n *node) updated() *nodesync.NodeUpdate {
	n.ownNode()
	return &nodesync.NodeUpdate{NodeName: thisNode, NewState: n.nodes.all[thisNode]}
}

// A list with one bad entry is as bad by update as by resync, and a corrected one
// is as if there had been no other.
func TestABadListOfPodCIDRs(t *testing.T) {
	g := NewWithT(t)
	n := claiming(t, external, heldBy("b"), []string{}...)
	g.Expect(n.resync()).To(Succeed())
	n.podCIDRs("10.1.77.0/24", "10.1.78.0")
	follow, err := n.update(n.updated())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(follow).To(BeEmpty(), "there is no new subnet")
	for range 2 { // an update leads to what a resync finds
		g.Expect(n.Pending()).To(ContainSubstring(`"10.1.78.0"`))
		g.Expect(n.PodSubnetThisNode()).To(BeNil())
		_, err = n.update(add("p1"))
		g.Expect(err).To(MatchError(ContainSubstring(`"10.1.78.0"`)))
		g.Expect(n.resync()).To(Succeed())
	}
	follow, err = n.update(n.updated())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(follow).To(BeEmpty(), "it is the same list")

	n.podCIDRs("10.1.77.0/24")
	follow, err = n.update(n.updated())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(follow).To(HaveLen(1))
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.add("p1")).To(Equal("10.1.77.2"))
}

// A podCIDR that cannot be this node's is refused for new blocks. One that is a
// block already, with leases, stays open, and is reported.
func TestAPodCIDRThatCannotBeThisNodes(t *testing.T) {
	for name, c := range map[string]struct {
		cidr, narrow, saying string
		alone                bool // and no other node is there
	}{
		"outside the pods' network":         {"10.2.77.0/24", "podSubnetCIDR: 10.2.0.0/16", "10.2.77.0/24 is outside podSubnetCIDR 10.1.0.0/16", false},
		"larger than it":                    {"10.0.0.0/14", "podSubnetCIDR: 10.0.0.0/13", "10.0.0.0/14 is larger than podSubnetCIDR 10.1.0.0/16", false},
		"all of it":                         {"10.1.0.0/16", "podSubnetCIDR: 10.0.0.0/15", "10.1.0.0/16 is all of podSubnetCIDR, which the other nodes need too", false},
		"all of it, and it is the only one": {"10.1.0.0/16", "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := claiming(t, external, heldBy("b"), c.cidr)
			if !c.alone {
				n.nodes.all["node-b"] = &nodesync.Node{ID: 7, Name: "node-b"}
			}
			g.Expect(n.resync()).To(Succeed())
			if c.saying == "" {
				g.Expect(n.Pending()).To(BeEmpty())
				return
			}
			g.Expect(n.Pending()).To(And(ContainSubstring(c.saying), ContainSubstring("Node.spec.podCIDRs of node "+thisNode)))
			_, err := n.update(add("p1"))
			g.Expect(err).To(MatchError(ContainSubstring(c.saying)))

			n = claiming(t, "ipamConfig: {useExternalIPAM: true, "+c.narrow+"}", heldBy("b"), c.cidr)
			n.nodes.all["node-b"] = &nodesync.Node{ID: 7, Name: "node-b"}
			g.Expect(n.resync()).To(Succeed())
			a := n.add("p1")
			n.start(external)
			n.Claims = heldBy("b")
			g.Expect(n.resync()).To(Succeed())
			g.Expect(n.Pending()).To(BeEmpty())
			g.Expect(n.add("p1")).To(Equal(a))
			g.Expect(n.add("p2")).NotTo(BeEmpty(), "it stays open")
			g.Expect(n.Problems()).To(HaveLen(1))
			g.Expect(n.Problems()[0].Text).To(And(ContainSubstring(c.saying), HaveSuffix("; it stays open because it has leases")))
		})
	}
}

// Routes lead to the holder of a claim, also if another Node object has its prefix.
func TestRoutesFollowTheHolder(t *testing.T) {
	g := NewWithT(t)
	n := claiming(t, external, heldBy("b"), "10.1.77.0/24")
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	b := &nodesync.Node{ID: 7, Name: "node-b", PodCIDRs: prefixes("10.1.78.0/24", "10.1.79.0/24", "10.1.90.0/24")}
	c := &nodesync.Node{ID: 8, Name: "node-c", PodCIDRs: prefixes("10.1.79.0/24", "10.1.80.0/24"), Claims: prefixes("10.1.79.0/25", "10.1.80.0/24")}
	n.nodes.all["node-b"], n.nodes.all["node-c"] = b, c
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.BlocksOf(b)).To(Equal(prefixes("10.1.78.0/24", "10.1.90.0/24")))
	g.Expect(n.BlocksOf(c)).To(Equal(prefixes("10.1.79.0/24", "10.1.80.0/24")))

	n.nodes.all[thisNode].Claims = prefixes("10.1.90.0/24") // it drains here
	_, err := n.update(&nodesync.NodeUpdate{NodeName: thisNode, NewState: n.nodes.all[thisNode]})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(n.BlocksOf(b)).To(Equal(prefixes("10.1.78.0/24")), "what this node holds is not routed to another one")
}

// What follows from a node record: the node address of its ID and those that it
// says, and the blocks, unless these have claims.
func TestTargetsImpliedByANodeRecord(t *testing.T) {
	const podcidr = "ipamConfig: {useExternalIPAM: true}"
	for name, c := range map[string]struct {
		conf   string
		record *kv.NodeRecord
		want   []string
	}{
		"by node IDs":                          {defaults, &kv.NodeRecord{Id: 7}, []string{"192.168.16.7/32", "10.1.7.0/24"}},
		"by node IDs, and it says the same":    {defaults, &kv.NodeRecord{Id: 7, IpAddresses: []string{"192.168.16.7/24"}, PodCidrs: []string{"10.244.3.0/24"}}, []string{"192.168.16.7/32", "10.244.3.0/24", "10.1.7.0/24"}},
		"by node IDs, with a pinned address":   {defaults, &kv.NodeRecord{Id: 7, IpAddresses: []string{"192.168.16.99/24", "none"}}, []string{"192.168.16.7/32", "192.168.16.99/32", "10.1.7.0/24"}},
		"external, of the last version":        {podcidr, &kv.NodeRecord{Id: 7, PodCidrs: []string{"10.1.77.0/24"}}, []string{"192.168.16.7/32", "10.1.77.0/24"}},
		"external, before it has any":          {podcidr, &kv.NodeRecord{Id: 7}, []string{"192.168.16.7/32", "10.1.7.0/24"}},
		"external, and its blocks have claims": {podcidr, &kv.NodeRecord{Id: 7, PodCidrs: []string{"10.1.77.0/24"}, ExplicitBlocks: true}, []string{"192.168.16.7/32"}},
		"static blocks, of the last version":   {"cadastre: {podBlocks: static, staticPodCIDRs: [10.9.0.0/28]}", &kv.NodeRecord{Id: 7}, []string{"192.168.16.7/32", "10.1.7.0/24"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			cfg, _, err := contivconf.Parse([]byte(c.conf))
			g.Expect(err).NotTo(HaveOccurred())
			var got []string
			for _, x := range ipam.Implied(contivconf.NewPlugin(cfg))(c.record, nil) {
				g.Expect(x.Network == kv.NodeNetworkClaims).To(Equal(x.Prefix.IsSingleIP()))
				got = append(got, x.Prefix.String())
			}
			slices.Sort(got)
			slices.Sort(c.want)
			g.Expect(slices.Compact(got)).To(Equal(c.want))
		})
	}
}

// A node may hold claims within each other: the wide one keeps a third node's
// podCIDR out of the routes, too.
func TestRoutesLeaveOutAWideClaim(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, external, 5)
	n.podCIDRs("10.1.5.0/24")
	prefix := netip.MustParsePrefix
	n.nodes.all["node-b"] = &nodesync.Node{ID: 7, Name: "node-b", Claims: []netip.Prefix{prefix("10.1.64.0/18"), prefix("10.1.64.0/24")}}
	c := &nodesync.Node{ID: 8, Name: "node-c", PodCIDRs: []netip.Prefix{prefix("10.1.77.0/24"), prefix("10.1.9.0/24")}}
	n.nodes.all["node-c"] = c
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.BlocksOf(c)).To(Equal([]netip.Prefix{prefix("10.1.9.0/24")}))
}
