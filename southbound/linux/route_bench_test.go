// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"
	"testing"

	"github.com/cadastre/cadastre/controller"
)

// many are n routes of both families, each by its own gateway.
func many(n int) []controller.Value {
	all := make([]controller.Value, n)
	for i := range all {
		a, b := i/2/250, i/2%250+1
		if i%2 == 0 {
			all[i] = to(fmt.Sprintf("10.%d.%d.0/24", a+1, b), fmt.Sprintf("192.168.%d.%d", a+100, b))
		} else {
			all[i] = to(fmt.Sprintf("fd01:%x:%x::/64", a+1, b), fmt.Sprintf("fd18::%x:%x", a+1, b))
		}
	}
	return all
}

func benchmarkNode(b *testing.B) *node {
	n := newNode(b, routeOptions{})
	n.inside(func() error { return address("eth0", "192.168.99.1/17", "fd18::1/64") })
	return n
}

func (n *node) must(txn controller.Transaction) {
	n.t.Helper()
	if err := n.commit(txn); err != nil {
		n.t.Fatal(err)
	}
}

func BenchmarkResync(b *testing.B) {
	for _, size := range []int{1000, 10000} {
		values := many(size)
		b.Run(fmt.Sprintf("unchanged/%d", size), func(b *testing.B) {
			n := benchmarkNode(b)
			n.must(resync(values...))
			b.ReportAllocs()
			for b.Loop() {
				n.must(resync(values...))
			}
		})
		b.Run(fmt.Sprintf("new/%d", size), func(b *testing.B) {
			n := benchmarkNode(b)
			b.ReportAllocs()
			for b.Loop() {
				n.must(resync(values...))
				b.StopTimer()
				n.must(resync())
				b.StartTimer()
			}
		})
		b.Run(fmt.Sprintf("one update beside/%d", size), func(b *testing.B) {
			n := benchmarkNode(b)
			n.must(resync(values...))
			i := 0
			for b.Loop() {
				n.must(update(to("10.250.1.0/24", fmt.Sprintf("192.168.100.%d", 1+i%2))))
				i++
			}
		})
	}
}
