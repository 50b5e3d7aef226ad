// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"strings"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// prefix reads one network and reports what is wrong with it.
func (r *reading) prefix(key, s string) (netip.Prefix, bool) {
	p, problem := yamldoc.ParsePrefix(s, "10.1.0.0/16 or fd00:1::/48")
	rule := yamldoc.RuleCIDR
	if problem == "" {
		rule, problem = checkPrefix(p)
	}
	if problem != "" {
		r.Add(rule, key, s, "%s", problem)
		return netip.Prefix{}, false
	}
	return p, true
}

func checkPrefix(p netip.Prefix) (Rule, string) { return yamldoc.CheckPrefix(p, "10.1.0.0/16") }

// listing holds the networks of one key, one for each family.
type listing struct {
	key, text string
	prefixes  []netip.Prefix
	bad       bool // and reported
	isDefault bool
}

// networks reads "v4", "v6", "v4,v6" or "v6,v4" at a key of ipamConfig.
func (r *reading) networks(key, s string) listing {
	key = "ipamConfig." + key
	l := listing{key: key, text: s, isDefault: !r.Given[key]}
	if strings.TrimSpace(s) == "" {
		l.bad = true
		r.Add(yamldoc.RuleMissing, key, "",
			"is empty: write a network, such as 10.1.0.0/16, or remove the key to have the default")
		return l
	}
	for part := range strings.SplitSeq(s, ",") {
		p, ok := r.prefix(key, strings.TrimSpace(part))
		if !ok {
			l.bad = true
			continue
		}
		l.prefixes = append(l.prefixes, p)
	}
	if !l.bad && repeatsFamily(l.prefixes) {
		l.bad = true
		r.Add(RuleSameFamily, key, s,
			"names two networks of one family: write one network, or one IPv4 and one IPv6 network")
	}
	return l
}

func repeatsFamily(prefixes []netip.Prefix) bool {
	seen := map[string]bool{}
	for _, p := range prefixes {
		if seen[familyOf(p.Addr())] {
			return true
		}
		seen[familyOf(p.Addr())] = true
	}
	return false
}

func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// gateways reads the default gateways, at most one for each family.
func (r *reading) gateways(s string) []netip.Addr {
	const key = "ipamConfig.defaultGateway"
	if strings.TrimSpace(s) == "" {
		return nil
	}
	var all []netip.Addr
	seen := map[string]bool{}
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		a, err := netip.ParseAddr(part)
		switch {
		case err != nil || a.Zone() != "":
			r.Add(RuleGateway, key, part,
				"is not an address: write one without prefix length or zone, such as 192.168.16.100")
		case a.Is4In6():
			r.Add(yamldoc.RuleMapped, key, part, "is an IPv4 address written as IPv6: write %s", a.Unmap())
		case seen[familyOf(a)]:
			r.Add(RuleSameFamily, key, s,
				"names two gateways of one family: write one, or one IPv4 and one IPv6 address")
		default:
			seen[familyOf(a)] = true
			all = append(all, a)
		}
	}
	return all
}
