// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// has makes the store say that a node has a claim of a target, or none any more.
func (n *neighbourhood) has(t claims.Target, node string, held bool) []string {
	return n.change(kubestate.PrefixClaims, t.Key(node), prefixClaim(t, node, held))
}

// assigned makes the Node object of a node say which podCIDRs it has.
func (n *neighbourhood) assigned(name string, cidrs ...string) []string {
	return n.change(kubestate.Nodes, kv.NodeKey(name), &kv.Node{Name: name, PodCidrs: cidrs})
}

// asResynced fails unless a resync finds the nodes that the updates have led to.
func (n *neighbourhood) asResynced() {
	byUpdates := fmt.Sprint(n.GetAllNodes())
	n.resync()
	n.g.Expect(fmt.Sprint(n.GetAllNodes())).To(Equal(byUpdates))
}

// One entry that cannot be parsed counts for all of them, by update as by resync,
// and a corrected object is as if there had been no other.
func TestOneBadPodCIDR(t *testing.T) {
	for name, cidrs := range map[string][]string{
		"first": {"10.1.5.0", "10.1.6.0/24"}, "last": {"10.1.6.0/24", "10.1.5.0/33"}, "alone": {""}, "of another word": {"10.1.6.0/24", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := newNeighbourhood(t)
			g.Expect(n.assigned("a", "10.1.6.0/24")).To(HaveLen(1))
			g.Expect(n.assigned("a", cidrs...)).To(HaveLen(1), "it is a change")
			g.Expect(n.GetAllNodes()["a"].PodCIDRs).To(BeEmpty())
			g.Expect(n.GetAllNodes()["a"].PodCIDRProblem).To(ContainSubstring("is not a network, such as 10.1.5.0/24"))
			n.asResynced()
			g.Expect(n.assigned("a", "10.1.6.0/24")).To(HaveLen(1))
			g.Expect(n.GetAllNodes()["a"].String()).To(HaveSuffix("podCIDRs=[10.1.6.0/24]"))
			n.asResynced()
		})
	}
}

// What other nodes learn of a node: the held claims of its pod network; the blocks
// that it publishes, if they have claims, and else those of its Node object.
func TestNodesWithClaims(t *testing.T) {
	g := NewWithT(t)
	n := newNeighbourhood(t)
	record := func(explicit bool, blocks ...string) []string {
		return n.change(kubestate.NodeRecords, kv.NodeRecordKey(2), &kv.NodeRecord{Id: 2, Name: "b", Instance: "uuid-of-b", PodCidrs: blocks, ExplicitBlocks: explicit})
	}
	record(false, "10.1.9.0/24")
	n.assigned("b", "10.1.77.0/24")
	g.Expect(n.GetAllNodes()["b"].String()).To(HaveSuffix("podCIDRs=[10.1.77.0/24]"), "an agent that knows no claims")
	n.asResynced()
	g.Expect(record(true, "10.1.78.0/24")).To(HaveLen(1))
	g.Expect(n.GetAllNodes()["b"].String()).To(HaveSuffix("podCIDRs=[10.1.78.0/24]"), "it holds another block than its object says")
	n.asResynced()

	g.Expect(n.has(blockTarget("10.1.78.0/24"), "b", false)).To(BeEmpty(), "a pending claim is nothing yet")
	g.Expect(n.has(blockTarget("10.1.78.0/24"), "b", true)).To(HaveLen(1))
	g.Expect(n.has(addressTarget("192.168.16.7"), "b", true)).To(BeEmpty(), "it is not a block")
	g.Expect(n.has(blockTarget("10.1.79.0/24"), "c", true)).To(BeEmpty(), "a node of which nothing else is known")
	g.Expect(n.GetAllNodes()["b"].String()).To(HaveSuffix("claims=[10.1.78.0/24]"))
	n.asResynced()
	g.Expect(n.change(kubestate.PrefixClaims, blockTarget("10.1.78.0/24").Key("b"), nil)).To(HaveLen(1))
	g.Expect(n.GetAllNodes()["b"].Claims).To(BeEmpty())

	n.assigned("a", "10.1.77.0/24")
	n.change(kubestate.NodeRecords, kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "a", Instance: "uuid-of-a", PodCidrs: []string{"10.1.5.0/24"}, ExplicitBlocks: true})
	g.Expect(fmt.Sprint(n.GetAllNodes()["a"].PodCIDRs)).To(Equal("[10.1.77.0/24]"), "this node asks for what its object says")
	n.asResynced()
}

// watcher notes what it is told of.
type watcher struct {
	told  []string
	pokes int
}

func (w *watcher) Poke() { w.pokes++ }

func (w *watcher) Changed(node string, c *kv.PrefixClaim) {
	w.told = append(w.told, fmt.Sprintf("%s: %s of %s, held: %t", node, c.GetPrefix(), c.GetNode(), c.GetHeld()))
}

// The claimer hears of changes of claims and records. A claim that is gone is held
// by no node.
func TestTheClaimerHearsOfChanges(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	w := &watcher{}
	n := &neighbourhood{
		NodeSync: nodesync.NewPlugin(nodesync.Deps{ServiceLabel: label("a"), IDClaimer: newNode(t, store, who("a"), newDisk()).confirm(t).IDClaimer, Claims: w}),
		g:        g, kube: controller.KubeStateData{kubestate.NodeRecords: {}, kubestate.Nodes: {}, kubestate.PrefixClaims: {}},
	}
	n.resync()
	g.Expect(w.pokes).To(Equal(1), "a resync may have missed changes")
	block := blockTarget("10.1.78.0/24")
	n.has(block, "b", true)
	n.change(kubestate.PrefixClaims, block.Key("b"), nil)
	n.record(2, "b")
	n.assigned("b", "10.1.78.0/24")
	g.Expect(w.told).To(Equal([]string{"a: 10.1.78.0/24 of b, held: true", "a: 10.1.78.0/24 of b, held: false", "a:  of , held: false"}))
}

// A held claim that the store lost together with the record of its node is written
// again; any other that is gone has ended.
func TestWhatTheStoreHasLostOfClaimsIsWrittenAgain(t *testing.T) {
	record := &kv.NodeRecord{Id: 9, Name: "b", Instance: "uuid-of-b", Generation: 3}
	block := blockTarget("10.1.78.0/24")
	with := func(change func(*kv.PrefixClaim)) *kv.PrefixClaim {
		c := prefixClaim(block, "b", true)
		change(c)
		return c
	}
	held := with(func(*kv.PrefixClaim) {})
	for name, c := range map[string]struct {
		known  *kv.PrefixClaim
		found  *kv.PrefixClaim // in the store
		record *kv.NodeRecord  // in the store
		write  bool
	}{
		"both are lost":                   {held, nil, nil, true},
		"the record is older":             {held, nil, &kv.NodeRecord{Id: 9, Name: "b", Instance: "uuid-of-b", Generation: 2}, true},
		"the claim has ended":             {held, nil, record, false},
		"the claim is there":              {held, held, nil, false},
		"it is there as a pending one":    {held, with(func(c *kv.PrefixClaim) { c.Held = false }), nil, false},
		"it was pending":                  {with(func(c *kv.PrefixClaim) { c.Held = false }), nil, nil, false},
		"it was about to end":             {with(func(c *kv.PrefixClaim) { c.Ends = 7 }), nil, nil, false},
		"its node has another ID":         {with(func(c *kv.PrefixClaim) { c.NodeId = 8 }), nil, nil, false},
		"its ID is another node's":        {with(func(c *kv.PrefixClaim) { c.Node = "x" }), nil, nil, false},
		"another node holds it":           {held, prefixClaim(block, "c", true), nil, false},
		"another node holds a part of it": {held, prefixClaim(blockTarget("10.1.78.128/25"), "c", true), nil, false},
		"another node waits for it":       {held, prefixClaim(block, "c", false), nil, true},
		"another node holds another one":  {held, prefixClaim(blockTarget("10.1.79.0/24"), "c", true), nil, true},
		"another node has the ID":         {held, nil, &kv.NodeRecord{Id: 9, Name: "c", Instance: "uuid-of-c", Generation: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			known, found := registerOf(record), registerOf(c.record)
			of := func(c *kv.PrefixClaim) map[string]proto.Message {
				t, _ := claims.TargetOf(c)
				return map[string]proto.Message{t.Key(c.Node): c}
			}
			known[kubestate.PrefixClaims] = of(c.known)
			if c.found != nil {
				found[kubestate.PrefixClaims] = of(c.found)
			}
			var written []string
			for _, w := range nodesync.Repair("a")(known, found, nil) {
				written = append(written, w.Key)
			}
			key := block.Key("b")
			if !c.write {
				g.Expect(written).NotTo(ContainElement(key))
				return
			}
			g.Expect(written[0]).To(Equal(key), "before the record: a newcomer that sees the record sees the claim")
		})
	}
}
