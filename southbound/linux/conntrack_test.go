// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// entries returns the number of tracked connections that an address has begun or answers.
func (l *wireLab) entries(a netip.Addr) int {
	l.t.Helper()
	all, err := listEntries(l.wires.conntrack.socket, familyOf(a), map[netip.Addr]bool{a: true})
	l.must(err)
	return len(all)
}

// TestTrackedConnectionsOfAPodEndWithIt also has kernels that cannot remove entries by
// address: there they are gone before the address is used again, and when Sweep has run.
func TestTrackedConnectionsOfAPodEndWithIt(t *testing.T) {
	t.Parallel()
	real := testFilters()
	t.Logf("the kernel removes entries by address: IPv4 %v, IPv6 %v", real[unix.AF_INET], real[unix.AF_INET6])
	for name, filters := range map[string]map[byte]bool{"as the kernel is": nil, "as Linux 6.8 is": {}} {
		t.Run(name, func(t *testing.T) {
			l := newWireLab(t, Options{})
			l.wires.conntrack.filters = filters
			pod, other := l.pod(), l.pod()
			l.create(pod)
			outside := []netip.Addr{netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8::9")}
			fill := func() {
				for i, a := range pod.ip {
					l.must(l.wires.conntrack.socket.Run([]*rtnl.Request{
						newEntry(a, outside[i]),           // begun by the pod
						newEntry(outside[i].Next(), a),    // to the pod
						newEntry(other.ip[i], outside[i]), // of another one
					}))
				}
			}
			clear := func() {
				for i := range pod.ip {
					l.wires.conntrack.pending = map[netip.Addr]bool{other.ip[i]: true}
					l.must(l.wires.conntrack.removePending())
				}
			}
			l.sweep() // finds out what the kernel can do
			fill()
			l.delete(pod)
			for i, a := range pod.ip {
				l.Expect(l.entries(other.ip[i])).To(Equal(1), "the entry of another pod stays")
				if works := l.wires.conntrack.filters[familyOf(a)]; works {
					l.Expect(l.entries(a)).To(BeZero(), "%s after the deletion", a)
				}
			}
			again := l.podWith(l.namespace(), "pod/k8s/again/eth0", 1)
			l.Expect(again.ip).To(Equal(pod.ip))
			l.create(again)
			for i, a := range pod.ip {
				l.Expect(l.entries(a)).To(BeZero(), "%s when it is used again", a)
				l.Expect(l.entries(other.ip[i])).To(Equal(1))
			}
			clear()
			fill()
			l.delete(again)
			l.sweep()
			for i, a := range pod.ip {
				l.Expect(l.entries(a)).To(BeZero(), "%s after the sweep", a)
				l.Expect(l.entries(other.ip[i])).To(Equal(1))
			}
		})
	}
}

// TestAHalfMadeWireOfNoValueIsRemoved has the link that a crash has left between the
// kernel's two first requests.
func TestAHalfMadeWireOfNoValueIsRemoved(t *testing.T) {
	l := newWireLab(t, Options{})
	p := l.pod()
	plan, err := readWire(p.key, p.value)
	l.must(err)
	ns, err := rtnl.Open(p.Path())
	l.must(err)
	_, err = l.wires.add(plan, ns)
	l.must(err)
	l.must(ns.Close())
	l.Expect(l.retrieved()).To(HaveKey(unknownPrefix + p.value.Wire.HostIfName))
	l.Expect(l.retrieved(p)).To(HaveKeyWithValue(p.key, Not(Equal(done))))
	for key, m := range l.messages() {
		l.Expect(l.wires.Handles(key)).To(BeTrue())
		l.must(l.wires.Delete(context.Background(), key, m))
	}
	l.complete()
	l.sweep()
	l.create(p)
	l.complete(p)
}
