// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"net/netip"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/southbound/linux"
)

// nodeAlias marks the kernel's links of the value "node". It is not one of those by which
// package southbound/linux knows wires.
const nodeAlias = "cadastre-vpp:" + kv.SinkNode

// kernelSide distinguishes the kernel's MAC of the link that VPP reads: the kernel must not take
// the packets for VPP.
const kernelSide = vppLinkName + " kernel"

// kernel makes the kernel's side of the links of VPP in the node's network namespace.
type kernel struct{ *linux.Switch }

// hostLink returns the pair of links between the node's kernel and VPP.
func hostLink(m *kv.NodeNetwork) linux.SwitchLink {
	return linux.SwitchLink{
		Alias: nodeAlias,
		Near:  linux.SwitchEnd{Name: linkName, MAC: hostLinkMAC(m, linkName)},
		Far:   linux.SwitchEnd{Name: vppLinkName, MAC: hostLinkMAC(m, kernelSide)},
		MTU:   m.GetMtu(),
	}
}

// wantedHostLink returns the pair of a value; wanted is false if it has none.
func wantedHostLink(m *kv.NodeNetwork) (l linux.SwitchLink, wanted bool, err error) {
	theirs, err := readEnds("host_interconnect_vpp", m.GetHostInterconnectVpp())
	if err != nil || len(theirs) == 0 {
		return l, false, err
	}
	l = hostLink(m)
	if l.Addresses, err = readEnds("host_interconnect_linux", m.GetHostInterconnectLinux()); err != nil {
		return l, false, err
	}
	l.Neighbours = map[netip.Addr][6]byte{}
	for _, t := range theirs {
		l.Neighbours[t.Addr()] = hostLinkMAC(m, vppLinkName)
	}
	return l, true, nil
}

// makeHostLink makes or repairs the pair of links.
func (k *kernel) makeHostLink(m *kv.NodeNetwork) error {
	want, wanted, err := wantedHostLink(m)
	if err != nil || !wanted {
		return err
	}
	if err := k.Make(want); err != nil {
		return err
	}
	return k.Do(func() error { return disableOffloads(linkName) })
}

// hostLinkComplete reports whether makeHostLink would change nothing.
func (k *kernel) hostLinkComplete(m *kv.NodeNetwork) (complete bool, err error) {
	want, wanted, err := wantedHostLink(m)
	if err != nil || !wanted {
		return err == nil, err
	}
	if complete, err = k.Complete(want); err != nil || !complete {
		return false, err
	}
	err = k.Do(func() (err error) { complete, err = offloadsDisabled(linkName); return err })
	return complete, err
}

// setRoutes makes the routes of the kernel to dst lead to VPP.
func (k *kernel) setRoutes(dst []netip.Prefix, m *kv.NodeNetwork) error {
	vpp, err := gateways(m)
	if err != nil {
		return err
	}
	return k.SetRoutes(linkName, dst, vpp)
}

// gateways returns the addresses of VPP on the link to the node's kernel.
func gateways(m *kv.NodeNetwork) (all []netip.Addr, err error) {
	theirs, err := readEnds("host_interconnect_vpp", m.GetHostInterconnectVpp())
	for _, t := range theirs {
		all = append(all, t.Addr())
	}
	return all, err
}
