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

// A node is pinned to another ID: one transaction releases 3 and claims 10, and
// the changes of a transaction come in the order of their keys, "10" first. The
// end of the old record must not take the new one along.
func TestANodeGetsAnotherID(t *testing.T) {
	for _, id := range []uint32{2, 4, 10} {
		g := NewWithT(t)
		n := newNeighbourhood(t)
		n.record(3, "b", "192.168.16.3/24")
		release := func() {
			n.change(kubestate.NodeRecords, kv.NodeRecordKey(3), &kv.NodeRecord{Id: 3, Name: "b", Instance: "uuid-of-b", Released: 1})
		}
		if kv.NodeRecordKey(id) < kv.NodeRecordKey(3) {
			n.record(id, "b", "192.168.16.3/24")
			release()
		} else {
			release()
			n.record(id, "b", "192.168.16.3/24")
		}
		g.Expect(n.GetAllNodes()["b"].ID).To(Equal(id))
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
