// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import "net/netip"

// grid numbers the blocks of a range: block n of the finest size in use is
// address n of the range's index. So the index has an address for every block,
// and not one for every address, and 65 536 nodes of a /8 fit into a cache. In
// the index, blocks are addresses of IPv4 as long as their numbers fit.
type grid struct {
	base  netip.Prefix
	first num  // address of base
	unit  int  // prefix length of the finest block
	shift uint // from an address to the number of its block
	wide  bool // more than 2^32 blocks
}

func newGrid(base netip.Prefix, unit int) grid {
	return grid{base: base, first: numOf(base.Addr()), unit: unit,
		shift: uint(base.Addr().BitLen() - unit), wide: unit-base.Bits() > 32}
}

// width is the length of the addresses of the index.
func (g *grid) width() int {
	if g.wide {
		return 128
	}
	return 32
}

// all is the whole range, in the index.
func (g *grid) all() netip.Prefix { return g.in(g.base) }

// in is p, a part of the range and not finer than the unit, in the index.
func (g *grid) in(p netip.Prefix) netip.Prefix {
	n := numOf(p.Addr()).sub(g.first).shr(g.shift)
	return netip.PrefixFrom(n.addr(g.wide), g.width()-(g.unit-p.Bits()))
}

// out is the reverse of in.
func (g *grid) out(v netip.Prefix) netip.Prefix {
	n := numOf(v.Addr()).shl(g.shift).add(g.first)
	return netip.PrefixFrom(n.addr(g.base.Addr().Is6()), g.unit-(g.width()-v.Bits()))
}
