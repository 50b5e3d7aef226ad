// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	. "github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
)

func sizesOfStores() []int { return []int{30, 250, 1000, 16000} }

func benchKey(n int) IPAMKey {
	return IPAMKey{NetworkName: "aws-cni", ContainerID: fmt.Sprintf("%064x", n), IfName: "eth0"}
}

func benchPod(n int) IPAMMetadata {
	return IPAMMetadata{K8SPodNamespace: "default", K8SPodName: fmt.Sprintf("pod-%08d-abcde", n), InterfacesCount: 1}
}

func benchAddr(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// benchStore returns a store of total addresses: 50 an interface, or one interface
// with /28s.
func benchStore(b *testing.B, cp Checkpointer, total int, prefixes bool) *DataStore {
	b.Helper()
	ds := New(Options{Checkpoint: cp, PrefixMode: prefixes})
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	for n := 0; n < total; n++ {
		id := fmt.Sprintf("eni-%d", n/50)
		switch {
		case prefixes && n == 0:
			must(ds.AddENI("eni-0", 0, true, false))
			fallthrough
		case prefixes:
			if n%16 == 0 {
				must(ds.AddPrefix("eni-0", netip.PrefixFrom(benchAddr(n), 28)))
			}
		case n%50 == 0:
			must(ds.AddENI(id, n/50, n == 0, false))
			fallthrough
		default:
			must(ds.AddAddress(id, benchAddr(n)))
		}
	}
	return ds
}

func benchAssign(b *testing.B, ds *DataStore, n int) {
	if _, err := ds.Assign(context.Background(), benchKey(n), benchPod(n), ledger.IPv4); err != nil {
		b.Fatal(err)
	}
}

// churn assigns one address and releases the oldest, beside assigned others.
func churn(b *testing.B, ds *DataStore, assigned int) {
	for n := range assigned {
		benchAssign(b, ds, n)
	}
	b.ReportAllocs()
	processor(b)
	first, last := 0, assigned
	for b.Loop() {
		benchAssign(b, ds, last)
		if _, _, err := ds.UnassignPodIPv4Address(benchKey(first)); err != nil {
			b.Fatal(err)
		}
		first, last = first+1, last+1
	}
}

// processor reports the processor time of an operation, which depends less on other
// programs of the machine than the elapsed time.
func processor(b *testing.B) {
	used := func() int64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	b.Cleanup(func() { b.ReportMetric(float64(used()-before)/float64(b.N), "cpu-ns/op") })
}

func modes() map[string]bool { return map[string]bool{"secondary": false, "prefix": true} }

func BenchmarkNull(b *testing.B) {
	for mode, prefixes := range modes() {
		for _, n := range sizesOfStores() {
			if prefixes {
				n = (n + 15) / 16 * 16
			}
			for name, assigned := range map[string]int{"0": 0, "50": n / 2, "99": n - 1} {
				b.Run(fmt.Sprintf("%s/%d/%s", mode, n, name), func(b *testing.B) {
					churn(b, benchStore(b, NullCheckpoint{}, n, prefixes), assigned)
				})
			}
			b.Run(fmt.Sprintf("%s/%d/full", mode, n), func(b *testing.B) {
				ds := benchStore(b, NullCheckpoint{}, n, prefixes)
				for i := range n {
					benchAssign(b, ds, i)
				}
				b.ReportAllocs()
				processor(b)
				for b.Loop() {
					if _, err := ds.Assign(context.Background(), benchKey(-1), benchPod(-1), ledger.IPv4); err == nil {
						b.Fatal("assigned from a full store")
					}
				}
			})
		}
	}
}

// benchDir returns a folder on the disk under test: in DIR, or in that of temporary
// files.
func benchDir(b *testing.B) string {
	dir, err := os.MkdirTemp(os.Getenv("DIR"), "datastore")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func BenchmarkJSON(b *testing.B) {
	for _, n := range sizesOfStores() {
		b.Run(fmt.Sprintf("secondary/%d/99", n), func(b *testing.B) {
			cp := &gate{Checkpointer: NewJSONFile(filepath.Join(benchDir(b), "ipam.json"))}
			churn2(b, cp, n)
		})
	}
}

// gate lets a store be filled without a write for each address.
type gate struct {
	Checkpointer
	open bool
}

func (g *gate) Checkpoint(data any) error {
	if !g.open {
		return nil
	}
	return g.Checkpointer.Checkpoint(data)
}

// churn2 is churn with n-1 of n addresses assigned, without writing the filling.
func churn2(b *testing.B, cp *gate, n int) {
	ds := benchStore(b, cp, n, false)
	for i := range n - 1 {
		benchAssign(b, ds, i)
	}
	cp.open = true
	b.ReportAllocs()
	processor(b)
	first, last := 0, n-1
	for b.Loop() {
		benchAssign(b, ds, last)
		if _, _, err := ds.UnassignPodIPv4Address(benchKey(first)); err != nil {
			b.Fatal(err)
		}
		first, last = first+1, last+1
	}
}

// deltaGate is a gate for a DeltaCheckpointer.
type deltaGate struct {
	DeltaCheckpointer
	open bool
}

func (g *deltaGate) CheckpointDelta(put, del []CheckpointEntry) error {
	if !g.open {
		return nil
	}
	return g.DeltaCheckpointer.CheckpointDelta(put, del)
}

func BenchmarkDelta(b *testing.B) {
	for _, n := range sizesOfStores() {
		b.Run(fmt.Sprintf("secondary/%d/99", n), func(b *testing.B) {
			f, err := bolt.OpenFile(filepath.Join(benchDir(b), "leases.db"), bolt.FileOptions{})
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			cp := NewJournalCheckpoint(f.Journal())
			g := &deltaGate{DeltaCheckpointer: cp}
			ds := benchStore(b, g, n, false)
			whole := &CheckpointData{Version: CheckpointFormatVersion}
			for i := range n - 1 {
				benchAssign(b, ds, i)
			}
			for _, x := range ds.AllocatedIPs() {
				whole.Allocations = append(whole.Allocations, CheckpointEntry{IPAMKey: x.IPAMKey, IPv4: x.IP})
			}
			if err := cp.Checkpoint(whole); err != nil {
				b.Fatal(err)
			}
			g.open = true
			b.ReportAllocs()
			processor(b)
			first, last := 0, n-1
			for b.Loop() {
				benchAssign(b, ds, last)
				if _, _, err := ds.UnassignPodIPv4Address(benchKey(first)); err != nil {
					b.Fatal(err)
				}
				first, last = first+1, last+1
			}
		})
	}
}

func BenchmarkRestore(b *testing.B) {
	for _, n := range []int{1000, 16000} {
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) {
			path := filepath.Join(benchDir(b), "ipam.json")
			whole := &CheckpointData{Version: CheckpointFormatVersion}
			for i := range n {
				whole.Allocations = append(whole.Allocations, CheckpointEntry{IPAMKey: benchKey(i), IPv4: benchAddr(i).String(), Metadata: benchPod(i)})
			}
			if err := NewJSONFile(path).Checkpoint(whole); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				b.StopTimer()
				ds := benchStore(b, NewJSONFile(path), n, false)
				b.StartTimer()
				if err := ds.ReadBackingStore(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	for mode, prefixes := range modes() {
		b.Run(mode, func(b *testing.B) {
			const n = 4096
			heap := func() float64 {
				var m runtime.MemStats
				runtime.GC()
				runtime.GC()
				runtime.ReadMemStats(&m)
				return float64(m.HeapAlloc)
			}
			before := heap()
			ds := benchStore(b, NullCheckpoint{}, n, prefixes)
			for i := range n {
				benchAssign(b, ds, i)
			}
			after := heap()
			runtime.KeepAlive(ds)
			for b.Loop() {
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric((after-before)/n, "heapB/addr")
		})
	}
}
