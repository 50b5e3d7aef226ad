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

// Turns runs the steps one after the other, again and again, and reports for
// each the mean (NAME-ns) and the median (NAME-p50-ns). What shares a disk or a
// processor with strangers is compared only so: a slow second slows all steps.
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
		var sum time.Duration
		for _, d := range took[i] {
			sum += d
		}
		slices.Sort(took[i])
		b.ReportMetric(float64(sum.Nanoseconds())/float64(len(took[i])), s.Name+"-ns")
		b.ReportMetric(float64(took[i][len(took[i])/2].Nanoseconds()), s.Name+"-p50-ns")
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
