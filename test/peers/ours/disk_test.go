// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
)

// Everything durable is on the disk of DIR, or of the temporary directory
// where that is not set.
func tempDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp(os.Getenv("DIR"), "cadastre-bench")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

// runDir stands for the agent's run directory, which is in memory (/run).
func runDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cadastre-bench")
	if err != nil {
		return tempDir(tb)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

// wide is a block with room for all that the durable benchmarks lease.
const wide = "10.0.0.0/12"

// openFile opens the node's database in dir as the agent does.
func openFile(tb testing.TB, dir, run string) *bolt.File {
	tb.Helper()
	f, err := bolt.OpenFile(filepath.Join(dir, "cadastre.db"), bolt.FileOptions{Notes: []string{filepath.Join(run, "db.note"), filepath.Join(dir, "cadastre.db.note")}, BootID: "bench"})
	if err != nil {
		tb.Fatal(err)
	}
	return f
}

// durableLedger is a ledger on the disk with n leases.
func durableLedger(tb testing.TB, n int) *ledger.Ledger {
	tb.Helper()
	f := openFile(tb, tempDir(tb), runDir(tb))
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Error(err)
		}
	})
	l := openLedger(tb, f.Journal(), wide, 0)
	lease(tb, l, n)
	return l
}

// lease claims n addresses in one commit, for attachments that no benchmark uses.
func lease(tb testing.TB, l *ledger.Ledger, n int) {
	tb.Helper()
	st := l.Begin()
	for i := range n {
		key, pod := attachment(1<<50 + uint64(i))
		if _, _, err := st.Claim(ledger.Request{Pool: poolName, Key: key, Pod: pod}); err != nil {
			tb.Fatal(err)
		}
	}
	if err := st.Commit(context.Background()); err != nil {
		tb.Fatal(err)
	}
}

// others are the numbers of leases that something must not depend on.
func others(b *testing.B, f func(b *testing.B, n int)) {
	for _, n := range []int{0, 1000, 50_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { f(b, n) })
	}
}

// leaseKey and leaseRecord are of the size that the ledger's records have.
func leaseKey(a netip.Addr) []byte {
	return append([]byte("L"+poolName+"\x00"), a.AsSlice()...)
}

const leaseRecord = 220
