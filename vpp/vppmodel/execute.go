// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vppmodel

import (
	"fmt"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/af_packet"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/memclnt"
	"go.fd.io/govpp/binapi/vpe"
	"go.fd.io/govpp/binapi/vxlan"
)

// retval returns the number of a refusal in a reply, 0 for none.
func retval(e api.VPPApiError) int32 { return int32(e) }

// execute returns the replies to a request.
func (w *world) execute(m api.Message) []api.Message {
	defer w.collect()
	for _, f := range []func(api.Message) []api.Message{w.executeLink, w.executeL3, w.executeL2, w.executeNAT} {
		if replies := f(m); replies != nil {
			return replies
		}
	}
	switch m.(type) {
	case *memclnt.ControlPing:
		return one(&memclnt.ControlPingReply{})
	case *vpe.ShowVersion:
		return one(&vpe.ShowVersionReply{Version: "25.10-model"})
	}
	panic(fmt.Sprintf("the model of VPP has no %s", m.GetMessageName()))
}

// some returns replies that are not nil: a dump may have none.
func some(replies []api.Message) []api.Message {
	if replies == nil {
		return []api.Message{}
	}
	return replies
}

func one(m api.Message) []api.Message { return []api.Message{m} }

// executeLink executes requests about interfaces.
func (w *world) executeLink(m api.Message) []api.Message {
	switch m := m.(type) {
	case *interfaces.SwInterfaceDump:
		var all []api.Message
		for _, i := range w.ifaces {
			all = append(all, i.details())
		}
		return some(all)
	case *interfaces.WantInterfaceEvents:
		return one(&interfaces.WantInterfaceEventsReply{})
	case *af_packet.AfPacketCreateV3:
		e, index := w.createPacket(m)
		return one(&af_packet.AfPacketCreateV3Reply{Retval: retval(e), SwIfIndex: index})
	case *af_packet.AfPacketDelete:
		return one(&af_packet.AfPacketDeleteReply{Retval: retval(w.deletePacket(m.HostIfName))})
	case *interfaces.CreateLoopbackInstance:
		n := 0
		for w.named(fmt.Sprintf("loop%d", n)) != nil {
			n++
		}
		i := w.add(&iface{name: fmt.Sprintf("loop%d", n), device: loopDevice, mac: m.MacAddress, mtu: mtus(9000)})
		return one(&interfaces.CreateLoopbackInstanceReply{SwIfIndex: interface_types.InterfaceIndex(i.index)})
	case *interfaces.DeleteLoopback:
		i := w.ifaces[uint32(m.SwIfIndex)]
		if i == nil || i.device != loopDevice {
			return one(&interfaces.DeleteLoopbackReply{Retval: retval(api.INVALID_SW_IF_INDEX)})
		}
		w.remove(i)
		return one(&interfaces.DeleteLoopbackReply{})
	case *vxlan.VxlanAddDelTunnelV3:
		e, index := w.changeTunnel(m)
		return one(&vxlan.VxlanAddDelTunnelV3Reply{Retval: retval(e), SwIfIndex: index})
	case *vxlan.VxlanTunnelV2Dump:
		var all []api.Message
		for _, i := range w.ifaces {
			if i.device == vxlanDevice && (uint32(m.SwIfIndex) == none || uint32(m.SwIfIndex) == i.index) {
				all = append(all, &vxlan.VxlanTunnelV2Details{
					SwIfIndex:  interface_types.InterfaceIndex(i.index),
					Instance:   i.instance,
					SrcAddress: address(i.src),
					DstAddress: address(i.dst),
					Vni:        i.vni,
				})
			}
		}
		return some(all)
	}
	return w.changeLink(m)
}

// changeLink executes requests that change one interface.
func (w *world) changeLink(m api.Message) []api.Message {
	missing := retval(api.INVALID_SW_IF_INDEX)
	switch m := m.(type) {
	case *interfaces.SwInterfaceTagAddDel:
		i := w.ifaces[uint32(m.SwIfIndex)]
		switch {
		case i == nil:
			return one(&interfaces.SwInterfaceTagAddDelReply{Retval: missing})
		case m.IsAdd && m.Tag == "":
			return one(&interfaces.SwInterfaceTagAddDelReply{Retval: retval(api.INVALID_VALUE)})
		case m.IsAdd:
			i.tag = m.Tag
		default:
			i.tag = ""
		}
		return one(&interfaces.SwInterfaceTagAddDelReply{})
	case *interfaces.SwInterfaceSetMtu:
		i := w.ifaces[uint32(m.SwIfIndex)]
		if i == nil {
			return one(&interfaces.SwInterfaceSetMtuReply{Retval: missing})
		}
		copy(i.mtu[:], m.Mtu)
		return one(&interfaces.SwInterfaceSetMtuReply{})
	case *interfaces.HwInterfaceSetMtu:
		i := w.ifaces[uint32(m.SwIfIndex)]
		switch {
		case i == nil:
			return one(&interfaces.HwInterfaceSetMtuReply{Retval: missing})
		case i.device == loopDevice:
			return one(&interfaces.HwInterfaceSetMtuReply{Retval: retval(api.UNSUPPORTED)})
		}
		return one(&interfaces.HwInterfaceSetMtuReply{})
	case *interfaces.SwInterfaceSetFlags:
		i := w.ifaces[uint32(m.SwIfIndex)]
		if i == nil {
			return one(&interfaces.SwInterfaceSetFlagsReply{Retval: missing})
		}
		i.up = m.Flags&interface_types.IF_STATUS_API_FLAG_ADMIN_UP != 0
		w.events = append(w.events, &interfaces.SwInterfaceEvent{SwIfIndex: m.SwIfIndex, Flags: m.Flags})
		return one(&interfaces.SwInterfaceSetFlagsReply{})
	}
	return nil
}

// named returns an interface, nil if there is none.
func (w *world) named(name string) *iface {
	for _, i := range w.ifaces {
		if i.name == name {
			return i
		}
	}
	return nil
}

func mtus(n uint32) [4]uint32 { return [4]uint32{n} }

func (i *iface) details() *interfaces.SwInterfaceDetails {
	d := &interfaces.SwInterfaceDetails{
		SwIfIndex:        interface_types.InterfaceIndex(i.index),
		L2Address:        i.mac,
		Mtu:              i.mtu[:],
		InterfaceName:    i.name,
		InterfaceDevType: i.device,
		Tag:              i.tag,
	}
	if i.up {
		d.Flags = interface_types.IF_STATUS_API_FLAG_ADMIN_UP | interface_types.IF_STATUS_API_FLAG_LINK_UP
	}
	return d
}

func (w *world) createPacket(m *af_packet.AfPacketCreateV3) (api.VPPApiError, interface_types.InterfaceIndex) {
	old := w.named("host-" + m.HostIfName)
	switch {
	case old != nil:
		return api.IF_ALREADY_EXISTS, interface_types.InterfaceIndex(old.index)
	case !w.exists(m.HostIfName):
		return api.INVALID_INTERFACE, interface_types.InterfaceIndex(none)
	}
	i := w.add(&iface{name: "host-" + m.HostIfName, device: packetDevice, mac: m.HwAddr, mtu: mtus(9000)})
	return 0, interface_types.InterfaceIndex(i.index)
}

func (w *world) deletePacket(link string) api.VPPApiError {
	i := w.named("host-" + link)
	if i == nil {
		return api.SYSCALL_ERROR_1
	}
	w.remove(i)
	return 0
}

func (w *world) changeTunnel(m *vxlan.VxlanAddDelTunnelV3) (api.VPPApiError, interface_types.InterfaceIndex) {
	src, dst := addrOf(m.SrcAddress), addrOf(m.DstAddress)
	switch {
	case src.Is4() != dst.Is4():
		return api.INVALID_VALUE, interface_types.InterfaceIndex(none)
	case src == dst:
		return api.SAME_SRC_DST, interface_types.InterfaceIndex(none)
	}
	var old *iface
	used := false
	for _, i := range w.ifaces {
		if i.device == vxlanDevice {
			used = used || i.instance == m.Instance
			if i.src == src && i.dst == dst && i.vni == m.Vni {
				old = i
			}
		}
	}
	switch {
	case !m.IsAdd && old == nil:
		return api.NO_SUCH_ENTRY, interface_types.InterfaceIndex(none)
	case !m.IsAdd:
		w.remove(old)
		return 0, interface_types.InterfaceIndex(old.index)
	case old != nil:
		return api.TUNNEL_EXIST, interface_types.InterfaceIndex(none)
	case used:
		return api.INSTANCE_IN_USE, interface_types.InterfaceIndex(none)
	}
	i := w.add(&iface{
		name:   fmt.Sprintf("vxlan_tunnel%d", m.Instance),
		device: vxlanDevice,
		mac:    [6]byte{2, 0xfe, byte(w.next), 1, 2, 3}, // random in VPP
		up:     true,
		src:    src, dst: dst, vni: m.Vni, instance: m.Instance,
	})
	return 0, interface_types.InterfaceIndex(i.index)
}
