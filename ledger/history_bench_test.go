// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
)

// BenchmarkDurable claims and releases with the node's database, 250 leases in it:
// without a history, and with one that is full, so that each entry replaces another one.
func BenchmarkDurable(b *testing.B) {
	for _, kept := range []struct {
		name    string
		history bool
		entries int
	}{{"no history", false, 0}, {"history of 50000", true, 50_000}} {
		b.Run(kept.name, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "cadastre.db")
			f, err := bolt.OpenFile(path, bolt.FileOptions{Notes: []string{path + ".note"}, BootID: "bench"})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			o := ledger.Options{BootID: "bench"}
			if kept.history {
				o.History = ledger.HistoryOptions{Reader: f.Journal(), Entries: kept.entries}
			}
			l, err := ledger.Open(context.Background(), f.Journal(), o)
			if err != nil {
				b.Fatal(err)
			}
			benchBlocks(b, l, simplePool(), subnets(1, 15))
			const atOnce = 50 // as small as the commits of a node
			for range kept.entries / atOnce * 6 / 10 {
				fill(b, l, atOnce, ledger.Request{Pool: "default"})
				drain(b, l, atOnce)
			}
			fill(b, l, 250, ledger.Request{Pool: "default"})
			claimAndRelease(b, l, ledger.Request{Pool: "default"})
			b.StopTimer()
			if info, err := os.Stat(path); err == nil {
				b.ReportMetric(float64(info.Size()), "file-bytes")
			}
		})
	}
}

// drain releases what fill has claimed, in one commit.
func drain(b *testing.B, l *ledger.Ledger, n int) {
	b.Helper()
	st := l.Begin()
	for i := range n {
		if _, err := st.Release(ledger.Selector{Key: longKey(i)}); err != nil {
			b.Fatal(err)
		}
	}
	if err := st.Commit(context.Background()); err != nil {
		b.Fatal(err)
	}
}
