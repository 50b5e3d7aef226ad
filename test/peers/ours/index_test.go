// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/test/peers/workload"
)

var errFull, errState = errors.New("full"), errors.New("not in the state expected")

func state(ok bool) error {
	if ok {
		return nil
	}
	return errState
}

// window is a prefix whose usable addresses are a few windows of it; the rest
// is taken as ranges before the clock starts, since a /64 cannot be filled.
type window struct {
	name, prefix string
	count, size  uint64 // of the windows; 0: all of the prefix is usable
}

func windows() []window {
	return []window{
		{name: "24", prefix: "10.1.5.0/24"},
		{name: "16", prefix: "10.1.0.0/16"},
		{name: "64", prefix: "fd00:1::/64", count: 1, size: 1 << 16},
		{name: "64spread", prefix: "fd00:1::/64", count: 256, size: 256},
	}
}

// space returns the index and the number of usable addresses.
func (w window) space(tb testing.TB) (*addrspace.Space, int) {
	base := netip.MustParsePrefix(w.prefix)
	s := addrspace.New(base)
	if w.count == 0 {
		return s, int(addrspace.Size(base))
	}
	at := base.Addr().As16()
	take := func(first, last netip.Addr) {
		if !s.TakeRange(first, last) {
			tb.Fatalf("%s to %s cannot be taken out of %s", first, last, base)
		}
	}
	next := base.Addr() // not decided yet
	for i := range w.count {
		at[8], at[9] = byte(i), 0x80 // each window is in the middle of its share
		first := netip.AddrFrom16(at)
		last, ok := addrspace.Nth(netip.PrefixFrom(first, 80), w.size-1)
		if !ok {
			tb.Fatalf("a window of %s has no room", base)
		}
		take(next, first.Prev())
		next = last.Next()
	}
	last, _ := addrspace.NthLast(base, 0)
	take(next, last)
	return s, int(w.count * w.size)
}

// addresses allocates the lowest free address of an index, or the next one after the
// last, as a pod pool does.
func addresses(tb testing.TB, w window, lowest bool) workload.Pool[netip.Addr] {
	s, n := w.space(tb)
	var from netip.Addr
	return workload.Pool[netip.Addr]{
		Cap: n,
		Next: func() (netip.Addr, error) {
			a, ok := s.TakeNextAddr(from)
			if !ok {
				return a, errFull
			}
			if !lowest {
				from = a.Next()
			}
			return a, nil
		},
		Free: func(a netip.Addr) error { return state(s.ReleaseAddr(a)) },
		Take: func(a netip.Addr) error { return state(s.TakeAddr(a)) },
	}
}

// locked guards a pool with a mutex: the limits beside the index have one too.
func locked[T any](p workload.Pool[T]) workload.Pool[T] {
	var mu sync.Mutex
	return workload.Pool[T]{
		Cap: p.Cap,
		Next: func() (T, error) {
			mu.Lock()
			defer mu.Unlock()
			return p.Next()
		},
		Free: func(x T) error {
			mu.Lock()
			defer mu.Unlock()
			return p.Free(x)
		},
		Take: func(x T) error {
			mu.Lock()
			defer mu.Unlock()
			return p.Take(x)
		},
	}
}

func BenchmarkIndex(b *testing.B) {
	for _, w := range windows() {
		b.Run("lowest/"+w.name, func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[netip.Addr] { return locked(addresses(b, w, true)) })
		})
		b.Run("next/"+w.name, func(b *testing.B) {
			workload.Levels(b, func() workload.Pool[netip.Addr] { return locked(addresses(b, w, false)) })
		})
	}
}

// BenchmarkUnlocked is the index without a mutex, beside the limit without one.
func BenchmarkUnlocked(b *testing.B) {
	for _, w := range windows()[:2] {
		b.Run(w.name, func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[netip.Addr] { return addresses(b, w, true) })
		})
	}
}

// prefixes allocates prefixes of one length from an index: node CIDRs.
func prefixes(cluster string, bits int, lowest bool) workload.Pool[netip.Prefix] {
	base := netip.MustParsePrefix(cluster)
	s := addrspace.New(base)
	var from netip.Addr
	return workload.Pool[netip.Prefix]{
		Cap: 1 << (bits - base.Bits()),
		Next: func() (netip.Prefix, error) {
			p, ok := s.TakeNext(from, bits)
			if !ok {
				return p, errFull
			}
			if !lowest {
				last, _ := addrspace.NthLast(p, 0)
				from = last.Next()
			}
			return p, nil
		},
		Free: func(p netip.Prefix) error { return state(s.Release(p)) },
		Take: func(p netip.Prefix) error { return state(s.Take(p)) },
	}
}

func BenchmarkPrefix(b *testing.B) {
	for _, bits := range []int{24, 27} {
		b.Run(fmt.Sprintf("lowest/8in%d", bits), func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[netip.Prefix] { return locked(prefixes("10.0.0.0/8", bits, true)) })
		})
		b.Run(fmt.Sprintf("next/8in%d", bits), func(b *testing.B) {
			workload.Levels(b, func() workload.Pool[netip.Prefix] { return locked(prefixes("10.0.0.0/8", bits, false)) })
		})
	}
}

func BenchmarkIndexMemory(b *testing.B) {
	w := window{prefix: "10.16.0.0/12"}
	b.Run("12", func(b *testing.B) {
		workload.Memory(b, func() workload.Pool[netip.Addr] { return addresses(b, w, true) }, 1_000_000)
	})
}
