// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package vppmodel is a model of VPP 25.10 behind the mock adapter of govpp: it keeps the
// objects that package vpp makes, answers its messages, and refuses what VPP refuses with the
// same number. It forwards no packets. The numbers were read from a VPP 25.10 that runs:
//
//	-2    an interface that does not exist, also the deletion of a loopback that is none
//	-3    a table that does not exist, for a route, a binding or a lookup
//	-6    removal of a tunnel, neighbour, bridge domain or NAT object that does not exist
//	-7    an empty tag; addresses of a tunnel of two families
//	-10   addresses are borrowed from an interface that does not exist
//	-11   deletion of a packet interface that does not exist
//	-52   a route without paths
//	-54   a route over an interface that does not exist
//	-60   removal of an address that the interface does not have
//	-71   a packet interface on a kernel's link that does not exist
//	-75   a VXLAN tunnel that exists
//	-79   a second packet interface on one of the kernel's links
//	-81   a NAT object that exists
//	-82   a tunnel to its own address
//	-105  an IPv4 address that an interface of the table has, or a subnet that overlaps
//	-114  an interface with addresses, own or borrowed ones, is bound to another table
//	-119  a bridge domain that exists
//	-120  removal of a bridge domain with ports
//	-122  a bridge domain with a number of more than 24 bits
//	-126  the MTU of a loopback's hardware; NAT while its plugin is disabled
//	-127  an IPv6 address that an interface of the table has
//	-147  a number of a tunnel that is in use
//	-152  a second routed interface of a bridge domain
//	-169  NAT is disabled again
//	-170  NAT is enabled again
//
// VPP gives the index of a removed interface to the next one, with the static neighbours.
//
// VPP accepts more than one expects: removal of a route or table that does not exist, of a
// table in use (which goes with the last interface in it), and of an interface with addresses.
// A second source of routes of one name is another source. A route of a source that is not
// registered is not checked: VPP reads beyond the end of an array, and can end by that. The
// model panics instead.
package vppmodel

import (
	"fmt"
	"net/netip"
	"sync"

	"go.fd.io/govpp/adapter/mock"
	"go.fd.io/govpp/api"
)

// Model is one VPP. Any goroutine may call it.
type Model struct {
	mu       sync.Mutex
	world    *world
	adapters map[*Adapter]bool
	down     bool
	exists   func(link string) bool

	requests int
	breakAt  int // number of the request at which the connection breaks; 0: never
	executed bool
	lacks    map[string]bool // messages that another version has in another form
	hangs    bool
	breakIn  string // name of the message after whose execution the connection breaks; "": none
}

// New returns a VPP without objects but local0.
func New() *Model {
	return &Model{
		world:    newWorld(),
		adapters: map[*Adapter]bool{},
		exists:   func(string) bool { return true },
	}
}

// LinksOf sets the function that reports whether the kernel has a link. Without it, all exist.
func (m *Model) LinksOf(exists func(link string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.exists = exists
}

// Lacks makes the VPP one of another version, which does not know some messages.
func (m *Model) Lacks(messages ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lacks = map[string]bool{}
	for _, name := range messages {
		m.lacks[name] = true
	}
}

// Hang makes the VPP take requests without an answer, as one that was stopped by a signal
// does. Connections remain.
func (m *Model) Hang(hangs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.hangs = hangs
}

// ForeignTunnel makes a tunnel of another program, with a number of its choice.
func (m *Model) ForeignTunnel(instance uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.world.add(&iface{
		name: fmt.Sprintf("vxlan_tunnel%d", instance), device: vxlanDevice, mac: [6]byte{2, 0xfe, 9}, up: true,
		instance: instance,
	})
}

// Adapter returns a transport to the model, for one connection.
func (m *Model) Adapter() *Adapter {
	return &Adapter{VppAdapter: mock.NewVppAdapter(), model: m, lost: make(chan struct{})}
}

// Restart ends the VPP and starts another one: all objects are gone, connections are broken.
func (m *Model) Restart() {
	m.Stop()
	m.Start()
}

// Stop ends the VPP.
func (m *Model) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = true
	m.breakAll()
}

// Start starts a VPP without objects.
func (m *Model) Start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down, m.world = false, newWorld()
}

// BreakAt breaks the connection at the nth request from now, before it is executed or, if
// executed is true, after that but before its reply. 0 ends this.
func (m *Model) BreakAt(n int, executed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.breakAt, m.executed = 0, executed
	if n > 0 {
		m.breakAt = m.requests + n
	}
}

// BreakIn breaks the connection after the next message of a name is executed, before its reply.
func (m *Model) BreakIn(message string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.breakIn = message
}

// Requests returns the number of requests so far.
func (m *Model) Requests() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests
}

// breakAll breaks all connections; m.mu is locked.
func (m *Model) breakAll() {
	for a := range m.adapters {
		a.breakOff()
	}
	clear(m.adapters)
}

// handle executes a request and returns its replies. ok is false if the connection breaks.
func (m *Model) handle(a *Adapter, request api.Message) (replies []api.Message, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.adapters[a] {
		return nil, false
	}
	if m.hangs {
		return nil, false
	}
	m.requests++
	breaks := m.breakAt != 0 && m.requests >= m.breakAt
	if breaks {
		m.breakAt = 0
	}
	in := m.breakIn != "" && m.breakIn == request.GetMessageName()
	if in {
		m.breakIn = ""
	}
	if breaks && !m.executed {
		m.breakAll()
		return nil, false
	}
	m.world.exists = m.exists
	replies = m.world.execute(request)
	for _, event := range m.world.takeEvents() {
		for a := range m.adapters {
			if a.wantsEvents {
				a.deliver(0, event)
			}
		}
	}
	if breaks || in {
		m.breakAll()
		return nil, false
	}
	return replies, true
}

// Foreign makes an object of another program: a loopback with an address, and a route over it.
func (m *Model) Foreign(address netip.Prefix, dst netip.Prefix) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := m.world
	i := w.add(&iface{name: "loop900", device: loopDevice, mac: [6]byte{0xde, 0xad}, up: true})
	i.addresses[address] = true
	w.routes[routeID{0, dst, apiSource}] = way{index: i.index, via: address.Addr().Next()}
}

// ForeignPacketLink makes the interface of another program on a link of the kernel.
func (m *Model) ForeignPacketLink(link string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.world.add(&iface{name: "host-" + link, device: packetDevice, mac: [6]byte{2, 0xfe, 1}, up: true})
}

// RemoveInterface removes an interface, as another program does, with its events.
func (m *Model) RemoveInterface(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, i := range m.world.ifaces {
		if i.name != name {
			continue
		}
		m.world.remove(i)
		for _, event := range m.world.takeEvents() {
			for a := range m.adapters {
				if a.wantsEvents {
					a.deliver(0, event)
				}
			}
		}
		return true
	}
	return false
}

// Dump returns all objects as text, in order, with names instead of numbers of interfaces.
func (m *Model) Dump() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.world.dump()
}

// ForeignBridge makes a bridge domain of another program.
func (m *Model) ForeignBridge(id uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.world.bridges[id] = bridge{learn: true}
}
