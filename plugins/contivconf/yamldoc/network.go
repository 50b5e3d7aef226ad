// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package yamldoc

import (
	"net/netip"
	"strconv"
)

// ParsePrefix parses a network. If text is not one, problem says what would be
// right, with the given examples.
func ParsePrefix(text, examples string) (p netip.Prefix, problem string) {
	p, err := netip.ParsePrefix(text)
	if err == nil {
		return p, ""
	}
	hint := "such as " + examples
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
		hint = "with the length of its prefix, such as " + text + "/" + strconv.Itoa(a.BitLen()/2)
	}
	return netip.Prefix{}, "is not a network: write address/length, " + hint
}

// CheckPrefix returns the rule that p breaks as a network, and what would be right.
func CheckPrefix(p netip.Prefix, example string) (rule Rule, problem string) {
	switch {
	case !p.IsValid():
		return RuleMissing, "is not a network: write address/length, such as " + example
	case p.Addr().Is4In6() && p.Bits() >= 96:
		v4 := netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96).Masked()
		return RuleMapped, "is an IPv4 network written as IPv6: write " + v4.String()
	case p.Addr().Is4In6():
		return RuleMapped, "holds IPv4 addresses written as IPv6: write an IPv4 network, such as " + example
	case p != p.Masked():
		return RuleHostBits, "has host bits set: write " + p.Masked().String()
	}
	return "", ""
}

// OneNode describes the part that one node has of a network.
type OneNode struct {
	Network      netip.Prefix
	Name         string // of the network, in messages
	NetworkField string
	Bits         int // the length of one node's prefix
	BitsField    string
	HostBits     int    // the least that one node needs
	Uses         string // what it needs them for
}

// CheckOneNode reports a part that is not smaller than the network or has too few
// host bits.
func (c *Collector) CheckOneNode(o OneNode) {
	low, high := o.Network.Bits()+1, o.Network.Addr().BitLen()-o.HostBits
	switch {
	case low > high:
		c.Add(RuleOneNode, o.NetworkField, o.Network.String(),
			"is too small to be shared: one node needs /%d for %s, so write /%d or less", high, o.Uses, high-1)
	case o.Bits < low:
		c.Add(RuleOneNode, o.BitsField, strconv.Itoa(o.Bits),
			"must be higher than the prefix length of %s: write %d to %d", o.Name, low, high)
	case o.Bits > high:
		c.Add(
			RuleOneNode,
			o.BitsField,
			strconv.Itoa(o.Bits),
			"leaves no room for %s: write %d to %d",
			o.Uses,
			low,
			high,
		)
	}
}
