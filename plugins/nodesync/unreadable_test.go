// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// garbled are values that are not the record of node ID id.
func garbled(g Gomega, id uint32) map[string][]byte {
	other, err := proto.Marshal(&kv.NodeRecord{Id: id + 7, Name: "z", Instance: "uuid-of-z", Generation: 3})
	g.Expect(err).NotTo(HaveOccurred())
	return map[string][]byte{"not a message": {0xff, 0xff}, "the record of another ID": other, "empty": {}}
}

// withGarbled runs a test for each way in which the record of ID 2 of three nodes
// may be damaged, in each kind of store.
func withGarbled(t *testing.T, test func(t *testing.T, g Gomega, store kvdb.Store, nodes []*node)) {
	t.Helper()
	for what := range garbled(NewWithT(t), 2) {
		for kind, through := range stores() {
			t.Run(what+", "+kind, func(t *testing.T) {
				bubble(t, func(t *testing.T, g Gomega, inner *faulty.Store) {
					store := through(inner)
					var nodes []*node
					for _, name := range []string{"a", "b", "c"} {
						nodes = append(nodes, newNode(t, store, who(name), newDisk()).confirm(t))
					}
					_, err := inner.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.NodeRecordKey(2), garbled(g, 2)[what])})
					g.Expect(err).NotTo(HaveOccurred())
					test(t, g, store, nodes)
				})
			})
		}
	}
}

// Other nodes start, join, and are released as if nothing was wrong. The ID is not
// given to any of them.
func TestARecordThatCannotBeReadAffectsNoOtherNode(t *testing.T) {
	withGarbled(t, func(t *testing.T, g Gomega, store kvdb.Store, nodes []*node) {
		before, _, err := store.Get(t.Context(), kv.NodeRecordKey(2))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(newNode(t, store, who("d"), newDisk()).confirm(t).ID()).To(BeNumerically("==", 4))
		for i, name := range []string{"a", "b", "c"} {
			if name != "b" {
				again := newNode(t, store, again(who(name)), nodes[i].disk).confirm(t)
				g.Expect(again.ID()).To(BeNumerically("==", i+1))
				g.Expect(again.Problem()).To(BeEmpty())
			}
		}
		_, err = nodesync.Claim(t.Context(), store, pinned("e", 2), nodesync.Held{}, time.Now())
		g.Expect(err).To(And(MatchError(nodesync.ErrIDTaken), MatchError(ContainSubstring("cluster/node-id/2 cannot be read")), MatchError(ContainSubstring("counts as taken"))))
		_, err = nodesync.Claim(t.Context(), store, with(who("e"), func(w *nodesync.Identity) { w.Limit = limit(4) }), nodesync.Held{}, time.Now())
		g.Expect(err).To(MatchError(nodesync.ErrNoID))

		all, unreadable, err := nodesync.ListAll(t.Context(), store)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(HaveLen(3))
		g.Expect(unreadable).To(HaveExactElements(And(HaveField("ID", uint32(2)), HaveField("Err", MatchError(ContainSubstring("cluster/node-id/2"))))))
		gone := nodesync.Expired{After: fresh, Node: func(string) (string, bool, error) { return "", false, nil }}
		g.Expect(nodesync.ReleaseExpired(t.Context(), store, gone, time.Now().Add(fresh))).To(ConsistOf("a", "c", "d"))
		after, _, err := store.Get(t.Context(), kv.NodeRecordKey(2))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after).To(Equal(before), "the record is its holder's")
	})
}

// The holder writes its record again, whether it runs or restarts.
func TestTheHolderWritesARecordThatCannotBeReadAgain(t *testing.T) {
	withGarbled(t, func(t *testing.T, g Gomega, store kvdb.Store, nodes []*node) {
		b := nodes[1]
		b.Use()
		b.confirm(t)
		g.Expect(b.Problem()).To(BeEmpty())
		g.Expect(b.Held()).To(Equal(nodesync.Held{ID: 2, Generation: 2}))
		g.Expect(records(g, store)[2]).To(And(HaveField("Instance", "uuid-of-b"), HaveField("Generation", uint64(2))))
		g.Expect(b.logged()).To(ContainSubstring("cannot be read"))
	})
	withGarbled(t, func(t *testing.T, g Gomega, store kvdb.Store, nodes []*node) {
		b := newNode(t, store, again(who("b")), nodes[1].disk).confirm(t)
		g.Expect(b.Problem()).To(BeEmpty())
		g.Expect(b.Held()).To(Equal(nodesync.Held{ID: 2, Generation: 2}))
		g.Expect(records(g, store)[2].Instance).To(Equal("uuid-of-b"))
	})
}

// If the claim of the name is not of this ID and this instance, the record may be another
// node's by now. What is allocated stays, and nothing new is allocated.
func TestARecordThatCannotBeReadMayBeAnothers(t *testing.T) {
	for name, c := range map[string]*kv.NodeName{
		"of another instance": {Id: 2, Instance: "another"},
		"of another ID":       {Id: 9, Instance: "uuid-of-b"},
		"lost":                {},
	} {
		for _, busy := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				withGarbled(t, func(t *testing.T, g Gomega, store kvdb.Store, nodes []*node) {
					put(g, store, kv.NodeNameKey("b"), c)
					b := newNode(t, store, again(who("b")), nodes[1].disk)
					b.busy = busy
					b.confirm(t)
					if !busy {
						g.Expect(b.ID()).To(BeNumerically("==", 4), "nothing depends on the old one")
						return
					}
					g.Expect(b.ID()).To(BeNumerically("==", 2))
					g.Expect(b.suspension()).To(ContainSubstring("cluster/node-id/2 cannot be read"))
				})
			})
		}
	}
}
