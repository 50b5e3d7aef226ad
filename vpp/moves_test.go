// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp_test

import (
	"context"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

// The other end of a tunnel is another address: the node came back with another one, or this
// node did.
func TestATunnelFollowsItsEnds(t *testing.T) {
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	m := proto.Clone(w["tunnel/6"]).(*kv.NodeTunnel)
	m.Underlay = []string{"192.168.16.98"}
	w["tunnel/6"] = m
	l.must(l.update(false, "tunnel/6", m))
	l.Expect(l.Dump()).To(ContainSubstring("192.168.16.5-192.168.16.98"))
	l.inspect(w)

	m = proto.Clone(m).(*kv.NodeTunnel)
	m.Underlay = []string{"192.168.16.97"}
	w["tunnel/6"] = m
	l.restart() // another process learns it
	l.must(l.resync(w))
	l.Expect(l.Dump()).To(ContainSubstring("192.168.16.5-192.168.16.97"))

	own := proto.Clone(w[kv.SinkNode]).(*kv.NodeNetwork)
	own.NodeIps, own.Underlay = []string{"192.168.16.55/24"}, []string{"192.168.16.55"}
	w[kv.SinkNode] = own
	l.must(l.resync(w))
	l.Expect(l.Dump()).To(ContainSubstring("192.168.16.55-192.168.16.97"))
	l.Expect(l.Dump()).NotTo(ContainSubstring("192.168.16.5-"))
}

// A node gets another ID. No MAC of its old one stays in the bridge domain.
func TestANodeThatMovesToAnotherIDKeepsItsAddress(t *testing.T) {
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	before := w["tunnel/6"].(*kv.NodeTunnel)
	after := proto.Clone(before).(*kv.NodeTunnel)
	after.NodeId, after.Mac, after.VxlanIps = 8, "0a:ca:00:00:00:08", []string{"192.168.30.8"}
	delete(w, "tunnel/6")
	w["tunnel/8"] = after
	l.must(l.scheduler.Commit(context.Background(), controller.Transaction{
		Method: controller.Update,
		Values: []controller.Value{{Key: "tunnel/6"}, {Key: "tunnel/8", Message: after}},
	}))
	l.sameAsFresh(w)
}

// Each pod takes the address that the other one had.
func TestPodsExchangeTheirAddresses(t *testing.T) {
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	a, b := proto.Clone(w["pod/k8s/a/eth0"]).(*kv.PodNetwork), proto.Clone(w["pod/k8s/b/eth0"]).(*kv.PodNetwork)
	a.Addresses, b.Addresses = b.Addresses, a.Addresses
	w["pod/k8s/a/eth0"], w["pod/k8s/b/eth0"] = a, b
	l.must(l.scheduler.Commit(context.Background(), controller.Transaction{
		Method: controller.Update,
		Values: []controller.Value{{Key: "pod/k8s/a/eth0", Message: a}, {Key: "pod/k8s/b/eth0", Message: b}},
	}))
	l.sameAsFresh(w)
}

// The removal of a pod fails while VPP is away, and its address has another pod by then.
func TestALateRemovalLeavesTheNextPodItsRoute(t *testing.T) {
	l := newLab(t)
	w := l.values()
	a, next := w["pod/k8s/a/eth0"], l.pod(1, "b", "10.1.5.2", "default", 0)
	w["pod/k8s/b/eth0"] = next
	delete(w, "pod/k8s/b/eth0")
	l.must(l.resync(w))
	w["pod/k8s/b/eth0"] = next
	l.must(l.update(true, "pod/k8s/b/eth0", next))
	delete(w, "pod/k8s/a/eth0")
	l.Expect(a).NotTo(BeNil())
	l.must(l.update(false, "pod/k8s/a/eth0", nil))
	l.sameAsFresh(w)
}

// The node itself gets another ID: the interfaces that pods and tunnels lead over have other
// MACs, and are made anew.
func TestTheNodeMovesToAnotherID(t *testing.T) {
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	m := proto.Clone(w[kv.SinkNode]).(*kv.NodeNetwork)
	m.Id, m.VxlanMac, m.VxlanIps = 11, "0a:ca:00:00:00:0b", []string{"192.168.30.11/24"}
	w[kv.SinkNode] = m
	l.restart()
	l.must(l.resync(w))
	l.inspect(w)
	l.sameAsFresh(w)
}

// sameAsFresh expects that VPP has what a new one gets from one resync.
func (l *lab) sameAsFresh(w wanted) {
	l.t.Helper()
	have := l.objects()
	l.empty()
	l.must(l.resync(w))
	fresh := l.objects()
	for _, line := range fresh {
		l.Expect(slices.Contains(have, line)).To(BeTrue(), "missing: %s", line)
	}
	for _, line := range have {
		l.Expect(slices.Contains(fresh, line)).To(BeTrue(), "left over: %s", line)
	}
}
