// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Step is one of several things that are measured in turns.
type Step struct {
	Name string
	Run  func() error
}

// Turns runs the steps one after the other, again and again, and reports the
// times of each, see ReportTimes. What shares a disk or a processor with
// strangers is compared only so: a slow second slows all steps.
func Turns(b *testing.B, steps ...Step) {
	took := make([][]time.Duration, len(steps))
	for b.Loop() {
		for i, s := range steps {
			began := time.Now()
			if err := s.Run(); err != nil {
				b.Fatalf("%s: %v", s.Name, err)
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	for i, s := range steps {
		ReportTimes(b, s.Name, took[i], 1)
	}
}

// ReportTimes reports the mean of the times (NAME-ns), the median (NAME-p50-ns),
// and what a tenth of them is below (NAME-p10-ns): what the machine can do while
// its other users are silent. Each is of so many operations.
func ReportTimes(b *testing.B, name string, took []time.Duration, operations int) {
	slices.Sort(took)
	var sum time.Duration
	for _, d := range took {
		sum += d
	}
	for _, x := range []struct {
		unit string
		of   time.Duration
	}{{"-ns", sum / time.Duration(len(took))}, {"-p50-ns", took[len(took)/2]}, {"-p10-ns", took[len(took)/10]}} {
		b.ReportMetric(float64(x.of.Nanoseconds())/float64(operations), name+x.unit)
	}
}

// Callers makes b.N calls of f from n goroutines; f is told which one it is in.
func Callers(b *testing.B, n int, f func(goroutine int) error) {
	var calls atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for g := range n {
		wg.Go(func() {
			for calls.Add(1) <= int64(b.N) {
				if err := f(g); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
}
