// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package workload is what every allocator, ours or a peer's, is driven with,
// so that one run compares like with like.
//
// A Pool adapts one allocator. Its handle type T is whatever the allocator
// itself takes and returns (net.IP, netip.Prefix, an integer, ...), so that
// nobody pays for a conversion that its own callers would not pay for.
//
// The module has no dependencies, so that any peer's module can require it.
//
// Example: the whole Suite of an allocator over a /16.
//
//	workload.Suite(b, func() workload.Pool[netip.Addr] {
//		a := alloc.New(netip.MustParsePrefix("10.1.0.0/16"))
//		return workload.Pool[netip.Addr]{Cap: 65534, Next: a.Next, Free: a.Free}
//	})
package workload

import "testing"

// Pool is one allocator over one range.
type Pool[T any] struct {
	Cap  int               // items that can be allocated, exactly
	Next func() (T, error) // allocates any free item
	Free func(T) error     // gives one item back
	Take func(T) error     // allocates this item; nil where that is not offered
}

// rng is a xorshift generator: the same numbers in each run, at a cost of a
// nanosecond, which math/rand's are not.
type rng uint64

func newRNG() *rng { r := rng(0x9E3779B97F4A7C15); return &r }

func (r *rng) below(n int) int {
	x := uint64(*r)
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	*r = rng(x)
	return int((x >> 33) * uint64(n) >> 31)
}

func shuffle[T any](s []T) {
	r := newRNG()
	for i := len(s) - 1; i > 0; i-- {
		j := r.below(i + 1)
		s[i], s[j] = s[j], s[i]
	}
}

// part is how many of n items a fullness means: at 1 all, below that at most
// all but one.
func part(n int, fullness float64) int {
	if fullness >= 1 {
		return n
	}
	return min(n-1, int(float64(n)*fullness+.5))
}

// hold brings p to a fullness with its holes at random (but always the same)
// places, whatever the order in which the allocator hands items out: it fills
// p and gives some back. It returns what is allocated, in random order, and
// what was given back.
func hold[T any](tb testing.TB, p Pool[T], fullness float64) (live, holes []T) {
	tb.Helper()
	want := part(p.Cap, fullness)
	if want == 0 {
		return nil, nil
	}
	live = make([]T, 0, p.Cap)
	for i := range p.Cap {
		x, err := p.Next()
		if err != nil {
			tb.Fatalf("full after %d of %d items: %v", i, p.Cap, err)
		}
		live = append(live, x)
	}
	if _, err := p.Next(); err == nil {
		tb.Fatalf("gives more than the %d items stated", p.Cap)
	}
	shuffle(live)
	live, holes = live[:want], append(holes, live[want:]...)
	for _, x := range holes {
		if err := p.Free(x); err != nil {
			tb.Fatal(err)
		}
	}
	return live, holes
}
