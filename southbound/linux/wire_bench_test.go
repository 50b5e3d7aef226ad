// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/southbound"
)

// processor returns the processor time that the process has used, in the kernel too. Other
// load on the machine does not change it.
func processor() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// each measures f for n pods that are prepared before, and calls after for each of them.
func (l *wireLab) each(b *testing.B, f func(*labPod), before, after func(*labPod)) {
	b.Helper()
	const round = 50
	var pods []*labPod
	done := 0
	var used time.Duration
	for b.Loop() {
		if done%round == 0 {
			b.StopTimer()
			for _, p := range pods {
				after(p)
				_ = p.Close()
			}
			for more := len(pods) > 0; more; {
				var err error
				more, err = l.wires.Sweep(context.Background())
				l.must(err)
			}
			pods = pods[:0]
			for range round {
				p := l.pod()
				before(p)
				pods = append(pods, p)
			}
			b.StartTimer()
		}
		began := processor()
		f(pods[done%round])
		used += processor() - began
		done++
	}
	for _, p := range pods {
		l.delete(p)
		_ = p.Close()
	}
	b.ReportMetric(float64(used.Microseconds())/float64(done), "cpu-us/op")
}

// detach removes a wire as the scheduler does, which has read the value long before.
func (l *wireLab) detach(p *labPod) {
	l.must(l.wires.remove(context.Background(), p.key, southbound.Made[*wirePlan]{Message: p.value}))
}

func BenchmarkWire(b *testing.B) {
	for _, beside := range []int{0, 250, 1000} {
		b.Run(fmt.Sprintf("beside %d", beside), func(b *testing.B) {
			l := newWireLab(b, Options{})
			var others []*labPod
			for range beside {
				p := l.pod()
				others = append(others, p)
				l.create(p)
			}
			nothing := func(*labPod) {}
			b.Run("ADD", func(b *testing.B) { l.each(b, l.create, nothing, l.delete) })
			b.Run("DEL", func(b *testing.B) { l.each(b, l.detach, l.create, nothing) })
			b.Run("Retrieve", func(b *testing.B) {
				began := processor()
				for b.Loop() {
					l.complete(others...)
				}
				b.ReportMetric(float64((processor()-began).Microseconds())/float64(b.N), "cpu-us/op")
			})
		})
	}
}
