// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

const (
	// nodeAlias marks the kernel's links of the value "node". It is not one of those by which
	// package southbound/linux knows wires.
	nodeAlias = "cadastre-vpp:" + kv.SinkNode
	// ownProtocol marks own routes of the kernel, as in package southbound/linux.
	ownProtocol = 202
)

// kernel makes the kernel's side of the links of VPP in the node's network namespace.
type kernel struct {
	ns     *rtnl.Namespace
	handle *netlink.Handle
}

// newKernel opens the network namespace. It changes nothing.
func newKernel(namespace string) (*kernel, error) {
	ns, err := rtnl.Open(namespace)
	if err != nil {
		return nil, err
	}
	k := &kernel{ns: ns}
	err = ns.Do(func() (err error) {
		k.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the kernel's links: %w", err), ns.Close())
	}
	return k, nil
}

// close closes the socket.
func (k *kernel) close() error {
	k.handle.Close()
	return k.ns.Close()
}

// index returns the index of a link, 0 if there is none.
func (k *kernel) index(name string) (int, error) {
	l, err := k.link(name)
	if err != nil || l == nil {
		return 0, err
	}
	return l.Attrs().Index, nil
}

// link returns a link, nil if there is none.
func (k *kernel) link(name string) (netlink.Link, error) {
	l, err := k.handle.LinkByName(name)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find link %s: %w", name, err)
	}
	return l, nil
}

// hostLink holds what the kernel's end of the link to VPP has.
type hostLink struct {
	mtu        int
	near, far  net.HardwareAddr
	addresses  []netip.Prefix
	neighbours []netip.Addr // VPP's
}

// hostLinkOf returns the wanted link to VPP, nil for none.
func hostLinkOf(m *kv.NodeNetwork) (*hostLink, error) {
	theirs, err := readEnds("host_interconnect_vpp", m.GetHostInterconnectVpp())
	if err != nil || len(theirs) == 0 {
		return nil, err
	}
	own, err := readEnds("host_interconnect_linux", m.GetHostInterconnectLinux())
	if err != nil {
		return nil, err
	}
	near, far := hostLinkMAC(m, linkName), hostLinkMAC(m, kernelSide)
	h := &hostLink{mtu: int(m.GetMtu()), near: near.ToMAC(), far: far.ToMAC(), addresses: own}
	for _, t := range theirs {
		h.neighbours = append(h.neighbours, t.Addr())
	}
	return h, nil
}

// kernelSide distinguishes the kernel's MAC of the link that VPP reads: the kernel must not take
// the packets for VPP.
const kernelSide = vppLinkName + " kernel"

// makeHostLink makes or repairs the pair of links.
func (k *kernel) makeHostLink(m *kv.NodeNetwork) error {
	want, err := hostLinkOf(m)
	if err != nil || want == nil {
		return err
	}
	near, err := k.ownLink(linkName, want.near)
	if err != nil {
		return err
	}
	far, err := k.ownLink(vppLinkName, want.far)
	if err != nil {
		return err
	}
	if near != nil && (far == nil || near.Attrs().ParentIndex != far.Attrs().Index) {
		if err := k.removeLink(near); err != nil {
			return err
		}
		near = nil
	}
	if near == nil {
		veth := &netlink.Veth{
			LinkAttrs:        netlink.LinkAttrs{Name: linkName, HardwareAddr: want.near},
			PeerName:         vppLinkName,
			PeerHardwareAddr: want.far,
		}
		if err := k.handle.LinkAdd(veth); err != nil {
			return fmt.Errorf("make the pair of links %s and %s: %w", linkName, vppLinkName, err)
		}
	}
	for _, name := range []string{vppLinkName, linkName} {
		if err := k.dressLink(name, want.mtu); err != nil {
			return err
		}
	}
	return k.dressHostEnd(m, want)
}

// ownLink returns a link of the node, nil if there is none.
func (k *kernel) ownLink(name string, hardware net.HardwareAddr) (netlink.Link, error) {
	l, err := k.link(name)
	if err != nil || l == nil {
		return nil, err
	}
	a := l.Attrs()
	unnamed := a.Alias == "" && slices.Equal(a.HardwareAddr, hardware)
	if a.Alias != nodeAlias && !unnamed {
		return nil, fmt.Errorf("link %s has alias %q, not %q: %w; rename or remove it",
			name, a.Alias, nodeAlias, southbound.ErrForeign)
	}
	return l, nil
}

// removeLink removes a link with its other end.
func (k *kernel) removeLink(l netlink.Link) error {
	if err := k.handle.LinkDel(l); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove link %s: %w", l.Attrs().Name, err)
	}
	return nil
}

// dressLink gives a link its alias and MTU, and sets it up.
func (k *kernel) dressLink(name string, mtu int) error {
	l, err := k.handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	a := l.Attrs()
	if a.Alias != nodeAlias {
		if err := k.handle.LinkSetAlias(l, nodeAlias); err != nil {
			return fmt.Errorf("set the alias of %s: %w", name, err)
		}
	}
	if mtu != 0 && a.MTU != mtu {
		if err := k.handle.LinkSetMTU(l, mtu); err != nil {
			return fmt.Errorf("set MTU %d of %s: %w", mtu, name, err)
		}
	}
	if a.Flags&net.FlagUp == 0 {
		if err := k.handle.LinkSetUp(l); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	return nil
}

// dressHostEnd gives the kernel's end its addresses and VPP as permanent neighbour.
func (k *kernel) dressHostEnd(m *kv.NodeNetwork, want *hostLink) error {
	l, err := k.handle.LinkByName(linkName)
	if err != nil {
		return fmt.Errorf("find link %s: %w", linkName, err)
	}
	for _, p := range want.addresses {
		addr := &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}
		if err := k.handle.AddrReplace(l, addr); err != nil {
			return fmt.Errorf("add address %s to %s: %w", p, linkName, err)
		}
	}
	have, err := k.addresses(l)
	if err != nil {
		return err
	}
	for _, p := range have {
		if slices.Contains(want.addresses, p) {
			continue
		}
		if err := k.handle.AddrDel(l, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
			return fmt.Errorf("remove address %s from %s: %w", p, linkName, err)
		}
	}
	vpp := hostLinkMAC(m, vppLinkName)
	for _, a := range want.neighbours {
		err := k.handle.NeighSet(&netlink.Neigh{
			LinkIndex:    l.Attrs().Index,
			State:        netlink.NUD_PERMANENT,
			IP:           a.AsSlice(),
			HardwareAddr: vpp.ToMAC(),
		})
		if err != nil {
			return fmt.Errorf("neighbour %s of %s: %w", a, linkName, err)
		}
	}
	return k.ns.Do(func() error { return disableOffloads(linkName) })
}

// addresses returns the addresses of a link without those that the kernel gives to it.
func (k *kernel) addresses(l netlink.Link) (all []netip.Prefix, err error) {
	list, err := k.handle.AddrList(l, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
	}
	for _, a := range list {
		ip, _ := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		if p := netip.PrefixFrom(ip.Unmap(), bits); !p.Addr().IsLinkLocalUnicast() {
			all = append(all, p)
		}
	}
	return all, nil
}

// hostLinkComplete reports whether makeHostLink would change nothing.
func (k *kernel) hostLinkComplete(m *kv.NodeNetwork) (bool, error) {
	want, err := hostLinkOf(m)
	if err != nil || want == nil {
		return err == nil, err
	}
	near, err := k.link(linkName)
	if err != nil || near == nil {
		return false, err
	}
	far, err := k.link(vppLinkName)
	if err != nil || far == nil {
		return false, err
	}
	for _, l := range []netlink.Link{near, far} {
		a := l.Attrs()
		if a.Alias != nodeAlias || a.Flags&net.FlagUp == 0 || want.mtu != 0 && a.MTU != want.mtu {
			return false, nil
		}
	}
	have, err := k.addresses(near)
	if err != nil || len(have) != len(want.addresses) {
		return false, err
	}
	for _, p := range want.addresses {
		if !slices.Contains(have, p) {
			return false, nil
		}
	}
	neighbours, err := k.handle.NeighList(near.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list neighbours of %s: %w", linkName, err)
	}
	vpp := hostLinkMAC(m, vppLinkName)
	for _, a := range want.neighbours {
		found := slices.ContainsFunc(neighbours, func(n netlink.Neigh) bool {
			return n.State&netlink.NUD_PERMANENT != 0 && n.IP.Equal(a.AsSlice()) &&
				slices.Equal(n.HardwareAddr, vpp.ToMAC())
		})
		if !found {
			return false, nil
		}
	}
	return true, nil
}

// removeHostLink removes the pair of links.
func (k *kernel) removeHostLink() error {
	for _, name := range []string{linkName, vppLinkName} {
		l, err := k.link(name)
		if err != nil {
			return err
		}
		if l != nil && l.Attrs().Alias == nodeAlias {
			return k.removeLink(l)
		}
	}
	return nil
}

// prepareNIC sets a network interface up so that VPP gets what is sent to its own MAC there.
func (k *kernel) prepareNIC(name string) error {
	l, err := k.handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find network interface %s of VPP: %w", name, err)
	}
	a := l.Attrs()
	if a.Promisc == 0 {
		if err := k.handle.SetPromiscOn(l); err != nil {
			return fmt.Errorf("make %s promiscuous: %w", name, err)
		}
	}
	if a.Flags&net.FlagUp == 0 {
		if err := k.handle.LinkSetUp(l); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	return nil
}

// prepared reports whether prepareNIC would change nothing.
func (k *kernel) prepared(name string) (bool, error) {
	l, err := k.link(name)
	if err != nil || l == nil {
		return false, err
	}
	return l.Attrs().Promisc != 0 && l.Attrs().Flags&net.FlagUp != 0, nil
}

// routes returns the destinations of own routes to VPP in the kernel.
func (k *kernel) routes() (map[netip.Prefix]bool, error) {
	all := map[netip.Prefix]bool{}
	l, err := k.link(linkName)
	if err != nil || l == nil {
		return all, err
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		filter := &netlink.Route{LinkIndex: l.Attrs().Index, Protocol: ownProtocol}
		list, err := k.handle.RouteListFiltered(family, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			return nil, fmt.Errorf("list routes over %s: %w", linkName, err)
		}
		for _, r := range list {
			if r.Dst == nil {
				continue
			}
			ip, _ := netip.AddrFromSlice(r.Dst.IP)
			bits, _ := r.Dst.Mask.Size()
			all[netip.PrefixFrom(ip.Unmap(), bits)] = true
		}
	}
	return all, nil
}

// setRoutes makes the routes of the kernel to dst lead to VPP, or removes them.
func (k *kernel) setRoutes(dst []netip.Prefix, m *kv.NodeNetwork, add bool) error {
	want, err := hostLinkOf(m)
	if err != nil || want == nil {
		return err
	}
	l, err := k.link(linkName)
	if err != nil || l == nil {
		return err
	}
	for _, p := range dst {
		for _, via := range want.neighbours {
			if via.Is4() != p.Addr().Is4() {
				continue
			}
			r := &netlink.Route{
				LinkIndex: l.Attrs().Index,
				Dst:       ipNet(p.Masked()),
				Gw:        via.AsSlice(),
				Protocol:  ownProtocol,
				Flags:     int(netlink.FLAG_ONLINK),
			}
			if add {
				err = k.handle.RouteReplace(r)
			} else if err = k.handle.RouteDel(r); errors.Is(err, unix.ESRCH) {
				err = nil
			}
			if err != nil {
				return fmt.Errorf("route of the node to %s via %s: %w", p, via, err)
			}
		}
	}
	return nil
}

// removeRoutes removes own routes to VPP, whatever their gateway is.
func (k *kernel) removeRoutes(dst []netip.Prefix) error {
	l, err := k.link(linkName)
	if err != nil || l == nil {
		return err
	}
	for _, p := range dst {
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(p), Protocol: ownProtocol}
		if err := k.handle.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove the route of the node to %s: %w", p, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
