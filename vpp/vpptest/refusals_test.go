// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"context"
	"fmt"
	"os"
	"reflect"
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
)

// ask sends a request, and returns the reply and the number in it.
func ask(ctx context.Context, conn api.Connection, request api.Message) (reply api.Message, number int32, err error) {
	for _, messages := range api.GetRegisteredMessages() {
		for _, m := range messages {
			if m.GetMessageName() == request.GetMessageName()+"_reply" {
				reply = reflect.New(reflect.TypeOf(m).Elem()).Interface().(api.Message)
			}
		}
	}
	if reply == nil {
		return nil, 0, fmt.Errorf("%s: no type of a reply is known", request.GetMessageName())
	}
	if err := conn.Invoke(ctx, request, reply); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", request.GetMessageName(), err)
	}
	return reply, int32(reflect.ValueOf(reply).Elem().FieldByName("Retval").Int()), nil
}

func TestProbe(t *testing.T) {
	conn, err := govpp.Connect(os.Getenv(SocketEnv))
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	defer conn.Disconnect()
	send := func(what string, r api.Message) api.Message {
		reply, number, err := ask(t.Context(), conn, r)
		t.Logf("%-50s %d %v %v", what, number, api.RetvalToVPPApiError(number), err)
		return reply
	}
	const none = ^uint32(0)
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
	r := send("af_packet pod0", afp("pod0", "0a:00:00:00:00:01")).(*af_packet.AfPacketCreateV3Reply)
	pod := r.SwIfIndex
	r = send("af_packet pod0 again", afp("pod0", "0a:00:00:00:00:01")).(*af_packet.AfPacketCreateV3Reply)
	t.Log(r)
	send("af_packet missing", afp("nope", "0a:00:00:00:00:01"))
	send("af_packet delete missing", &af_packet.AfPacketDelete{HostIfName: "nope"})
	lo := func(m string) interface_types.InterfaceIndex {
		x := send("loopback "+m, &interfaces.CreateLoopbackInstance{MacAddress: mac(m)}).(*interfaces.CreateLoopbackInstanceReply)
		return x.SwIfIndex
	}
	a, b := lo("0a:cb:00:00:00:01"), lo("0a:cb:00:00:00:02")
	c := lo("0a:cb:00:00:00:02")
	send("hw mtu loopback", &interfaces.HwInterfaceSetMtu{SwIfIndex: a, Mtu: 1450})
	send("sw mtu loopback", &interfaces.SwInterfaceSetMtu{SwIfIndex: a, Mtu: []uint32{1450, 1450, 1450, 1450}})
	send("hw mtu pod", &interfaces.HwInterfaceSetMtu{SwIfIndex: pod, Mtu: 1450})
	send("sw mtu pod", &interfaces.SwInterfaceSetMtu{SwIfIndex: pod, Mtu: []uint32{1450, 1450, 1450, 1450}})
	send("sw mtu pod 9000", &interfaces.SwInterfaceSetMtu{SwIfIndex: pod, Mtu: []uint32{9000, 9000, 9000, 9000}})
	send("sw mtu missing", &interfaces.SwInterfaceSetMtu{SwIfIndex: 999, Mtu: []uint32{9000, 9000, 9000, 9000}})
	send("tag missing", &interfaces.SwInterfaceTagAddDel{IsAdd: true, SwIfIndex: 999, Tag: "x"})
	send("tag", &interfaces.SwInterfaceTagAddDel{IsAdd: true, SwIfIndex: a, Tag: "x"})
	send("tag again", &interfaces.SwInterfaceTagAddDel{IsAdd: true, SwIfIndex: a, Tag: "y"})
	send("tag empty", &interfaces.SwInterfaceTagAddDel{IsAdd: true, SwIfIndex: a, Tag: ""})
	send("flags missing", &interfaces.SwInterfaceSetFlags{SwIfIndex: 999, Flags: 1})
	ad := func(i interface_types.InterfaceIndex, p string, add bool) *interfaces.SwInterfaceAddDelAddress {
		return &interfaces.SwInterfaceAddDelAddress{SwIfIndex: i, IsAdd: add, Prefix: pfx(p)}
	}
	send("address missing interface", ad(999, "10.9.0.1/24", true))
	send("address", ad(a, "10.9.0.1/24", true))
	send("address twice", ad(a, "10.9.0.1/24", true))
	send("address on other if", ad(b, "10.9.0.1/24", true))
	send("address same subnet on other if", ad(b, "10.9.0.2/24", true))
	send("address /32 inside on other if", ad(b, "10.9.0.3/32", true))
	send("remove missing address", ad(b, "10.9.7.3/32", false))
	send("remove missing address v6", ad(b, "fd00::3/128", false))
	send("address v6", ad(b, "fd00:9::1/64", true))
	send("address v6 twice", ad(b, "fd00:9::1/64", true))
	send("address v6 other", ad(a, "fd00:9::1/64", true))
	send("remove /32 with other length", ad(b, "10.9.0.3/24", false))
	send("delete all missing", &interfaces.SwInterfaceAddDelAddress{SwIfIndex: c, DelAll: true})
	tb := func(id uint32, add, six bool, name string) *ip.IPTableAddDelV2 {
		return &ip.IPTableAddDelV2{Table: ip.IPTable{TableID: id, IsIP6: six, Name: name}, CreateMfib: true, IsAdd: add}
	}
	send("table 77", tb(77, true, false, "t"))
	send("table 77 again", tb(77, true, false, "t"))
	send("table 77 other name", tb(77, true, false, "u"))
	send("table v6 77", tb(77, true, true, "t"))
	send("delete missing table", tb(78, false, false, ""))
	send("bind to missing table", &interfaces.SwInterfaceSetTable{SwIfIndex: c, VrfID: 78})
	send("bind missing interface", &interfaces.SwInterfaceSetTable{SwIfIndex: 999, VrfID: 77})
	send("bind with address", &interfaces.SwInterfaceSetTable{SwIfIndex: a, VrfID: 77})
	send("bind", &interfaces.SwInterfaceSetTable{SwIfIndex: c, VrfID: 77})
	send("bind again", &interfaces.SwInterfaceSetTable{SwIfIndex: c, VrfID: 77})
	send("bind v6", &interfaces.SwInterfaceSetTable{SwIfIndex: c, VrfID: 77, IsIPv6: true})
	send("address in vrf overlapping", ad(c, "10.9.0.1/24", true))
	send("delete table in use", tb(77, false, false, ""))
	send("table dump after", tb(77, false, false, ""))
	un := func(lender, i interface_types.InterfaceIndex, add bool) *interfaces.SwInterfaceSetUnnumbered {
		return &interfaces.SwInterfaceSetUnnumbered{SwIfIndex: lender, UnnumberedSwIfIndex: i, IsAdd: add}
	}
	send("unnumbered", un(a, pod, true))
	send("unnumbered again", un(a, pod, true))
	send("unnumbered other", un(b, pod, true))
	send("unnumbered missing lender", un(999, pod, true))
	send("unnumbered missing if", un(a, 999, true))
	send("not unnumbered", un(a, pod, false))
	send("not unnumbered again", un(a, pod, false))
	send("unnumbered to itself", un(a, a, true))
	send("unnumbered pod", un(a, pod, true))
	send("bind unnumbered", &interfaces.SwInterfaceSetTable{SwIfIndex: pod, VrfID: 77})
	send("address on unnumbered", ad(pod, "10.10.0.1/24", true))
	send("remove address on unnumbered", ad(pod, "10.10.0.1/24", false))
	bd := func(id uint32, add bool) *l2.BridgeDomainAddDelV2 {
		return &l2.BridgeDomainAddDelV2{BdID: id, Flood: true, UuFlood: true, Forward: true, BdTag: "x", IsAdd: add}
	}
	send("bd", bd(5, true))
	send("bd again", bd(5, true))
	send("bd 0", bd(0, true))
	send("bd 16777216", bd(1<<24, true))
	send("bd missing delete", bd(6, false))
	br := func(i interface_types.InterfaceIndex, id uint32, kind l2.L2PortType, en bool) *l2.SwInterfaceSetL2Bridge {
		return &l2.SwInterfaceSetL2Bridge{RxSwIfIndex: i, BdID: id, PortType: kind, Enable: en}
	}
	send("join missing bd", br(c, 6, l2.L2_API_PORT_TYPE_NORMAL, true))
	send("join missing interface", br(999, 5, l2.L2_API_PORT_TYPE_NORMAL, true))
	d := lo("0a:cb:00:00:00:04")
	e := lo("0a:cb:00:00:00:05")
	send("bvi", br(d, 5, l2.L2_API_PORT_TYPE_BVI, true))
	send("bvi again", br(d, 5, l2.L2_API_PORT_TYPE_BVI, true))
	send("second bvi", br(e, 5, l2.L2_API_PORT_TYPE_BVI, true))
	send("delete bd with ports", bd(5, false))
	send("leave missing", br(c, 5, l2.L2_API_PORT_TYPE_NORMAL, false))
	vx := func(src, dst string, vni, inst uint32, add bool) *vxlan.VxlanAddDelTunnelV3 {
		return &vxlan.VxlanAddDelTunnelV3{IsAdd: add, Instance: inst, SrcAddress: addr(src), DstAddress: addr(dst), McastSwIfIndex: idx(interface_types.InterfaceIndex(none)), DecapNextIndex: none, Vni: vni}
	}
	x := send("vxlan", vx("10.9.0.1", "10.9.0.9", 10, 0x40000002, true)).(*vxlan.VxlanAddDelTunnelV3Reply)
	send("vxlan twice", vx("10.9.0.1", "10.9.0.9", 10, 0x40000003, true))
	send("vxlan same instance", vx("10.9.0.1", "10.9.0.8", 10, 0x40000002, true))
	send("vxlan other src", vx("10.9.0.2", "10.9.0.9", 10, 0x40000005, true))
	send("vxlan vni too large", vx("10.9.0.1", "10.9.0.8", 1<<24, 0x40000004, true))
	send("vxlan src == dst", vx("10.9.0.1", "10.9.0.1", 10, 0x40000004, true))
	send("vxlan mixed", vx("10.9.0.1", "fd00::1", 10, 0x40000004, true))
	send("vxlan delete missing", vx("10.9.0.1", "10.9.0.7", 10, 0, false))
	send("vxlan delete wrong instance", vx("10.9.0.2", "10.9.0.9", 10, 1, false))
	send("join vxlan", br(x.SwIfIndex, 5, l2.L2_API_PORT_TYPE_NORMAL, true))
	fb := func(id uint32, i interface_types.InterfaceIndex, m string, add bool) *l2.L2fibAddDel {
		return &l2.L2fibAddDel{Mac: mac(m), BdID: id, SwIfIndex: i, IsAdd: add, StaticMac: add}
	}
	send("l2fib", fb(5, x.SwIfIndex, "02:00:00:00:00:01", true))
	send("l2fib again", fb(5, x.SwIfIndex, "02:00:00:00:00:01", true))
	send("l2fib missing bd", fb(6, x.SwIfIndex, "02:00:00:00:00:01", true))
	send("l2fib missing interface", fb(5, 999, "02:00:00:00:00:01", true))
	send("l2fib interface not in bd", fb(5, e, "02:00:00:00:00:02", true))
	send("l2fib delete missing", fb(5, x.SwIfIndex, "02:00:00:00:00:09", false))
	send("l2fib delete missing bd", fb(6, x.SwIfIndex, "02:00:00:00:00:01", false))
	send("delete vxlan in bd with l2fib", vx("10.9.0.1", "10.9.0.9", 10, 0x40000002, false))
	nb := func(i interface_types.InterfaceIndex, ipa, m string, add bool) *ip_neighbor.IPNeighborAddDel {
		return &ip_neighbor.IPNeighborAddDel{IsAdd: add, Neighbor: ip_neighbor.IPNeighbor{SwIfIndex: i, Flags: ip_neighbor.IP_API_NEIGHBOR_FLAG_STATIC, MacAddress: mac(m), IPAddress: addr(ipa)}}
	}
	send("neighbour missing if", nb(999, "10.9.0.9", "02:00:00:00:00:01", true))
	send("neighbour", nb(pod, "10.1.1.2", "0a:58:0a:01:01:02", true))
	send("neighbour again", nb(pod, "10.1.1.2", "0a:58:0a:01:01:02", true))
	send("neighbour other mac", nb(pod, "10.1.1.2", "0a:58:0a:01:01:03", true))
	send("neighbour on if without ip", nb(e, "10.1.1.2", "0a:58:0a:01:01:03", true))
	send("neighbour v6", nb(pod, "fd00:1::2", "0a:58:0a:01:01:03", true))
	send("delete missing neighbour", nb(pod, "10.1.1.99", "0a:58:0a:01:01:02", false))
	send("delete neighbour other mac", nb(pod, "10.1.1.2", "0a:58:0a:01:01:02", false))
	fs := send("fib source", &fib.FibSourceAdd{Src: fib.FibSource{Priority: 128, Name: "cadastre"}}).(*fib.FibSourceAddReply)
	t.Log(fs.ID)
	fs2 := send("fib source again", &fib.FibSourceAdd{Src: fib.FibSource{Priority: 128, Name: "cadastre"}}).(*fib.FibSourceAddReply)
	t.Log(fs2.ID)
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
	send("route", rt(0, "10.1.1.2/32", fs.ID, via(uint32(pod), "10.1.1.2"), true))
	send("route again", rt(0, "10.1.1.2/32", fs.ID, via(uint32(pod), "10.1.1.2"), true))
	send("route missing table", rt(78, "10.1.1.2/32", fs.ID, via(uint32(pod), "10.1.1.2"), true))
	send("route missing interface", rt(0, "10.1.1.3/32", fs.ID, via(999, "10.1.1.2"), true))
	send("route unknown source", rt(0, "10.1.1.4/32", 200, via(uint32(pod), "10.1.1.2"), true))
	send("route source 0", rt(0, "10.1.1.5/32", 0, via(uint32(pod), "10.1.1.2"), true))
	send("route no paths", &ip.IPRouteAddDelV2{IsAdd: true, Route: ip.IPRouteV2{Prefix: prefix("10.1.1.6/32"), Src: fs.ID}})
	send("route host bits", rt(0, "10.1.1.5/24", fs.ID, via(uint32(pod), "10.1.1.2"), true))
	send("route del missing", &ip.IPRouteAddDelV2{Route: ip.IPRouteV2{Prefix: prefix("10.77.1.6/32"), Src: fs.ID}})
	send("route del missing table", &ip.IPRouteAddDelV2{Route: ip.IPRouteV2{TableID: 78, Prefix: prefix("10.77.1.6/32"), Src: fs.ID}})
	send("route del by path", rt(0, "10.1.1.0/24", fs.ID, via(uint32(pod), "10.1.1.2"), false))
	send("route into missing table", rt(0, "10.2.0.0/16", fs.ID, fib_types.FibPath{SwIfIndex: none, TableID: 78, Weight: 1}, true))
	send("route into table", rt(0, "10.3.0.0/16", fs.ID, fib_types.FibPath{SwIfIndex: none, TableID: 77, Weight: 1}, true))
	send("route drop", rt(0, "10.4.0.0/16", fs.ID, fib_types.FibPath{SwIfIndex: none, Type: fib_types.FIB_API_PATH_TYPE_DROP, Weight: 1}, true))
	send("default route", rt(0, "0.0.0.0/0", fs.ID, via(uint32(a), "10.9.0.77"), true))
	dumped, err := ip.NewServiceClient(conn).IPRouteV2Dump(t.Context(), &ip.IPRouteV2Dump{Src: fs.ID})
	g.Expect(err).NotTo(HaveOccurred())
	for {
		det, err := dumped.Recv()
		if err != nil {
			break
		}
		t.Logf("   %v", det.Route)
	}
	send("delete loopback with addresses & lent", &interfaces.DeleteLoopback{SwIfIndex: a})
	send("delete loopback missing", &interfaces.DeleteLoopback{SwIfIndex: 999})
	send("delete loopback that's pod", &interfaces.DeleteLoopback{SwIfIndex: pod})
	send("delete bvi", &interfaces.DeleteLoopback{SwIfIndex: d})
	send("nat before enable: output", &nat44_ed.Nat44EdAddDelOutputInterface{IsAdd: true, SwIfIndex: pod})
	send("nat disable", &nat44_ed.Nat44EdPluginEnableDisable{})
	send("nat forwarding before", &nat44_ed.Nat44ForwardingEnableDisable{Enable: true})
	send("nat enable", &nat44_ed.Nat44EdPluginEnableDisable{Enable: true})
	send("nat enable twice", &nat44_ed.Nat44EdPluginEnableDisable{Enable: true})
	send("nat forwarding", &nat44_ed.Nat44ForwardingEnableDisable{Enable: true})
	send("nat forwarding again", &nat44_ed.Nat44ForwardingEnableDisable{Enable: true})
	send("nat output", &nat44_ed.Nat44EdAddDelOutputInterface{IsAdd: true, SwIfIndex: pod})
	send("nat output again", &nat44_ed.Nat44EdAddDelOutputInterface{IsAdd: true, SwIfIndex: pod})
	send("nat output missing if", &nat44_ed.Nat44EdAddDelOutputInterface{IsAdd: true, SwIfIndex: 999})
	send("nat output del missing", &nat44_ed.Nat44EdAddDelOutputInterface{SwIfIndex: b})
	send("nat addr", &nat44_ed.Nat44AddDelInterfaceAddr{IsAdd: true, SwIfIndex: b})
	send("nat addr again", &nat44_ed.Nat44AddDelInterfaceAddr{IsAdd: true, SwIfIndex: b})
	send("nat addr missing if", &nat44_ed.Nat44AddDelInterfaceAddr{IsAdd: true, SwIfIndex: 999})
	send("nat addr del missing", &nat44_ed.Nat44AddDelInterfaceAddr{SwIfIndex: c})
	im := func(i interface_types.InterfaceIndex, add bool) *nat44_ed.Nat44AddDelIdentityMapping {
		return &nat44_ed.Nat44AddDelIdentityMapping{IsAdd: add, SwIfIndex: i, Protocol: 17, Port: 4789}
	}
	send("nat identity", im(b, true))
	send("nat identity again", im(b, true))
	send("nat identity del missing", im(c, false))
	send("delete af_packet with nat/neigh/route", &af_packet.AfPacketDelete{HostIfName: "pod0"})
	send("nat output del deleted if", &nat44_ed.Nat44EdAddDelOutputInterface{SwIfIndex: pod})
}
