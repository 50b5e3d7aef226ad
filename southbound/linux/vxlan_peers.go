// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

// vxlanPeers makes the ways to other nodes through the VXLAN link: one permanent
// forwarding entry for each node, and one permanent neighbour for each of its addresses.
type vxlanPeers struct {
	host *tunnelHost
	link *vxlan
	vni  uint32 // of the link of a network; 0: the node's link

	index int        // of the link that the entries are written to; 0: not known
	local netip.Addr // of that link

	mu     sync.Mutex // because Watch reads what follows
	at     int        // index of the link that has the entries
	byMAC  map[string]vxlanEntry
	byAddr map[netip.Addr]vxlanEntry
}

// vxlanEntry holds what is written for one forwarding entry or neighbour.
type vxlanEntry struct {
	key string     // of the value that has it
	dst netip.Addr // of a forwarding entry
	mac string     // of a neighbour
}

func newVXLANPeers(host *tunnelHost, link *vxlan) *vxlanPeers {
	v := &vxlanPeers{host: host, link: link, byMAC: map[string]vxlanEntry{}, byAddr: map[netip.Addr]vxlanEntry{}}
	link.made = v.forget
	return v
}

// vxlanPeer holds the entries of one other node.
type vxlanPeer struct {
	mac net.HardwareAddr
	dst []netip.Addr // on the underlay; only entries of another program have several
	ips []netip.Addr
}

// readVXLANPeer reads the entries of a value. Of the addresses on the underlay, the one of
// the link's family is used.
func readVXLANPeer(value *kv.NodeTunnel, local netip.Addr) (vxlanPeer, error) {
	var p vxlanPeer
	var err error
	if p.mac, err = readMAC("mac", value.GetMac()); err != nil {
		return vxlanPeer{}, err
	}
	if p.ips, err = readAddrs("vxlan_ips", value.GetVxlanIps()); err != nil {
		return vxlanPeer{}, err
	}
	underlay, err := readAddrs("underlay", value.GetUnderlay())
	if err != nil {
		return vxlanPeer{}, err
	}
	for _, a := range underlay {
		if a.Is4() == local.Is4() {
			p.dst = []netip.Addr{a}
			return p, nil
		}
	}
	if len(underlay) == 0 {
		return vxlanPeer{}, fmt.Errorf("underlay: want an address of node %q", value.GetNodeName())
	}
	return vxlanPeer{}, fmt.Errorf(
		"node %q has only %v on the underlay, and this node uses %s: want an address of that family on both nodes",
		value.GetNodeName(),
		underlay,
		local,
	)
}

func (v *vxlanPeers) validate(value *kv.NodeTunnel) error {
	underlay, err := readAddrs("underlay", value.GetUnderlay())
	if err != nil {
		return err
	}
	local := netip.Addr{}
	if len(underlay) > 0 {
		local = underlay[0]
	}
	_, err = readVXLANPeer(value, local)
	return err
}

// forget makes the next use look the link up, which may have been made again.
func (v *vxlanPeers) forget() { v.index = 0 }

// find looks the link up unless that was done since the last call of forget.
func (v *vxlanPeers) find() (present bool, err error) {
	if v.index != 0 {
		return true, nil
	}
	link, err := v.link.link()
	if err != nil || link == nil {
		return false, err
	}
	local, _ := netip.AddrFromSlice(link.SrcAddr)
	v.index, v.local = link.Index, local.Unmap()
	return true, nil
}

// forwarding returns the forwarding entry of a peer to one destination.
func (v *vxlanPeers) forwarding(p vxlanPeer, dst netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex:    v.index,
		Family:       unix.AF_BRIDGE,
		State:        netlink.NUD_PERMANENT | netlink.NUD_NOARP,
		Flags:        netlink.NTF_SELF,
		IP:           dst.AsSlice(),
		HardwareAddr: p.mac,
	}
}

// neighbour returns the neighbour of one address of a peer.
func (v *vxlanPeers) neighbour(p vxlanPeer, ip netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex:    v.index,
		State:        netlink.NUD_PERMANENT,
		Type:         unix.RTN_UNICAST,
		IP:           ip.AsSlice(),
		HardwareAddr: p.mac,
	}
}

// set makes the entries of value; before is the value that was made, nil if there is none.
// The kernel replaces an entry in one step, so that packets always find one.
func (v *vxlanPeers) set(key string, before, value *kv.NodeTunnel) error {
	present, err := v.find()
	if err != nil {
		return err
	}
	if !present {
		return fmt.Errorf("link %s is missing", v.link.label())
	}
	p, err := readVXLANPeer(value, v.local)
	if err != nil {
		return err
	}
	old := v.former(before)
	if err := v.write(key, p); err != nil {
		return err
	}
	return v.erase(old.without(p))
}

// write makes the entries of a peer.
func (v *vxlanPeers) write(key string, p vxlanPeer) error {
	if len(p.dst) == 0 {
		return nil
	}
	v.own(key, p)
	if err := v.host.kernel.NeighSet(v.forwarding(p, p.dst[0])); err != nil {
		v.forget()
		return fmt.Errorf("forward %s to %s on %s: %w", p.mac, p.dst[0], v.link.label(), err)
	}
	for _, ip := range p.ips {
		if err := v.host.kernel.NeighSet(v.neighbour(p, ip)); err != nil {
			v.forget()
			return fmt.Errorf("set neighbour %s with %s on %s: %w", ip, p.mac, v.link.label(), err)
		}
	}
	return nil
}

// own records the entries of a value. The record is made before the entries, so that Watch
// knows them.
func (v *vxlanPeers) own(key string, p vxlanPeer) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at = v.index
	mac := p.mac.String()
	if len(p.dst) > 0 {
		v.byMAC[mac] = vxlanEntry{key: key, dst: p.dst[0]}
	}
	for _, ip := range p.ips {
		v.byAddr[ip] = vxlanEntry{key: key, mac: mac}
	}
}

// former returns the entries of a value that was made, or that Retrieve has found.
func (v *vxlanPeers) former(value *kv.NodeTunnel) vxlanPeer {
	var p vxlanPeer
	p.mac, _ = net.ParseMAC(value.GetMac())
	for _, text := range value.GetUnderlay() {
		if a, err := netip.ParseAddr(text); err == nil && a.Is4() == v.local.Is4() {
			p.dst = append(p.dst, a)
		}
	}
	for _, text := range value.GetVxlanIps() {
		if a, err := netip.ParseAddr(text); err == nil {
			p.ips = append(p.ips, a)
		}
	}
	return p
}

// without returns the entries of p that other does not have.
func (p vxlanPeer) without(other vxlanPeer) vxlanPeer {
	if slices.Equal(p.mac, other.mac) {
		p.dst = slices.DeleteFunc(slices.Clone(p.dst), func(a netip.Addr) bool { return slices.Contains(other.dst, a) })
	}
	p.ips = slices.DeleteFunc(slices.Clone(p.ips), func(a netip.Addr) bool { return slices.Contains(other.ips, a) })
	return p
}

// remove removes the entries of a value.
func (v *vxlanPeers) remove(_ string, value *kv.NodeTunnel) error {
	present, err := v.find()
	if err != nil || !present {
		return err // without the link there are no entries
	}
	return v.erase(v.former(value))
}

// erase removes the entries of a peer, except for neighbours that have got another MAC
// address. Missing entries are not an error.
func (v *vxlanPeers) erase(p vxlanPeer) error {
	p = v.disown(p)
	for _, ip := range p.ips {
		err := v.host.kernel.NeighDel(v.neighbour(p, ip))
		if err = v.unlessMissing(err); err != nil {
			return fmt.Errorf("remove neighbour %s from %s: %w", ip, v.link.label(), err)
		}
		if v.index == 0 {
			return nil // the entries went with the link
		}
	}
	for _, dst := range p.dst {
		err := v.host.kernel.NeighDel(v.forwarding(p, dst))
		if err = v.unlessMissing(err); err != nil {
			return fmt.Errorf("remove the forwarding of %s to %s from %s: %w", p.mac, dst, v.link.label(), err)
		}
	}
	return nil
}

// disown removes the records of entries, before Watch sees that they are gone. It returns
// the entries without the neighbours of other MAC addresses.
func (v *vxlanPeers) disown(p vxlanPeer) vxlanPeer {
	v.mu.Lock()
	defer v.mu.Unlock()
	mac := p.mac.String()
	if owned, known := v.byMAC[mac]; known && slices.Contains(p.dst, owned.dst) {
		delete(v.byMAC, mac)
	}
	p.ips = slices.DeleteFunc(slices.Clone(p.ips), func(ip netip.Addr) bool {
		owned, known := v.byAddr[ip]
		if known && owned.mac != mac {
			return true
		}
		delete(v.byAddr, ip)
		return false
	})
	return p
}

// unlessMissing drops the errors about an entry, or a link, that is not there.
func (v *vxlanPeers) unlessMissing(err error) error {
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		v.forget()
		return nil
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// vxlanEntries holds the entries of the link, by MAC address.
type vxlanEntries struct {
	destinations map[string][]string
	ips          map[string][]string
}

// list reads the entries of the link, with one dump for the forwarding entries and one for
// the neighbours of each family.
func (v *vxlanPeers) list() (vxlanEntries, error) {
	found := vxlanEntries{map[string][]string{}, map[string][]string{}}
	for _, family := range []uint8{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		entries, err := listAll(func() ([]netlink.Neigh, error) {
			return v.host.kernel.NeighListExecute(netlink.Ndmsg{Family: family, Index: uint32(v.index)})
		})
		if err != nil {
			return vxlanEntries{}, fmt.Errorf("list entries of %s: %w", v.link.label(), err)
		}
		for _, e := range entries {
			ip, ok := netip.AddrFromSlice(e.IP)
			if !ok || e.State&netlink.NUD_PERMANENT == 0 {
				continue
			}
			into := found.ips
			if family == unix.AF_BRIDGE {
				into = found.destinations
			}
			mac := e.HardwareAddr.String()
			into[mac] = append(into[mac], ip.Unmap().String())
		}
	}
	return found, nil
}

// retrieve returns the values whose entries are there. Entries that belong to none of the
// wanted values have a key with their MAC address.
func (v *vxlanPeers) retrieve(wanted []controller.Value) ([]controller.Value, error) {
	v.forget()
	present, err := v.find()
	if err != nil {
		return nil, err
	}
	var found vxlanEntries
	if present {
		if found, err = v.list(); err != nil {
			return nil, err
		}
	}
	var all []controller.Value
	for _, w := range wanted {
		value, ok := w.Message.(*kv.NodeTunnel)
		if !ok || value.GetTransport() != kv.Transport_VXLAN || value.GetVni() != v.vni {
			continue
		}
		if have := found.take(value, v.local); have != nil {
			all = append(all, controller.Value{Key: w.Key, Message: have})
		}
	}
	macs := maps.Clone(found.destinations)
	maps.Copy(macs, found.ips)
	for _, mac := range slices.Sorted(maps.Keys(macs)) {
		all = append(all, controller.Value{
			Key: v.stray(mac),
			Message: &kv.NodeTunnel{
				Transport: kv.Transport_VXLAN,
				Vni:       v.vni,
				Mac:       mac,
				Underlay:  found.destinations[mac],
				VxlanIps:  found.ips[mac],
			},
		})
	}
	v.adopt(all)
	return all, nil
}

// stray returns the key of entries that belong to none of the wanted values.
func (v *vxlanPeers) stray(mac string) string {
	if v.vni == 0 {
		return kv.SinkTunnelPrefix + mac
	}
	return kv.SinkTunnelPrefix + mac + "/" + v.link.label()
}

// adopt records the entries that were found. Those that belong to none of the wanted values
// keep their former key: a caller may ask for some of the values only.
func (v *vxlanPeers) adopt(all []controller.Value) {
	v.mu.Lock()
	former := v.byMAC
	v.byMAC, v.byAddr = map[string]vxlanEntry{}, map[netip.Addr]vxlanEntry{}
	v.mu.Unlock()
	for _, one := range all {
		p := v.former(one.Message.(*kv.NodeTunnel))
		key := one.Key
		if owned, known := former[p.mac.String()]; known && key == v.stray(p.mac.String()) {
			key = owned.key
		}
		v.own(key, p)
	}
}

// take removes the entries with the MAC address of a wanted value, and returns them as a
// value. It returns the wanted one if they are as it says, and nil if there are none.
func (e vxlanEntries) take(wanted *kv.NodeTunnel, local netip.Addr) *kv.NodeTunnel {
	parsed, _ := net.ParseMAC(wanted.GetMac())
	mac := parsed.String()
	destinations, ips := e.destinations[mac], e.ips[mac]
	if len(destinations) == 0 && len(ips) == 0 {
		return nil
	}
	delete(e.destinations, mac)
	delete(e.ips, mac)
	p, err := readVXLANPeer(wanted, local)
	if err == nil && sameAddrs(p.dst, destinations) && sameAddrs(p.ips, ips) {
		return wanted
	}
	return &kv.NodeTunnel{
		NodeId:    wanted.GetNodeId(),
		NodeName:  wanted.GetNodeName(),
		Transport: kv.Transport_VXLAN,
		Mac:       wanted.GetMac(),
		Underlay:  destinations,
		VxlanIps:  ips,
		Subnets:   wanted.GetSubnets(),
		Network:   wanted.GetNetwork(),
		Vni:       wanted.GetVni(),
	}
}

// sameAddrs reports whether texts has the addresses of all, in any order.
func sameAddrs(all []netip.Addr, texts []string) bool {
	return len(all) == len(texts) &&
		!slices.ContainsFunc(all, func(a netip.Addr) bool { return !slices.Contains(texts, a.String()) })
}

// damaged returns the key of the value whose entry has changed.
func (v *vxlanPeers) damaged(a announcement) (key string, is bool) {
	ip, mac, gone := a.object.prefix.Addr().Unmap(), a.object.mac.String(), a.kind == unix.RTM_DELNEIGH
	v.mu.Lock()
	defer v.mu.Unlock()
	if int(a.object.index) != v.at || !ip.IsValid() {
		return "", false
	}
	if a.family == unix.AF_BRIDGE {
		owned, known := v.byMAC[mac]
		return owned.key, known && (gone || owned.dst != ip)
	}
	owned, known := v.byAddr[ip]
	return owned.key, known && (gone || !a.usual || owned.mac != mac)
}
