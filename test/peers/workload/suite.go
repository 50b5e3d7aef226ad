// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"runtime"
	"syscall"
	"testing"
	"time"
)

// levels are the fullnesses of a churn; at "last" one item is free.
func levels() []level { return []level{{"0", 0}, {"50", .5}, {"99", .99}, {"last", 1 - 1e-12}} }

type level struct {
	name     string
	fullness float64
}

// Suite runs everything but Parallel and Memory on one kind of pool. mk makes
// an empty one.
func Suite[T any](b *testing.B, mk func() Pool[T]) {
	Levels(b, mk)
	b.Run("full", func(b *testing.B) { Full(b, mk()) })
	if mk().Take != nil {
		b.Run("specific/50", func(b *testing.B) { Specific(b, mk(), .5) })
	}
	b.Run("fill", func(b *testing.B) { Fill(b, mk) })
	b.Run("drain", func(b *testing.B) { Drain(b, mk) })
}

// Levels runs Churn at each fullness.
func Levels[T any](b *testing.B, mk func() Pool[T]) {
	for _, l := range levels() {
		b.Run("churn/"+l.name, func(b *testing.B) { Churn(b, mk(), l.fullness) })
	}
}

// Churn is one item allocated and a random older one given back, with the
// fullness held.
func Churn[T any](b *testing.B, p Pool[T], fullness float64) {
	live, _ := ready(b, p, fullness)
	r := newRNG()
	b.ReportAllocs()
	defer reportProcessor(b)()
	for b.Loop() {
		if err := swap(p, live, r); err != nil {
			b.Fatal(err)
		}
	}
}

// reportProcessor reports, when what it returns is called, the processor time
// of an operation, with the garbage collector's: cpu-ns. On a machine with busy
// neighbours it says more than the time elapsed.
func reportProcessor(b *testing.B) func() {
	before := processorTime(b)
	return func() { b.ReportMetric(float64((processorTime(b)-before).Nanoseconds())/float64(b.N), "cpu-ns") }
}

func processorTime(tb testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// ready is hold, without the garbage that it leaves: the collector would work
// at that while the clock runs.
func ready[T any](tb testing.TB, p Pool[T], fullness float64) (live, holes []T) {
	tb.Helper()
	live, holes = hold(tb, p, fullness)
	runtime.GC()
	return live, holes
}

// swap allocates an item and gives back a random one of live in its stead; the
// same one where live is empty.
func swap[T any](p Pool[T], live []T, r *rng) error {
	x, err := p.Next()
	if err != nil {
		return err
	}
	if n := len(live); n > 0 {
		i := r.below(n)
		x, live[i] = live[i], x
	}
	return p.Free(x)
}

// Parallel is Churn from GOMAXPROCS goroutines, each with its share of what is
// allocated.
func Parallel[T any](b *testing.B, p Pool[T], fullness float64) {
	live, _ := ready(b, p, fullness)
	b.Run("parallel", func(b *testing.B) {
		n := runtime.GOMAXPROCS(0)
		shares := make(chan []T, n)
		for i := range n {
			shares <- live[len(live)*i/n : len(live)*(i+1)/n]
		}
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			mine, r := <-shares, newRNG()
			for pb.Next() {
				if err := swap(p, mine, r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// Full is an allocation that must fail because nothing is free.
func Full[T any](b *testing.B, p Pool[T]) {
	ready(b, p, 1)
	b.ReportAllocs()
	defer reportProcessor(b)()
	for b.Loop() {
		if _, err := p.Next(); err == nil {
			b.Fatal("allocated an item of a full pool")
		}
	}
}

// Specific is a named free item allocated and given back.
func Specific[T any](b *testing.B, p Pool[T], fullness float64) {
	_, holes := ready(b, p, fullness)
	i := 0
	b.ReportAllocs()
	defer reportProcessor(b)()
	for b.Loop() {
		x := holes[i]
		if i++; i == len(holes) {
			i = 0
		}
		if err := p.Take(x); err != nil {
			b.Fatal(err)
		}
		if err := p.Free(x); err != nil {
			b.Fatal(err)
		}
	}
}
