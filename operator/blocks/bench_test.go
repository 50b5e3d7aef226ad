// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

func benchRanges() []Range {
	return []Range{
		{Prefix: pfx("10.0.0.0/8"), Bits: 24},
		{Prefix: pfx("2001:db8::/48"), Bits: 64},
		{Prefix: pfx("2001:db8::/32"), Bits: 64},
	}
}

func benchName(r Range) string {
	return map[string]string{"10.0.0.0/8": "v4_8in24", "2001:db8::/48": "v6_48in64", "2001:db8::/32": "v6_32in64"}[r.Prefix.String()]
}

// most blocks are held in a benchmark; of a /32 in /64 the rest is reserved.
const most = 65536

type held struct {
	owner Owner
	block netip.Prefix
}

// filled returns a Set in which a fraction of 65 536 blocks are held, with the holes at
// random places, and the owners in random order.
func filled(b *testing.B, r Range, frac float64, coolDown time.Duration) (*Set, []held) {
	b.Helper()
	s := New(Policy{CoolDown: coolDown})
	if err := s.AddRange(r); err != nil {
		b.Fatal(err)
	}
	if r.Bits-r.Prefix.Bits() > 16 {
		for n := r.Prefix.Bits(); n < r.Bits-16; n++ { // all but the last 65 536 blocks
			low := netip.PrefixFrom(r.Prefix.Addr(), n+1)
			if n > r.Prefix.Bits() {
				low = upper(r, n)
			}
			s.Reserve(low)
		}
	}
	all := make([]held, most)
	for i := range all {
		all[i].owner = node(i)
		got, err := s.Allocate(all[i].owner, nil, epoch())
		if err != nil {
			b.Fatal(err)
		}
		all[i].block = got[0]
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	rnd.Shuffle(most, func(i, j int) { all[i], all[j] = all[j], all[i] })
	n := min(most-1, int(most*frac+.5))
	for _, h := range all[n:] {
		if err := s.Release(h.owner, epoch().Add(-time.Hour)); err != nil {
			b.Fatal(err)
		}
	}
	return s, all
}

// upper returns the lower half of what is left of r after n bits of ones.
func upper(r Range, n int) netip.Prefix {
	p := r.Prefix
	p, _ = addrspace.Sub(p, n, 1<<(n-p.Bits())-1)
	low, _ := addrspace.Sub(p, n+1, 0)
	return low
}

func levels() []struct {
	name string
	frac float64
} {
	return []struct {
		name string
		frac float64
	}{{"empty", 0}, {"half", .5}, {"99", .99}, {"last", 1}}
}

// BenchmarkChurn measures a new node that gets a block, and a random older one that goes.
func BenchmarkChurn(b *testing.B) {
	for _, r := range benchRanges() {
		for _, l := range levels() {
			b.Run(benchName(r)+"/"+l.name, func(b *testing.B) { churn(b, r, l.frac, 0) })
		}
		b.Run(benchName(r)+"/cooling", func(b *testing.B) { churn(b, r, .5, time.Minute) })
	}
}

func churn(b *testing.B, r Range, frac float64, coolDown time.Duration) {
	s, all := filled(b, r, frac, coolDown)
	live := min(most-1, int(most*frac+.5))
	spare := all[live:]
	rnd := rand.New(rand.NewPCG(3, 4))
	now := epoch()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		h := &spare[i%len(spare)]
		now = now.Add(5 * time.Millisecond)
		if _, err := s.Allocate(h.owner, nil, now); err != nil {
			b.Fatal(err)
		}
		if live > 0 {
			j := rnd.IntN(live)
			*h, all[j] = all[j], *h
		}
		if err := s.Release(h.owner, now); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNamed measures a free block that a node occupies and releases.
func BenchmarkNamed(b *testing.B) {
	for _, r := range benchRanges() {
		for _, l := range levels() {
			b.Run(benchName(r)+"/"+l.name, func(b *testing.B) {
				s, all := filled(b, r, l.frac, 0)
				spare := all[min(most-1, int(most*l.frac+.5)):]
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					h := &spare[i%len(spare)]
					if err := s.Occupy(h.owner, h.block, epoch()); err != nil {
						b.Fatal(err)
					}
					if err := s.Release(h.owner, epoch()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkFull measures an allocation that finds nothing free.
func BenchmarkFull(b *testing.B) {
	s, all := filled(b, benchRanges()[0], 1, 0)
	if _, err := s.Allocate(all[most-1].owner, nil, epoch()); err != nil {
		b.Fatal(err)
	}
	late := node(most)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Allocate(late, nil, epoch()); err == nil {
			b.Fatal("not full")
		}
	}
}
