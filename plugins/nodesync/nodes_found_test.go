// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// A node is pinned to another ID: one transaction deletes nodes/3 and puts
// nodes/10, and the changes of a transaction come in the order of their keys,
// "nodes/10" first. The end of the old record must not take the new one along.
func TestANodeGetsAnotherID(t *testing.T) {
	for _, id := range []uint32{2, 4, 10} {
		g := NewWithT(t)
		n := newNeighbourhood(t)
		n.record(3, "b", "192.168.16.3/24")
		if kv.NodeRecordKey(id) < kv.NodeRecordKey(3) {
			n.record(id, "b", "192.168.16.3/24")
			n.change(kubestate.NodeRecords, kv.NodeRecordKey(3), nil)
		} else {
			n.change(kubestate.NodeRecords, kv.NodeRecordKey(3), nil)
			n.record(id, "b", "192.168.16.3/24")
		}
		byChanges := fmt.Sprint(n.GetAllNodes())
		n.resync()
		g.Expect(byChanges).To(Equal(fmt.Sprint(n.GetAllNodes())), "from 3 to %d", id)
	}
}

// Maps are walked in a fixed order: the same change tells the same, always.
func TestARenamedNodeIsToldInAFixedOrder(t *testing.T) {
	g := NewWithT(t)
	orders := map[string]bool{}
	for range 64 {
		n := newNeighbourhood(t)
		n.record(2, "b")
		orders[fmt.Sprint(n.record(2, "c"))] = true
	}
	g.Expect(orders).To(HaveLen(1))
}

// The last word counts: what was staged before is not published after all.
func TestPublishingIsTakenBackByTheSameEvent(t *testing.T) {
	g := NewWithT(t)
	p := newPublisher(t)
	p.publish("192.168.16.1/24")
	g.Expect(p.Commit(t.Context())).To(Succeed())
	p.resync()
	p.publish("192.168.16.2/24")
	p.publish("192.168.16.1/24")
	g.Expect(p.Commit(t.Context())).To(Succeed())
	g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/24"}))
}

// The same over two events, the second before the watch has brought the first.
func TestPublishingIsTakenBackBeforeItIsSeen(t *testing.T) {
	g := NewWithT(t)
	p := newPublisher(t)
	p.publish("192.168.16.1/24")
	g.Expect(p.Commit(t.Context())).To(Succeed())
	p.resync()
	p.publish("192.168.16.2/24")
	g.Expect(p.Commit(t.Context())).To(Succeed())
	p.publish("192.168.16.1/24")
	g.Expect(p.Commit(t.Context())).To(Succeed())
	g.Expect(p.own().IpAddresses).To(Equal([]string{"192.168.16.1/24"}))
}
