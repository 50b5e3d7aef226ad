// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// instead returns what to write to drain old and to add a pool with the given ranges in
// its place. For a family without a range it takes that of old.
func (m *planner) instead(old Pool, ranges []Range) string {
	const text = ": add a pool with addresses of its own, and drain this one"
	wanted := slices.Clone(ranges)
	for _, r := range old.Ranges {
		sameFamily := func(w Range) bool { return w.family() == r.family() }
		if !slices.ContainsFunc(ranges, sameFamily) {
			wanted = append(wanted, r)
		}
	}
	shown := make([]string, len(wanted))
	for i, r := range wanted {
		free, ok := m.free(r)
		if !ok {
			return text
		}
		shown[i] = fmt.Sprintf("{cidr: %s, oneNodePrefixLen: %d}", strconv.Quote(free.CIDR.String()), free.OneNode)
	}
	network := ""
	if old.Network != Default {
		network = ", network: " + strconv.Quote(old.Network)
	}
	return fmt.Sprintf("%s, such as pools: [{name: %s%s, ranges: [%s]}, {name: %s, state: draining}]",
		text, strconv.Quote(m.freeName(old.Name)), network, strings.Join(shown, ", "), strconv.Quote(old.Name))
}

// freeName returns a name that no pool has or had: "pods-3" for "pods-2".
func (m *planner) freeName(name string) string {
	base := name
	if i := strings.LastIndexByte(name, '-'); i > 0 {
		if _, err := strconv.ParseUint(name[i+1:], 10, 32); err == nil {
			base = name[:i]
		}
	}
	base = strings.TrimRight(base[:min(len(base), 50)], "-.")
	for n := 2; ; n++ {
		if name = fmt.Sprintf("%s-%d", base, n); !m.names[name] {
			return name
		}
	}
}

// free returns a range like r, large enough for all nodes, that overlaps nothing: r
// itself, or the next one of the same private network.
func (m *planner) free(r Range) (Range, bool) {
	const tries = 4096
	length := min(r.CIDR.Bits(), r.OneNode-idBits(m.largestID()))
	within, ok := private(r.CIDR, length)
	if !ok {
		return Range{}, false
	}
	here, err := addrspace.NodeOfPrefix(within, length, r.CIDR.Addr())
	if err != nil {
		return Range{}, false
	}
	count := uint64(1) << (length - within.Bits())
	for n := range min(count, tries) {
		cidr, ok := addrspace.Sub(within, length, (uint64(here)+n)%count)
		if ok && !m.taken(cidr) {
			return Range{cidr, r.OneNode}, true
		}
	}
	return Range{}, false
}

// private returns the private network of p if it has room for several prefixes of the
// length; for IPv6 a part of it with room for 256.
func private(p netip.Prefix, length int) (netip.Prefix, bool) {
	for _, s := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fd00::/8"} {
		whole := netip.MustParsePrefix(s)
		if !whole.Contains(p.Addr()) || length <= whole.Bits() {
			continue
		}
		if p.Addr().Is6() {
			whole = netip.PrefixFrom(p.Addr(), max(whole.Bits(), length-8)).Masked()
		}
		return whole, true
	}
	return netip.Prefix{}, false
}

// taken reports whether p overlaps a pool, one that the file adds, or a reserved network.
func (m *planner) taken(p netip.Prefix) bool {
	overlaps := func(r Range) bool { return r.CIDR.Overlaps(p) }
	pool := func(o Pool) bool { return o.State != Removed && slices.ContainsFunc(o.Ranges, overlaps) }
	reserved := func(n Reserved) bool { return n.Net.Overlaps(p) }
	added := func(w Wanted) bool {
		_, old := m.known[w.Name]
		return !old && slices.ContainsFunc(w.Ranges, overlaps)
	}
	return slices.ContainsFunc(m.s.Pools, pool) || slices.ContainsFunc(m.s.Reserved, reserved) ||
		slices.ContainsFunc(m.wanted, added)
}
