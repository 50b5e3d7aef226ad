// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"net/netip"
	"slices"

	"go.fd.io/govpp/binapi/af_packet"
	"go.fd.io/govpp/binapi/fib_types"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/ip"
	"go.fd.io/govpp/binapi/ip_types"
	"go.fd.io/govpp/binapi/l2"
	"go.fd.io/govpp/binapi/vxlan"
)

// Foreign makes an object of another program: a loopback with an address, and a route over it.
func (r *Running) Foreign(address netip.Prefix, dst netip.Prefix) {
	r.t.Helper()
	create := &interfaces.CreateLoopbackInstance{
		MacAddress: [6]byte{0xde, 0xad}, IsSpecified: true, UserInstance: 900,
	}
	i := r.do(create).(*interfaces.CreateLoopbackInstanceReply).SwIfIndex
	r.up(i)
	own, err := ip_types.ParseAddressWithPrefix(address.String())
	r.must(err)
	r.do(&interfaces.SwInterfaceAddDelAddress{SwIfIndex: i, IsAdd: true, Prefix: own})
	to, err := ip_types.ParsePrefix(dst.String())
	r.must(err)
	next, err := ip_types.ParseAddress(address.Addr().Next().String())
	r.must(err)
	way := fib_types.FibPath{SwIfIndex: uint32(i), Weight: 1}
	way.Nh.Address = next.Un
	route := ip.IPRouteV2{Prefix: to, NPaths: 1, Paths: []fib_types.FibPath{way}}
	r.do(&ip.IPRouteAddDelV2{IsAdd: true, Route: route})
}

func (r *Running) up(i interface_types.InterfaceIndex) {
	r.t.Helper()
	r.do(&interfaces.SwInterfaceSetFlags{SwIfIndex: i, Flags: interface_types.IF_STATUS_API_FLAG_ADMIN_UP})
}

// ForeignPacketLink makes the interface of another program on a link of the kernel, and the
// link if there is none.
func (r *Running) ForeignPacketLink(link string) {
	r.t.Helper()
	if !slices.Contains(r.linkNames(), link) {
		r.AddLink(link)
	}
	reply := r.do(&af_packet.AfPacketCreateV3{
		Mode: af_packet.AF_PACKET_API_MODE_ETHERNET, HwAddr: [6]byte{2, 0xfe, 1}, HostIfName: link,
		Flags:       af_packet.AF_PACKET_API_FLAG_VERSION_2,
		RxFrameSize: 2048, TxFrameSize: 2048, RxFramesPerBlock: 512, TxFramesPerBlock: 512,
	})
	r.up(reply.(*af_packet.AfPacketCreateV3Reply).SwIfIndex)
}

// ForeignTunnel makes a tunnel of another program, with a number of its choice.
func (r *Running) ForeignTunnel(instance uint32) {
	r.t.Helper()
	src, err := ip_types.ParseAddress("198.51.100.1")
	r.must(err)
	dst, err := ip_types.ParseAddress("198.51.100.2")
	r.must(err)
	r.do(&vxlan.VxlanAddDelTunnelV3{
		IsAdd: true, Instance: instance, SrcAddress: src, DstAddress: dst, Vni: 99,
		McastSwIfIndex: interface_types.InterfaceIndex(none), DecapNextIndex: none,
	})
}

// ForeignBridge makes a bridge domain of another program.
func (r *Running) ForeignBridge(id uint32) {
	r.t.Helper()
	r.do(&l2.BridgeDomainAddDelV2{BdID: id, Learn: true, Forward: true, Flood: true, UuFlood: true, IsAdd: true})
}
