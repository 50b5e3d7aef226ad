// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"runtime"
	"testing"
	"time"
)

// Fill is the allocation of every item of an empty pool, per item.
func Fill[T any](b *testing.B, mk func() Pool[T]) {
	var keep []T
	perItem(b, func() (func(), int) {
		p := mk()
		if cap(keep) < p.Cap {
			keep = make([]T, 0, p.Cap)
		}
		keep = keep[:0]
		return func() {
			for range p.Cap {
				x, err := p.Next()
				if err != nil {
					b.Fatal(err)
				}
				keep = append(keep, x)
			}
		}, p.Cap
	})
}

// Drain gives back every item of a full pool, in random order, per item.
func Drain[T any](b *testing.B, mk func() Pool[T]) {
	perItem(b, func() (func(), int) {
		p := mk()
		live, _ := hold(b, p, 1)
		return func() {
			for _, x := range live {
				if err := p.Free(x); err != nil {
					b.Fatal(err)
				}
			}
		}, p.Cap
	})
}

// perItem times what prepare returns, without prepare itself, and reports one
// item's share. It keeps the time itself: StopTimer and StartTimer would take
// longer than a small pool does. The processor's time is kept likewise.
func perItem(b *testing.B, prepare func() (run func(), items int)) {
	var spent, processor time.Duration
	items := 0
	for b.Loop() {
		run, n := prepare()
		before, began := processorTime(b), time.Now()
		run()
		spent += time.Since(began)
		processor += processorTime(b) - before
		items += n
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(items), "ns/op")
	b.ReportMetric(float64(processor.Nanoseconds())/float64(items), "cpu-ns")
}

// Memory is the live heap per item after n allocations. The handles are not
// counted: they are the caller's.
func Memory[T any](b *testing.B, mk func() Pool[T], n int) {
	HeapOf(b, n, func() any {
		p := mk()
		for range n {
			if _, err := p.Next(); err != nil {
				b.Fatal(err)
			}
		}
		return p.Next
	})
}

// HeapOf reports the heap that what mk makes keeps alive, for each of its n items.
func HeapOf(b *testing.B, n int, mk func() any) {
	var sum float64
	rounds := 0
	for b.Loop() {
		before := heap()
		made := mk()
		sum += float64(heap()) - float64(before)
		runtime.KeepAlive(made)
		rounds++
	}
	b.ReportMetric(sum/float64(rounds)/float64(n), "heapB/item")
	b.ReportMetric(0, "ns/op") // the time says nothing here
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one only queues what has a finalizer
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
