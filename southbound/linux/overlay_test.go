// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// overlayNode is a node whose values the scheduler makes.
type overlayNode struct {
	*labNode
	sink *southbound.Scheduler
}

// startOverlay runs a scheduler with all descriptors until the test ends or stop is called.
func startOverlay(t testing.TB, n *labNode) (node *overlayNode, stop func()) {
	t.Helper()
	all, err := Descriptors(Options{Namespace: n.net.Path(), PrivateKey: wireguardKey(n.id).String(), AllowForward: true})
	if err != nil {
		t.Fatal(err)
	}
	node = &overlayNode{n, southbound.New(southbound.Options{}, all...)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.sink.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
		if err := node.sink.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	t.Cleanup(stop)
	return node, stop
}

// values returns what a node wants over a transport.
func (n *labNode) values(transport kv.Transport) []controller.Value {
	all := []controller.Value{
		{Key: kv.SinkEgress, Message: &kv.Egress{Sources: n.subnets(), Direct: []string{"10.1.0.0/16", "fd01::/16"}}},
		{Key: kv.SinkNode, Message: n.network(transport)},
	}
	for _, other := range n.lab.nodes {
		if other == n {
			continue
		}
		tunnel := other.tunnel(transport)
		if transport == kv.Transport_WIREGUARD {
			tunnel = other.wireguardTunnel()
		}
		all = append(all, value(other.tunnelKey(), tunnel))
		for i, dst := range other.subnets() {
			route := &kv.NodeRoute{Dst: dst, NodeId: uint32(other.id), Transport: transport}
			if transport == kv.Transport_VXLAN {
				route.Gateway = tunnel.GetVxlanIps()[i]
			}
			all = append(all, controller.Value{Key: kv.SinkRoutePrefix + dst, Message: route})
		}
	}
	return all
}

// resync makes the values of a transport the wanted ones.
func (n *overlayNode) resync(transport kv.Transport) {
	n.lab.t.Helper()
	n.lab.must(n.sink.Commit(n.lab.t.Context(), controller.Transaction{
		Method: controller.FullResync, Values: n.values(transport),
	}))
}

// complete reports whether the actual values are those of a transport, and nothing else.
func (n *overlayNode) complete(transport kv.Transport) bool {
	n.lab.t.Helper()
	have, err := n.sink.Dump(n.lab.t.Context())
	n.lab.must(err)
	want := n.values(transport)
	for _, v := range want {
		if m := have[v.Key]; m == nil || !proto.Equal(m, v.Message) {
			return false
		}
	}
	return len(have) == len(want)
}

func TestNodesChangeTheirTransport(t *testing.T) {
	t.Parallel()
	lab := newTunnelLab(t, 2)
	var nodes []*overlayNode
	for _, n := range lab.nodes {
		node, _ := startOverlay(t, n)
		nodes = append(nodes, node)
	}
	g := NewWithT(t)
	for _, transport := range []kv.Transport{
		kv.Transport_VXLAN, kv.Transport_WIREGUARD, kv.Transport_VXLAN,
	} {
		for _, n := range nodes {
			n.resync(transport)
			g.Expect(n.sink.Status().Failed).To(BeEmpty())
			g.Expect(n.sink.Status().Pending).To(BeEmpty())
			g.Expect(n.complete(transport)).To(BeTrue(), transport.String())
		}
		lab.expectReachable(labMTU)
		g.Expect(nodes[0].linkIndex(wireguardName) != 0).To(Equal(transport == kv.Transport_WIREGUARD))
		g.Expect(nodes[0].linkIndex(vxlanName) != 0).To(Equal(transport == kv.Transport_VXLAN))
	}
}

func TestTheOverlayHealsWhatOtherProgramsRemove(t *testing.T) {
	t.Parallel()
	for _, transport := range []kv.Transport{kv.Transport_VXLAN, kv.Transport_WIREGUARD} {
		t.Run(transport.String(), func(t *testing.T) {
			lab := newTunnelLab(t, 2)
			var nodes []*overlayNode
			for _, n := range lab.nodes {
				node, _ := startOverlay(t, n)
				node.resync(transport)
				nodes = append(nodes, node)
			}
			lab.expectReachable(100)
			n, name := nodes[0], vxlanName
			if transport == kv.Transport_WIREGUARD {
				name = wireguardName
			}
			link := func(f func(netlink.Link) error) func() {
				return func() {
					lab.must(n.net.Do(func() error {
						l, err := netlink.LinkByName(name)
						if err != nil {
							return err
						}
						return f(l)
					}))
				}
			}
			routes := func(f func(r *netlink.Route) error) func() {
				return func() {
					lab.must(n.net.Do(func() error {
						all, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: ownProtocol}, netlink.RT_FILTER_PROTOCOL)
						for _, r := range all {
							if r.Dst.String() == lab.nodes[1].subnets()[0] || r.Dst.String() == lab.nodes[1].subnets()[1] {
								err = errors.Join(err, f(&r))
							}
						}
						return err
					}))
				}
			}
			g := NewWithT(t)
			for what, damage := range map[string]func(){
				"the link is removed":    link(netlink.LinkDel),
				"the link is set down":   link(netlink.LinkSetDown),
				"the routes are removed": routes(netlink.RouteDel),
				"the routes are changed": routes(func(r *netlink.Route) error {
					r.Type, r.Gw, r.LinkIndex, r.Scope, r.Flags = unix.RTN_UNREACHABLE, nil, 0, 0, 0
					return netlink.RouteReplace(r)
				}),
				"the table is removed": func() {
					tables, err := openNFT(n.net.Path())
					lab.must(err)
					c, err := tables.conn()
					lab.must(err)
					c.DelTable(egressChains()[0].Table)
					lab.must(c.Flush())
					lab.must(tables.close())
				},
			} {
				start := time.Now()
				damage()
				g.Eventually(func() bool { return n.complete(transport) }).
					WithTimeout(60*time.Second).WithPolling(5*time.Millisecond).Should(BeTrue(), what)
				t.Logf("%s, healed after %s", what, time.Since(start).Round(time.Millisecond))
				lab.expectReachable(labMTU)
			}
		})
	}
}

func TestAnAgentThatRestartsFindsItsOverlay(t *testing.T) {
	t.Parallel()
	lab := newTunnelLab(t, 2)
	var nodes []*overlayNode
	for _, n := range lab.nodes {
		node, stop := startOverlay(t, n)
		node.resync(kv.Transport_VXLAN)
		stop()
		nodes = append(nodes, node)
	}
	lab.expectReachable(labMTU) // without any agent
	index := nodes[0].linkIndex(vxlanName)
	again, _ := startOverlay(t, lab.nodes[0])
	again.resync(kv.Transport_VXLAN)
	NewWithT(t).Expect(again.linkIndex(vxlanName)).To(Equal(index))
	lab.expectReachable(labMTU)
}

func TestRoutesStayWhileAnAgentRestarts(t *testing.T) {
	for _, transport := range []kv.Transport{kv.Transport_VXLAN, kv.Transport_WIREGUARD} {
		t.Run(transport.String(), func(t *testing.T) {
			lab := newTunnelLab(t, 2)
			n, stop := startOverlay(t, lab.nodes[0])
			n.resync(transport)
			removed := make(chan netlink.RouteUpdate, 1000)
			done := make(chan struct{})
			lab.must(n.net.Do(func() error { return netlink.RouteSubscribe(removed, done) }))
			stop()
			again, stop := startOverlay(t, lab.nodes[0])
			again.resync(transport)
			g := NewWithT(t)
			g.Expect(again.complete(transport)).To(BeTrue())
			stop()
			const last = "203.0.113.0/24"
			lab.route(n.net, last, n.underlay()[0][:len("10.99.1.")]+"1", "")
			for r := range removed {
				g.Expect(r.Type == unix.RTM_DELROUTE && r.Protocol == 202).To(BeFalse(), "route %s was removed", r.Route)
				if r.Dst != nil && r.Dst.String() == last {
					break
				}
			}
			close(done)
			for range removed { // until the subscription has ended
			}
		})
	}
}

func TestALinkOfAnotherFormIsMadeAgainWithItsTunnelsAndRoutes(t *testing.T) {
	t.Parallel()
	lab := newTunnelLab(t, 2)
	var nodes []*overlayNode
	for _, n := range lab.nodes {
		node, stop := startOverlay(t, n)
		node.resync(kv.Transport_VXLAN)
		stop() // nothing is watched: the next resync alone has to do it
		nodes = append(nodes, node)
	}
	resync := func(n *overlayNode, f func(*kv.NodeNetwork)) {
		all, err := Descriptors(Options{Namespace: n.net.Path()})
		lab.must(err)
		sink := southbound.New(southbound.Options{}, all...)
		values := n.values(kv.Transport_VXLAN)
		for i := range values {
			if network, ok := values[i].Message.(*kv.NodeNetwork); ok {
				network = proto.CloneOf(network)
				f(network)
				values[i].Message = network
			}
		}
		lab.must(sink.Commit(t.Context(), controller.Transaction{Method: controller.FullResync, Values: values}))
		lab.must(sink.Close())
	}
	asBefore := func(*kv.NodeNetwork) {}
	for change, f := range map[string]func(*kv.NodeNetwork){
		"another VNI":                        func(v *kv.NodeNetwork) { v.Vni++ },
		"another family of the underlay":     func(v *kv.NodeNetwork) { v.Underlay = v.GetUnderlay()[1:] },
		"the VNI and the underlay of before": asBefore,
	} {
		for _, n := range nodes {
			resync(n, f)
		}
		t.Log(change)
		lab.expectReachable(labMTU)
	}
	for _, n := range nodes {
		resync(n, asBefore)
	}
	n := nodes[0]
	index := n.linkIndex(vxlanName)
	command(t, n.net.Path(), "ip", "link", "set", vxlanName, "type", "vxlan", "id", "10", "learning") // no field shows it
	resync(n, asBefore)
	NewWithT(t).Expect(n.linkIndex(vxlanName)).NotTo(Equal(index))
	lab.expectReachable(labMTU)
}

func TestUninstallLeavesNothingOfTheOverlay(t *testing.T) {
	lab := newTunnelLab(t, 2)
	ns := lab.nodes[0].net.Path()
	command(t, ns, "iptables-nft", "-P", "FORWARD", "DROP")
	before := command(t, ns, "iptables-nft", "-S")
	n, stop := startOverlay(t, lab.nodes[0])
	g := NewWithT(t)
	n.resync(kv.Transport_WIREGUARD)
	g.Expect(command(t, ns, "iptables-nft", "-S")).NotTo(Equal(before))
	stop()
	removed, err := uninstallOverlay(t.Context(), Options{Namespace: ns})
	lab.must(err)
	g.Expect(removed).To(HaveLen(2))
	g.Expect(n.linkIndex(wireguardName)).To(BeZero())
	g.Expect(command(t, ns, "iptables-nft", "-S")).To(Equal(before))
	tables, err := openNFT(ns)
	lab.must(err)
	c, err := tables.conn()
	lab.must(err)
	chains, err := nftChains(c)
	lab.must(err)
	lab.must(tables.close())
	g.Expect(chains).To(BeEmpty())
	removed, err = uninstallOverlay(t.Context(), Options{Namespace: ns})
	lab.must(err)
	g.Expect(removed).To(BeEmpty())
}
