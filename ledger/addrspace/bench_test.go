// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// BenchmarkChurn is one address (or prefix) taken and a random older one given
// back, with the space held at a fullness and its holes at random places.
func BenchmarkChurn(b *testing.B) {
	for _, c := range []struct {
		name, base string
		bits, most int
	}{
		{"24", "10.1.5.0/24", 32, 256},
		{"16", "10.1.0.0/16", 32, 65536},
		{"64", "fd00::/64", 128, 65536},
		{"8in27", "10.0.0.0/8", 27, 1 << 19},
		{"8in24", "10.0.0.0/8", 24, 65536},
	} {
		for _, f := range []struct {
			name string
			frac float64
		}{{"0", 0}, {"50", .5}, {"99", .99}, {"last", 1 - 1e-9}} {
			b.Run(c.name+"/"+f.name, func(b *testing.B) { churn(b, pfx(c.base), c.bits, c.most, f.frac) })
		}
	}
}

func churn(b *testing.B, base netip.Prefix, bits, most int, frac float64) {
	s := New(base)
	if base.Bits() == 64 { // leave 2^16 of the addresses
		first, _ := Nth(base, uint64(most))
		last, _ := NthLast(base, 0)
		if !s.TakeRange(first, last) {
			b.Fatal("range")
		}
	}
	next := func(from netip.Addr) netip.Prefix {
		if bits == base.Addr().BitLen() {
			a, ok := s.TakeNextAddr(from)
			if !ok {
				b.Fatal("full")
			}
			return netip.PrefixFrom(a, bits)
		}
		p, ok := s.TakeNext(from, bits)
		if !ok {
			b.Fatal("full")
		}
		return p
	}
	free := func(p netip.Prefix) bool {
		if p.IsSingleIP() {
			return s.ReleaseAddr(p.Addr())
		}
		return s.Release(p)
	}
	live := make([]netip.Prefix, most)
	for i := range live {
		live[i] = next(netip.Addr{})
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	rnd.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
	want := min(most-1, int(float64(most)*frac+.5))
	for _, p := range live[want:] {
		free(p)
	}
	live = live[:want]
	r := uint32(1)
	var at netip.Addr
	b.ReportAllocs()
	for b.Loop() {
		p := next(at)
		if len(live) > 0 {
			r = r*1664525 + 1013904223
			j := uint64(r) * uint64(len(live)) >> 32
			p, live[j] = live[j], p
		}
		free(p)
	}
	_ = at
}
