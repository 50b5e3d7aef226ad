// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// Range is the addresses of a pool in one family, and how they are cut.
type Range struct {
	CIDR    netip.Prefix `json:"cidr"`
	OneNode int          `json:"oneNodePrefixLen"`
}

// String is the network and the length of one node's block.
func (r Range) String() string { return fmt.Sprintf("%s cut in /%d", r.CIDR, r.OneNode) }

// Block is node id's. It fails, wrapping addrspace.ErrNodeID, where id does not fit.
func (r Range) Block(id uint32) (netip.Prefix, error) {
	if !r.CIDR.IsValid() {
		return netip.Prefix{}, fmt.Errorf("block of node %d: the range has no network", id)
	}
	return addrspace.NodePrefix(r.CIDR, r.OneNode, id)
}

// Largest is the largest node ID that has a block.
func (r Range) Largest() uint32 { return addrspace.MaxNodePrefix(r.CIDR, r.OneNode) }

func (r Range) family() string {
	if r.CIDR.Addr().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

func (r Range) width() int { return r.CIDR.Addr().BitLen() }

func listed(ranges []Range) string {
	all := make([]string, len(ranges))
	for i, r := range ranges {
		all[i] = r.String()
	}
	return strings.Join(all, ", ")
}

// leastHostBits is what a block needs to have room for a pod, see addrplan.Capacity.
const leastHostBits = 3

// Keys of a range.
const (
	cidrKey    = "cidr"
	oneNodeKey = "oneNodePrefixLen"
)

// rangeField is where range number i is, of the pool at the path at.
func rangeField(at string, i int) string { return at + "ranges[" + strconv.Itoa(i) + "]." }

// checkRanges reports what is wrong with the ranges of a pool as such.
func (ps *problems) checkRanges(at string, ranges []Range) {
	for i, r := range ranges {
		field := rangeField(at, i)
		ps.checkRange(field+cidrKey, field+oneNodeKey, r)
		for j, other := range ranges[:i] {
			if r.CIDR.IsValid() && other.CIDR.IsValid() && r.family() == other.family() {
				ps.add(field+cidrKey, r.CIDR.String(), "is of the same family as ranges[%d], %s: a pool has one range a family, so write another pool for it", j, other.CIDR)
				break
			}
		}
	}
}

func (ps *problems) checkRange(cidrField, oneNodeField string, r Range) {
	p := r.CIDR
	switch {
	case !p.IsValid():
		ps.add(cidrField, "", "is not a network: write address/length, such as 10.2.0.0/16")
		return
	case p.Addr().Is4In6() && p.Bits() >= 96:
		ps.add(cidrField, p.String(), "is an IPv4 network written as IPv6: write %s", netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96).Masked())
		return
	case p.Addr().Is4In6():
		ps.add(cidrField, p.String(), "holds IPv4 addresses written as IPv6: write an IPv4 network, such as 10.2.0.0/16")
		return
	case p != p.Masked():
		ps.add(cidrField, p.String(), "has host bits set: write %s", p.Masked())
		return
	}
	const what = "network, gateway, a pod, NAT loopback and the last address"
	low, high := p.Bits()+1, r.width()-leastHostBits
	switch {
	case low > high:
		ps.add(cidrField, p.String(), "is too small to be shared: one node needs /%d for %s, so write /%d or less", high, what, high-1)
	case r.OneNode < low:
		ps.add(oneNodeField, strconv.Itoa(r.OneNode), "must be higher than the prefix length of %s: write %d to %d", p, low, high)
	case r.OneNode > high:
		ps.add(oneNodeField, strconv.Itoa(r.OneNode), "leaves no room for %s: write %d to %d", what, low, high)
	}
}

// cidr reads a network; where it is none, which is reported, the zero Prefix.
func (ps *problems) cidr(field, s string) netip.Prefix {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		hint := "such as 10.2.0.0/16 or fd00:2::/48"
		if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
			hint = "with the length of its prefix, such as " + s + "/" + strconv.Itoa(a.BitLen()/2)
		}
		ps.add(field, s, "is not a network: write address/length, %s", hint)
		return netip.Prefix{}
	}
	return p
}

// checkName wants a name to be one that is a part of keys and of host names.
func (ps *problems) checkName(field, name string) {
	const most, right = 63, "write 1 to 63 lower case letters, digits, '-' and '.', beginning and ending with a letter or a digit, such as \"pods-2\""
	plain := func(c rune) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	switch other := strings.IndexFunc(name, func(c rune) bool { return !plain(c) && c != '-' && c != '.' }); {
	case name == "":
		ps.add(field, "", "is missing: %s", right)
	case len(name) > most || other >= 0 || !plain(rune(name[0])) || !plain(rune(name[len(name)-1])):
		ps.add(field, name, "is not a name: %s", right)
	}
}
