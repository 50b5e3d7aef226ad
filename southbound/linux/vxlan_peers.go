// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
)

// vxlanPeers makes the ways to other nodes through the VXLAN link: one permanent
// forwarding entry for each node, and one permanent neighbour for each of its addresses.
// All permanent entries of the link are ours.
type vxlanPeers struct {
	host *tunnelHost
	link *vxlan
	vni  uint32 // of the link of a network; 0: the node's link

	index uint32     // of the link that the entries are written to; 0: not known
	local netip.Addr // of that link

	mu      sync.Mutex            // because Watch reads what follows
	at      uint32                // index of the link that has the entries
	entries map[object]vxlanEntry // by slot
}

// vxlanEntry is an entry of the link, with the key of the value that has it.
type vxlanEntry struct {
	object
	key string
}

func newVXLANPeers(host *tunnelHost, link *vxlan) *vxlanPeers {
	v := &vxlanPeers{host: host, link: link, entries: map[object]vxlanEntry{}}
	link.made = v.forget
	return v
}

// slot returns what distinguishes an entry from the others of the link: the MAC address of
// a forwarding entry, the IP address of a neighbour. The kernel has one entry for each.
func slot(entry object) object {
	if entry.kind == forwardingObject {
		return object{kind: entry.kind, mac: entry.mac}
	}
	return object{kind: entry.kind, prefix: entry.prefix}
}

// peerEntries returns the entries of one other node.
func peerEntries(mac hardware, destinations, ips []netip.Addr) (all []object) {
	for _, a := range destinations {
		all = append(all, object{kind: forwardingObject, prefix: whole(a), mac: mac})
	}
	for _, a := range ips {
		all = append(all, object{kind: neighbourObject, prefix: whole(a), mac: mac})
	}
	return all
}

// peerMAC returns the MAC address of a value.
func peerMAC(value *kv.NodeTunnel) (mac hardware) {
	parsed, _ := net.ParseMAC(value.GetMac())
	copy(mac[:], parsed)
	return mac
}

// readVXLANPeer reads the entries of a value. Of the addresses on the underlay, the one of
// the link's family is used.
func readVXLANPeer(value *kv.NodeTunnel, local netip.Addr) ([]object, error) {
	mac, err := readHardware("mac", value.GetMac())
	if err != nil {
		return nil, err
	}
	ips, err := readAddrs("vxlan_ips", value.GetVxlanIps())
	if err != nil {
		return nil, err
	}
	underlay, err := readAddrs("underlay", value.GetUnderlay())
	if err != nil {
		return nil, err
	}
	for _, a := range underlay {
		if a.Is4() == local.Is4() {
			return peerEntries(mac, []netip.Addr{a}, ips), nil
		}
	}
	if len(underlay) == 0 {
		return nil, fmt.Errorf("underlay: want an address of node %q", value.GetNodeName())
	}
	return nil, fmt.Errorf(
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
	link, found, err := v.link.link()
	if err != nil || !found {
		return false, err
	}
	v.index, v.local = link.index, link.vxlan.local
	return true, nil
}

// set makes the entries of value; before is the value that was made, nil if there is none.
func (v *vxlanPeers) set(key string, before, value *kv.NodeTunnel) error {
	present, err := v.find()
	if err != nil {
		return err
	}
	if !present {
		return fmt.Errorf("link %s is missing", v.link.label())
	}
	want, err := readVXLANPeer(value, v.local)
	if err != nil {
		return err
	}
	v.own(key, want)
	former := v.former(before)
	return v.change(want, slices.DeleteFunc(former, func(o object) bool { return slices.Contains(want, o) }))
}

// remove removes the entries of a value.
func (v *vxlanPeers) remove(_ string, value *kv.NodeTunnel) error {
	present, err := v.find()
	if err != nil || !present {
		return err // without the link there are no entries
	}
	return v.change(nil, v.former(value))
}

// change adds entries and then removes others. The kernel replaces an entry in one step, so
// that packets always find one.
func (v *vxlanPeers) change(add, remove []object) error {
	link := linkID{index: v.index}
	var batch []*rtnl.Request
	for _, o := range add {
		batch = append(batch, o.add(link))
	}
	for _, o := range v.disown(remove) {
		batch = append(batch, o.remove(link))
	}
	if err := v.host.socket.Run(batch); err != nil {
		v.forget()
		return fmt.Errorf("link %s: %w", v.link.label(), err)
	}
	return nil
}

// own records the entries of a value. The record is made before the entries, so that Watch
// knows them.
func (v *vxlanPeers) own(key string, all []object) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at = v.index
	for _, o := range all {
		v.entries[slot(o)] = vxlanEntry{o, key}
	}
}

// disown removes the records of entries, before Watch sees that they are gone. It returns
// the entries without neighbours that have got another MAC address: the kernel removes a
// neighbour whatever its MAC address is.
func (v *vxlanPeers) disown(all []object) (rest []object) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range all {
		owned, known := v.entries[slot(o)]
		other := known && owned.object != o
		if !other {
			delete(v.entries, slot(o))
		}
		if !other || o.kind == forwardingObject {
			rest = append(rest, o)
		}
	}
	return rest
}

// former returns the entries of a value that was made, or that Retrieve has found.
func (v *vxlanPeers) former(value *kv.NodeTunnel) []object {
	var destinations, ips []netip.Addr
	for _, text := range value.GetUnderlay() {
		if a, err := netip.ParseAddr(text); err == nil && a.Is4() == v.local.Is4() {
			destinations = append(destinations, a)
		}
	}
	for _, text := range value.GetVxlanIps() {
		if a, err := netip.ParseAddr(text); err == nil {
			ips = append(ips, a)
		}
	}
	return peerEntries(peerMAC(value), destinations, ips)
}

// list reads the entries of the link by MAC address, with one dump for the forwarding
// entries and one for the neighbours of each family.
func (v *vxlanPeers) list() (map[hardware][]object, error) {
	found := map[hardware][]object{}
	for _, family := range []byte{unix.AF_BRIDGE, unix.AF_INET, unix.AF_INET6} {
		body := make(rtnl.Message, sizeofNeighbour)
		body[0] = family
		body = body.U32(unix.NDA_IFINDEX, v.index)
		all, err := listObjects(v.host.socket, "entries", unix.RTM_GETNEIGH, body, parseNeighbour)
		if err != nil {
			return nil, fmt.Errorf("link %s: %w", v.link.label(), err)
		}
		for _, p := range all {
			if p.index == v.index {
				found[p.mac] = append(found[p.mac], p.object)
			}
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
	var found map[hardware][]object
	if present {
		if found, err = v.list(); err != nil {
			return nil, err
		}
	}
	v.mu.Lock()
	former := v.entries
	v.entries = map[object]vxlanEntry{}
	v.mu.Unlock()
	var all []controller.Value
	for _, w := range wanted {
		value, ok := w.Message.(*kv.NodeTunnel)
		if !ok || value.GetTransport() != kv.Transport_VXLAN || value.GetVni() != v.vni {
			continue
		}
		mac := peerMAC(value)
		if have := found[mac]; len(have) > 0 {
			v.own(w.Key, have)
			all = append(all, controller.Value{Key: w.Key, Message: v.compared(value, have)})
			delete(found, mac)
		}
	}
	order := func(x, y hardware) int { return bytes.Compare(x[:], y[:]) }
	for _, mac := range slices.SortedFunc(maps.Keys(found), order) {
		key := v.stray(mac.String())
		all = append(all, controller.Value{Key: key, Message: v.describe(mac, found[mac])})
		// Watch goes on with their former key: a caller may ask for some of the values only.
		if owned, known := former[object{kind: forwardingObject, mac: mac}]; known {
			key = owned.key
		}
		v.own(key, found[mac])
	}
	return all, nil
}

// stray returns the key of entries that belong to none of the wanted values.
func (v *vxlanPeers) stray(mac string) string {
	if v.vni == 0 {
		return kv.SinkTunnelPrefix + mac
	}
	return kv.SinkTunnelPrefix + mac + "/" + v.link.label()
}

// compared returns the wanted value if the entries with its MAC address are as it says.
// Otherwise it describes the entries.
func (v *vxlanPeers) compared(wanted *kv.NodeTunnel, have []object) *kv.NodeTunnel {
	want, err := readVXLANPeer(wanted, v.local)
	missing := func(o object) bool { return !slices.Contains(have, o) }
	if err == nil && len(want) == len(have) && !slices.ContainsFunc(want, missing) {
		return wanted
	}
	value := v.describe(peerMAC(wanted), have)
	value.NodeId, value.NodeName = wanted.GetNodeId(), wanted.GetNodeName()
	value.Mac, value.Subnets, value.Network = wanted.GetMac(), wanted.GetSubnets(), wanted.GetNetwork()
	return value
}

// describe returns entries with one MAC address as a value.
func (v *vxlanPeers) describe(mac hardware, have []object) *kv.NodeTunnel {
	value := &kv.NodeTunnel{Transport: kv.Transport_VXLAN, Vni: v.vni, Mac: mac.String()}
	for _, o := range have {
		text := o.prefix.Addr().String()
		if o.kind == forwardingObject {
			value.Underlay = append(value.Underlay, text)
		} else {
			value.VxlanIps = append(value.VxlanIps, text)
		}
	}
	return value
}

// damaged returns the key of the value whose entry has changed.
func (v *vxlanPeers) damaged(a announcement) (key string, is bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if a.object.index != v.at || !a.object.prefix.IsValid() {
		return "", false
	}
	owned, known := v.entries[slot(a.object.object)]
	gone := a.kind == unix.RTM_DELNEIGH
	return owned.key, known && (gone || !a.usual || owned.object != a.object.object)
}
