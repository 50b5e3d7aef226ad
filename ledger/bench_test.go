// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// sizes are numbers of blocks, exclusions or pools that a claim must not depend on.
func sizes(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range []int{1, 256, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { f(b, n) })
	}
}

// subnets returns n consecutive prefixes of 10.0.0.0/8.
func subnets(n, bits int) []netip.Prefix {
	var all []netip.Prefix
	for i := range n {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 10<<24|uint32(i)<<(32-bits))
		all = append(all, netip.PrefixFrom(netip.AddrFrom4(a), bits))
	}
	return all
}

func benchLedger(b *testing.B, pool ledger.Pool, blocks []netip.Prefix) *ledger.Ledger {
	b.Helper()
	l, err := ledger.Open(context.Background(), ledger.NullJournal{}, ledger.Options{BootID: "bench"})
	if err != nil {
		b.Fatal(err)
	}
	benchBlocks(b, l, pool, blocks)
	return l
}

func benchBlocks(b *testing.B, l *ledger.Ledger, pool ledger.Pool, blocks []netip.Prefix) {
	b.Helper()
	st := l.Begin()
	if err := st.SetPool(pool); err != nil {
		b.Fatal(err)
	}
	if err := st.SetBlocks(pool.Name, blocks); err != nil {
		b.Fatal(err)
	}
	if err := st.Commit(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// longKey returns a key as long as those of a container runtime.
func longKey(i int) ledger.Key {
	return ledger.Key{Network: "cadastre", ContainerID: fmt.Sprintf("%064x", i), IfName: "eth0"}
}

func longPod(i int) ledger.Pod {
	return ledger.Pod{
		Namespace: "default",
		Name:      fmt.Sprintf("frontend-6c8b449b8f-%016x", i),
		UID:       fmt.Sprintf("8a1c2d3e-4f50-4617-8293-%012x", i),
	}
}

// claimAndRelease measures a claim and its release, with 64 keys in turn.
func claimAndRelease(b *testing.B, l *ledger.Ledger, req ledger.Request) {
	b.Helper()
	ctx := context.Background()
	var keys [64]ledger.Key
	var pods [64]ledger.Pod
	for i := range keys {
		keys[i], pods[i] = longKey(1<<40+i), longPod(1<<40+i)
	}
	b.ReportAllocs()
	defer reportProcessor(b)()
	i := 0
	for b.Loop() {
		i = (i + 1) % len(keys)
		req.Key, req.Pod = keys[i], pods[i]
		if _, _, err := l.Claim(ctx, req); err != nil {
			b.Fatal(err)
		}
		if _, err := l.Release(ctx, ledger.Selector{Key: req.Key}); err != nil {
			b.Fatal(err)
		}
	}
}

// reportProcessor reports the processor time, which other programs disturb less.
func reportProcessor(b *testing.B) func() {
	used := func() int64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	began := used()
	return func() { b.ReportMetric(float64(used()-began)/float64(b.N), "cpu-ns/op") }
}

// fill claims n addresses in one commit.
func fill(b *testing.B, l *ledger.Ledger, n int, req ledger.Request) {
	b.Helper()
	st := l.Begin()
	for i := range n {
		req.Key, req.Pod = longKey(i), longPod(i)
		if _, _, err := st.Claim(req); err != nil {
			b.Fatal(err)
		}
	}
	if err := st.Commit(context.Background()); err != nil {
		b.Fatal(err)
	}
}

func simplePool() ledger.Pool { return ledger.Pool{Name: "default", ReserveEdges: true} }

func BenchmarkClaimRelease(b *testing.B) {
	claimAndRelease(b, benchLedger(b, simplePool(), subnets(1, 16)), ledger.Request{Pool: "default"})
}

// BenchmarkBlocks claims from the same number of addresses and leases in one block
// and in many, with seven free addresses at the end.
func BenchmarkBlocks(b *testing.B) {
	const total = 1 << 17
	for _, order := range []ledger.Order{ledger.Next, ledger.Lowest} {
		for _, bits := range []int{15, 23, 25, 28} {
			n := 1 << (bits - 15)
			b.Run(fmt.Sprint(order, "/", n), func(b *testing.B) {
				l := benchLedger(b, ledger.Pool{Name: "default", Order: order}, subnets(n, bits))
				fill(b, l, total-7, ledger.Request{Pool: "default"})
				claimAndRelease(b, l, ledger.Request{Pool: "default"})
			})
		}
	}
}

// BenchmarkWithin claims from one of many blocks, which has addresses that cool.
func BenchmarkWithin(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		pool := simplePool()
		pool.CoolDown = time.Hour
		blocks := subnets(n, 28)
		l := benchLedger(b, pool, blocks)
		fill(b, l, 14*n, ledger.Request{Pool: "default"})
		for i := range 14 * n {
			if _, err := l.Release(context.Background(), ledger.Selector{Key: longKey(i)}); err != nil {
				b.Fatal(err)
			}
		}
		claimAndRelease(b, l, ledger.Request{Pool: "default", Within: blocks[n-1:]})
	})
}

func BenchmarkExclusions(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		l := benchLedger(b, simplePool(), subnets(1, 16))
		st := l.Begin()
		for _, p := range subnets(n, 32) {
			if err := st.Exclude(ledger.Exclusion{Pool: "default", Addr: p.Addr(), Owner: "bench"}); err != nil {
				b.Fatal(err)
			}
		}
		if err := st.Commit(context.Background()); err != nil {
			b.Fatal(err)
		}
		claimAndRelease(b, l, ledger.Request{Pool: "default"})
	})
}

// BenchmarkPolicyExclusions returns the same with prefixes that the pool's policy excludes.
func BenchmarkPolicyExclusions(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		pool := simplePool()
		pool.Exclude = subnets(n, 30)
		l := benchLedger(b, pool, subnets(1, 12))
		claimAndRelease(b, l, ledger.Request{Pool: "default"})
	})
}

// BenchmarkPools claims from one of many pools, one of which has a lease that expires.
func BenchmarkPools(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		l := manyPools(b, n)
		fill(b, l, 1, ledger.Request{Pool: "default", Expiry: ledger.Expiry{Token: "t", After: time.Hour}})
		claimAndRelease(b, l, ledger.Request{Pool: "default"})
	})
}

func manyPools(b *testing.B, n int) *ledger.Ledger {
	b.Helper()
	l := benchLedger(b, simplePool(), subnets(1, 16))
	st := l.Begin()
	for i, p := range subnets(n, 24)[1:] {
		pool := ledger.Pool{Name: fmt.Sprint("pool-", i)}
		if err := st.SetPool(pool); err != nil {
			b.Fatal(err)
		}
		if err := st.SetBlocks(pool.Name, []netip.Prefix{p}); err != nil {
			b.Fatal(err)
		}
	}
	if err := st.Commit(context.Background()); err != nil {
		b.Fatal(err)
	}
	return l
}

func BenchmarkSetBlocks(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		blocks := subnets(n, 28)
		b.Run("new", func(b *testing.B) {
			for b.Loop() {
				benchLedger(b, simplePool(), blocks)
			}
		})
		b.Run("unchanged", func(b *testing.B) {
			l := benchLedger(b, simplePool(), blocks)
			for b.Loop() {
				benchBlocks(b, l, simplePool(), blocks)
			}
		})
		b.Run("undone", func(b *testing.B) {
			l := benchLedger(b, simplePool(), nil)
			for b.Loop() {
				st := l.Begin()
				if err := st.SetBlocks("default", blocks); err != nil {
					b.Fatal(err)
				}
				st.Undo()
			}
		})
		b.Run("drained", func(b *testing.B) {
			l := benchLedger(b, simplePool(), blocks)
			for b.Loop() {
				benchBlocks(b, l, simplePool(), nil)
				benchBlocks(b, l, simplePool(), blocks)
			}
		})
	})
}

// BenchmarkPodOfManyLeases releases the leases of one pod, the oldest first.
func BenchmarkPodOfManyLeases(b *testing.B) {
	for _, n := range []int{1, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ctx, l := context.Background(), benchLedger(b, simplePool(), subnets(1, 12))
			for b.Loop() {
				for i := range n {
					if _, _, err := l.Claim(ctx, ledger.Request{Pool: "default", Key: key(i), Pod: pod(1)}); err != nil {
						b.Fatal(err)
					}
				}
				for i := range n {
					if _, err := l.Release(ctx, ledger.Selector{Key: key(i)}); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/lease")
		})
	}
}

// BenchmarkStats reports what a claim waits for at most, besides the time of all counts.
func BenchmarkStats(b *testing.B) {
	sizes(b, func(b *testing.B, n int) {
		l := manyPools(b, n)
		for b.Loop() {
			l.Stats()
		}
	})
}

func BenchmarkLeases(b *testing.B) {
	l := benchLedger(b, simplePool(), subnets(1, 12))
	fill(b, l, 100_000, ledger.Request{Pool: "default"})
	defer reportProcessor(b)()
	for b.Loop() {
		l.Leases()
	}
}
