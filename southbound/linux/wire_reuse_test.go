// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/rtnl"
)

// TestAnAddressIsReusedAfterADeletionThatFailed gives the addresses of a pod whose wire was
// not detached, because its deletion failed, to a new pod: the old pod is cut off then.
func TestAnAddressIsReusedAfterADeletionThatFailed(t *testing.T) {
	for _, what := range []string{"both families", "IPv4", "IPv6"} {
		t.Run(what, func(t *testing.T) {
			l := newWireLab(t, Options{})
			bystander := l.pod()
			l.create(bystander)
			sinks := []*net.UDPConn{
				l.listen(l.host, "0.0.0.0:7000"), l.listen(l.host, "[::]:7001"),
				l.listen(bystander.Namespace, "0.0.0.0:7000"), l.listen(bystander.Namespace, "[::]:7001"),
			}
			old := l.podWith(l.namespace(), "pod/k8s/old/eth0", 900)
			l.create(old)
			f := l.flood(old.Namespace, "old", "10.1.5.1:7000", "[fd01::1]:7001",
				netip.AddrPortFrom(bystander.ip[0], 7000).String(), netip.AddrPortFrom(bystander.ip[1], 7001).String())
			for _, s := range sinks { // it arrives now
				_ = s.SetReadDeadline(time.Now().Add(answerTime))
				_, _, err := s.ReadFromUDPAddrPort(make([]byte, 64))
				l.must(err)
			}
			fresh := l.podWith(l.namespace(), "pod/k8s/new/eth0", 900)
			switch what {
			case "IPv4":
				other := l.podWith(nil, "", 901)
				fresh.value.Addresses[1], fresh.ip[1] = other.value.Addresses[1], other.ip[1]
			case "IPv6":
				other := l.podWith(nil, "", 901)
				fresh.value.Addresses[0], fresh.ip[0] = other.value.Addresses[0], other.ip[0]
			}
			l.create(fresh)
			for _, s := range sinks {
				_, err := drain(s)
				l.must(err)
			}
			for _, ip := range fresh.ip {
				_, err := l.exchange(l.host, fresh.Namespace, ip, 10)
				l.Expect(err).NotTo(HaveOccurred())
				_, err = l.exchange(fresh.Namespace, bystander.Namespace, bystander.ip[0], 10)
				l.Expect(err).NotTo(HaveOccurred())
			}
			sent := f.sent.Load()
			l.Eventually(f.sent.Load).Should(BeNumerically(">", sent), "the old pod goes on")
			for i, s := range sinks {
				n, err := drain(s)
				l.must(err)
				l.Expect(n).To(BeZero(), "packets of the old pod at sink %d", i)
			}
			l.delete(old) // is repeated later
			l.complete(bystander, fresh)
			f.end()
		})
	}
}

// TestConnectionsOfAnEarlierProcessEnd kills the process after the detachment, or before
// it, and before the kernel's tracked connections of the pod are removed. The next process
// removes them before another pod has the address. Those of pods that stay are kept.
func TestConnectionsOfAnEarlierProcessEnd(t *testing.T) {
	for _, x := range []struct {
		what     string
		detached bool
		wanted   bool // the new pod's lease was written before the kill
		listed   bool // the kernel removes no entries by address
	}{
		{"detached", true, false, false},
		{"detached, and the new pod is wanted", true, true, false},
		{"detached, on an old kernel", true, false, true},
		{"detached, and the new pod is wanted, on an old kernel", true, true, true},
		{"not detached", false, false, true},
	} {
		t.Run(x.what, func(t *testing.T) {
			l := newWireLab(t, Options{})
			stays, old := l.pod(), l.podWith(l.namespace(), "pod/k8s/old/eth0", 900)
			l.create(stays)
			l.create(old)
			outside := []netip.Addr{netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8::9")}
			for i := range old.ip {
				l.must(l.wires.conntrack.socket.Run([]*rtnl.Request{
					newEntry(old.ip[i], outside[i]), newEntry(outside[i].Next(), old.ip[i]), newEntry(stays.ip[i], outside[i]),
				}))
			}
			if x.detached {
				l.delete(old)
			}
			l.must(l.wires.Close())
			l.wires = l.open(Options{})
			if x.listed {
				l.wires.conntrack.filters = map[byte]bool{}
			}
			fresh := l.podWith(l.namespace(), "pod/k8s/new/eth0", 900)
			wanted := []*labPod{stays}
			if x.wanted {
				wanted = append(wanted, fresh)
			}
			for key, m := range l.messages(wanted...) {
				if key != stays.key {
					l.must(l.wires.Delete(context.Background(), key, m))
				}
			}
			l.create(fresh)
			for i, a := range fresh.ip {
				l.Expect(l.entries(a)).To(BeZero(), "%s when it is used again", a)
				l.Expect(l.entries(stays.ip[i])).To(Equal(1), "those of a pod that stays")
			}
			l.complete(stays, fresh)
		})
	}
}
