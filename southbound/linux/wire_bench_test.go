// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"fmt"
	"testing"
)

func BenchmarkWire(b *testing.B) {
	for _, beside := range []int{0, 250, 1000} {
		b.Run(fmt.Sprintf("beside %d", beside), func(b *testing.B) {
			l := newWireLab(b, WireOptions{})
			var others []*labPod
			for range beside {
				p := l.pod()
				others = append(others, p)
				l.create(p)
			}
			b.Run("ADD", func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					p := l.pod()
					b.StartTimer()
					l.create(p)
					b.StopTimer()
					_ = p.Close()
					b.StartTimer()
				}
			})
			b.Run("DEL", func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					p := l.pod()
					l.create(p)
					b.StartTimer()
					l.delete(p)
					b.StopTimer()
					_ = p.Close()
					b.StartTimer()
				}
			})
			b.Run("Retrieve", func(b *testing.B) {
				for b.Loop() {
					l.complete(others...)
				}
			})
			_ = context.Background()
		})
	}
}
