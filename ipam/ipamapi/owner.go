// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/cadastre/cadastre/ledger"
)

// owner is the endpoint or the gateway that gets an address, as far as the engine
// names it.
type owner struct {
	name, mac string // of the endpoint
	gateway   bool
	likely    bool // the gateway is one that the engine has not named
	fixed     bool // name is that of a container that does not run, whose user has fixed the address
}

func ownerOf(options map[string]string) owner {
	if len(options) == 0 {
		return owner{}
	}
	return owner{
		name:    strings.ToValidUTF8(options[EndpointName], "?"),
		mac:     strings.ToLower(strings.ToValidUTF8(options[EndpointMAC], "?")),
		gateway: options[RequestAddressType] == Gateway,
	}
}

// Marks take the place of the MAC in the key of a lease that no endpoint has.
const (
	gatewayMark = "gateway"
	likelyMark  = "likely gateway"
	fixedMark   = "fixed"
)

// key returns the ledger's key of a lease. It has the pool's ID, the endpoint's name or
// else its MAC, and the MAC with a mark that tells the leases of one endpoint apart.
func (o owner) key(poolID string, mark []byte) ledger.Key {
	name, mac := o.name, o.mac
	switch {
	case o.gateway:
		if name, mac = gatewayMark, gatewayMark; o.likely {
			mac = likelyMark
		}
	case o.fixed:
		mac = fixedMark
	case name == "":
		name = mac
	}
	var room [64]byte
	marked := append(append(append(room[:0], mac...), '#'), mark...)
	return ledger.Key{Network: poolID, ContainerID: name, IfName: string(marked)}
}

// numbered returns the key of a lease of any address.
func (o owner) numbered(poolID string, n uint64) ledger.Key {
	var room [20]byte
	return o.key(poolID, strconv.AppendUint(room[:0], n, 10))
}

// named returns the key of a lease of a certain address.
func (o owner) named(poolID string, a netip.Addr) ledger.Key {
	var room [40]byte
	return o.key(poolID, a.AppendTo(room[:0]))
}

// repeats reports whether a request for any address can be a repetition: only the name and
// the MAC address together name one endpoint. Users give one MAC address to several containers,
// and containers of several networks have one name.
func (o owner) repeats() bool { return o.name != "" && o.mac != "" && !o.gateway }

// repeatable returns the key of a lease of any address of an endpoint that repeats requests.
func (o owner) repeatable(poolID string) ledger.Key { return o.key(poolID, []byte("any")) }

// purpose returns the purpose of a lease of m. A gateway in the pod block is not
// one of the node's own, which go with the block.
func (o owner) purpose(m *pool) ledger.Purpose {
	if o.gateway && !m.fromPods() {
		return ledger.ForInfra
	}
	return ledger.ForDocker
}

// holder returns the owner of a lease.
func holder(l ledger.Lease) owner {
	mac := l.Key.IfName
	if i := strings.LastIndexByte(mac, '#'); i >= 0 {
		mac = mac[:i]
	}
	switch mac {
	case gatewayMark:
		return owner{gateway: true}
	case likelyMark:
		return owner{gateway: true, likely: true}
	case fixedMark:
		return owner{name: l.Key.ContainerID, fixed: true}
	}
	return owner{name: l.Key.ContainerID, mac: mac}
}

// is reports whether both are the same endpoint, or both gateways.
func (o owner) is(p owner) bool {
	if o.gateway || p.gateway {
		return o.gateway && p.gateway
	}
	if o.fixed || p.fixed {
		return o.fixed && p.fixed && o.name == p.name
	}
	return o.name != "" && o.name == p.name || o.mac != "" && o.mac == p.mac
}

func (o owner) known() bool { return o.name != "" || o.mac != "" || o.gateway }

// number returns the number in the key of a lease of any address, 0 if it has none.
func number(k ledger.Key) uint64 {
	n, err := strconv.ParseUint(k.IfName[strings.LastIndexByte(k.IfName, '#')+1:], 10, 64)
	if err != nil {
		return 0
	}
	return n
}
