// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"
)

func TestNodePrefix(t *testing.T) {
	for _, c := range []struct {
		base string
		bits int
		id   uint32
		want string // or a part of the error
	}{
		{"10.1.0.0/16", 24, 5, "10.1.5.0/24"},
		{"10.1.0.0/16", 24, 255, "10.1.255.0/24"},
		{"10.1.0.0/16", 24, 256, "10.1.0.0/24"},
		{"10.1.0.0/16", 24, 257, "nodeID 257 is out of the valid range 1-256"},
		{"10.1.0.0/16", 24, 0, "nodeID 0 is out of the valid range"},
		{"10.1.0.0/16", 16, 1, "must be higher than"},
		{"10.1.0.0/16", 33, 1, "at most 32"},
		{"2001::/48", 60, 1, "2001:0:0:10::/60"},
		{"fd00::/16", 64, 4294967295, "fd00:0:ffff:ffff::/64"},
	} {
		g := NewWithT(t)
		p, err := NodePrefix(pfx(c.base), c.bits, c.id)
		if err != nil {
			g.Expect(err).To(MatchError(ContainSubstring(c.want)), "%+v", c)
			continue
		}
		g.Expect(p.String()).To(Equal(c.want), "%+v", c)
		g.Expect(NodeOfPrefix(pfx(c.base), c.bits, p.Addr())).To(Equal(c.id), "%+v", c)
	}
}

func TestNodeAddr(t *testing.T) {
	none := netip.Addr{}
	for _, c := range []struct {
		base string
		id   uint32
		gw   netip.Addr
		want string
	}{
		{"192.168.16.0/24", 5, none, "192.168.16.5"},
		{"3.4.5.192/26", 1, ip("3.4.5.194"), "3.4.5.193"},
		{"3.4.5.192/26", 2, ip("3.4.5.194"), "3.4.5.195"},
		{"3.4.5.192/26", 61, ip("3.4.5.194"), "3.4.5.254"},
		{"3.4.5.192/26", 62, ip("3.4.5.194"), "no free address for nodeID 62"},
		{"3.4.5.192/26", 62, none, "3.4.5.254"},
		{"3.4.5.192/26", 63, none, "no free address for nodeID 63"},
		{"3.4.5.192/26", 64, none, "no free address for nodeID 64"},
		{"3.4.5.192/26", 65, none, "nodeID 65 is out of the valid range 1-64"},
		{"3.4.5.192/26", 3, ip("1.1.1.1"), "3.4.5.195"}, // a gateway of another network moves no address
		{"3.4.5.0/32", 1, none, "no free address"},
		{"3.4.5.0/31", 1, none, "no free address"},
		{"fe20:f00d::/120", 5, none, "fe20:f00d::5"},
		{"fe20:f00d::/120", 255, none, "fe20:f00d::ff"},
	} {
		g := NewWithT(t)
		a, err := NodeAddr(pfx(c.base), c.id, c.gw)
		if err != nil {
			g.Expect(err).To(MatchError(ContainSubstring(c.want)), "%+v", c)
			continue
		}
		g.Expect(a.String()).To(Equal(c.want), "%+v", c)
		g.Expect(NodeOfAddr(pfx(c.base), a, c.gw)).To(Equal(c.id), "%+v", c)
	}
}

func drawBase(t *rapid.T) netip.Prefix {
	if rapid.Bool().Draw(t, "ipv6") {
		var b [16]byte
		copy(b[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "addr"))
		return netip.PrefixFrom(netip.AddrFrom16(b), rapid.IntRange(0, 128).Draw(t, "bits")).Masked()
	}
	var b [4]byte
	copy(b[:], rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "addr"))
	return netip.PrefixFrom(netip.AddrFrom4(b), rapid.IntRange(0, 32).Draw(t, "bits")).Masked()
}

// Injective, in range, invertible, and refused exactly above the maximum.
func TestNodePrefixProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := drawBase(t)
		bits := rapid.IntRange(-1, 129).Draw(t, "one node")
		most := MaxNodePrefix(base, bits)
		id, other := rapid.Uint32().Draw(t, "id"), rapid.Uint32().Draw(t, "other")
		if most > 0 && rapid.Bool().Draw(t, "near the end") {
			id, other = most-id%3, most
		}
		p, err := NodePrefix(base, bits, id)
		if (err == nil) != (id >= 1 && id <= most) {
			t.Fatalf("id %d of %d in %s cut in /%d: %v", id, most, base, bits, err)
		}
		if err != nil {
			return
		}
		if p.Bits() != bits || !base.Contains(p.Addr()) || p != p.Masked() {
			t.Fatalf("%s is not a /%d of %s", p, bits, base)
		}
		if q, err := NodePrefix(base, bits, other); err == nil && other != id && p.Overlaps(q) {
			t.Fatalf("nodes %d and %d overlap: %s %s", id, other, p, q)
		}
		last, _ := NthLast(p, 0)
		for _, a := range []netip.Addr{p.Addr(), last} {
			if back, err := NodeOfPrefix(base, bits, a); err != nil || back != id {
				t.Fatalf("%s is of node %d, not %d (%v)", a, id, back, err)
			}
		}
	})
}

func TestNodeAddrProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := drawBase(t)
		gw := netip.Addr{}
		if rapid.Bool().Draw(t, "gateway") {
			gw, _ = Nth(base, rapid.Uint64().Draw(t, "gw")&(Size(base)-1))
		}
		most := MaxNodeAddr(base, gw)
		id, other := rapid.Uint32().Draw(t, "id"), rapid.Uint32().Draw(t, "other")
		if rapid.Bool().Draw(t, "near the end") {
			id, other = most+1-id%4, most
		}
		a, err := NodeAddr(base, id, gw)
		if (err == nil) != (id >= 1 && id <= most) {
			t.Fatalf("id %d of %d in %s gateway %s: %v", id, most, base, gw, err)
		}
		if err != nil {
			return
		}
		last, _ := NthLast(base, 0)
		if !base.Contains(a) || a == base.Addr() || a == gw || base.Addr().Is4() && a == last {
			t.Fatalf("node %d has %s in %s with gateway %s", id, a, base, gw)
		}
		if b, err := NodeAddr(base, other, gw); err == nil && other != id && a == b {
			t.Fatalf("nodes %d and %d both have %s", id, other, a)
		}
		if back, err := NodeOfAddr(base, a, gw); err != nil || back != id {
			t.Fatalf("%s is of node %d, not %d (%v)", a, id, back, err)
		}
	})
}

func TestNthAndSub(t *testing.T) {
	g := NewWithT(t)
	show := func(v fmt.Stringer, ok bool) string { return fmt.Sprint(v, ok) }
	a, ok := Nth(pfx("10.1.5.0/24"), 255)
	g.Expect(show(a, ok)).To(Equal("10.1.5.255 true"))
	a, ok = Nth(pfx("10.1.5.0/24"), 256)
	g.Expect(show(a, ok)).To(Equal("invalid IP false"))
	a, ok = NthLast(pfx("10.1.5.0/24"), 1)
	g.Expect(show(a, ok)).To(Equal("10.1.5.254 true"))
	a, ok = NthLast(pfx("10.1.5.0/30"), 4)
	g.Expect(show(a, ok)).To(Equal("invalid IP false"))
	p, ok := Sub(pfx("10.128.0.0/14"), 23, 256)
	g.Expect(show(p, ok)).To(Equal("10.130.0.0/23 true"))
	_, ok = Sub(pfx("10.128.0.0/14"), 16, 4)
	g.Expect(ok).To(BeFalse())
	g.Expect(Size(pfx("::/0"))).To(Equal(^uint64(0)))
	g.Expect(Size(pfx("10.0.0.0/8"))).To(BeNumerically("==", 1<<24))
}

func ExampleNodePrefix() {
	p, _ := NodePrefix(netip.MustParsePrefix("10.1.0.0/16"), 24, 5)
	a, _ := NodeAddr(netip.MustParsePrefix("192.168.16.0/24"), 5, netip.Addr{})
	fmt.Println(p, a)
	// Output: 10.1.5.0/24 192.168.16.5
}

func ExampleSpace() {
	s := New(netip.MustParsePrefix("10.1.5.0/24"))
	s.TakeRange(netip.MustParseAddr("10.1.5.0"), netip.MustParseAddr("10.1.5.9"))
	a, _ := s.TakeNextAddr(netip.Addr{})
	p, _ := s.TakeNext(netip.Addr{}, 28)
	fmt.Println(a, p, s.Free())
	// Output: 10.1.5.10 10.1.5.16/28 229
}
