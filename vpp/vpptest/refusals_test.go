// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"go.fd.io/govpp"
	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/af_packet"
	"go.fd.io/govpp/binapi/fib"
	"go.fd.io/govpp/binapi/fib_types"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/ip"
	"go.fd.io/govpp/binapi/ip_neighbor"
	"go.fd.io/govpp/binapi/ip_types"
	"go.fd.io/govpp/binapi/l2"
	"go.fd.io/govpp/binapi/nat44_ed"
	"go.fd.io/govpp/binapi/vxlan"
	"go.fd.io/govpp/core"

	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/vpp/vppmodel"
)

// A request gets the same number from a VPP 25.10 and from its model: what the real one
// refuses, and what it accepts although one expects otherwise.
func TestRefusals(t *testing.T) {
	t.Run("model", func(t *testing.T) {
		model := vppmodel.New()
		model.LinksOf(func(name string) bool { return name == "pod0" })
		conn, err := core.Connect(model.Adapter())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Disconnect()
		compareAnswers(t, conn, "/tmp", false)
	})
	t.Run("vpp", func(t *testing.T) {
		if r := Attach(t); r != nil {
			r.AddLink("pod0")
			compareAnswers(t, r.Connection(), t.TempDir(), true)
			return
		}
		if err := netlab.Try(); err != nil {
			t.Skipf("NOT RUN: this process can make no network namespaces: %v", err)
		}
		ns, err := netlab.New()
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		dir, err := os.MkdirTemp("/tmp", "cadvpp-") // sockets have short paths
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		p := New(t, ns, dir)
		g := NewWithT(t)
		g.Expect(ns.Do(func() error {
			return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pod0"}, PeerName: "peer0"})
		})).To(Succeed())
		g.Expect(p.Start(t.Context())).To(Succeed())
		conn, err := govpp.Connect(p.Socket())
		g.Expect(err).NotTo(HaveOccurred())
		defer conn.Disconnect()
		compareAnswers(t, conn, dir, false)
	})
}

// registerSource returns the source of the test's routes. VPP keeps a source for good: one that
// runs already gets it from the first of the tests.
func registerSource(t *testing.T, conn api.Connection, send func(string, int32, api.Message) api.Message) uint8 {
	t.Helper()
	sources, err := details[*fib.FibSourceDetails](conn, &fib.FibSourceDump{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range sources {
		if strings.TrimRight(m.Src.Name, "\x00") == refusalSource {
			return m.Src.ID
		}
	}
	add := &fib.FibSourceAdd{Src: fib.FibSource{Priority: 128, Name: refusalSource}}
	first := send("fib source", 0, add).(*fib.FibSourceAddReply).ID
	second := send("fib source again", 0, add).(*fib.FibSourceAddReply).ID
	if first == second {
		t.Errorf("two sources of one name have number %d", first)
	}
	return first
}

// compareAnswers sends requests, and compares the numbers of the replies. A VPP that stays is
// spared what it never forgets: neighbours and borrowed addresses of an interface that is gone,
// the table of one whose table went first, MACs of a bridge domain that is gone.
func compareAnswers(t *testing.T, conn api.Connection, dir string, stays bool) {
	send := func(what string, want int32, r api.Message) api.Message {
		t.Helper()
		reply, number, err := Ask(t.Context(), conn, r)
		if err != nil || number != want {
			t.Errorf("%s: got %d (%v), want %d: %v", what, number, api.RetvalToVPPApiError(number), want, err)
		}
		return reply
	}
	idx := func(i interface_types.InterfaceIndex) interface_types.InterfaceIndex { return i }
	mac := func(s string) (m [6]byte) {
		_, _ = fmt.Sscanf(s, "%02x:%02x:%02x:%02x:%02x:%02x", &m[0], &m[1], &m[2], &m[3], &m[4], &m[5])
		return
	}
	addr := func(s string) ip_types.Address { a, _ := ip_types.ParseAddress(s); return a }
	pfx := func(s string) ip_types.AddressWithPrefix { a, _ := ip_types.ParseAddressWithPrefix(s); return a }
	prefix := func(s string) ip_types.Prefix { a, _ := ip_types.ParsePrefix(s); return a }

	afp := func(name, m string) *af_packet.AfPacketCreateV3 {
		return &af_packet.AfPacketCreateV3{Mode: af_packet.AF_PACKET_API_MODE_ETHERNET, HwAddr: mac(m), HostIfName: name, Flags: af_packet.AF_PACKET_API_FLAG_VERSION_2}
	}
	r := send("af_packet pod0", 0, afp("pod0", "0a:00:00:00:00:01")).(*af_packet.AfPacketCreateV3Reply)
	pod := r.SwIfIndex
	send("af_packet pod0 again", -79, afp("pod0", "0a:00:00:00:00:01"))
	send("af_packet missing", -71, afp("nope", "0a:00:00:00:00:01"))
	send("af_packet delete missing", -11, &af_packet.AfPacketDelete{HostIfName: "nope"})
	lo := func(m string) interface_types.InterfaceIndex {
		x := send("loopback "+m, 0, &interfaces.CreateLoopbackInstance{MacAddress: mac(m)}).(*interfaces.CreateLoopbackInstanceReply)
		return x.SwIfIndex
	}
	a, b := lo("0a:cb:00:00:00:01"), lo("0a:cb:00:00:00:02")
	c := lo("0a:cb:00:00:00:02")
	send("hw mtu loopback", -126, &interfaces.HwInterfaceSetMtu{SwIfIndex: a, Mtu: 1450})
	send("sw mtu loopback", 0, &interfaces.SwInterfaceSetMtu{SwIfIndex: a, Mtu: []uint32{1450, 1450, 1450, 1450}})
	send("hw mtu pod", 0, &interfaces.HwInterfaceSetMtu{SwIfIndex: pod, Mtu: 1450})
	send("sw mtu pod", 0, &interfaces.SwInterfaceSetMtu{SwIfIndex: pod, Mtu: []uint32{1450, 1450, 1450, 1450}})
	send("sw mtu pod 9000", 0, &interfaces.SwInterfaceSetMtu{SwIfIndex: pod, Mtu: []uint32{9000, 9000, 9000, 9000}})
	send("sw mtu missing", -2, &interfaces.SwInterfaceSetMtu{SwIfIndex: 999, Mtu: []uint32{9000, 9000, 9000, 9000}})
	send("tag missing", -2, &interfaces.SwInterfaceTagAddDel{IsAdd: true, SwIfIndex: 999, Tag: "x"})
	send("tag", 0, &interfaces.SwInterfaceTagAddDel{IsAdd: true, SwIfIndex: a, Tag: "x"})
	send("tag again", 0, &interfaces.SwInterfaceTagAddDel{IsAdd: true, SwIfIndex: a, Tag: "y"})
	send("tag empty", -7, &interfaces.SwInterfaceTagAddDel{IsAdd: true, SwIfIndex: a, Tag: ""})
	send("flags missing", -2, &interfaces.SwInterfaceSetFlags{SwIfIndex: 999, Flags: 1})
	ad := func(i interface_types.InterfaceIndex, p string, add bool) *interfaces.SwInterfaceAddDelAddress {
		return &interfaces.SwInterfaceAddDelAddress{SwIfIndex: i, IsAdd: add, Prefix: pfx(p)}
	}
	send("address missing interface", -2, ad(999, "10.9.0.1/24", true))
	send("address", 0, ad(a, "10.9.0.1/24", true))
	send("address twice", -105, ad(a, "10.9.0.1/24", true))
	send("address on other if", -105, ad(b, "10.9.0.1/24", true))
	send("address same subnet on other if", -105, ad(b, "10.9.0.2/24", true))
	send("address /32 inside on other if", -105, ad(b, "10.9.0.3/32", true))
	send("remove missing address", -60, ad(b, "10.9.7.3/32", false))
	send("remove missing address v6", -60, ad(b, "fd00::3/128", false))
	send("address v6", 0, ad(b, "fd00:9::1/64", true))
	send("address v6 twice", -127, ad(b, "fd00:9::1/64", true))
	send("address v6 other", -127, ad(a, "fd00:9::1/64", true))
	send("remove /32 with other length", -60, ad(b, "10.9.0.3/24", false))
	send("delete all missing", 0, &interfaces.SwInterfaceAddDelAddress{SwIfIndex: c, DelAll: true})
	tb := func(id uint32, add, six bool, name string) *ip.IPTableAddDelV2 {
		return &ip.IPTableAddDelV2{Table: ip.IPTable{TableID: id, IsIP6: six, Name: name}, CreateMfib: true, IsAdd: add}
	}
	send("table 77", 0, tb(77, true, false, "t"))
	send("table 77 again", 0, tb(77, true, false, "t"))
	send("table 77 other name", 0, tb(77, true, false, "u"))
	send("table v6 77", 0, tb(77, true, true, "t"))
	send("delete missing table", 0, tb(78, false, false, ""))
	send("bind to missing table", -3, &interfaces.SwInterfaceSetTable{SwIfIndex: c, VrfID: 78})
	send("bind missing interface", -2, &interfaces.SwInterfaceSetTable{SwIfIndex: 999, VrfID: 77})
	send("bind with address", -114, &interfaces.SwInterfaceSetTable{SwIfIndex: a, VrfID: 77})
	send("bind", 0, &interfaces.SwInterfaceSetTable{SwIfIndex: c, VrfID: 77})
	send("bind again", 0, &interfaces.SwInterfaceSetTable{SwIfIndex: c, VrfID: 77})
	send("bind v6", 0, &interfaces.SwInterfaceSetTable{SwIfIndex: c, VrfID: 77, IsIPv6: true})
	send("address in vrf overlapping", 0, ad(c, "10.9.0.1/24", true))
	if !stays {
		send("delete table in use", 0, tb(77, false, false, ""))
		send("delete table in use again", 0, tb(77, false, false, ""))
	}
	un := func(lender, i interface_types.InterfaceIndex, add bool) *interfaces.SwInterfaceSetUnnumbered {
		return &interfaces.SwInterfaceSetUnnumbered{SwIfIndex: lender, UnnumberedSwIfIndex: i, IsAdd: add}
	}
	send("unnumbered", 0, un(a, pod, true))
	send("unnumbered again", 0, un(a, pod, true))
	send("unnumbered other", 0, un(b, pod, true))
	send("unnumbered missing lender", -10, un(999, pod, true))
	send("unnumbered missing if", -2, un(a, 999, true))
	send("not unnumbered", 0, un(a, pod, false))
	send("not unnumbered again", 0, un(a, pod, false))
	if !stays {
		send("unnumbered to itself", 0, un(a, a, true))
	}
	send("unnumbered pod", 0, un(a, pod, true))
	send("bind unnumbered", -114, &interfaces.SwInterfaceSetTable{SwIfIndex: pod, VrfID: 77})
	send("address on unnumbered", 0, ad(pod, "10.10.0.1/24", true))
	send("remove address on unnumbered", 0, ad(pod, "10.10.0.1/24", false))
	bd := func(id uint32, add bool) *l2.BridgeDomainAddDelV2 {
		return &l2.BridgeDomainAddDelV2{BdID: id, Flood: true, UuFlood: true, Forward: true, BdTag: "x", IsAdd: add}
	}
	send("bd", 0, bd(5, true))
	send("bd again", -119, bd(5, true))
	send("bd 0", -119, bd(0, true))
	send("bd 16777216", -122, bd(1<<24, true))
	send("bd missing delete", -6, bd(6, false))
	br := func(i interface_types.InterfaceIndex, id uint32, kind l2.L2PortType, en bool) *l2.SwInterfaceSetL2Bridge {
		return &l2.SwInterfaceSetL2Bridge{RxSwIfIndex: i, BdID: id, PortType: kind, Enable: en}
	}
	send("join missing bd", 0, br(c, 6, l2.L2_API_PORT_TYPE_NORMAL, true))
	send("join missing interface", -2, br(999, 5, l2.L2_API_PORT_TYPE_NORMAL, true))
	d := lo("0a:cb:00:00:00:04")
	e := lo("0a:cb:00:00:00:05")
	send("bvi", 0, br(d, 5, l2.L2_API_PORT_TYPE_BVI, true))
	send("bvi again", 0, br(d, 5, l2.L2_API_PORT_TYPE_BVI, true))
	send("second bvi", -152, br(e, 5, l2.L2_API_PORT_TYPE_BVI, true))
	send("delete bd with ports", -120, bd(5, false))
	send("leave missing", 0, br(c, 5, l2.L2_API_PORT_TYPE_NORMAL, false))
	vx := func(src, dst string, vni, inst uint32, add bool) *vxlan.VxlanAddDelTunnelV3 {
		return &vxlan.VxlanAddDelTunnelV3{IsAdd: add, Instance: inst, SrcAddress: addr(src), DstAddress: addr(dst), McastSwIfIndex: idx(interface_types.InterfaceIndex(none)), DecapNextIndex: none, Vni: vni}
	}
	x := send("vxlan", 0, vx("10.9.0.1", "10.9.0.9", 10, 0x40000002, true)).(*vxlan.VxlanAddDelTunnelV3Reply)
	send("vxlan twice", -75, vx("10.9.0.1", "10.9.0.9", 10, 0x40000003, true))
	send("vxlan same instance", -147, vx("10.9.0.1", "10.9.0.8", 10, 0x40000002, true))
	send("vxlan other src", 0, vx("10.9.0.2", "10.9.0.9", 10, 0x40000005, true))
	send("vxlan vni too large", 0, vx("10.9.0.1", "10.9.0.8", 1<<24, 0x40000004, true))
	send("vxlan src == dst", -82, vx("10.9.0.1", "10.9.0.1", 10, 0x40000004, true))
	send("vxlan mixed", -7, vx("10.9.0.1", "fd00::1", 10, 0x40000004, true))
	send("vxlan delete missing", -6, vx("10.9.0.1", "10.9.0.7", 10, 0, false))
	send("vxlan delete wrong instance", 0, vx("10.9.0.2", "10.9.0.9", 10, 1, false))
	send("join vxlan", 0, br(x.SwIfIndex, 5, l2.L2_API_PORT_TYPE_NORMAL, true))
	fb := func(id uint32, i interface_types.InterfaceIndex, m string, add bool) *l2.L2fibAddDel {
		return &l2.L2fibAddDel{Mac: mac(m), BdID: id, SwIfIndex: i, IsAdd: add, StaticMac: add}
	}
	send("l2fib", 0, fb(5, x.SwIfIndex, "02:00:00:00:00:01", true))
	send("l2fib again", 0, fb(5, x.SwIfIndex, "02:00:00:00:00:01", true))
	if !stays {
		send("l2fib missing bd", 0, fb(6, x.SwIfIndex, "02:00:00:00:00:01", true))
		send("l2fib interface not in bd", 0, fb(5, e, "02:00:00:00:00:02", true))
	}
	send("l2fib missing interface", -2, fb(5, 999, "02:00:00:00:00:01", true))
	send("l2fib delete missing", -6, fb(5, x.SwIfIndex, "02:00:00:00:00:09", false))
	if !stays {
		send("l2fib delete from missing bd", 0, fb(6, x.SwIfIndex, "02:00:00:00:00:01", false))
	}
	if stays {
		send("l2fib delete", 0, fb(5, x.SwIfIndex, "02:00:00:00:00:01", false))
	}
	send("delete vxlan in bd with l2fib", 0, vx("10.9.0.1", "10.9.0.9", 10, 0x40000002, false))
	nb := func(i interface_types.InterfaceIndex, ipa, m string, add bool) *ip_neighbor.IPNeighborAddDel {
		return &ip_neighbor.IPNeighborAddDel{IsAdd: add, Neighbor: ip_neighbor.IPNeighbor{SwIfIndex: i, Flags: ip_neighbor.IP_API_NEIGHBOR_FLAG_STATIC, MacAddress: mac(m), IPAddress: addr(ipa)}}
	}
	send("neighbour missing if", -2, nb(999, "10.9.0.9", "02:00:00:00:00:01", true))
	send("neighbour", 0, nb(pod, "10.1.1.2", "0a:58:0a:01:01:02", true))
	send("neighbour again", 0, nb(pod, "10.1.1.2", "0a:58:0a:01:01:02", true))
	send("neighbour other mac", 0, nb(pod, "10.1.1.2", "0a:58:0a:01:01:03", true))
	send("neighbour on if without ip", 0, nb(e, "10.1.1.2", "0a:58:0a:01:01:03", true))
	send("neighbour v6", 0, nb(pod, "fd00:1::2", "0a:58:0a:01:01:03", true))
	send("delete missing neighbour", -6, nb(pod, "10.1.1.99", "0a:58:0a:01:01:02", false))
	send("delete neighbour other mac", 0, nb(pod, "10.1.1.2", "0a:58:0a:01:01:02", false))
	source := registerSource(t, conn, send)
	rt := func(table uint32, p string, src uint8, path fib_types.FibPath, add bool) *ip.IPRouteAddDelV2 {
		return &ip.IPRouteAddDelV2{IsAdd: add, Route: ip.IPRouteV2{TableID: table, Prefix: prefix(p), Src: src, Paths: []fib_types.FibPath{path}, NPaths: 1}}
	}
	via := func(i uint32, nh string) fib_types.FibPath {
		f := fib_types.FibPath{SwIfIndex: i, Weight: 1}
		if nh != "" {
			f.Nh.Address = addr(nh).Un
		}
		return f
	}
	send("route", 0, rt(0, "10.1.1.2/32", source, via(uint32(pod), "10.1.1.2"), true))
	send("route again", 0, rt(0, "10.1.1.2/32", source, via(uint32(pod), "10.1.1.2"), true))
	send("route missing table", -3, rt(78, "10.1.1.2/32", source, via(uint32(pod), "10.1.1.2"), true))
	send("route missing interface", -54, rt(0, "10.1.1.3/32", source, via(999, "10.1.1.2"), true))
	send("route source 0", 0, rt(0, "10.1.1.5/32", 0, via(uint32(pod), "10.1.1.2"), true))
	send("route no paths", -52, &ip.IPRouteAddDelV2{IsAdd: true, Route: ip.IPRouteV2{Prefix: prefix("10.1.1.6/32"), Src: source}})
	send("route host bits", 0, rt(0, "10.1.1.5/24", source, via(uint32(pod), "10.1.1.2"), true))
	send("route del missing", 0, &ip.IPRouteAddDelV2{Route: ip.IPRouteV2{Prefix: prefix("10.77.1.6/32"), Src: source}})
	send("route del missing table", -3, &ip.IPRouteAddDelV2{Route: ip.IPRouteV2{TableID: 78, Prefix: prefix("10.77.1.6/32"), Src: source}})
	send("route del by path", 0, rt(0, "10.1.1.0/24", source, via(uint32(pod), "10.1.1.2"), false))
	send("route into missing table", -3, rt(0, "10.2.0.0/16", source, fib_types.FibPath{SwIfIndex: none, TableID: 78, Weight: 1}, true))
	send("route into table", 0, rt(0, "10.3.0.0/16", source, fib_types.FibPath{SwIfIndex: none, TableID: 77, Weight: 1}, true))
	send("route drop", 0, rt(0, "10.4.0.0/16", source, fib_types.FibPath{SwIfIndex: none, Type: fib_types.FIB_API_PATH_TYPE_DROP, Weight: 1}, true))
	send("default route", 0, rt(0, "0.0.0.0/0", source, via(uint32(a), "10.9.0.77"), true))
	if stays {
		send("delete neighbour on if without ip", 0, nb(e, "10.1.1.2", "0a:58:0a:01:01:03", false))
		send("delete neighbour v6", 0, nb(pod, "fd00:1::2", "0a:58:0a:01:01:03", false))
		send("not unnumbered before deletion", 0, un(a, pod, false))
		send("remove address in vrf", 0, ad(c, "10.9.0.1/24", false))
	}
	send("delete loopback with addresses & lent", 0, &interfaces.DeleteLoopback{SwIfIndex: a})
	send("delete loopback missing", -2, &interfaces.DeleteLoopback{SwIfIndex: 999})
	send("delete loopback that's pod", -2, &interfaces.DeleteLoopback{SwIfIndex: pod})
	send("delete bvi", 0, &interfaces.DeleteLoopback{SwIfIndex: d})
	send("nat before enable: output", -126, &nat44_ed.Nat44EdAddDelOutputInterface{IsAdd: true, SwIfIndex: pod})
	send("nat disable", -169, &nat44_ed.Nat44EdPluginEnableDisable{})
	send("nat forwarding before", 0, &nat44_ed.Nat44ForwardingEnableDisable{Enable: true})
	send("nat enable", 0, &nat44_ed.Nat44EdPluginEnableDisable{Enable: true})
	send("nat enable twice", -170, &nat44_ed.Nat44EdPluginEnableDisable{Enable: true})
	send("nat forwarding", 0, &nat44_ed.Nat44ForwardingEnableDisable{Enable: true})
	send("nat forwarding again", 0, &nat44_ed.Nat44ForwardingEnableDisable{Enable: true})
	send("nat output", 0, &nat44_ed.Nat44EdAddDelOutputInterface{IsAdd: true, SwIfIndex: pod})
	send("nat output again", -81, &nat44_ed.Nat44EdAddDelOutputInterface{IsAdd: true, SwIfIndex: pod})
	send("nat output missing if", -2, &nat44_ed.Nat44EdAddDelOutputInterface{IsAdd: true, SwIfIndex: 999})
	send("nat output del missing", -6, &nat44_ed.Nat44EdAddDelOutputInterface{SwIfIndex: b})
	send("nat addr", 0, &nat44_ed.Nat44AddDelInterfaceAddr{IsAdd: true, SwIfIndex: b})
	send("nat addr again", -81, &nat44_ed.Nat44AddDelInterfaceAddr{IsAdd: true, SwIfIndex: b})
	send("nat addr missing if", -2, &nat44_ed.Nat44AddDelInterfaceAddr{IsAdd: true, SwIfIndex: 999})
	send("nat addr del missing", -6, &nat44_ed.Nat44AddDelInterfaceAddr{SwIfIndex: c})
	im := func(i interface_types.InterfaceIndex, add bool) *nat44_ed.Nat44AddDelIdentityMapping {
		return &nat44_ed.Nat44AddDelIdentityMapping{IsAdd: add, SwIfIndex: i, Protocol: 17, Port: 4789}
	}
	send("nat identity", 0, im(b, true))
	send("nat identity again", -81, im(b, true))
	send("nat identity del missing", -6, im(c, false))
	send("delete af_packet with nat/neigh/route", 0, &af_packet.AfPacketDelete{HostIfName: "pod0"})
	send("nat output del deleted if", -2, &nat44_ed.Nat44EdAddDelOutputInterface{SwIfIndex: pod})
}
