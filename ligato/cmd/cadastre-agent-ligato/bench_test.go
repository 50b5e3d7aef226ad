// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"testing"
)

// BenchmarkADD attaches pods one by one, as a runtime does without the start of the CNI
// plugin.
func BenchmarkADD(b *testing.B) {
	for name, conf := range map[string]string{"IPv4": ipv4, "dual stack": dualStack} {
		b.Run(name, func(b *testing.B) {
			l := newLab(b, conf)
			l.start()
			b.ResetTimer()
			for i := range b.N {
				b.StopTimer()
				p := l.newPod(strconv.Itoa(i))
				b.StartTimer()
				l.add(p)
				b.StopTimer()
				l.del(p)
				b.StartTimer()
			}
		})
	}
}

// BenchmarkDEL detaches pods one by one.
func BenchmarkDEL(b *testing.B) {
	for name, conf := range map[string]string{"IPv4": ipv4, "dual stack": dualStack} {
		b.Run(name, func(b *testing.B) {
			l := newLab(b, conf)
			l.start()
			for i := range b.N {
				b.StopTimer()
				p := l.newPod(strconv.Itoa(i))
				l.add(p)
				b.StartTimer()
				l.del(p)
			}
		})
	}
}
