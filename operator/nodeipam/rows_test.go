// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/operator/blocks"
)

// TestANodeKeepsWhatItHas: the API server lets podCIDRs be set once, so a family
// that comes later is not added to a node, which is not refused for that either.
func TestANodeKeepsWhatItHas(t *testing.T) {
	g, s := NewWithT(t), newServer()
	s.put("a", with("10.0.0.0/28"))
	s.put("b", with("fd00::/64"))
	b := newBench(t, s, ranges("10.0.0.0/27 28", "fd00::/63 64"))
	g.Expect(b.look(t.Context())).To(Succeed())
	s.put("c")
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(b.Status().Problems).To(BeEmpty())
	g.Expect(s.cidrs()).To(Equal(map[string][]string{"a": {"10.0.0.0/28"}, "b": {"fd00::/64"}, "c": {"10.0.0.16/28", "fd00:0:0:1::/64"}}))
	g.Expect(b.held()).To(Equal(s.cidrs()))
}

// TestARestartInAFullCluster: all nodes have theirs, and only who has none waits.
func TestARestartInAFullCluster(t *testing.T) {
	g, s := NewWithT(t), newServer()
	s.put("a", with("10.0.0.0/28", "fd00::/64"))
	s.put("b", with("10.0.0.16/28", "fd00:0:0:1::/64"))
	before := s.cidrs()
	b := newBench(t, s, ranges("10.0.0.0/27 28", "fd00::/63 64"))
	for range 2 {
		g.Expect(b.look(t.Context())).To(Succeed())
		g.Expect(b.held()).To(Equal(before))
	}
	g.Expect(b.events.events).To(BeEmpty())
	s.put("c")
	g.Expect(b.look(t.Context())).To(MatchError(blocks.ErrExhausted))
	g.Expect(s.cidrs()["c"]).To(BeEmpty())
}

// TestPodCIDRsThatChange, which the API server would refuse, are what the node
// has from now on.
func TestPodCIDRsThatChange(t *testing.T) {
	g, s := NewWithT(t), newServer()
	s.put("a", with("10.0.0.0/28"))
	b := newBench(t, s, ranges("10.0.0.0/26 28"))
	g.Expect(b.look(t.Context())).To(Succeed())
	s.edit("a", with("10.0.0.16/28"))
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(b.held()).To(Equal(map[string][]string{"a": {"10.0.0.16/28"}}))
	g.Expect(b.Status().Problems).To(BeEmpty())
	for _, name := range []string{"b", "c", "d"} {
		s.put(name)
		g.Expect(b.look(t.Context(), name)).To(Succeed())
	}
	g.Expect(b.held()).To(Equal(s.cidrs()))
	g.Expect(s.cidrs()).To(ContainElement([]string{"10.0.0.0/28"}), "what it had is given again")
	s.put("e")
	g.Expect(b.look(t.Context(), "e")).To(MatchError(blocks.ErrExhausted), "and nothing twice")
}

// A released block cools before another node gets it: packets to it may still be under way.
func TestAPodCIDRThatChangedCools(t *testing.T) {
	g, s := NewWithT(t), newServer()
	s.put("a", with("10.0.0.0/28"))
	settings := ranges("10.0.0.0/27 28")
	settings.Policy.CoolDown = time.Hour
	b := newBench(t, s, settings)
	g.Expect(b.look(t.Context())).To(Succeed())
	s.edit("a", with("10.0.0.16/28"))
	g.Expect(b.look(t.Context())).To(Succeed())
	s.put("b")
	g.Expect(b.look(t.Context(), "b")).To(MatchError(blocks.ErrExhausted))
}
