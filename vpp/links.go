// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"fmt"
	"net/netip"

	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/af_packet"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/binapi/interface_types"
	"go.fd.io/govpp/binapi/vxlan"

	"github.com/cadastre/cadastre/southbound"
)

// makeLink makes an interface, or changes it. One that cannot be changed is made anew.
func (x *change) makeLink(l *link) error {
	a := x.st.byTag[l.tag]
	if a == nil {
		if a = x.st.byName[l.name()]; a != nil && !a.untagged() {
			return fmt.Errorf("%w: interface %s has tag %q, not %q", southbound.ErrForeign, a.name, a.tag, l.tag)
		}
	}
	if a == nil && l.kind == loopLink {
		a = x.st.lostLoop(l.mac)
	}
	if a != nil && !l.same(a) {
		if err := x.removeLink(a); err != nil {
			return err
		}
		a = nil
	}
	if a == nil {
		var err error
		if a, err = x.create(l); err != nil {
			return err
		}
	}
	return x.dress(l, a)
}

// lostLoop returns a loopback that a crash has left without a tag, nil for none.
func (st *state) lostLoop(m mac) *actual {
	for _, a := range st.links {
		if a.untagged() && a.device == loopDevice && a.mac == m {
			return a
		}
	}
	return nil
}

// same reports whether an interface is the one that is wanted, apart from what can be changed.
func (l *link) same(a *actual) bool {
	if l.kind == vxlanLink {
		return a.tag == l.fullTag() && a.tunnel == l.ends()
	}
	return a.tag == l.fullTag() && a.mac == l.mac
}

// create makes a new interface with its tag.
func (x *change) create(l *link) (*actual, error) {
	index, name, device, err := x.createKind(l)
	if err != nil {
		return nil, err
	}
	a := &actual{
		index:      index,
		name:       name,
		device:     device,
		mac:        l.mac,
		addresses:  map[netip.Prefix]bool{},
		lender:     none,
		neighbours: x.st.neighboursOf(index),
		macs:       map[mac]bool{},
	}
	if l.kind == vxlanLink {
		a.tunnel = l.ends()
	}
	if old := x.st.links[index]; old != nil {
		x.st.forget(old) // another program has removed it
	}
	delete(x.st.strays, index)
	err = x.do("set tag", &interfaces.SwInterfaceTagAddDel{
		IsAdd:     true,
		SwIfIndex: interface_types.InterfaceIndex(index),
		Tag:       l.fullTag(),
	})
	if err != nil {
		return nil, err
	}
	a.tag = l.fullTag()
	x.st.note(a)
	return a, x.removeStrays(a)
}

// removeStrays removes the neighbours that a new interface has from one that had its index:
// VPP keeps those of an interface that another program removes.
func (x *change) removeStrays(a *actual) error {
	for ip, m := range a.neighbours {
		if err := x.changeNeighbour(a, ip, m, false); err != nil {
			return err
		}
	}
	return nil
}

const (
	loopDevice   = "Loopback"
	packetDevice = "af-packet"
	vxlanDevice  = "VXLAN"
)

func (x *change) createKind(l *link) (index uint32, name, device string, err error) {
	var reply api.Message
	switch l.kind {
	case packetLink:
		reply, err = x.call("read link "+l.hostName, l.request())
		if err == nil {
			index = uint32(reply.(*af_packet.AfPacketCreateV3Reply).SwIfIndex)
		}
		return index, l.name(), packetDevice, err
	case loopLink:
		reply, err = x.call("make a loopback", &interfaces.CreateLoopbackInstance{MacAddress: l.mac})
		if err == nil {
			index = uint32(reply.(*interfaces.CreateLoopbackInstanceReply).SwIfIndex)
		}
		return index, fmt.Sprintf("loop#%d", index), loopDevice, err
	case vxlanLink:
		reply, err = x.call(fmt.Sprintf("make a tunnel to %s", l.dst), l.tunnel(true))
		if err == nil {
			index = uint32(reply.(*vxlan.VxlanAddDelTunnelV3Reply).SwIfIndex)
		}
		return index, l.name(), vxlanDevice, err
	}
	return 0, "", "", fmt.Errorf("make %s: its kind %d is unknown", l.tag, l.kind)
}

// ends returns the wanted ends of a VXLAN tunnel.
func (l *link) ends() tunnelEnds { return tunnelEnds{l.src, l.dst, l.vni} }

// tunnel returns the request that makes or removes a VXLAN tunnel.
func (l *link) tunnel(add bool) *vxlan.VxlanAddDelTunnelV3 {
	return &vxlan.VxlanAddDelTunnelV3{
		IsAdd:          add,
		Instance:       l.instance,
		SrcAddress:     vppAddr(l.src),
		DstAddress:     vppAddr(l.dst),
		McastSwIfIndex: interface_types.InterfaceIndex(none),
		DecapNextIndex: none,
		Vni:            l.vni,
	}
}

// removeLink removes an interface with all that is on it. The routes over it must be gone.
func (x *change) removeLink(a *actual) error {
	if a.domain != 0 {
		if err := x.leaveDomain(a); err != nil {
			return err
		}
	}
	if err := x.setAddresses(&link{}, a); err != nil {
		return err
	}
	if err := x.setNeighbours(&link{}, a); err != nil {
		return err
	}
	index := interface_types.InterfaceIndex(a.index)
	var err error
	switch a.device {
	case loopDevice:
		err = x.do("remove loopback "+a.name, &interfaces.DeleteLoopback{SwIfIndex: index}, api.INVALID_SW_IF_INDEX)
	case vxlanDevice:
		err = x.removeTunnel(a)
	case packetDevice:
		err = x.do("remove "+a.name, &af_packet.AfPacketDelete{HostIfName: a.name[len("host-"):]}, api.SYSCALL_ERROR_1)
	default:
		err = fmt.Errorf("remove %s: its kind %q is unknown", a.name, a.device)
	}
	if err == nil {
		x.st.forget(a)
	}
	return err
}

// removeTunnel removes a VXLAN tunnel, which VPP finds by its addresses alone.
func (x *change) removeTunnel(a *actual) error {
	var found *vxlan.VxlanTunnelV2Details
	request := &vxlan.VxlanTunnelV2Dump{SwIfIndex: interface_types.InterfaceIndex(a.index)}
	err := x.client.dump(x.ctx, x.on, []api.Message{request}, func(m api.Message) {
		if d, ok := m.(*vxlan.VxlanTunnelV2Details); ok {
			found = d
		}
	})
	if err != nil || found == nil {
		return err
	}
	l := &link{src: addrOf(found.SrcAddress), dst: addrOf(found.DstAddress), vni: found.Vni, instance: found.Instance}
	return x.do("remove "+a.name, l.tunnel(false), api.NO_SUCH_ENTRY)
}
