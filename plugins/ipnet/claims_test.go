// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"net/netip"
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// pins holds the claims of node addresses that are listed.
type pins struct {
	held   map[netip.Addr]bool
	early  bool // no claim was asked for yet
	asked  []netip.Addr
	wanted []claims.Target
}

func (p *pins) Hold(t claims.Target) claims.Standing {
	p.asked = append(p.asked, t.Prefix.Addr())
	if p.held[t.Prefix.Addr()] || p.early {
		return claims.Standing{Held: !p.early}
	}
	return claims.Standing{Blocker: &claims.Blocker{Target: t, Node: "b"}}
}

func (p *pins) Want(_ string, targets []claims.Target) { p.wanted = targets }

// pinnedNode is node 5 with a pinned address.
func pinnedNode(t *testing.T, main string, claims *pins) (p *ipnet.IPNet, a *agent) {
	a = newAgent(t, single)
	a.g.Expect(a.ipam.Resync(&controller.DBResync{}, a.kube, 1, nil)).To(Succeed())
	p = ipnet.NewPlugin(ipnet.Deps{
		NodeSync: a.cluster, IPAM: a.ipam, Ledger: a.ledger, Claims: claims, MainIP: func() netip.Prefix { return netip.MustParsePrefix(main) },
	})
	return p, a
}

// txn keeps what is put.
type txn struct {
	controller.UpdateOperations
	node *kv.NodeNetwork
	puts int
}

// A pinned address is published once its claim is held, and no longer than that.
func TestAPinnedAddressWaitsForItsClaim(t *testing.T) {
	g := NewWithT(t)
	main := netip.MustParseAddr("192.168.16.99")
	others := &pins{held: map[netip.Addr]bool{}}
	p, a := pinnedNode(t, "192.168.16.99/24", others)
	x := &txn{}
	others.early = true
	g.Expect(p.Resync(&controller.DBResync{}, a.kube, 1, x)).To(Succeed())
	g.Expect(x.node.NodeIps).To(BeEmpty())
	g.Expect(a.cluster.published).To(BeEmpty(), "the record stays until the claim is requested")
	others.early, x.puts = false, 0
	g.Expect(p.Resync(&controller.DBResync{}, a.kube, 2, x)).To(Succeed())
	g.Expect(a.cluster.published).To(Equal([][]netip.Prefix{nil}))
	g.Expect(p.Commit(t.Context())).To(Succeed())
	g.Expect(others.wanted).To(Equal([]claims.Target{claims.NodeAddress(main)}))

	change := func() {
		g.Expect(p.HandlesEvent(&nodesync.ClaimChange{})).To(BeTrue())
		_, err := p.Update(&nodesync.ClaimChange{}, x)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(p.Commit(t.Context())).To(Succeed())
	}
	change()
	g.Expect(x.puts).To(Equal(1), "it is not of this claim")
	others.held[main] = true
	change()
	g.Expect(x.node.NodeIps).To(Equal([]string{"192.168.16.99/24"}))
	g.Expect(a.cluster.published[2]).To(Equal([]netip.Prefix{netip.MustParsePrefix("192.168.16.99/24")}))
	delete(others.held, main)
	change()
	g.Expect(x.node.NodeIps).To(BeEmpty())
	g.Expect(a.cluster.published[3]).To(BeEmpty())
	g.Expect(others.wanted).To(HaveLen(1), "it is still wanted")
}

// The address that the node's own ID derives follows from that: it needs no claim.
func TestTheAddressOfTheNodeIDNeedsNoClaim(t *testing.T) {
	g := NewWithT(t)
	none := &pins{}
	p, a := pinnedNode(t, "192.168.16.5/24", none)
	x := &txn{}
	g.Expect(p.Resync(&controller.DBResync{}, a.kube, 1, x)).To(Succeed())
	g.Expect(p.Commit(t.Context())).To(Succeed())
	g.Expect(x.node.NodeIps).To(Equal([]string{"192.168.16.5/24"}))
	g.Expect(none.asked).To(BeEmpty())
	g.Expect(none.wanted).To(BeEmpty())
	_, err := p.Update(&nodesync.ClaimChange{}, x)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.cluster.published).To(HaveLen(1))
}

// A claim decides about routes to other nodes, too: updates end where a resync ends.
func TestRoutesFollowClaims(t *testing.T) {
	running(t, external, func(g Gomega, a *agent) {
		prefix := netip.MustParsePrefix
		move := func(name string, change func(*nodesync.Node)) {
			next := &nodesync.Node{Name: name}
			prev := a.cluster.nodes[name]
			if prev != nil {
				*next = *prev
			}
			change(next)
			all := nodesync.Nodes{}
			for n, x := range a.cluster.nodes {
				all[n] = x
			}
			all[name] = next
			a.cluster.nodes = all
			ev := &nodesync.NodeUpdate{NodeName: name, PrevState: prev, NewState: next}
			g.Expect(a.loop.PushEvent(ev)).To(Succeed())
			byUpdates := a.processed()
			a.resync()
			g.Expect(a.wanted()).To(Equal(byUpdates))
		}
		b := func(n *nodesync.Node) {
			n.ID, n.VppIPAddresses, n.PodCIDRs = 7, []netip.Prefix{prefix("192.168.16.7/24")}, []netip.Prefix{prefix("10.1.77.0/24")}
		}
		c := func(n *nodesync.Node) { n.ID, n.VppIPAddresses = 8, []netip.Prefix{prefix("192.168.16.8/24")} }
		own := func(n *nodesync.Node) { n.ID = 5 }
		route := ContainElement(ContainSubstring("route/10.1.77.0/24"))
		move("node-a", own)
		move("node-b", b)
		g.Expect(a.wanted()).To(route)
		move("node-c", c)
		move("node-c", func(n *nodesync.Node) { n.Claims = []netip.Prefix{prefix("10.1.77.0/24")} })
		g.Expect(a.wanted()).NotTo(route, "node c holds it, and does not publish it yet")
		move("node-c", func(n *nodesync.Node) { n.PodCIDRs = n.Claims })
		g.Expect(a.wanted()).To(ContainElement(And(ContainSubstring("route/10.1.77.0/24"), ContainSubstring("192.168.16.8"))))
		move("node-c", func(n *nodesync.Node) { n.PodCIDRs, n.Claims = nil, nil })
		g.Expect(a.wanted()).To(ContainElement(And(ContainSubstring("route/10.1.77.0/24"), ContainSubstring("192.168.16.7"))))
		move("node-a", func(n *nodesync.Node) { n.Claims = []netip.Prefix{prefix("10.1.77.0/24")} })
		g.Expect(a.wanted()).NotTo(route, "this node holds it: it drains")
		move("node-a", func(n *nodesync.Node) { n.Claims = nil })
		g.Expect(a.wanted()).To(route)
	})
}

// Put implements controller.ResyncOperations and controller.UpdateOperations.
func (x *txn) Put(key string, m proto.Message) {
	if n, ok := m.(*kv.NodeNetwork); ok && key == kv.SinkNode {
		x.node = n
		x.puts++
	}
}

func (x *txn) Get(key string) proto.Message {
	if key == kv.SinkNode && x.node != nil {
		return x.node
	}
	return nil
}

// processed waits for the events before, and returns the values that the southbound should have.
func (a *agent) processed() []string {
	synctest.Wait()
	return a.wanted()
}
