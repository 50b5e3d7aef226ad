// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// Range holds the addresses of a pool in one family, and the length of one node's block.
type Range struct {
	CIDR    netip.Prefix `json:"cidr"`
	OneNode int          `json:"oneNodePrefixLen"`
}

// String returns the network and the length of one node's block.
func (r Range) String() string { return fmt.Sprintf("%s cut in /%d", r.CIDR, r.OneNode) }

// Block returns the block of node id. The error wraps addrspace.ErrNodeID if id does
// not fit.
func (r Range) Block(id uint32) (netip.Prefix, error) {
	if !r.CIDR.IsValid() {
		return netip.Prefix{}, fmt.Errorf("block of node %d: the range has no network", id)
	}
	return addrspace.NodePrefix(r.CIDR, r.OneNode, id)
}

// largest returns the largest node ID that has a block.
func (r Range) largest() uint32 { return addrspace.MaxNodePrefix(r.CIDR, r.OneNode) }

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

// Keys of a range.
const (
	cidrKey    = "cidr"
	oneNodeKey = "oneNodePrefixLen"
)

// rangeField returns the position of range number i of the pool at the path at.
func rangeField(at string, i int) string { return at + "ranges[" + strconv.Itoa(i) + "]." }

// checkRanges reports the errors of the ranges of a pool.
func (ps *problems) checkRanges(at string, ranges []Range) {
	for i, r := range ranges {
		field := rangeField(at, i)
		ps.checkRange(field+cidrKey, field+oneNodeKey, r)
		for j, other := range ranges[:i] {
			if r.CIDR.IsValid() && other.CIDR.IsValid() && r.family() == other.family() {
				ps.add(
					field+cidrKey,
					r.CIDR.String(),
					"is of the same family as ranges[%d], %s: a pool has one range a family, so write another pool for it",
					j,
					other.CIDR,
				)
				break
			}
		}
	}
}

func (ps *problems) checkRange(cidrField, oneNodeField string, r Range) {
	if _, problem := yamldoc.CheckPrefix(r.CIDR, "10.2.0.0/16"); problem != "" {
		value := ""
		if r.CIDR.IsValid() {
			value = r.CIDR.String()
		}
		ps.add(cidrField, value, "%s", problem)
		return
	}
	ps.CheckOneNode(yamldoc.OneNode{
		Network:      r.CIDR,
		Name:         r.CIDR.String(),
		NetworkField: cidrField,
		Bits:         r.OneNode,
		BitsField:    oneNodeField,
		HostBits:     addrplan.PodHostBits,
		Uses:         addrplan.PodSubnetUses,
	})
}

// cidr reads a network. If s is not one it reports that and returns the zero Prefix.
func (ps *problems) cidr(field, s string) netip.Prefix {
	p, problem := yamldoc.ParsePrefix(s, "10.2.0.0/16 or fd00:2::/48")
	if problem != "" {
		ps.add(field, s, "%s", problem)
	}
	return p
}

// checkName reports a name that cannot be a part of keys and of host names.
func (ps *problems) checkName(field, name string) {
	const limit = 63
	const right = "write 1 to 63 lower case letters, digits, '-' and '.', beginning and ending with a letter or a digit, such as \"pods-2\""
	plain := func(c rune) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	notAllowed := func(c rune) bool { return !plain(c) && c != '-' && c != '.' }
	switch {
	case name == "":
		ps.add(field, "", "is missing: %s", right)
	case len(name) > limit || strings.ContainsFunc(name, notAllowed) || !plain(rune(name[0])) || !plain(rune(name[len(name)-1])):
		ps.add(field, name, "is not a name: %s", right)
	}
}
