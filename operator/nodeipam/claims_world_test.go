// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

// claimWorld is a cluster whose nodes come, go and are made again, with agents
// that hold claims longer than that, in a network of four blocks.
type claimWorld struct {
	*rapid.T
	nodeipam.Bench
	agents *agents
	claims map[string][]string // held, by node
	had    map[string][]string // podCIDRs before the last step
}

func (w *claimWorld) name(rt *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(rt, "node")
}

func (w *claimWorld) come(rt *rapid.T) {
	if name := w.name(rt); w.Node(name) == nil {
		w.Put(name)
	}
}

func (w *claimWorld) leave(rt *rapid.T) { w.Remove(w.name(rt)) }

// again deletes a Node object and makes it anew before the operator sees that.
func (w *claimWorld) again(rt *rapid.T) {
	if name := w.name(rt); w.Node(name) != nil {
		w.Remove(name)
		w.Put(name)
	}
}

// hold has the agent of a node claim its podCIDR, which succeeds if no other
// agent holds it.
func (w *claimWorld) hold(rt *rapid.T) {
	name := w.name(rt)
	for _, cidr := range w.CIDRs()[name] {
		if _, _, taken := w.other(name, cidr); !taken && !slices.Contains(w.claims[name], cidr) {
			w.agents.claim(name, cidr, true)
			w.claims[name] = append(w.claims[name], cidr)
		}
	}
}

// end ends the claims of a node.
func (w *claimWorld) end(rt *rapid.T) {
	name := w.name(rt)
	for _, cidr := range w.claims[name] {
		w.agents.end(name, cidr)
	}
	delete(w.claims, name)
}

// other returns the claim of another node that overlaps a block.
func (w *claimWorld) other(name, block string) (node, claim string, ok bool) {
	for node, all := range w.claims {
		for _, c := range all {
			if node != name && netip.MustParsePrefix(c).Overlaps(pfx(block)) {
				return node, c, true
			}
		}
	}
	return "", "", false
}

// look has the operator look at a node, and one request fail.
func (w *claimWorld) look(rt *rapid.T) {
	name := w.name(rt)
	if n := rapid.IntRange(-8, 8).Draw(rt, "the request that fails"); n > 0 {
		w.FaultAt(w.Calls()+n, rapid.IntRange(1, nodeipam.FaultKinds-1).Draw(rt, "how"), rapid.IntRange(1, 5).Draw(rt, "lag"))
	}
	home := w.home(name)
	err := w.Look(w.Context(), name)
	w.NoFaults()
	if is := w.CIDRs()[name]; err == nil && home != "" && len(w.had[name]) == 0 && len(is) > 0 && !slices.Equal(is, []string{home}) {
		w.Fatalf("node %s has %v, and not %s, which its agent holds", name, is, home)
	}
}

// home returns the block that a node gets now because its agent holds it.
func (w *claimWorld) home(name string) string {
	node := w.Node(name)
	if node == nil || len(w.CIDRs()[name]) > 0 || len(w.Offered(name)) > 0 || len(w.claims[name]) != 1 {
		return ""
	}
	block := w.claims[name][0]
	for other, have := range w.Held() {
		if other != name && slices.Contains(have, block) {
			return ""
		}
	}
	return block
}

// written looks at what a write has changed.
func (w *claimWorld) written() {
	for name, cidrs := range w.NodesWithPodCIDRs() {
		for _, cidr := range cidrs {
			if node, claim, ok := w.other(name, cidr); ok && !slices.Contains(w.had[name], cidr) {
				w.Fatalf("node %s is given %s, and node %s holds %s", name, cidr, node, claim)
			}
		}
	}
}

// TestClaimsAreRespectedWhateverComes: no write gives a node a block that
// another agent holds, and a node without a block gets the one that its agent holds.
func TestClaimsAreRespectedWhateverComes(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &claimWorld{T: rt, agents: newAgents(t), claims: map[string][]string{}, had: map[string][]string{}}
		settings := nodeipam.RangesOf(nodeipam.RangeAllocatorType, "10.1.0.0/22 24")
		settings.Policy.CoolDown = rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(rt, "cool-down")
		w.Bench = nodeipam.NewBench(t, settings, w.agents.deps)
		w.WatchWrites(w.written)
		step := func(f func(*rapid.T)) func(*rapid.T) {
			return func(rt *rapid.T) { w.T = rt; f(rt) }
		}
		rt.Repeat(map[string]func(*rapid.T){
			"":           func(*rapid.T) { w.had = w.CIDRs() },
			"come":       step(w.come),
			"leave":      step(w.leave),
			"made again": step(w.again),
			"hold":       step(w.hold),
			"hold more":  step(w.hold),
			"end":        step(w.end),
			"look":       step(w.look),
			"look more":  step(w.look),
			"look again": step(w.look),
		})
	})
}
