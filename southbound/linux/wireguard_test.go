// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// wireguardNode has the descriptors of one node.
type wireguardNode struct {
	*labNode
	link    *wireguard
	node    *southbound.Descriptor
	tunnels *southbound.Descriptor
}

// wireguardKey returns a private key for a node.
func wireguardKey(id int) wgtypes.Key {
	return wgtypes.Key{0: 8, 1: byte(id), 31: 64}
}

func newWireguardNode(t testing.TB, n *labNode) *wireguardNode {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("NOT RUN: WireGuard of a process needs /dev/net/tun: %v", err)
	}
	w := &wireguard{host: n.host(), private: wireguardKey(n.id).String(), log: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		if err := w.end(); err != nil {
			t.Error(err)
		}
	})
	return &wireguardNode{
		labNode: n,
		link:    w,
		node:    (&ownNode{host: w.host, parts: []nodePart{w}}).kind().Descriptor(),
		tunnels: (&tunnels{host: w.host, peers: map[kv.Transport]tunnelPeers{kv.Transport_WIREGUARD: newWireguardPeers(w)}}).kind().Descriptor(),
	}
}

// wireguardTunnel returns the value with which other nodes reach the node.
func (n *labNode) wireguardTunnel() *kv.NodeTunnel {
	v := n.tunnel(kv.Transport_WIREGUARD)
	v.PublicKey, v.Mac, v.VxlanIps = wireguardKey(n.id).PublicKey().String(), "", nil
	return v
}

// join makes the node's link and the tunnels to all others.
func (n *wireguardNode) join() {
	n.lab.t.Helper()
	n.lab.must(n.node.Create(n.lab.t.Context(), kv.SinkNode, n.network(kv.Transport_WIREGUARD)))
	for _, other := range n.lab.nodes {
		if other != n.labNode {
			n.lab.must(n.tunnels.Create(n.lab.t.Context(), other.tunnelKey(), other.wireguardTunnel()))
		}
	}
}

func (n *wireguardNode) retrieveNode() *kv.NodeNetwork {
	n.lab.t.Helper()
	got, err := n.node.Retrieve(n.lab.t.Context(), []controller.Value{
		{Key: kv.SinkNode, Message: n.network(kv.Transport_WIREGUARD)},
	})
	n.lab.must(err)
	return got[0].Message.(*kv.NodeNetwork)
}

func (n *wireguardNode) retrieveTunnels(wanted ...controller.Value) []controller.Value {
	n.lab.t.Helper()
	got, err := n.tunnels.Retrieve(n.lab.t.Context(), wanted)
	n.lab.must(err)
	return got
}

// linkIndex returns the index of a link of the node, 0 if it is missing.
func (n *labNode) linkIndex(name string) (index int) {
	n.lab.t.Helper()
	n.lab.must(n.net.Do(func() error {
		link, err := netlink.LinkByName(name)
		if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
			return nil
		}
		if err == nil {
			index = link.Attrs().Index
		}
		return err
	}))
	return index
}

// It is not parallel: goroutines of other tests would count as left behind.
func TestWireguardConnectsPodsOfNodesThatARouterSeparates(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Run("nodes", func(t *testing.T) {
		lab := newTunnelLab(t, 2)
		for _, n := range lab.nodes {
			newWireguardNode(t, n).join()
			lab.tunnelRoutes(n, wireguardName, false)
		}
		lab.expectReachable(100)
		lab.expectReachable(labMTU)
	})
	goleak.VerifyNone(t, before)
}

func TestWireguardTunnelsOfAnAgentThatRestarts(t *testing.T) {
	t.Parallel()
	lab := newTunnelLab(t, 2)
	var nodes []*wireguardNode
	for _, n := range lab.nodes {
		nodes = append(nodes, newWireguardNode(t, n))
		nodes[len(nodes)-1].join()
		lab.tunnelRoutes(n, wireguardName, false)
	}
	lab.expectReachable(100)
	n, index := nodes[0], lab.nodes[0].linkIndex(wireguardName)
	lab.must(n.link.end()) // as at the end of the process

	g := NewWithT(t)
	for _, addr := range lab.nodes[1].podAddresses() {
		lab.must(n.net.Do(func() error {
			routes, err := netlink.RouteGet(net.ParseIP(addr))
			if err != nil {
				return err
			}
			g.Expect(routes).To(HaveLen(1))
			g.Expect(routes[0].LinkIndex).To(Equal(index), "packets to %s leave the node without encryption", addr)
			return nil
		}))
	}
	again := newWireguardNode(t, n.labNode)
	want := value(lab.nodes[1].tunnelKey(), lab.nodes[1].wireguardTunnel())
	g.Expect(proto.Equal(again.retrieveNode(), n.network(kv.Transport_WIREGUARD))).To(BeFalse())
	g.Expect(again.retrieveTunnels(want)).To(BeEmpty())
	start := time.Now()
	again.join()
	g.Expect(lab.nodes[0].linkIndex(wireguardName)).To(Equal(index), "the link and its routes stay")
	// the other node still has the keys of before, and sends first
	lab.must(echo(lab.nodes[1].pod, n.podAddresses()[0], 100))
	t.Logf("the first answer came %s after the start", time.Since(start).Round(time.Millisecond))
	equalValues(t, again.retrieveTunnels(want), want)
	lab.expectReachable(labMTU)
}

func TestWireguardIsRetrievedAndRepaired(t *testing.T) {
	lab := newTunnelLab(t, 3)
	n, peer := newWireguardNode(t, lab.nodes[0]), lab.nodes[1]
	n.join()
	g := NewWithT(t)
	want := n.network(kv.Transport_WIREGUARD)
	tunnels := []controller.Value{
		value(peer.tunnelKey(), peer.wireguardTunnel()),
		value(lab.nodes[2].tunnelKey(), lab.nodes[2].wireguardTunnel()),
	}
	complete := func() bool { return proto.Equal(n.retrieveNode(), want) }
	g.Expect(complete()).To(BeTrue())
	equalValues(t, n.retrieveTunnels(tunnels...), tunnels...)
	link := func(f func(netlink.Link) error) func() error {
		return func() error {
			return n.net.Do(func() error {
				l, err := netlink.LinkByName(wireguardName)
				if err != nil {
					return err
				}
				return f(l)
			})
		}
	}
	public := wireguardKey(peer.id).PublicKey()
	stranger := wireguardKey(77).PublicKey()
	for what, damage := range map[string]func() error{
		"the link is down": link(netlink.LinkSetDown),
		"another MTU":      link(func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) }),
		"another alias":    link(func(l netlink.Link) error { return netlink.LinkSetAlias(l, "") }),
		"another group":    link(func(l netlink.Link) error { return netlink.LinkSetGroup(l, 7) }),
		"it obeys routers": func() error {
			setting(t, n.net, "net.ipv6.conf.cadwg.accept_ra", "2")
			return nil
		},
		"no link":      link(netlink.LinkDel),
		"another key":  func() error { return n.link.device.setKey(wireguardKey(99), wireguardPort) },
		"another port": func() error { return n.link.device.setKey(wireguardKey(1), 51821) },
		"no peer":      func() error { return n.link.device.removePeer(public) },
		"another peer": func() error {
			return n.link.device.setPeer(stranger, wireguardPeer{}, wireguardPeer{endpoint: netip.MustParseAddrPort("10.99.9.9:1")})
		},
		"another endpoint": func() error {
			return n.link.device.setPeer(public, wireguardPeer{}, wireguardPeer{endpoint: netip.MustParseAddrPort("10.99.9.9:51820")})
		},
		"more addresses": func() error {
			_, p, err := readWireguardPeer(peer.wireguardTunnel())
			p.allowed = append(p.allowed, netip.MustParsePrefix("10.1.99.0/24"))
			return errors.Join(err, n.link.device.setPeer(public, wireguardPeer{}, p))
		},
	} {
		lab.must(damage())
		if what == "no link" { // the device notices it on its own
			g.Eventually(n.link.device.works).WithTimeout(30 * time.Second).Should(BeFalse())
		}
		repaired := 0
		if !complete() {
			repaired++
			lab.must(n.node.Update(t.Context(), kv.SinkNode, n.retrieveNode(), want))
		}
		have := map[string]proto.Message{}
		for _, v := range n.retrieveTunnels(tunnels...) {
			have[v.Key] = v.Message
		}
		for _, v := range tunnels {
			switch {
			case have[v.Key] == nil:
				repaired++
				lab.must(n.tunnels.Create(t.Context(), v.Key, v.Message))
			case !proto.Equal(have[v.Key], v.Message):
				repaired++
				lab.must(n.tunnels.Update(t.Context(), v.Key, have[v.Key], v.Message))
			}
			delete(have, v.Key)
		}
		for key, m := range have {
			repaired++
			lab.must(n.tunnels.Delete(t.Context(), key, m))
		}
		g.Expect(repaired).NotTo(BeZero(), what)
		g.Expect(complete()).To(BeTrue(), what)
		equalValues(t, n.retrieveTunnels(tunnels...), tunnels...)
	}
	lab.must(n.tunnels.Delete(t.Context(), tunnels[0].Key, tunnels[0].Message))
	lab.must(n.tunnels.Delete(t.Context(), tunnels[0].Key, tunnels[0].Message))
	equalValues(t, n.retrieveTunnels(tunnels...), tunnels[1:]...)
	lab.must(n.node.Delete(t.Context(), kv.SinkNode, want))
	g.Expect(n.linkIndex(wireguardName)).To(BeZero())
	g.Expect(n.link.device).To(BeNil())
}

func TestWireguardPeerChangesItsKey(t *testing.T) {
	lab := newTunnelLab(t, 2)
	n, peer := newWireguardNode(t, lab.nodes[0]), lab.nodes[1]
	n.join()
	before := peer.wireguardTunnel()
	after := proto.CloneOf(before)
	after.PublicKey = wireguardKey(50).PublicKey().String()
	lab.must(n.tunnels.Update(t.Context(), peer.tunnelKey(), before, after))
	equalValues(t, n.retrieveTunnels(value(peer.tunnelKey(), after)), value(peer.tunnelKey(), after))
	peers, err := n.link.device.peers()
	lab.must(err)
	NewWithT(t).Expect(peers).To(HaveLen(1))
}

func TestWireguardNamesWhatIsInTheWay(t *testing.T) {
	lab := newTunnelLab(t, 2)
	g := NewWithT(t)
	n := newWireguardNode(t, lab.nodes[0])
	lab.must(n.net.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = wireguardName
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
	}))
	want := n.network(kv.Transport_WIREGUARD)
	err := n.node.Create(t.Context(), kv.SinkNode, want)
	g.Expect(err).To(MatchError(southbound.ErrForeign))
	g.Expect(err).To(MatchError(ContainSubstring("bridge")))
	g.Expect(n.node.Delete(t.Context(), kv.SinkNode, want)).To(Succeed())
	g.Expect(n.linkIndex(wireguardName)).NotTo(BeZero())

	first, second := newWireguardNode(t, lab.nodes[1]), newWireguardNode(t, lab.nodes[1])
	first.join()
	err = second.node.Create(t.Context(), kv.SinkNode, second.network(kv.Transport_WIREGUARD))
	g.Expect(err).To(MatchError(unix.EBUSY))
	g.Expect(err).To(MatchError(ContainSubstring("another agent")))
	g.Expect(first.link.device.works()).To(BeTrue())
}

func TestInvalidWireguardValuesAreRefused(t *testing.T) {
	lab := newTunnelLab(t, 1)
	n := newWireguardNode(t, lab.nodes[0])
	g := NewWithT(t)
	g.Expect(n.node.Validate(kv.SinkNode, n.network(kv.Transport_WIREGUARD))).To(Succeed())
	n.link.private = "secret"
	err := n.node.Validate(kv.SinkNode, n.network(kv.Transport_WIREGUARD))
	g.Expect(err).To(MatchError(ContainSubstring("private key")))
	g.Expect(err).NotTo(MatchError(ContainSubstring("secret")))
	for field, change := range map[string]func(*kv.NodeTunnel){
		"underlay":   func(v *kv.NodeTunnel) { v.Underlay = nil },
		"public_key": func(v *kv.NodeTunnel) { v.PublicKey = "" },
		"subnets":    func(v *kv.NodeTunnel) { v.Subnets = []string{"10.1.1.1/24"} },
	} {
		v := n.wireguardTunnel()
		change(v)
		g.Expect(n.tunnels.Validate(n.tunnelKey(), v)).To(MatchError(ContainSubstring(field)))
	}
	g.Expect(n.tunnels.Validate(n.tunnelKey(), n.wireguardTunnel())).To(Succeed())
}

func TestWireguardOfTheKernel(t *testing.T) {
	lab := newTunnelLab(t, 2)
	lab.must(lab.nodes[0].net.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "probe"
		err := netlink.LinkAdd(&netlink.Wireguard{LinkAttrs: attrs})
		if errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("NOT RUN: the kernel has no WireGuard")
		}
		return err
	}))
	for _, n := range lab.nodes {
		w := newWireguardNode(t, n)
		w.join()
		NewWithT(t).Expect(w.link.device).To(BeAssignableToTypeOf(&kernelWireguard{}))
		lab.tunnelRoutes(n, wireguardName, false)
		NewWithT(t).Expect(proto.Equal(w.retrieveNode(), n.network(kv.Transport_WIREGUARD))).To(BeTrue())
	}
	lab.expectReachable(labMTU)
}

// BenchmarkThroughput sends over TCP from the pod of one node to that of another.
func BenchmarkThroughput(b *testing.B) {
	const total = 256 << 20
	for name, prepare := range map[string]func(lab *tunnelLab){
		"direct": func(lab *tunnelLab) {
			for _, n := range lab.nodes {
				for i, dst := range n.subnets() {
					lab.route(lab.router, dst, n.underlay()[i], "")
				}
			}
		},
		"vxlan": func(lab *tunnelLab) {
			for _, n := range lab.nodes {
				newVXLANNode(n).join()
				lab.tunnelRoutes(n, vxlanName, true)
			}
		},
		"wireguard": func(lab *tunnelLab) {
			for _, n := range lab.nodes {
				newWireguardNode(b, n).join()
				lab.tunnelRoutes(n, wireguardName, false)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			lab := newTunnelLab(b, 2)
			prepare(lab)
			for b.Loop() {
				lab.must(transfer(lab.nodes[0], lab.nodes[1], total))
			}
			b.ReportMetric(float64(total)*8*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gbit/s")
		})
	}
}

// transfer sends bytes over TCP between the pods of two nodes.
func transfer(from, to *labNode, total int64) error {
	var listener net.Listener
	err := to.pod.Do(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(to.podAddresses()[0], "0"))
		return err
	})
	if err != nil {
		return err
	}
	defer listener.Close()
	var conn net.Conn
	err = from.pod.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", listener.Addr().String(), 10*time.Second)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	server, err := listener.Accept()
	if err != nil {
		return err
	}
	defer server.Close()
	sent := make(chan error, 1)
	go func() {
		buffer := make([]byte, 1<<16)
		var err error
		for left := total; left > 0 && err == nil; left -= int64(len(buffer)) {
			_, err = conn.Write(buffer)
		}
		sent <- err
	}()
	n, err := io.CopyN(io.Discard, server, total)
	if err == nil && n != total {
		err = fmt.Errorf("%d of %d bytes arrived", n, total)
	}
	return errors.Join(err, <-sent)
}
