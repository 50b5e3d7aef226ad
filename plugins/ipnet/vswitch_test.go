// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// The interface of a vswitch to other nodes has the node's own addresses, whatever the
// kernel's links have. Its kernel is behind a link, whose subnet other nodes have routes to.
func TestTheUnderlayOfAVswitch(t *testing.T) {
	for _, c := range []struct {
		what, conf string
		underlay   []string
		mtu        uint32
		gateway    map[string]string // of each route to node 7
	}{
		{"vxlan", "cadastre: {dataplane: vpp}", []string{"192.168.16.5"}, 1450,
			map[string]string{"10.1.7.0/24": "192.168.30.7", "172.30.7.0/24": "192.168.30.7"}},
		{"vxlan, dual stack", dual + "\ncadastre: {dataplane: vpp}", []string{"192.168.16.5", "fd00:3::5"}, 1430,
			map[string]string{"10.1.7.0/24": "192.168.30.7", "172.30.7.0/24": "192.168.30.7", "fd00:1:0:7::/64": "fd00:4::7", "fd00:2:0:7::/64": "fd00:4::7"}},
		{"hostgw", "cadastre: {dataplane: vpp, transport: hostgw, mtu: 1400}", []string{"192.168.16.5"}, 1400,
			map[string]string{"10.1.7.0/24": "192.168.16.7", "172.30.7.0/24": "192.168.16.7"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			inWorld(t, c.conf, func(w *world) {
				w.set(kv.NodeRecordKey(7), published(7, "node-g", "", "192.168.16.7"))
				w.set(kv.NodeKey(w.own), &kv.Node{Name: w.own, Uid: "uid", Addresses: []string{"172.18.0.5"}})
				byUpdates := w.values()
				m := value[*kv.NodeNetwork](w, kv.SinkNode)
				w.g.Expect(m.Underlay).To(Equal(c.underlay))
				w.g.Expect(m.Mtu).To(Equal(c.mtu))
				w.g.Expect(m.HostDestinations).To(Equal([]string{"10.96.0.0/12", "172.18.0.5/32"}))
				w.g.Expect(m.HostInterconnectVpp[0]).To(Equal("172.30.5.1"))
				w.g.Expect(m.HostInterconnectLinux[0]).To(Equal("172.30.5.2"))
				for dst, gateway := range c.gateway {
					w.g.Expect(value[*kv.NodeRoute](w, "route/"+dst).GetGateway()).To(Equal(gateway), dst)
				}
				w.g.Expect(w.routes()).To(HaveLen(len(c.gateway)))
				w.g.Expect(w.network.Pending()).To(BeEmpty())
				w.g.Expect(w.network.Notes()).To(BeEmpty())
				w.g.Expect(w.underlay.asked).To(BeNil(), "the kernel's links do not count")
				w.resync()
				w.g.Expect(w.values()).To(Equal(byUpdates))

				w.set(kv.NodeRecordKey(7), nil)
				w.g.Expect(w.routes()).To(BeEmpty())
			})
		})
	}
}

// The kernel's data plane has no link between vswitch and kernel.
func TestTheKernelHasNoHostSubnets(t *testing.T) {
	inWorld(t, conf("vxlan", ""), func(w *world) {
		w.set(kv.NodeRecordKey(7), published(7, "node-g", "", "172.18.0.7"))
		w.g.Expect(value[*kv.NodeRoute](w, "route/172.30.7.0/24")).To(BeNil())
		w.g.Expect(value[*kv.NodeNetwork](w, kv.SinkNode).HostDestinations).To(BeEmpty())
	})
}

// The watch of the kernel's links does not touch the underlay of a vswitch.
func TestTheUnderlayOfAVswitchIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "cadastre: {dataplane: vpp}")
		w.runs(func() {
			ticks := make(chan time.Time, 1)
			ticks <- time.Now()
			pushed := &counting{EventLoop: w}
			done := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { done <- w.network.Watch(ctx, pushed, func(time.Duration) <-chan time.Time { return ticks }) }()
			synctest.Wait()
			w.g.Expect(ticks).To(BeEmpty())
			w.g.Expect(pushed.count).To(BeZero())
			cancel()
			w.g.Expect(<-done).To(Succeed())
		})
	})
}

// A pinned address of the main interface is the underlay once its claim is held.
func TestThePinnedAddressOfAVswitch(t *testing.T) {
	g := NewWithT(t)
	main := netip.MustParseAddr("192.168.16.99")
	others := &pins{held: map[netip.Addr]bool{}}
	p, a := pinnedNode(t, "192.168.16.99/24", others)
	p.Transport, p.Log = contivconf.TransportVXLAN, slog.New(slog.DiscardHandler)
	p.Dataplane = &ipnet.Dataplane{NodeName: "node-a", VNI: 10, Vswitch: &ipnet.Vswitch{Link: "eth1"}}
	x := &txn{}
	g.Expect(p.Resync(nil, a.kube, 1, x)).To(Succeed())
	g.Expect(x.node.Underlay).To(BeEmpty())
	g.Expect(p.Pending()).To(ContainSubstring("waits for its claim"))
	g.Expect(a.cluster.underlay).To(BeEmpty())
	others.held[main] = true
	_, err := p.Update(&nodesync.ClaimChange{}, x)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(x.node.Underlay).To(Equal([]string{"192.168.16.99"}))
	g.Expect(x.node.Transport).To(Equal(kv.Transport_VXLAN))
	g.Expect(a.cluster.underlay).To(Equal([]string{"[192.168.16.99] "}))
	g.Expect(p.Pending()).To(BeEmpty())
}

// A node without an address is not ready, and says which key gives it one.
func TestAVswitchWithoutAnAddress(t *testing.T) {
	g := NewWithT(t)
	p, a := pinnedNode(t, "192.168.16.5/24", &pins{})
	p.IPAM = &inputs{}
	p.Transport, p.Log = contivconf.TransportVXLAN, slog.New(slog.DiscardHandler)
	p.Dataplane = &ipnet.Dataplane{NodeName: "node-a", Vswitch: &ipnet.Vswitch{Link: "eth1"}}
	g.Expect(p.Resync(nil, a.kube, 1, &txn{})).To(Succeed())
	g.Expect(p.Pending()).To(ContainSubstring("nodeInterconnectCIDR"))
	p.Dataplane.Vswitch.Link = ""
	g.Expect(p.Resync(nil, a.kube, 2, &txn{})).To(Succeed())
	g.Expect(p.Pending()).To(ContainSubstring("cadastre.vpp.interface"))
	p.Transport = contivconf.TransportNone
	g.Expect(p.Resync(nil, a.kube, 3, &txn{})).To(Succeed())
	g.Expect(p.Pending()).To(BeEmpty(), "a single node needs no link")
}
