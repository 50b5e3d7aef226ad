// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/southbound"
)

// notices holds the keys that a descriptor has announced.
type notices struct {
	mu   sync.Mutex
	keys map[string]bool
}

func (n *notices) add(key string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keys[key] = true
}

// take returns the keys since the last call.
func (n *notices) take() map[string]bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	keys := n.keys
	n.keys = map[string]bool{}
	return keys
}

// watching runs Watch until the test ends. It returns after probe was announced, which changes
// an object of key.
func watching(t *testing.T, w *southbound.Descriptor, key string, probe func()) *notices {
	t.Helper()
	n := &notices{keys: map[string]bool{}}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.Watch(ctx, n.add) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	NewWithT(t).Eventually(func() bool {
		probe()
		return n.take()[key]
	}).WithTimeout(30 * time.Second).Should(BeTrue())
	return n
}

// awaits waits until a key was announced.
func (n *notices) awaits(t *testing.T, key, why string) {
	t.Helper()
	NewWithT(t).Eventually(func() bool { return n.take()[key] }).WithTimeout(30*time.Second).Should(BeTrue(), why)
}

func TestChangesOfNodeLinksAreNoticed(t *testing.T) {
	lab := newTunnelLab(t, 1)
	n := newVXLANNode(lab.nodes[0])
	n.join()
	change := func(f func(netlink.Link) error) {
		lab.must(n.net.Do(func() error {
			link, err := netlink.LinkByName(vxlanName)
			if err != nil {
				return err
			}
			return f(link)
		}))
	}
	mtu := labMTU
	seen := watching(t, n.node, kv.SinkNode, func() {
		mtu--
		change(func(l netlink.Link) error { return netlink.LinkSetMTU(l, mtu) })
	})
	change(func(l netlink.Link) error {
		addr, err := netlink.ParseAddr("fd30::1/64")
		if err != nil {
			return err
		}
		return netlink.AddrDel(l, addr)
	})
	seen.awaits(t, kv.SinkNode, "an address was removed")
	change(netlink.LinkSetDown)
	seen.awaits(t, kv.SinkNode, "the link is down")
	change(netlink.LinkDel)
	seen.awaits(t, kv.SinkNode, "the link was removed")
	lab.must(n.node.Create(t.Context(), kv.SinkNode, n.network(kv.Transport_VXLAN)))
	seen.awaits(t, kv.SinkNode, "the link is there again")
	change(netlink.LinkDel)
	seen.awaits(t, kv.SinkNode, "the second link was removed")
}

func TestChangesOfTunnelsAreNoticed(t *testing.T) {
	lab := newTunnelLab(t, 3)
	n, peer, other := newVXLANNode(lab.nodes[0]), lab.nodes[1], lab.nodes[2]
	n.join()
	mac, err := net.ParseMAC(peer.mac())
	lab.must(err)
	index := n.linkIndex(vxlanName)
	fdb := &netlink.Neigh{
		LinkIndex: index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		IP: net.ParseIP("10.99.2.2"), HardwareAddr: mac,
	}
	repair := func() {
		lab.must(n.tunnels.Create(t.Context(), peer.tunnelKey(), peer.tunnel(kv.Transport_VXLAN)))
	}
	do := func(f func(*netlink.Neigh) error, entry *netlink.Neigh) {
		t.Helper()
		lab.must(n.net.Do(func() error { return f(entry) }))
	}
	seen := watching(t, n.tunnels, peer.tunnelKey(), func() {
		do(netlink.NeighDel, fdb)
		repair()
	})
	moved := *fdb // of the other node, of which nothing was announced yet
	moved.IP = net.ParseIP("10.99.2.2")
	moved.HardwareAddr, err = net.ParseMAC(other.mac())
	lab.must(err)
	do(netlink.NeighSet, &moved)
	seen.awaits(t, other.tunnelKey(), "the forwarding has another destination")
	lab.must(n.tunnels.Create(t.Context(), other.tunnelKey(), other.tunnel(kv.Transport_VXLAN)))
	do(netlink.NeighDel, fdb) // announced behind these
	seen.awaits(t, peer.tunnelKey(), "a forwarding was removed")
	repair()
	ages := *fdb
	ages.State = netlink.NUD_REACHABLE
	do(netlink.NeighSet, &ages)
	seen.awaits(t, peer.tunnelKey(), "a forwarding is not permanent")
	repair()
	for _, ip := range []string{"192.168.30.2", "fd30::2"} {
		do(netlink.NeighDel, &netlink.Neigh{LinkIndex: index, IP: net.ParseIP(ip)})
		seen.awaits(t, peer.tunnelKey(), "a neighbour was removed")
		repair()
		do(netlink.NeighSet, &netlink.Neigh{
			LinkIndex: index, IP: net.ParseIP(ip), State: netlink.NUD_PERMANENT,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 99},
		})
		seen.awaits(t, peer.tunnelKey(), "a neighbour has another MAC address")
		repair()
		do(netlink.NeighSet, &netlink.Neigh{
			LinkIndex: index, IP: net.ParseIP(ip), State: netlink.NUD_STALE, HardwareAddr: mac,
		})
		seen.awaits(t, peer.tunnelKey(), "a neighbour is not permanent")
		repair()
	}
	// what this process does itself is not announced
	after := other.tunnel(kv.Transport_VXLAN)
	after.Underlay = []string{"10.99.3.9"}
	lab.must(n.tunnels.Update(t.Context(), other.tunnelKey(), other.tunnel(kv.Transport_VXLAN), after))
	lab.must(n.tunnels.Delete(t.Context(), other.tunnelKey(), after))
	do(netlink.NeighDel, fdb) // announced behind these
	NewWithT(t).Eventually(func(g Gomega) {
		keys := seen.take()
		if keys[other.tunnelKey()] {
			t.Error("changes of this process were announced")
		}
		g.Expect(keys).To(HaveKey(peer.tunnelKey()))
	}).WithTimeout(30 * time.Second).Should(Succeed())
}

// An agent that has started again watches the entries that it has found, also while a caller
// asks for some of the values only.
func TestChangesOfTunnelsOfAnEarlierAgentAreNoticed(t *testing.T) {
	lab := newTunnelLab(t, 3)
	earlier, peer, other := newVXLANNode(lab.nodes[0]), lab.nodes[1], lab.nodes[2]
	earlier.join()
	mac, err := net.ParseMAC(peer.mac())
	lab.must(err)
	fdb := &netlink.Neigh{
		LinkIndex: earlier.linkIndex(vxlanName), Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF,
		IP: net.ParseIP("10.99.2.2"), HardwareAddr: mac,
	}
	change := func() {
		lab.must(earlier.net.Do(func() error { return netlink.NeighDel(fdb) }))
		lab.must(earlier.tunnels.Create(t.Context(), peer.tunnelKey(), peer.tunnel(kv.Transport_VXLAN)))
	}
	n := newVXLANNode(lab.nodes[0])
	first := value(peer.tunnelKey(), peer.tunnel(kv.Transport_VXLAN))
	second := value(other.tunnelKey(), other.tunnel(kv.Transport_VXLAN))
	equalValues(t, n.retrieveTunnels(first, second), first, second)
	seen := watching(t, n.tunnels, peer.tunnelKey(), change)
	n.retrieveTunnels(second)
	change()
	seen.awaits(t, peer.tunnelKey(), "a forwarding was removed after a look at another value")
}

func TestChangesOfOurTableAreNoticed(t *testing.T) {
	lab := newEgressLab(t)
	want := lab.value()
	lab.must(lab.egress.Create(t.Context(), kv.SinkEgress, want))
	seen := watching(t, lab.egress, kv.SinkEgress, func() {
		lab.must(lab.egress.Create(t.Context(), kv.SinkEgress, want))
	})
	chain := egressChains()[0]
	lab.do(func(c *nftables.Conn) {
		rules, err := c.GetRules(chain.Table, chain)
		lab.must(err)
		lab.must(c.DelRule(rules[0]))
	})
	seen.awaits(t, kv.SinkEgress, "a rule was removed")
	lab.must(lab.egress.Create(t.Context(), kv.SinkEgress, want))
	lab.do(func(c *nftables.Conn) { c.FlushRuleset() })
	seen.awaits(t, kv.SinkEgress, "all tables were removed")
	if got := lab.retrieve(want); len(got) > 0 && proto.Equal(got[0].Message, want) {
		t.Fatal("the table is there")
	}
}

func TestChangesOfTheLinkOfAnUplinkAreNoticed(t *testing.T) {
	g := NewWithT(t)
	mac := hardware{2, 0x77, 0, 0, 1, 1}
	link := hostLink{linkID: linkID{7, "ens1"}, mac: mac, up: true}
	u := &uplinks{known: &uplinkLinks{byInterface: map[string]uplinkLink{"eni-1": {linkID: link.linkID, mac: mac, up: true}}}}
	for what, x := range map[string]struct {
		kind   uint16
		change func(*hostLink)
		told   bool
	}{
		"it is as it was":             {unix.RTM_NEWLINK, func(*hostLink) {}, false},
		"it is down":                  {unix.RTM_NEWLINK, func(l *hostLink) { l.up = false }, true},
		"it is renamed":               {unix.RTM_NEWLINK, func(l *hostLink) { l.name = "enX9" }, true},
		"it has another MAC address":  {unix.RTM_NEWLINK, func(l *hostLink) { l.mac[5]++ }, true},
		"another one has its address": {unix.RTM_NEWLINK, func(l *hostLink) { l.index++ }, true},
		"another link":                {unix.RTM_NEWLINK, func(l *hostLink) { l.index++; l.mac[5]++ }, false},
		"it is gone":                  {unix.RTM_DELLINK, func(*hostLink) {}, true},
	} {
		changed := link
		x.change(&changed)
		_, is := u.damaged(announcement{kind: x.kind, link: changed})
		g.Expect(is).To(Equal(x.told), what)
	}
}
