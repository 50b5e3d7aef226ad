// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package awsdatastore

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	aws "github.com/aws/amazon-vpc-cni-k8s/pkg/ipamd/datastore"
	"go.etcd.io/bbolt"

	ours "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/test/peers/workload"
)

// modes are single addresses, and prefixes.
func modes(b *testing.B, f func(b *testing.B, prefixes bool)) {
	b.Run("secondary", func(b *testing.B) { f(b, false) })
	b.Run("prefix", func(b *testing.B) { f(b, true) })
}

func sizes() []int { return []int{30, 250, 1000, 16000} }

// levels are fullnesses, in percent; at 99 one single address is free.
func levels() []int { return []int{0, 50, 99} }

func storeOf(prefixes bool, total, level int) store {
	s := store{prefixes: prefixes, total: total}
	s.assigned = s.size() * level / 100
	if level == 99 {
		s.assigned = s.size() - 1
	}
	return s
}

// stores runs f for each mode, size and fullness.
func stores(b *testing.B, f func(b *testing.B, s store)) {
	modes(b, func(b *testing.B, prefixes bool) {
		for _, n := range sizes() {
			for _, level := range levels() {
				b.Run(fmt.Sprintf("%d/%d", n, level), func(b *testing.B) { f(b, storeOf(prefixes, n, level)) })
			}
		}
	})
}

// BenchmarkNull keeps nothing.
func BenchmarkNull(b *testing.B) {
	stores(b, func(b *testing.B, s store) {
		a, _ := s.filled(b, theirs)
		turns(b, turn{pairs: max(1, min(16, 4000/s.total)), rounds: 1}, a, s.withoutCheckpoint(b))
	})
}

// diskDir is on the disk under test: DIR, or where temporary files are.
func diskDir(b *testing.B) string { return tempDir(b, os.Getenv("DIR")) }

// memoryDir is on a tmpfs, if there is one where Linux has it.
func memoryDir(b *testing.B) string {
	const shm = "/dev/shm"
	if _, err := os.Stat(shm); err != nil {
		b.Skip(err)
	}
	return tempDir(b, shm)
}

func tempDir(b *testing.B, in string) string {
	d, err := os.MkdirTemp(in, "peers-aws")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(d) })
	return d
}

// BenchmarkFile writes everything to a file at each change.
func BenchmarkFile(b *testing.B) {
	for name, dir := range map[string]func(*testing.B) string{"disk": diskDir, "tmpfs": memoryDir} {
		b.Run(name, func(b *testing.B) {
			stores(b, func(b *testing.B, s store) {
				d := dir(b)
				a, aGate := s.filled(b, theirs)
				o, oGate := s.filled(b, mine)
				aGate.to, oGate.to = aws.NewJSONFile(filepath.Join(d, "aws.json")), ours.NewJSONFile(filepath.Join(d, "ours.json"))
				turns(b, turn{pairs: 1, rounds: max(1, min(16, 4000/s.total))}, a, o)
			})
		})
	}
}

// deltaGate is a gate that can be told what has changed.
type deltaGate struct {
	gate
	delta ours.DeltaCheckpointer
}

func (g *deltaGate) CheckpointDelta(put, del []ours.CheckpointEntry) error {
	if g.to == nil {
		return nil
	}
	return g.delta.CheckpointDelta(put, del)
}

// onDelta is ours with a journal in a bbolt file that has what the store has.
func (s store) onDelta(b *testing.B) *churn {
	f, err := bolt.OpenFile(filepath.Join(diskDir(b), "leases.db"), bolt.FileOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	cp := ours.NewJournalCheckpoint(f.Journal())
	g := &deltaGate{delta: cp}
	n := s.make(mine, g)
	s.attach(b, n)
	if err := n.load(&g.gate, s.entries()); err != nil {
		b.Fatal(err)
	}
	if err := cp.Checkpoint(s.kept()); err != nil {
		b.Fatal(err)
	}
	g.to = cp
	return newChurn(fmt.Sprintf("delta-%d", s.total), n, s.assigned)
}

// kept is entries in the types of ours.
func (s store) kept() *ours.CheckpointData {
	whole := &ours.CheckpointData{Version: ours.CheckpointFormatVersion}
	for _, e := range s.entries() {
		whole.Allocations = append(whole.Allocations, ours.CheckpointEntry{
			IPAMKey: ours.IPAMKey(e.IPAMKey), IPv4: e.IPv4, AllocationTimestamp: e.AllocationTimestamp, Metadata: ours.IPAMMetadata(e.Metadata),
		})
	}
	return whole
}

// bare is no store: each call is one transaction of a bbolt file with a record
// of the size of ours.
type bare struct {
	node
	db     *bbolt.DB
	record []byte
}

func bucket() []byte { return []byte("leases") }

func (s bare) assign(x sandbox) error {
	return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket()).Put([]byte(x.container), s.record) })
}

func (s bare) unassign(x sandbox) error {
	return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucket()).Delete([]byte(x.container)) })
}

// bareBolt is a bbolt file with the options of ours and as many records as s has.
func (s store) bareBolt(b *testing.B) *churn {
	db, err := bbolt.Open(filepath.Join(diskDir(b), "bare.db"), 0o600, &bbolt.Options{FreelistType: bbolt.FreelistMapType})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { db.Close() })
	n := bare{db: db, record: make([]byte, 220)}
	if err := db.Update(func(tx *bbolt.Tx) error {
		bk, err := tx.CreateBucketIfNotExists(bucket())
		for i := 0; i < s.assigned && err == nil; i++ {
			err = bk.Put([]byte(sandboxOf(i).container), n.record)
		}
		return err
	}); err != nil {
		b.Fatal(err)
	}
	return newChurn(fmt.Sprintf("bare-%d", s.total), n, s.assigned)
}

// BenchmarkDelta writes what has changed. The sizes take turns, each with a file
// of its own, and beside each two transactions of a bare file.
func BenchmarkDelta(b *testing.B) {
	modes(b, func(b *testing.B, prefixes bool) {
		for _, level := range levels() {
			b.Run(fmt.Sprint(level), func(b *testing.B) {
				var all []*churn
				for _, n := range sizes() {
					s := storeOf(prefixes, n, level)
					all = append(all, s.onDelta(b), s.bareBolt(b))
				}
				turns(b, turn{pairs: 1, rounds: 16}, all...)
			})
		}
	})
}

// BenchmarkRestore starts from a file: interfaces and addresses are attached
// before the clock runs. Ours starts from a journal, too. The published store
// takes minutes for 16 000 single addresses.
func BenchmarkRestore(b *testing.B) {
	for _, s := range []store{{false, 1000, 999}, {true, 1000, 999}, {true, 16000, 15999}} {
		mode := map[bool]string{false: "secondary", true: "prefix"}[s.prefixes]
		b.Run(fmt.Sprintf("%s/%d", mode, s.total), func(b *testing.B) { s.restores(b) })
	}
	b.Run("secondary-ours/16000", func(b *testing.B) { store{false, 16000, 15999}.restores(b) })
}

func (s store) restores(b *testing.B) {
	path := filepath.Join(diskDir(b), "ipam.json")
	if err := aws.NewJSONFile(path).Checkpoint(checkpointOf(s.entries())); err != nil {
		b.Fatal(err)
	}
	f, err := bolt.OpenFile(filepath.Join(diskDir(b), "leases.db"), bolt.FileOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	journal := ours.NewJournalCheckpoint(f.Journal())
	if err := journal.Checkpoint(s.kept()); err != nil {
		b.Fatal(err)
	}
	from := []struct {
		name string
		make func() node
	}{
		{"cadastre", func() node { return s.make(mine, ours.NewJSONFile(path)) }},
		{"delta", func() node { return s.make(mine, journal) }},
		{"aws", func() node { return s.make(theirs, aws.NewJSONFile(path)) }},
	}
	if !s.prefixes && s.total > 1000 {
		from = from[:2]
	}
	took := make([][]time.Duration, len(from))
	for b.Loop() {
		for i, x := range from {
			n := x.make()
			s.attach(b, n)
			runtime.GC()
			began := time.Now()
			if err := n.restore(); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, x := range from {
		workload.ReportTimes(b, x.name, took[i], 1)
	}
}

// BenchmarkMemory is the heap of an assigned address: its part of the interfaces
// and the blocks, the names of its pod, and what is kept to write the checkpoint.
func BenchmarkMemory(b *testing.B) {
	modes(b, func(b *testing.B, prefixes bool) {
		s := store{prefixes, 4096, 4096}
		s.filled(b, theirs) // makes the labels of its metrics, which are the process's
		for _, name := range []string{theirs, mine} {
			b.Run(name, func(b *testing.B) {
				workload.HeapOf(b, s.assigned, func() any { c, _ := s.filled(b, name); return c.node })
			})
		}
		b.Run("cadastre-null", func(b *testing.B) {
			workload.HeapOf(b, s.assigned, func() any { return s.withoutCheckpoint(b).node })
		})
	})
}
