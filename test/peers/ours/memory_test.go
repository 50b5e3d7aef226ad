// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"context"
	"testing"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/test/peers/workload"
)

// BenchmarkLedgerMemory is the heap of a lease with all names of its key and
// its pod: claimed one by one, and as a restart reads it from the disk.
func BenchmarkLedgerMemory(b *testing.B) {
	const n = 50_000
	b.Run("claimed", func(b *testing.B) {
		workload.HeapOf(b, n, func() any {
			l, number, ctx := openLedger(b, ledger.NullJournal{}, wide, 0), counter(), context.Background()
			for range n {
				key, pod := attachment(number())
				if _, _, err := l.Claim(ctx, ledger.Request{Pool: poolName, Key: key, Pod: pod}); err != nil {
					b.Fatal(err)
				}
			}
			return l
		})
	})
	b.Run("loaded", func(b *testing.B) {
		dir, run := tempDir(b), runDir(b)
		f := openFile(b, dir, run)
		lease(b, openLedger(b, f.Journal(), wide, 0), n)
		workload.HeapOf(b, n, func() any {
			l, err := ledger.Open(context.Background(), f.Journal(), ledger.Options{BootID: "bench"})
			if err != nil {
				b.Fatal(err)
			}
			return l
		})
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	})
}

// BenchmarkStart is what a restart waits for before it can serve: the file is
// opened and the ledger loaded.
func BenchmarkStart(b *testing.B) {
	others(b, func(b *testing.B, n int) {
		dir, run := tempDir(b), runDir(b)
		f := openFile(b, dir, run)
		lease(b, openLedger(b, f.Journal(), wide, 0), n)
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for b.Loop() {
			f := openFile(b, dir, run)
			if _, err := ledger.Open(context.Background(), f.Journal(), ledger.Options{BootID: "bench"}); err != nil {
				b.Fatal(err)
			}
			if err := f.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
