// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/test/peers/workload"
)

// BenchmarkDurable is one caller alone: a claim and a release of ours, a put
// and a delete in a transaction each of a bare bbolt file that has as many
// records, and a bare write with fdatasync, in turns.
func BenchmarkDurable(b *testing.B) {
	others(b, func(b *testing.B, n int) {
		l, db, log, record := durableLedger(b, n), bareBolt(b, n), openLog(b), make([]byte, leaseRecord)
		ctx, number := context.Background(), counter()
		var key ledger.Key
		workload.Turns(b,
			workload.Step{Name: "claim", Run: func() (err error) {
				var pod ledger.Pod
				key, pod = attachment(number())
				_, _, err = l.Claim(ctx, ledger.Request{Pool: poolName, Key: key, Pod: pod})
				return err
			}},
			workload.Step{Name: "bbolt-put", Run: func() error { return put(db, netip.MustParseAddr("10.0.255.1"), record) }},
			workload.Step{Name: "fdatasync", Run: func() error { return log.append(record) }},
			workload.Step{Name: "release", Run: func() error {
				_, err := l.Release(ctx, ledger.Selector{Key: key})
				return err
			}},
			workload.Step{Name: "bbolt-delete", Run: func() error { return remove(db, netip.MustParseAddr("10.0.255.1")) }},
		)
	})
}

const callers = 100

// BenchmarkCallers is a hundred callers at once; each operation is durable when
// its caller goes on. Half of the ledger's are claims, half are releases.
func BenchmarkCallers(b *testing.B) {
	ctx, record := context.Background(), make([]byte, leaseRecord)
	b.Run("ledger", func(b *testing.B) {
		l := durableLedger(b, 1000)
		held, number := make([]ledger.Key, callers), sharedCounter()
		workload.Callers(b, callers, func(g int) error {
			if held[g] != (ledger.Key{}) {
				_, err := l.Release(ctx, ledger.Selector{Key: held[g]})
				held[g] = ledger.Key{}
				return err
			}
			key, pod := attachment(number())
			held[g] = key
			_, _, err := l.Claim(ctx, ledger.Request{Pool: poolName, Key: key, Pod: pod})
			return err
		})
	})
	b.Run("bbolt-batch", func(b *testing.B) {
		db, at := bareBolt(b, 1000), make([]byte, callers)
		db.MaxBatchSize, db.MaxBatchDelay = callers, time.Millisecond // as many as there are callers
		workload.Callers(b, callers, func(g int) error {
			at[g]++ // changes the record, as a lease's does
			return db.Batch(func(tx *bbolt.Tx) error {
				return tx.Bucket(bucket()).Put(leaseKey(netip.AddrFrom4([4]byte{10, 1, byte(g), at[g] & 1})), record)
			})
		})
	})
	b.Run("fdatasync", func(b *testing.B) {
		g := groupLog{log: openLog(b)}
		g.free.L = &g.mu
		workload.Callers(b, callers, func(int) error { return g.append(record) })
	})
}

func bucket() []byte { return []byte("ledger") }

// bareBolt is a bbolt file with the options of ours and n records like ours.
func bareBolt(tb testing.TB, n int) *bbolt.DB {
	tb.Helper()
	db, err := bbolt.Open(filepath.Join(tempDir(tb), "bare.db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := db.Close(); err != nil {
			tb.Error(err)
		}
	})
	record := make([]byte, leaseRecord)
	if err := db.Update(func(tx *bbolt.Tx) error {
		bk, err := tx.CreateBucketIfNotExists(bucket())
		a := netip.MustParseAddr("10.0.0.1")
		for i := 0; i < n && err == nil; i, a = i+1, a.Next() {
			err = bk.Put(leaseKey(a), record)
		}
		return err
	}); err != nil {
		tb.Fatal(err)
	}
	return db
}

func put(db *bbolt.DB, a netip.Addr, record []byte) error {
	return db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket()).Put(leaseKey(a), record) })
}

func remove(db *bbolt.DB, a netip.Addr) error {
	return db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket()).Delete(leaseKey(a)) })
}

// log is the least that is durable: records one after the other in a file whose
// blocks are all written already, so that a sync has no metadata to write.
type log struct {
	f    *os.File
	left int64
}

const logSize = 16 << 20

func openLog(tb testing.TB) *log {
	tb.Helper()
	f, err := os.Create(filepath.Join(tempDir(tb), "log"))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Error(err)
		}
	})
	_, err = f.Write(make([]byte, logSize))
	if err := errors.Join(err, f.Sync()); err != nil {
		tb.Fatal(err)
	}
	return &log{f: f}
}

func (l *log) append(record []byte) error {
	if l.left -= int64(len(record)); l.left < 0 {
		if _, err := l.f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		l.left = logSize - int64(len(record))
	}
	if _, err := l.f.Write(record); err != nil {
		return err
	}
	return syscall.Fdatasync(int(l.f.Fd()))
}

// groupLog syncs once for all who wait at the same time.
type groupLog struct {
	mu      sync.Mutex
	free    sync.Cond // the log is not being written
	log     *log
	writing bool
	next    *logGroup
}

type logGroup struct {
	records []byte
	done    bool
	err     error
}

func (g *groupLog) append(record []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == nil {
		g.next = &logGroup{}
	}
	mine := g.next
	mine.records = append(mine.records, record...)
	for g.writing && !mine.done {
		g.free.Wait()
	}
	if mine.done {
		return mine.err
	}
	g.writing, g.next = true, nil
	g.mu.Unlock()
	mine.err = g.log.append(mine.records)
	g.mu.Lock()
	g.writing, mine.done = false, true
	g.free.Broadcast()
	return mine.err
}
