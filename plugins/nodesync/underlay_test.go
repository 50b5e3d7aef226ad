// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

func addrs(texts ...string) (all []netip.Addr) {
	for _, s := range texts {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// The underlay and the key are in the record after the commit of the event that has
// published them, and go when the node has none any more.
func TestTheUnderlayIsPublished(t *testing.T) {
	publishing(t, func(t *testing.T, g Gomega, p *publisher) {
		p.PublishUnderlay(addrs("172.18.0.7", "fd00:7::7"), "key=")
		g.Expect(p.Staged()).To(HaveExactElements(And(ContainSubstring("172.18.0.7"), ContainSubstring("key="))))
		g.Expect(p.own().Underlay).To(BeEmpty(), "not before the commit")
		p.commit(t)
		g.Expect(p.own().Underlay).To(Equal([]string{"172.18.0.7", "fd00:7::7"}))
		g.Expect(p.own().PublicKey).To(Equal("key="))
		g.Expect(p.Staged()).To(BeEmpty())

		p.PublishUnderlay(addrs("172.18.0.7", "fd00:7::7"), "another")
		g.Expect(p.Staged()).To(HaveLen(1), "the key alone has changed")
		p.Undo()
		g.Expect(p.Staged()).To(BeEmpty())

		p.publish("192.168.16.1/24")
		p.commit(t)
		g.Expect(p.own().Underlay).To(HaveLen(2), "an event that does not publish it keeps it")
		p.PublishUnderlay(nil, "")
		p.commit(t)
		g.Expect(p.own().Underlay).To(BeEmpty())
		g.Expect(p.own().PublicKey).To(BeEmpty())
	})
}

// A node that claims its ID again is reached by the same addresses.
func TestTheUnderlayIsKeptByAnotherClaim(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	record := &kv.NodeRecord{Id: 1, Name: "a", Instance: "uuid-of-a", Generation: 1, Underlay: []string{"172.18.0.7"}, PublicKey: "key="}
	text, err := proto.Marshal(record)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.NodeRecordKey(1), text)})
	g.Expect(err).NotTo(HaveOccurred())
	pinned := who("a")
	pinned.Pinned = 9
	held, err := nodesync.Claim(t.Context(), store, pinned, nodesync.Held{}, time.Now())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(held.ID).To(BeEquivalentTo(9))
	g.Expect(records(g, store)[9].Underlay).To(Equal(record.Underlay))
	g.Expect(records(g, store)[9].PublicKey).To(Equal(record.PublicKey))
}

// Other nodes learn of the underlay by a NodeUpdate; what cannot be parsed is left out.
func TestTheUnderlayOfAnotherNode(t *testing.T) {
	g := NewWithT(t)
	a := &nodesync.Node{ID: 7, Name: "b", Underlay: addrs("172.18.0.7"), PublicKey: "key="}
	for _, change := range []func(n *nodesync.Node){
		func(n *nodesync.Node) { n.Underlay = addrs("172.18.0.8") },
		func(n *nodesync.Node) { n.Underlay = nil },
		func(n *nodesync.Node) { n.PublicKey = "another" },
	} {
		b := *a
		g.Expect(a.Equal(&b)).To(BeTrue())
		change(&b)
		g.Expect(a.Equal(&b)).To(BeFalse(), "%v", &b)
	}
	g.Expect(a.String()).To(ContainSubstring("172.18.0.7"))
	nodes := newNeighbourhood(t)
	m := &kv.NodeRecord{Id: 7, Name: "b", Generation: 1, Underlay: []string{"172.18.0.7", "nonsense"}, PublicKey: "key="}
	g.Expect(nodes.change(kubestate.NodeRecords, kv.NodeRecordKey(7), m)).To(HaveLen(1))
	m = proto.Clone(m).(*kv.NodeRecord)
	m.PublicKey = "another"
	g.Expect(nodes.change(kubestate.NodeRecords, kv.NodeRecordKey(7), m)).To(HaveLen(1))
	n := nodes.GetNode("b")
	g.Expect(n.Underlay).To(Equal(addrs("172.18.0.7")))
	g.Expect(n.PublicKey).To(Equal("another"))
}
