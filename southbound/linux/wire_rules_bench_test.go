// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// BenchmarkForwardingBesideRules sends datagrams from pod to pod beside the rules of pods
// in networks with tables: the kernel tries one after another for each packet.
func BenchmarkForwardingBesideRules(b *testing.B) {
	for _, beside := range []int{0, 1, 10, 100, 1000} {
		b.Run(fmt.Sprintf("beside %d", beside), func(b *testing.B) {
			l := newWireLab(b, Options{})
			x, y := l.pod(), l.pod()
			l.create(x)
			l.create(y)
			for i := range beside {
				var all []*rtnl.Request
				for _, family := range []byte{2, 10} {
					rule := object{kind: ruleObject, prefix: defaultRoute(family), table: 1007}
					all = append(all, rule.add(linkID{name: fmt.Sprintf("cad%012x", i)}))
				}
				l.must(l.wires.host.Run(all))
			}
			for i, family := range []string{"IPv4", "IPv6"} {
				b.Run(family, func(b *testing.B) {
					l.listen(y.Namespace, netip.AddrPortFrom(y.ip[i], 7000).String())
					conn := l.dialUDP(x.Namespace, netip.AddrPortFrom(y.ip[i], 7000).String())
					began := processor()
					for b.Loop() {
						_, _ = conn.Write([]byte("x"))
					}
					b.ReportMetric(float64((processor()-began).Nanoseconds())/float64(b.N), "cpu-ns/op")
				})
			}
		})
	}
}
