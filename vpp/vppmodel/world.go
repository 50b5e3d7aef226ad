// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vppmodel

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"go.fd.io/govpp/api"
	interfaces "go.fd.io/govpp/binapi/interface"
	"go.fd.io/govpp/binapi/interface_types"
)

const (
	none      = ^uint32(0)
	apiSource = 3 // of routes

	loopDevice   = "Loopback"
	packetDevice = "af-packet"
	vxlanDevice  = "VXLAN"
)

// iface is an interface.
type iface struct {
	index      uint32
	name       string
	device     string
	tag        string
	mac        [6]byte
	mtu        [4]uint32
	up         bool
	table      [2]uint32
	addresses  map[netip.Prefix]bool
	lender     uint32
	neighbours map[netip.Addr]neighbour
	domain     uint32 // 0: none
	bvi        bool
	group      uint8

	src, dst netip.Addr // of a tunnel
	vni      uint32
	instance uint32
}

type neighbour struct {
	mac    [6]byte
	static bool
}

type tableID struct {
	id  uint32
	six bool
}

type routeID struct {
	table  uint32
	dst    netip.Prefix
	source uint8
}

// way is the path of a route.
type way struct {
	index uint32
	via   netip.Addr
	into  uint32
	drop  bool
	// unreachable makes VPP answer "destination unreachable".
	unreachable bool
}

type fibEntry struct {
	index  uint32
	static bool
}

type macID struct {
	domain uint32
	mac    [6]byte
}

type bridge struct {
	tag   string
	learn bool
}

// world holds all objects.
type world struct {
	next    uint32
	free    []uint32                            // indexes of removed interfaces; the last one is used first
	strays  map[uint32]map[netip.Addr]neighbour // that removed interfaces have left
	ifaces  map[uint32]*iface
	tables  map[tableID]string
	deleted map[tableID]bool // tables that go with the last interface in them
	sources []string         // beside those of VPP
	routes  map[routeID]way
	bridges map[uint32]bridge
	macs    map[macID]fibEntry

	natEnabled bool
	natForward bool
	natOutput  map[uint32]bool
	natAddress map[uint32]bool
	natVXLAN   map[uint32]bool

	exists func(link string) bool
	events []api.Message
}

func newWorld() *world {
	w := &world{
		ifaces:     map[uint32]*iface{},
		deleted:    map[tableID]bool{},
		tables:     map[tableID]string{{0, false}: "ipv4-VRF:0", {0, true}: "ipv6-VRF:0"},
		strays:     map[uint32]map[netip.Addr]neighbour{},
		routes:     map[routeID]way{},
		bridges:    map[uint32]bridge{},
		macs:       map[macID]fibEntry{},
		natOutput:  map[uint32]bool{},
		natAddress: map[uint32]bool{},
		natVXLAN:   map[uint32]bool{},
	}
	w.add(&iface{name: "local0", device: "local"})
	return w
}

// add adds an interface.
func (w *world) add(i *iface) *iface {
	i.index, i.lender = w.next, none
	if last := len(w.free) - 1; last >= 0 {
		i.index, w.free = w.free[last], w.free[:last]
	} else {
		w.next++
	}
	i.addresses, i.neighbours = map[netip.Prefix]bool{}, map[netip.Addr]neighbour{}
	if left := w.strays[i.index]; left != nil {
		i.neighbours = left
		delete(w.strays, i.index)
	}
	w.ifaces[i.index] = i
	return i
}

// remove removes an interface with its addresses and ports. Routes over it stay, and so do
// static neighbours, which the next interface with its index gets.
func (w *world) remove(i *iface) {
	delete(w.ifaces, i.index)
	w.free = append(w.free, i.index)
	maps.DeleteFunc(i.neighbours, func(_ netip.Addr, n neighbour) bool { return !n.static })
	if len(i.neighbours) > 0 {
		w.strays[i.index] = i.neighbours
	}
	delete(w.natOutput, i.index)
	delete(w.natAddress, i.index)
	delete(w.natVXLAN, i.index)
	for _, o := range w.ifaces {
		if o.lender == i.index {
			o.lender = none
		}
	}
	for id, e := range w.macs {
		if e.index == i.index {
			delete(w.macs, id)
		}
	}
	w.events = append(w.events, &interfaces.SwInterfaceEvent{
		SwIfIndex: interface_types.InterfaceIndex(i.index),
		Deleted:   true,
	})
}

func (w *world) takeEvents() []api.Message {
	all := w.events
	w.events = nil
	return all
}

// name returns the name of an interface.
func (w *world) nameOf(index uint32) string {
	if i := w.ifaces[index]; i != nil {
		if i.device == loopDevice {
			return fmt.Sprintf("loop[%s %x]", i.tag, i.mac)
		}
		return i.name
	}
	if index == none {
		return "-"
	}
	return "DELETED"
}

// dump returns all objects as lines of text.
func (w *world) dump() string {
	var lines []string
	line := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for _, i := range w.ifaces {
		name := w.nameOf(i.index)
		line("interface %s tag=%q mac=%x up=%t mtu=%d table=%v lender=%s bridge=%d bvi=%t group=%d %s-%s vni=%d",
			name, i.tag, i.macText(), i.up, i.mtu[0], i.table, w.nameOf(i.lender), i.domain, i.bvi, i.group,
			i.src, i.dst, i.vni)
		for p := range i.addresses {
			line("address %s %s", name, p)
		}
		for a, n := range i.neighbours {
			line("neighbour %s %s %x static=%t", name, a, n.mac, n.static)
		}
	}
	for _, left := range w.strays {
		for a, n := range left {
			line("neighbour DELETED %s %x static=%t", a, n.mac, n.static)
		}
	}
	for id, name := range w.tables {
		line("table %d six=%t %q", id.id, id.six, name)
	}
	for _, s := range w.sources {
		line("source %s", s)
	}
	for id, r := range w.routes {
		line("route %d %s source=%s via=%s %s into=%d drop=%t unreachable=%t",
			id.table, id.dst, w.sourceName(id.source), r.via, w.nameOf(r.index), r.into, r.drop, r.unreachable)
	}
	for id, b := range w.bridges {
		line("bridge %d %q learn=%t", id, b.tag, b.learn)
	}
	for id, e := range w.macs {
		line("mac %d %x %s static=%t", id.domain, id.mac, w.nameOf(e.index), e.static)
	}
	for what, all := range map[string]map[uint32]bool{
		"output": w.natOutput, "address": w.natAddress, "vxlan": w.natVXLAN,
	} {
		for index := range maps.Keys(all) {
			line("nat %s %s", what, w.nameOf(index))
		}
	}
	line("nat enabled=%t forward=%t", w.natEnabled, w.natForward)
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// macText returns the MAC of an interface; that of a tunnel is random.
func (i *iface) macText() []byte {
	if i.device == vxlanDevice {
		return nil
	}
	return i.mac[:]
}

func (w *world) sourceName(source uint8) string {
	if n := int(source) - firstSource; n >= 0 && n < len(w.sources) {
		return w.sources[n]
	}
	return fmt.Sprint(source)
}
