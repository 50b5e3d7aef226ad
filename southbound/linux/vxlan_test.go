// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

// vxlanNode has the descriptors of one node.
type vxlanNode struct {
	*labNode
	host    *tunnelHost
	node    *southbound.Descriptor
	tunnels *southbound.Descriptor
}

func newVXLANNode(n *labNode) *vxlanNode {
	h := n.host()
	link := &vxlan{host: h}
	return &vxlanNode{
		labNode: n,
		host:    h,
		node:    (&ownNode{host: h, parts: []nodePart{link}}).kind().Descriptor(),
		tunnels: (&tunnels{host: h, peers: map[kv.Transport]tunnelPeers{kv.Transport_VXLAN: newVXLANPeers(h, link)}}).kind().Descriptor(),
	}
}

// join makes the node's link and the tunnels to all others.
func (n *vxlanNode) join() {
	n.lab.t.Helper()
	n.lab.must(n.node.Create(n.lab.t.Context(), kv.SinkNode, n.network(kv.Transport_VXLAN)))
	for _, other := range n.lab.nodes {
		if other != n.labNode {
			n.lab.must(n.tunnels.Create(n.lab.t.Context(), other.tunnelKey(), other.tunnel(kv.Transport_VXLAN)))
		}
	}
}

// retrieveNode returns what the descriptor finds.
func (n *vxlanNode) retrieveNode(wanted *kv.NodeNetwork) []controller.Value {
	n.lab.t.Helper()
	var want []controller.Value
	if wanted != nil {
		want = []controller.Value{{Key: kv.SinkNode, Message: wanted}}
	}
	got, err := n.node.Retrieve(n.lab.t.Context(), want)
	n.lab.must(err)
	return got
}

func (n *vxlanNode) retrieveTunnels(wanted ...controller.Value) []controller.Value {
	n.lab.t.Helper()
	got, err := n.tunnels.Retrieve(n.lab.t.Context(), wanted)
	n.lab.must(err)
	return got
}

func equalValues(t testing.TB, got []controller.Value, want ...controller.Value) {
	t.Helper()
	same := len(got) == len(want)
	for i := 0; same && i < len(got); i++ {
		same = got[i].Key == want[i].Key && proto.Equal(got[i].Message, want[i].Message)
	}
	if !same {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
}

func TestVXLANConnectsPodsOfNodesThatARouterSeparates(t *testing.T) {
	t.Parallel()
	lab := newTunnelLab(t, 3)
	for _, n := range lab.nodes {
		newVXLANNode(n).join()
		lab.tunnelRoutes(n, vxlanName, true)
	}
	lab.expectReachable(100)
	lab.expectReachable(labMTU)
}

func TestVXLANLinkIsRetrievedAsItWasMade(t *testing.T) {
	lab := newTunnelLab(t, 2)
	n := newVXLANNode(lab.nodes[0])
	want := n.network(kv.Transport_VXLAN)
	g := NewWithT(t)
	got := n.retrieveNode(want)
	g.Expect(got).To(HaveLen(1))
	g.Expect(proto.Equal(got[0].Message, want)).To(BeFalse(), "nothing was made yet")
	n.join()
	equalValues(t, n.retrieveNode(want), controller.Value{Key: kv.SinkNode, Message: want})
	lab.must(n.net.Do(func() error {
		link, err := netlink.LinkByName(vxlanName)
		if err != nil {
			return err
		}
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V6)
		for _, a := range addresses {
			if !a.IP.IsLinkLocalUnicast() {
				g.Expect(a.Flags&unix.IFA_F_NODAD).NotTo(BeZero(), "%s waits for duplicates", a.IP)
			}
		}
		return err
	}))

	changes := map[string]func(link netlink.Link) error{
		"down": netlink.LinkSetDown,
		"mtu":  func(l netlink.Link) error { return netlink.LinkSetMTU(l, labMTU-1) },
		"mac": func(l netlink.Link) error {
			return netlink.LinkSetHardwareAddr(l, net.HardwareAddr{2, 0, 0, 0, 0, 9})
		},
		"address": func(l netlink.Link) error {
			addr, err := netlink.ParseAddr("192.168.30.1/24")
			if err != nil {
				return err
			}
			return netlink.AddrDel(l, addr)
		},
		"another address": func(l netlink.Link) error {
			addr, err := netlink.ParseAddr("192.168.31.1/24")
			if err != nil {
				return err
			}
			return netlink.AddrAdd(l, addr)
		},
		"an address without the route to its prefix": func(l netlink.Link) error {
			addr, err := netlink.ParseAddr("192.168.30.1/24")
			if err != nil {
				return err
			}
			addr.Flags = ifaNoPrefix
			return errors.Join(netlink.AddrDel(l, addr), netlink.AddrAdd(l, addr))
		},
		// With the first IPv4 address of a prefix, the kernel removes the others.
		"an address of another program is the first of its prefix": func(l netlink.Link) error {
			addr, err := netlink.ParseAddr("192.168.30.1/24")
			if err != nil {
				return err
			}
			other, err := netlink.ParseAddr("192.168.30.77/24")
			if err != nil {
				return err
			}
			return errors.Join(netlink.AddrDel(l, addr), netlink.AddrAdd(l, other), netlink.AddrAdd(l, addr))
		},
		"alias":   func(l netlink.Link) error { return netlink.LinkSetAlias(l, "") },
		"group":   func(l netlink.Link) error { return netlink.LinkSetGroup(l, 7) },
		"removed": netlink.LinkDel,
	}
	for name, change := range changes {
		lab.must(n.net.Do(func() error {
			link, err := netlink.LinkByName(vxlanName)
			if err != nil {
				return err
			}
			return change(link)
		}))
		got := n.retrieveNode(want)
		g.Expect(got).To(HaveLen(1), name)
		g.Expect(proto.Equal(got[0].Message, want)).To(BeFalse(), "after change %q it is retrieved as complete", name)
		lab.must(n.node.Update(t.Context(), kv.SinkNode, got[0].Message, want))
		equalValues(t, n.retrieveNode(want), controller.Value{Key: kv.SinkNode, Message: want})
	}
	lab.must(n.node.Delete(t.Context(), kv.SinkNode, want))
	g.Expect(n.retrieveNode(nil)).To(BeEmpty())
}

func TestVXLANLinkIsUpdated(t *testing.T) {
	lab := newTunnelLab(t, 1)
	n := newVXLANNode(lab.nodes[0])
	n.join()
	index := func() (index int) {
		lab.must(n.net.Do(func() error {
			link, err := netlink.LinkByName(vxlanName)
			if err == nil {
				index = link.Attrs().Index
			}
			return err
		}))
		return index
	}
	lab.address(n.net, "uplink", "10.99.1.3/24")
	before, first := n.network(kv.Transport_VXLAN), index()
	g := NewWithT(t)
	for _, change := range []struct {
		what  string
		stays bool
		do    func(*kv.NodeNetwork)
	}{
		{"the local address", true, func(v *kv.NodeNetwork) { v.Underlay = []string{"10.99.1.3"} }},
		{"MTU, MAC and addresses", true, func(v *kv.NodeNetwork) {
			v.Mtu, v.VxlanMac, v.VxlanIps = 1350, "02:ca:da:00:01:01", []string{"192.168.30.77/24"}
		}},
		{"the VNI", false, func(v *kv.NodeNetwork) { v.Vni = 11 }},
		{"the family of the underlay", false, func(v *kv.NodeNetwork) { v.Underlay = []string{"fd99:1::2"} }},
	} {
		after := proto.CloneOf(before)
		change.do(after)
		lab.must(n.node.Update(t.Context(), kv.SinkNode, before, after))
		equalValues(t, n.retrieveNode(after), controller.Value{Key: kv.SinkNode, Message: after})
		g.Expect(index() == first).To(Equal(change.stays), "the link stays when %s changes", change.what)
		before, first = after, index()
	}
}

func TestVXLANNamesForeignLinks(t *testing.T) {
	lab := newTunnelLab(t, 2)
	g := NewWithT(t)
	for i, c := range []struct {
		name string
		vni  int
	}{{vxlanName, labVNI + 1}, {"theirs", labVNI}} {
		n := newVXLANNode(lab.nodes[i])
		theirs := &netlink.Vxlan{LinkAttrs: netlink.NewLinkAttrs(), VxlanId: c.vni, Port: vxlanPort}
		theirs.Name = c.name
		lab.must(n.net.Do(func() error { return netlink.LinkAdd(theirs) }))
		err := n.node.Create(t.Context(), kv.SinkNode, n.network(kv.Transport_VXLAN))
		g.Expect(err).To(MatchError(southbound.ErrForeign))
		g.Expect(err).To(MatchError(ContainSubstring("link " + c.name)))
		g.Expect(n.node.Delete(t.Context(), kv.SinkNode, n.network(kv.Transport_VXLAN))).To(Succeed())
		g.Expect(n.retrieveNode(nil)).To(BeEmpty())
		lab.must(n.net.Do(func() error {
			_, err := netlink.LinkByName(c.name)
			return err
		}))
	}
}

func TestVXLANLinkThatACrashLeftHalfMadeIsCompleted(t *testing.T) {
	lab := newTunnelLab(t, 1)
	n := newVXLANNode(lab.nodes[0])
	want, err := readVXLAN(n.network(kv.Transport_VXLAN))
	lab.must(err)
	_, err = (&vxlan{host: n.host}).add(want)
	lab.must(err) // as if the agent had ended here
	n.join()
	equalValues(t, n.retrieveNode(n.network(kv.Transport_VXLAN)),
		controller.Value{Key: kv.SinkNode, Message: n.network(kv.Transport_VXLAN)})
}

func TestVXLANTunnelsAreRetrievedAndRepaired(t *testing.T) {
	lab := newTunnelLab(t, 3)
	n, peer, other := newVXLANNode(lab.nodes[0]), lab.nodes[1], lab.nodes[2]
	n.join()
	want := []controller.Value{
		value(peer.tunnelKey(), peer.tunnel(kv.Transport_VXLAN)),
		value(other.tunnelKey(), other.tunnel(kv.Transport_VXLAN)),
	}
	equalValues(t, n.retrieveTunnels(want...), want...)

	g := NewWithT(t)
	mac, err := net.ParseMAC(peer.mac())
	lab.must(err)
	fdb := func(index int, dst string) *netlink.Neigh {
		return &netlink.Neigh{
			LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
			IP: net.ParseIP(dst), HardwareAddr: mac,
		}
	}
	changes := map[string]func(index int) error{
		"no forwarding":      func(i int) error { return netlink.NeighDel(fdb(i, "10.99.2.2")) },
		"another forwarding": func(i int) error { return netlink.NeighSet(fdb(i, "10.99.3.2")) },
		"two for all other MAC addresses": func(i int) error {
			all := fdb(i, "10.99.3.2")
			all.HardwareAddr = net.HardwareAddr{0, 0, 0, 0, 0, 0}
			second := *all
			second.IP = net.ParseIP("10.99.3.3")
			return errors.Join(netlink.NeighAppend(all), netlink.NeighAppend(&second))
		},
		"no neighbour": func(i int) error {
			return netlink.NeighDel(&netlink.Neigh{LinkIndex: i, IP: net.ParseIP("fd30::2")})
		},
		"another neighbour": func(i int) error {
			return netlink.NeighSet(&netlink.Neigh{
				LinkIndex: i, IP: net.ParseIP("192.168.30.2"), State: netlink.NUD_PERMANENT,
				HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 99},
			})
		},
	}
	for name, change := range changes {
		lab.must(n.net.Do(func() error {
			link, err := netlink.LinkByName(vxlanName)
			if err != nil {
				return err
			}
			return change(link.Attrs().Index)
		}))
		found := n.retrieveTunnels(want...)
		wanted := map[string]proto.Message{}
		for _, w := range want {
			wanted[w.Key] = w.Message
		}
		repaired := 0
		for _, f := range found { // as the scheduler does: first what is wanted
			w := wanted[f.Key]
			if w != nil && !proto.Equal(f.Message, w) {
				repaired++
				lab.must(n.tunnels.Update(t.Context(), f.Key, f.Message, w))
			}
			delete(wanted, f.Key)
			if w == nil {
				repaired++
				lab.must(n.tunnels.Delete(t.Context(), f.Key, f.Message))
			}
		}
		g.Expect(wanted).To(BeEmpty(), name)
		g.Expect(repaired).NotTo(BeZero(), name)
		equalValues(t, n.retrieveTunnels(want...), want...)
	}
	for _, w := range want {
		lab.must(n.tunnels.Delete(t.Context(), w.Key, w.Message))
		lab.must(n.tunnels.Delete(t.Context(), w.Key, w.Message))
	}
	g.Expect(n.retrieveTunnels()).To(BeEmpty())
}

func TestVXLANTunnelsOfAnEarlierAgentAreFound(t *testing.T) {
	lab := newTunnelLab(t, 3)
	newVXLANNode(lab.nodes[0]).join()
	n := newVXLANNode(lab.nodes[0]) // another agent
	keep := value(lab.nodes[1].tunnelKey(), lab.nodes[1].tunnel(kv.Transport_VXLAN))
	found := n.retrieveTunnels(keep)
	g := NewWithT(t)
	g.Expect(found).To(HaveLen(2))
	equalValues(t, found[:1], keep)
	g.Expect(n.tunnels.Handles(found[1].Key)).To(BeTrue())
	lab.must(n.tunnels.Delete(t.Context(), found[1].Key, found[1].Message))
	equalValues(t, n.retrieveTunnels(keep), keep)
}

func TestTunnelsThatWereLookedAtAloneCanStillBeRemoved(t *testing.T) {
	lab := newTunnelLab(t, 3)
	first, second := lab.nodes[1], lab.nodes[2]
	v := newVXLANNode(lab.nodes[0])
	v.join()
	w := newWireguardNode(t, lab.nodes[0])
	w.join()
	for transport, d := range map[kv.Transport]*southbound.Descriptor{kv.Transport_VXLAN: v.tunnels, kv.Transport_WIREGUARD: w.tunnels} {
		of := func(n *labNode) controller.Value {
			if transport == kv.Transport_WIREGUARD {
				return value(n.tunnelKey(), n.wireguardTunnel())
			}
			return value(n.tunnelKey(), n.tunnel(transport))
		}
		retrieve := func(wanted ...controller.Value) []controller.Value {
			got, err := d.Retrieve(t.Context(), wanted)
			lab.must(err)
			return got
		}
		retrieve(of(first)) // of one value, as for a report
		lab.must(d.Delete(t.Context(), second.tunnelKey(), of(second).Message))
		equalValues(t, retrieve(of(first)), of(first))
		// a resync without the value finds it under another key
		left := retrieve()
		NewWithT(t).Expect(left).To(HaveLen(1))
		lab.must(d.Delete(t.Context(), left[0].Key, left[0].Message))
		NewWithT(t).Expect(retrieve()).To(BeEmpty())
	}
}

func TestVXLANTunnelMovesWithoutLoss(t *testing.T) {
	lab := newTunnelLab(t, 2)
	n, peer := newVXLANNode(lab.nodes[0]), lab.nodes[1]
	n.join()
	before := peer.tunnel(kv.Transport_VXLAN)
	entries := make(chan netlink.NeighUpdate, 100)
	done := make(chan struct{})
	lab.must(n.net.Do(func() error { return netlink.NeighSubscribe(entries, done) }))
	for i := range 20 {
		after := proto.CloneOf(before)
		after.Underlay = []string{fmt.Sprintf("10.99.2.%d", 10+i)}
		lab.must(n.tunnels.Update(t.Context(), peer.tunnelKey(), before, after))
		equalValues(t, n.retrieveTunnels(value(peer.tunnelKey(), after)), value(peer.tunnelKey(), after))
		before = after
	}
	last := net.ParseIP(before.GetUnderlay()[0])
	for e := range entries {
		if e.Type == unix.RTM_DELNEIGH {
			t.Fatalf("entry %v was removed for a moment", e.Neigh)
		}
		if e.IP.Equal(last) {
			break
		}
	}
	close(done)
	for range entries { // until the subscription has ended
	}
}

func TestVXLANTunnelLosesAnAddress(t *testing.T) {
	lab := newTunnelLab(t, 2)
	n, peer := newVXLANNode(lab.nodes[0]), lab.nodes[1]
	n.join()
	before := peer.tunnel(kv.Transport_VXLAN)
	for _, change := range []func(*kv.NodeTunnel){
		func(v *kv.NodeTunnel) { v.VxlanIps = v.GetVxlanIps()[:1] },
		func(v *kv.NodeTunnel) { v.Mac = "02:ca:da:00:00:99" },
	} {
		after := proto.CloneOf(before)
		change(after)
		lab.must(n.tunnels.Update(t.Context(), peer.tunnelKey(), before, after))
		equalValues(t, n.retrieveTunnels(value(peer.tunnelKey(), after)), value(peer.tunnelKey(), after))
		before = after
	}
}

func TestVXLANTunnelNeedsAnUnderlayOfTheNodesFamily(t *testing.T) {
	lab := newTunnelLab(t, 2)
	n, peer := newVXLANNode(lab.nodes[0]), lab.nodes[1]
	lab.must(n.node.Create(t.Context(), kv.SinkNode, n.network(kv.Transport_VXLAN)))
	only6 := peer.tunnel(kv.Transport_VXLAN)
	only6.Underlay = only6.Underlay[1:]
	err := n.tunnels.Create(t.Context(), peer.tunnelKey(), only6)
	g := NewWithT(t)
	g.Expect(err).To(MatchError(And(ContainSubstring("node-2"), ContainSubstring("fd99:2::2"), ContainSubstring("10.99.1.2"))))
	g.Expect(n.retrieveTunnels()).To(BeEmpty())
}

func TestVXLANOverIPv6(t *testing.T) {
	t.Parallel()
	lab := newTunnelLab(t, 2)
	for _, n := range lab.nodes {
		v := newVXLANNode(n)
		network := n.network(kv.Transport_VXLAN)
		network.Underlay = network.Underlay[1:]
		lab.must(v.node.Create(t.Context(), kv.SinkNode, network))
		other := lab.nodes[2-n.id]
		lab.must(v.tunnels.Create(t.Context(), other.tunnelKey(), other.tunnel(kv.Transport_VXLAN)))
		lab.tunnelRoutes(n, vxlanName, true)
	}
	lab.expectReachable(labMTU)
}

func TestInvalidTunnelValuesAreRefused(t *testing.T) {
	lab := newTunnelLab(t, 1)
	n := newVXLANNode(lab.nodes[0])
	g := NewWithT(t)
	for field, change := range map[string]func(*kv.NodeNetwork){
		"vni":       func(v *kv.NodeNetwork) { v.Vni = 0 },
		"underlay":  func(v *kv.NodeNetwork) { v.Underlay = nil },
		"underlay ": func(v *kv.NodeNetwork) { v.Underlay = []string{"10.99.1.2/24"} },
		"vxlan_mac": func(v *kv.NodeNetwork) { v.VxlanMac = "01:00:5e:00:00:01" },
		"vxlan_ips": func(v *kv.NodeNetwork) { v.VxlanIps = []string{"192.168.30.1"} },
	} {
		v := n.network(kv.Transport_VXLAN)
		change(v)
		g.Expect(n.node.Validate(kv.SinkNode, v)).To(MatchError(ContainSubstring(field)))
	}
	for field, change := range map[string]func(*kv.NodeTunnel){
		"underlay":  func(v *kv.NodeTunnel) { v.Underlay = nil },
		"mac":       func(v *kv.NodeTunnel) { v.Mac = "" },
		"vxlan_ips": func(v *kv.NodeTunnel) { v.VxlanIps = []string{"192.168.30.1/24"} },
		"transport": func(v *kv.NodeTunnel) { v.Transport = kv.Transport_DIRECT },
	} {
		v := n.tunnel(kv.Transport_VXLAN)
		change(v)
		g.Expect(n.tunnels.Validate(n.tunnelKey(), v)).To(MatchError(ContainSubstring(field)))
	}
	g.Expect(n.node.Validate(kv.SinkNode, n.network(kv.Transport_VXLAN))).To(Succeed())
	g.Expect(n.tunnels.Validate(n.tunnelKey(), n.tunnel(kv.Transport_VXLAN))).To(Succeed())
}

func BenchmarkVXLANTunnels(b *testing.B) {
	for _, count := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			lab := newTunnelLab(b, 1)
			n := newVXLANNode(lab.nodes[0])
			n.join()
			var want []controller.Value
			for i := range count {
				want = append(want, value(fmt.Sprintf("tunnel/%d", i+2), &kv.NodeTunnel{
					Transport: kv.Transport_VXLAN, Underlay: []string{fmt.Sprintf("10.98.%d.%d", i>>8, i&255)},
					Mac:      fmt.Sprintf("02:ca:da:01:%02x:%02x", i>>8, i&255),
					VxlanIps: []string{fmt.Sprintf("192.169.%d.%d", i>>8, i&255), fmt.Sprintf("fd31::%x", i+1)},
				}))
			}
			b.Run("create", func(b *testing.B) {
				for b.Loop() {
					for _, w := range want {
						lab.must(n.tunnels.Create(b.Context(), w.Key, w.Message))
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*count), "us/tunnel")
			})
			b.Run("retrieve", func(b *testing.B) {
				for b.Loop() {
					equalValues(b, n.retrieveTunnels(want...), want...)
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*count), "us/tunnel")
			})
		})
	}
}
