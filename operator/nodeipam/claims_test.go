// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/operator/nodeipam"
	"github.com/cadastre/cadastre/operator/nodeipam/agentclaims"
)

// agents are the claims that agents have written, in a store.
type agents struct {
	t     testing.TB
	store kvdb.Store
	since int64
}

func newAgents(t testing.TB) *agents {
	store := mem.New()
	t.Cleanup(func() { _ = store.Close() })
	return &agents{t: t, store: store}
}

func (a *agents) txn(op kvdb.Op) {
	_, err := a.store.Txn(context.Background(), nil, []kvdb.Op{op})
	NewWithT(a.t).Expect(err).NotTo(HaveOccurred())
}

func key(node, block string) string {
	return kv.PrefixClaimKey(kv.PodNetworkClaims, pfx(block), node)
}

func (a *agents) put(key string, m proto.Message) {
	value, err := proto.Marshal(m)
	NewWithT(a.t).Expect(err).NotTo(HaveOccurred())
	a.txn(kvdb.Put(key, value))
}

// claim writes the claim of a node.
func (a *agents) claim(node, block string, held bool) {
	a.since++
	a.put(key(node, block), &kv.PrefixClaim{Network: kv.PodNetworkClaims, Prefix: block, Node: node, Held: held, Since: a.since})
}

func (a *agents) end(node, block string) { a.txn(kvdb.Delete(key(node, block))) }

// deps gives the claims to an allocator.
func (a *agents) deps(d *nodeipam.Deps) {
	d.Claims = agentclaims.Reader{Store: a.store, Expire: time.Minute, Now: d.Now}
}

// TestABlockWithAClaimIsNotAssigned: the Node object of a is made again while
// pods of a live in 10.1.77.0/24, and a new node comes first.
func TestABlockWithAClaimIsNotAssigned(t *testing.T) {
	for what, claim := range map[string]func(*agents){
		"a held claim":    func(a *agents) { a.claim("a", "10.1.77.0/24", true) },
		"a pending claim": func(a *agents) { a.claim("a", "10.1.77.0/24", false) },
		"of a part":       func(a *agents) { a.claim("a", "10.1.77.128/26", true) },
		"of more":         func(a *agents) { a.claim("a", "10.1.0.0/16", true) },
		"of the last version": func(a *agents) {
			a.put(kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "a", PodCidrs: []string{"10.1.77.0/24"}})
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			agents := newAgents(t)
			b := nodeipam.NewBench(t, nodeipam.RangesOf(nodeipam.RangeAllocatorType, "10.1.77.0/24 24"), agents.deps)
			b.Put("a")
			g.Expect(b.Look(t.Context())).To(Succeed())
			g.Expect(b.CIDRs()["a"]).To(Equal([]string{"10.1.77.0/24"}))
			claim(agents)
			b.Remove("a")
			b.Put("b")
			for range 3 {
				g.Expect(b.Look(t.Context(), "a", "b")).NotTo(Succeed())
			}
			g.Expect(b.CIDRs()["b"]).To(BeEmpty(), "pods of a live there")
			g.Expect(b.Condition("b", nodeipam.ConditionProblem)).To(Equal("True " + nodeipam.ReasonNotAvailable))
			g.Expect(b.Events(nodeipam.ReasonNotAvailable)).To(ConsistOf(ContainSubstring("free blocks that wait for claims of other nodes to end: 1")))
			b.Put("a")
			g.Expect(b.Look(t.Context(), "a")).To(Succeed())
			g.Expect(b.CIDRs()["a"]).To(Equal([]string{"10.1.77.0/24"}), "no live pod loses its block")
			g.Expect(b.Look(t.Context(), "b")).NotTo(Succeed())
			g.Expect(b.CIDRs()["b"]).To(BeEmpty())
		})
	}
}

func TestABlockIsAssignedWhenItsClaimHasEnded(t *testing.T) {
	g := NewWithT(t)
	agents := newAgents(t)
	agents.claim("gone", "10.1.77.0/24", true)
	b := nodeipam.NewBench(t, nodeipam.RangesOf(nodeipam.RangeAllocatorType, "10.1.77.0/24 24"), agents.deps)
	b.Put("b")
	g.Expect(b.Look(t.Context())).NotTo(Succeed())
	agents.end("gone", "10.1.77.0/24")
	g.Expect(b.Look(t.Context())).To(Succeed())
	g.Expect(b.CIDRs()["b"]).To(Equal([]string{"10.1.77.0/24"}))
	g.Expect(b.Condition("b", nodeipam.ConditionProblem)).To(Equal("False " + nodeipam.ReasonAssigned))
}

// TestANodeGetsItsHomeBlockBack: the first block that fits, of those that its agent holds.
func TestANodeGetsItsHomeBlockBack(t *testing.T) {
	for what, x := range map[string]struct {
		claims func(*agents)
		want   string
	}{
		"none":                        {func(*agents) {}, "10.1.0.0/24"},
		"one":                         {func(a *agents) { a.claim("a", "10.1.77.0/24", true) }, "10.1.77.0/24"},
		"the newest of two":           {func(a *agents) { a.claim("a", "10.1.77.0/24", true); a.claim("a", "10.1.7.0/24", true) }, "10.1.7.0/24"},
		"of another size":             {func(a *agents) { a.claim("a", "10.1.77.0/25", true) }, "10.1.0.0/24"},
		"of no range":                 {func(a *agents) { a.claim("a", "10.2.77.0/24", true) }, "10.1.0.0/24"},
		"it waits for it":             {func(a *agents) { a.claim("a", "10.1.77.0/24", false) }, "10.1.0.0/24"},
		"another node waits for it":   {func(a *agents) { a.claim("a", "10.1.77.0/24", true); a.claim("b", "10.1.77.0/24", false) }, "10.1.77.0/24"},
		"another node holds a part":   {func(a *agents) { a.claim("a", "10.1.77.0/24", true); a.claim("b", "10.1.77.0/26", true) }, "10.1.0.0/24"},
		"another node's Node has it":  {func(a *agents) { a.claim("a", "10.1.99.0/24", true) }, "10.1.0.0/24"},
		"it is cooling":               {func(a *agents) { a.claim("a", "10.1.88.0/24", true) }, "10.1.88.0/24"},
		"another one's claim is next": {func(a *agents) { a.claim("b", "10.1.0.0/23", true) }, "10.1.2.0/24"},
	} {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			agents := newAgents(t)
			x.claims(agents)
			settings := nodeipam.RangesOf(nodeipam.RangeAllocatorType, "10.1.0.0/16 24")
			settings.Policy.CoolDown = time.Hour
			b := nodeipam.NewBench(t, settings, agents.deps)
			b.Put("other", "10.1.99.0/24")
			b.Put("cooled", "10.1.88.0/24")
			g.Expect(b.Look(t.Context())).To(Succeed())
			b.Remove("cooled")
			g.Expect(b.Look(t.Context(), "cooled")).To(Succeed())
			b.Put("a")
			g.Expect(b.Look(t.Context(), "a")).To(Succeed())
			g.Expect(b.CIDRs()["a"]).To(Equal([]string{x.want}))
		})
	}
}

// scripted answers each question for claims by the next step, and later ones by the last.
type scripted struct {
	steps []func() ([]nodeipam.Claim, error)
	asked atomic.Int64
}

func (s *scripted) Claims(context.Context) ([]nodeipam.Claim, error) {
	n := int(s.asked.Add(1))
	return s.steps[min(n, len(s.steps))-1]()
}

func claims(blocks ...string) func() ([]nodeipam.Claim, error) {
	var all []nodeipam.Claim
	for _, p := range blocks {
		all = append(all, nodeipam.Claim{Node: "old", Block: pfx(p), Held: true})
	}
	return func() ([]nodeipam.Claim, error) { return all, nil }
}

var errDown = errors.New("connection refused")

func down() ([]nodeipam.Claim, error) { return nil, errDown }

// TestClaimsAreReadAfterTheChoice: one that was written after the first look, and
// before the block was free, counts.
func TestClaimsAreReadAfterTheChoice(t *testing.T) {
	g := NewWithT(t)
	s := &scripted{steps: []func() ([]nodeipam.Claim, error){claims(), claims("10.1.0.0/24"), claims("10.1.0.0/24")}}
	b := nodeipam.NewBench(t, nodeipam.RangesOf(nodeipam.RangeAllocatorType, "10.1.0.0/16 24"), func(d *nodeipam.Deps) { d.Claims = s })
	b.Put("b")
	b.WatchWrites(func() { g.Expect(b.NodesWithPodCIDRs()["b"]).NotTo(ContainElement("10.1.0.0/24")) })
	g.Expect(b.Look(t.Context())).To(Succeed())
	g.Expect(b.CIDRs()["b"]).To(Equal([]string{"10.1.1.0/24"}))
	g.Expect(b.Held()).To(Equal(b.CIDRs()))
}

// TestClaimsThatGoOnChanging: the node goes back to the queue, and holds nothing.
func TestClaimsThatGoOnChanging(t *testing.T) {
	g := NewWithT(t)
	s := &scripted{steps: []func() ([]nodeipam.Claim, error){claims(), claims("10.1.0.0/24"), claims("10.1.1.0/24"), claims("10.1.2.0/24"), claims()}}
	settings := nodeipam.RangesOf(nodeipam.RangeAllocatorType, "10.1.0.0/22 24")
	b := nodeipam.NewBench(t, settings, func(d *nodeipam.Deps) { d.Claims = s })
	b.Put("b")
	g.Expect(b.Look(t.Context())).To(MatchError(ContainSubstring("go on changing")))
	g.Expect(b.Held()).To(BeEmpty())
	g.Expect(b.Look(t.Context())).To(Succeed())
	g.Expect(b.CIDRs()["b"]).To(HaveLen(1))
}

// TestNothingIsAssignedWhileClaimsCannotBeRead: before the choice, or after it.
func TestNothingIsAssignedWhileClaimsCannotBeRead(t *testing.T) {
	for what, steps := range map[string][]func() ([]nodeipam.Claim, error){
		"before the choice": {down, claims()},
		"after the choice":  {claims(), down, claims()},
	} {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			b := nodeipam.NewBench(t, nodeipam.RangesOf(nodeipam.RangeAllocatorType, "10.1.0.0/16 24"),
				func(d *nodeipam.Deps) { d.Claims = &scripted{steps: steps} })
			b.Put("b")
			g.Expect(b.Look(t.Context(), "b")).To(MatchError(errDown))
			g.Expect(b.CIDRs()["b"]).To(BeEmpty())
			g.Expect(b.Held()).To(BeEmpty())
			g.Expect(b.Condition("b", nodeipam.ConditionProblem)).To(Equal("True " + nodeipam.ReasonAssignmentFailed))
			g.Expect(b.Look(t.Context(), "b")).To(Succeed())
			g.Expect(b.CIDRs()["b"]).To(HaveLen(1))
			g.Expect(b.Condition("b", nodeipam.ConditionProblem)).To(Equal("False " + nodeipam.ReasonAssigned))
		})
	}
}

// TestAClaimForABlockThatWasOffered: the node gets another one, but only after
// nothing that was sent with the first can arrive any more.
func TestAClaimForABlockThatWasOffered(t *testing.T) {
	g := NewWithT(t)
	agents := newAgents(t)
	b := nodeipam.NewBench(t, nodeipam.RangesOf(nodeipam.RangeAllocatorType, "10.1.0.0/16 24"), agents.deps)
	b.Put("b")
	b.FaultsFrom(func(what string) int {
		if what == "patch" {
			return nodeipam.DelayRequest
		}
		return nodeipam.NoFault
	}, 1000)
	g.Expect(b.Look(t.Context(), "b")).NotTo(Succeed())
	b.NoFaults()
	g.Expect(b.Held()["b"]).To(Equal([]string{"10.1.0.0/24"}), "it may get it yet")
	agents.claim("old", "10.1.0.0/24", true)
	g.Expect(b.Look(t.Context(), "b")).To(Succeed())
	b.Arrive()
	g.Expect(b.CIDRs()["b"]).To(Equal([]string{"10.1.1.0/24"}))
	g.Expect(b.Held()).To(Equal(b.CIDRs()))
}

// TestClaimsInBothFamilies: one family without a block leaves none of the other.
func TestClaimsInBothFamilies(t *testing.T) {
	g := NewWithT(t)
	agents := newAgents(t)
	agents.claim("old", "fd00:1::/64", true)
	agents.claim("b", "10.1.7.0/24", true)
	b := nodeipam.NewBench(t, nodeipam.RangesOf(nodeipam.RangeAllocatorType, "10.1.0.0/16 24", "fd00:1::/64 64"), agents.deps)
	b.Put("b")
	g.Expect(b.Look(t.Context(), "b")).NotTo(Succeed())
	g.Expect(b.Held()).To(BeEmpty())
	agents.end("old", "fd00:1::/64")
	g.Expect(b.Look(t.Context(), "b")).To(Succeed())
	g.Expect(b.CIDRs()["b"]).To(Equal([]string{"10.1.7.0/24", "fd00:1::/64"}))
}

// TestIPAMFromClusterRespectsClaims: what the cloud routes to a machine already
// stays its own, everything else is chosen like in RangeAllocator.
func TestIPAMFromClusterRespectsClaims(t *testing.T) {
	g := NewWithT(t)
	agents := newAgents(t)
	agents.claim("old", "10.1.0.0/24", true)
	cloud := memcloud.New(memcloud.Config{})
	b := nodeipam.NewBench(t, nodeipam.RangesOf(fromCluster, "10.1.0.0/16 24"), agents.deps, func(d *nodeipam.Deps) { d.Cloud = cloud })
	cloud.AddMachine("b", "mem://b")
	b.Put("b")
	g.Expect(b.Look(t.Context(), "b")).To(Succeed())
	g.Expect(b.CIDRs()["b"]).To(Equal([]string{"10.1.1.0/24"}))
	g.Expect(cloud.Routes()["b"]).To(Equal(prefixes("10.1.1.0/24")))
}
