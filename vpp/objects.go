// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"go.fd.io/govpp/binapi/ethernet_types"
)

const (
	// tagPrefix begins the tags and names of own objects.
	tagPrefix = "cadastre:"
	// maxTag is the longest tag that VPP keeps.
	maxTag = 63
	// sourceName is the name of the source of own routes in VPP's FIB.
	sourceName = "cadastre"
	// sourcePriority is between those of DHCP and of adjacencies, such as that of the API.
	sourcePriority = 128
	// firstInstance begins the numbers of own VXLAN tunnels.
	firstInstance = 0x40000000
)

// mac is a hardware address.
type mac = ethernet_types.MacAddress

// linkKind is the kind of an interface of VPP.
type linkKind int

const (
	packetLink linkKind = iota // a kernel's link, by packet sockets
	loopLink
	vxlanLink
)

// link is a wanted interface.
type link struct {
	tag  string
	kind linkKind
	mac  mac
	mtu  uint32

	hostName string // packetLink: the kernel's link
	hostID   int    // and its index there

	src, dst netip.Addr // vxlanLink
	vni      uint32
	instance uint32

	table      uint32
	addresses  []netip.Prefix
	lender     string // tag of the interface whose addresses it uses
	neighbours map[netip.Addr]mac

	domain uint32 // bridge domain; 0: none
	bvi    bool   // it is the domain's routed interface
	macs   []mac  // that are behind it in the domain
}

// tag returns the tag of an object of a value, which names the key as far as there is room.
func tagOf(role, key string) string {
	tag := tagPrefix + role + "/" + key
	if len(tag) > maxTag {
		sum := sha256.Sum256([]byte(key))
		tag = tagPrefix + role + "/" + hex.EncodeToString(sum[:16])
	}
	return tag
}

// numbered returns the tag of a packetLink, which has the index of the kernel's link: another
// link of the same name is not the one that VPP reads.
func (l *link) fullTag() string {
	if l.kind == packetLink {
		return fmt.Sprintf("%s@%d", l.tag, l.hostID)
	}
	return l.tag
}

// plainTag returns a tag without the index of the kernel's link.
func plainTag(tag string) string {
	if at := strings.LastIndexByte(tag, '@'); at >= 0 {
		return tag[:at]
	}
	return tag
}

// roleOf returns the role in a tag, "" if the tag is not an own one.
func roleOf(tag string) string {
	rest, own := strings.CutPrefix(tag, tagPrefix)
	if !own {
		return ""
	}
	role, _, _ := strings.Cut(rest, "/")
	return role
}

// name returns the name that VPP gives to the interface, "" if it is not known before.
func (l *link) name() string {
	switch l.kind {
	case packetLink:
		return "host-" + l.hostName
	case vxlanLink:
		return fmt.Sprintf("vxlan_tunnel%d", l.instance)
	}
	return ""
}

// table is a wanted routing table, of both families.
type table struct {
	id   uint32
	name string
}

// domain is a wanted bridge domain.
type domain struct {
	id  uint32
	tag string
}

// place identifies a route.
type place struct {
	table uint32
	dst   netip.Prefix
}

// route is a wanted route. It leads to a gateway or neighbour on a link, into another table,
// or nowhere.
type route struct {
	place
	via  netip.Addr
	link string // tag
	// into is the table in which packets are looked up again, for a route without a link.
	into uint32
	drop bool
	// unreachable makes VPP answer "destination unreachable".
	unreachable bool
}

// nat is the wanted translation of what leaves by the link with a tag.
type nat struct{ link string }

// plan holds the objects of a value, in the order in which they are made.
type plan struct {
	key     string
	tables  []table
	domains []domain
	links   []*link
	routes  []route
	nat     *nat

	neighbours *neighbours // on an interface of another value
}

// derivedMAC returns the MAC of an own interface. It follows from what the interface is for,
// so that it is the same after a restart: the neighbours keep it for minutes.
func derivedMAC(what string) mac {
	sum := sha256.Sum256([]byte(what))
	m := mac{0x0a, 0xcb} // not the range of VXLAN links
	copy(m[2:], sum[:])
	return m
}

// ownMAC reports whether a MAC is one that this package derives, or the agent for a VXLAN link.
func ownMAC(m mac) bool { return m[0] == 0x0a && (m[1] == 0xcb || m[1] == 0xca) }
