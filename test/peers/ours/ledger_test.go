// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/test/peers/workload"
)

const poolName = "default"

const (
	containerLen = 64
	podLen       = len("frontend-6c8b449b8f-") + 16
	uidLen       = len("8a1c2d3e-4f50-4617-8293-") + 16
)

// attachment is the i-th attachment of a pod: no two are alike, and each has
// its own memory, as those that a container runtime asks for. All names of one
// are a single allocation; BenchmarkNames is its price.
func attachment(i uint64) (ledger.Key, ledger.Pod) {
	var hex [16]byte
	for d, x := 15, i*0x9E3779B97F4A7C15; d >= 0; d, x = d-1, x>>4 {
		hex[d] = "0123456789abcdef"[x&15]
	}
	var buf [containerLen + podLen + uidLen]byte
	b := append(buf[:0], hex[:]...)
	b = append(b, "5d0c6f1be6a94c51a1f5ec3b7c8d2e409b8a7f6e5d4c3b2a"...)
	b = append(append(b, "frontend-6c8b449b8f-"...), hex[:]...)
	b = append(append(b, "8a1c2d3e-4f50-4617-8293-"...), hex[:]...)
	s := string(b)
	return ledger.Key{Network: "cadastre", ContainerID: s[:containerLen], IfName: "eth0"},
		ledger.Pod{Namespace: "default", Name: s[containerLen : containerLen+podLen], UID: s[containerLen+podLen:]}
}

func counter() func() uint64 {
	i := uint64(0)
	return func() uint64 { i++; return i }
}

// sharedCounter is a counter for several goroutines, which costs more.
func sharedCounter() func() uint64 {
	var i atomic.Uint64
	return func() uint64 { return i.Add(1) }
}

func BenchmarkNames(b *testing.B) {
	number := counter()
	b.ReportAllocs()
	for b.Loop() {
		attachment(number())
	}
}

// openLedger opens a ledger with one pool of one block.
func openLedger(tb testing.TB, j ledger.Journal, block string, coolDown time.Duration) *ledger.Ledger {
	tb.Helper()
	ctx := context.Background()
	l, err := ledger.Open(ctx, j, ledger.Options{BootID: "bench"})
	if err != nil {
		tb.Fatal(err)
	}
	st := l.Begin()
	if err := st.SetPool(ledger.Pool{Name: poolName, CoolDown: coolDown, ReserveEdges: true}); err != nil {
		tb.Fatal(err)
	}
	if err := st.SetBlocks(poolName, []netip.Prefix{netip.MustParsePrefix(block)}); err != nil {
		tb.Fatal(err)
	}
	if err := st.Commit(ctx); err != nil {
		tb.Fatal(err)
	}
	return l
}

// claims is a ledger with the null journal: nothing of it is durable, as with the
// peers. number numbers the attachments.
func claims(tb testing.TB, block string, coolDown time.Duration, number func() uint64) workload.Pool[ledger.Key] {
	ctx := context.Background()
	l := openLedger(tb, ledger.NullJournal{}, block, coolDown)
	return workload.Pool[ledger.Key]{
		Cap: 1<<(32-netip.MustParsePrefix(block).Bits()) - 2,
		Next: func() (ledger.Key, error) {
			key, pod := attachment(number())
			_, _, err := l.Claim(ctx, ledger.Request{Pool: poolName, Key: key, Pod: pod})
			return key, err
		},
		Free: func(k ledger.Key) error {
			_, err := l.Release(ctx, ledger.Selector{Key: k})
			return err
		},
	}
}

// named claims and releases certain addresses.
func named(tb testing.TB, block string) workload.Pool[netip.Addr] {
	ctx := context.Background()
	l := openLedger(tb, ledger.NullJournal{}, block, 0)
	number := counter()
	claim := func(wanted []netip.Addr) (netip.Addr, error) {
		key, pod := attachment(number())
		leases, _, err := l.Claim(ctx, ledger.Request{Pool: poolName, Key: key, Pod: pod, Wanted: wanted})
		if err != nil {
			return netip.Addr{}, err
		}
		return leases[0].Addr, nil
	}
	wanted := make([]netip.Addr, 1)
	return workload.Pool[netip.Addr]{
		Cap:  1<<(32-netip.MustParsePrefix(block).Bits()) - 2,
		Next: func() (netip.Addr, error) { return claim(nil) },
		Take: func(a netip.Addr) error {
			wanted[0] = a
			_, err := claim(wanted)
			return err
		},
		Free: func(a netip.Addr) error {
			_, err := l.Release(ctx, ledger.Selector{Addr: a, Pool: poolName, Purpose: ledger.ForPod})
			return err
		},
	}
}

func blocks() []struct{ name, prefix string } {
	return []struct{ name, prefix string }{{"24", "10.1.5.0/24"}, {"16", "10.1.0.0/16"}}
}

func BenchmarkLedger(b *testing.B) {
	for _, c := range blocks() {
		b.Run(c.name, func(b *testing.B) {
			workload.Suite(b, func() workload.Pool[ledger.Key] { return claims(b, c.prefix, 0, counter()) })
			b.Run("specific/50", func(b *testing.B) { workload.Specific(b, named(b, c.prefix), .5) })
		})
	}
}

// BenchmarkLedgerCoolDown is the same with the cool-down of a pod pool: soon
// every free address is cooling, and a claim gets the one that has cooled longest.
func BenchmarkLedgerCoolDown(b *testing.B) {
	for _, c := range blocks() {
		b.Run(c.name, func(b *testing.B) {
			workload.Levels(b, func() workload.Pool[ledger.Key] { return claims(b, c.prefix, time.Minute, counter()) })
		})
	}
}

func BenchmarkLedgerParallel(b *testing.B) {
	b.Run("50", func(b *testing.B) { workload.Parallel(b, claims(b, "10.1.0.0/16", 0, sharedCounter()), .5) })
	b.Run("99", func(b *testing.B) { workload.Parallel(b, claims(b, "10.1.0.0/16", 0, sharedCounter()), .99) })
}
