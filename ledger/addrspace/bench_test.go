// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
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
			b.Run(c.name+"/"+f.name, func(b *testing.B) {
				s := limited(b, pfx(c.base), c.most)
				if c.bits == s.base.Addr().BitLen() {
					churn(b, c.most, f.frac, func() (netip.Addr, bool) { return s.TakeNextAddr(netip.Addr{}) }, s.ReleaseAddr)
				} else {
					churn(b, c.most, f.frac, func() (brief, bool) { return takeNext(s, c.bits) },
						func(x brief) bool { return s.Release(netip.PrefixFrom(netip.AddrFrom4(x), c.bits)) })
				}
			})
		}
	}
}

// BenchmarkSparse is one random address of an IPv6 subnet taken and given back,
// with so many others at random places taken.
func BenchmarkSparse(b *testing.B) {
	for _, c := range []struct {
		name string
		live int
	}{{"0", 0}, {"1000", 1000}} {
		b.Run(c.name, func(b *testing.B) {
			s, r := New(pfx("fd00::/64")), newRNG()
			for range c.live {
				a, _ := Nth(s.base, uint64(r.next(1<<31))<<33)
				s.TakeAddr(a)
			}
			b.ReportAllocs()
			for b.Loop() {
				a, _ := Nth(s.base, uint64(r.next(1<<31))<<33|1)
				if !s.TakeAddr(a) || !s.ReleaseAddr(a) {
					b.Fatal(a)
				}
			}
		})
	}
}

// brief is an IPv4 prefix of a known length. A table of 2^19 prefixes takes 16
// MB, and most of the time measured would be spent on its cache misses.
type brief [4]byte

func takeNext(s *Space, bits int) (brief, bool) {
	p, ok := s.TakeNext(netip.Addr{}, bits)
	if !ok {
		return brief{}, false
	}
	return p.Addr().As4(), true
}

// limited returns a Space of base with no more than 2^16 addresses left of a /64.
func limited(b *testing.B, base netip.Prefix, most int) *Space {
	s := New(base)
	if base.Bits() == 64 {
		first, _ := Nth(base, uint64(most))
		last, _ := NthLast(base, 0)
		if !s.TakeRange(first, last) {
			b.Fatal("range")
		}
	}
	return s
}

// churn returns the loop that other allocators were measured with, see rng.
func churn[T any](b *testing.B, most int, frac float64, next func() (T, bool), free func(T) bool) {
	live := make([]T, 0, most)
	for range most {
		x, ok := next()
		if !ok {
			b.Fatal("full")
		}
		live = append(live, x)
	}
	r := newRNG()
	for i := len(live) - 1; i > 0; i-- {
		j := r.next(i + 1)
		live[i], live[j] = live[j], live[i]
	}
	want := min(most-1, int(float64(most)*frac+.5))
	for _, x := range live[want:] {
		free(x)
	}
	live = live[:want]
	r = newRNG()
	b.ReportAllocs()
	for b.Loop() {
		x, ok := next()
		if !ok {
			b.Fatal("full")
		}
		if n := len(live); n > 0 {
			j := r.next(n)
			x, live[j] = live[j], x
		}
		if !free(x) {
			b.Fatal("not taken")
		}
	}
}

// rng is a cheap source of indices (xorshift), always the same.
type rng uint64

func newRNG() *rng { r := rng(0x9E3779B97F4A7C15); return &r }

func (r *rng) next(n int) int {
	x := uint64(*r)
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	*r = rng(x)
	return int((x >> 33) * uint64(n) >> 31)
}
