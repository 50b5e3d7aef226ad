// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/operator/blocks"
)

// TestNodesThatAreThereAlready is upstream's table, in which bad nodes keep the
// process from starting. Here they are told of, and others are served.
func TestNodesThatAreThereAlready(t *testing.T) {
	for _, x := range []struct {
		what   string
		ranges []string
		cidrs  []string
		reason string
	}{
		{"none", []string{"10.10.0.0/16 24"}, nil, ""},
		{"none, two families", []string{"10.10.0.0/16 24", "a00::/8 86"}, nil, ""},
		{"host bits", []string{"10.10.0.0/16 24"}, []string{"10.10.0.1/24"}, ""},
		{"two families", []string{"10.10.0.0/16 24", "a00::/8 86"}, []string{"10.10.0.1/24", "a00::/86"}, ""},
		{"out of range", []string{"10.10.0.0/16 24"}, []string{"172.10.0.1/24"}, ReasonOutOfRange},
		{"two, of one range", []string{"10.10.0.0/16 24"}, []string{"10.10.0.1/24", "a00::/86"}, ReasonOutOfRange},
		{"bad IPv4 of two", []string{"10.10.0.0/16 24", "a00::/8 86"}, []string{"172.10.0.1/24", "a00::/86"}, ReasonOutOfRange},
		{"bad IPv6 of two", []string{"10.10.0.0/16 24", "a00::/8 86"}, []string{"10.10.0.1/24", "cdd::/86"}, ReasonOutOfRange},
		{"no CIDR", []string{"10.10.0.0/16 24"}, []string{"10.10.0.0/33"}, ReasonInvalidPodCIDR},
		{"one of two is none", []string{"10.10.0.0/16 24"}, []string{"10.10.7.0/24", "nonsense"}, ReasonInvalidPodCIDR},
		{"leading zeros", []string{"10.10.0.0/16 24"}, []string{"010.010.007.000/24"}, ""},
	} {
		for _, later := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, later: %t", x.what, later), func(t *testing.T) { nodeThatIsThere(t, later, x.ranges, x.cidrs, x.reason) })
		}
	}
}

// nodeThatIsThere has its CIDRs when the allocator starts, or comes with them later.
func nodeThatIsThere(t *testing.T, later bool, all, cidrs []string, reason string) {
	g := NewWithT(t)
	s := newServer()
	if !later {
		s.put("old", with(cidrs...))
	}
	b := newBench(t, s, ranges(all...))
	if later {
		s.put("old", with(cidrs...))
	}
	err := b.look(t.Context(), "old")
	if reason == "" {
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(b.events.events).To(BeEmpty())
	} else {
		g.Expect(err).To(MatchError(ErrQuarantined))
		g.Expect(b.events.of(reason)).To(HaveLen(1))
		for range 5 {
			_ = b.look(t.Context(), "old")
		}
		g.Expect(b.events.of(reason)).To(HaveLen(1), "it is told once")
		g.Expect(b.Status().Problems).To(HaveLen(1))
		c := conditionOf(s.node("old"), ConditionProblem)
		g.Expect(c.Reason).To(Equal(reason))
		g.Expect(c.Status).To(Equal(v1.ConditionTrue))
	}
	s.put("new")
	g.Expect(b.look(t.Context(), "new")).To(Succeed(), "a bad node delays no other node")
	g.Expect(s.cidrs()["new"]).To(HaveLen(len(all)))
	g.Expect(s.cidrs()["new"]).NotTo(ContainElement(BeElementOf(b.held()["old"])))
	s.remove("old")
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(b.Status().Problems).To(BeEmpty())
}

func conditionOf(node *v1.Node, kind v1.NodeConditionType) v1.NodeCondition {
	for _, c := range node.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.NodeCondition{}
}

func TestAllocateOrOccupy(t *testing.T) {
	for _, x := range []struct {
		what    string
		ranges  []string
		service string
		others  []string // one node each
		want    []string // of the node; nil: nothing is left
	}{
		{"no service range", []string{"127.123.234.0/24 30"}, "", nil, []string{"127.123.234.0/30"}},
		{"services first", []string{"127.123.234.0/24 30"}, "127.123.234.0/26", nil, []string{"127.123.234.64/30"}},
		{"services and others", []string{"127.123.234.0/24 30"}, "127.123.234.0/26",
			[]string{"127.123.234.64/30", "127.123.234.68/30", "127.123.234.72/30", "127.123.234.80/30"}, []string{"127.123.234.76/30"}},
		{"IPv4 first", []string{"127.123.234.0/8 24", "ace:cab:deca::/84 98"}, "", nil, []string{"127.0.0.0/24", "ace:cab:deca::/98"}},
		{"IPv6 first", []string{"ace:cab:deca::/84 98", "127.123.234.0/8 24"}, "", nil, []string{"ace:cab:deca::/98", "127.0.0.0/24"}},
		{"three pools", []string{"127.123.234.0/8 24", "ace:cab:deca::/84 98", "10.0.0.0/8 24"}, "", nil,
			[]string{"127.0.0.0/24", "ace:cab:deca::/98", "10.0.0.0/24"}},
		{"the one between", []string{"10.10.0.0/22 24"}, "", []string{"10.10.0.0/24", "10.10.2.0/24"}, []string{"10.10.1.0/24"}},
		{"all four are taken", []string{"127.123.234.0/28 30"}, "",
			[]string{"127.123.234.0/30", "127.123.234.4/30", "127.123.234.8/30", "127.123.234.12/30"}, nil},
	} {
		t.Run(x.what, func(t *testing.T) {
			g := NewWithT(t)
			s := newServer()
			for i, cidr := range x.others {
				s.put("other-"+string(rune('a'+i)), with(cidr))
			}
			settings := ranges(x.ranges...)
			if x.service != "" {
				settings.Reserved = prefixes(x.service)
			}
			b := newBench(t, s, settings)
			node := s.put("node0")
			err := b.AllocateOrOccupyCIDR(node)
			g.Expect(s.cidrs()["node0"]).To(Equal(x.want))
			if x.want == nil {
				g.Expect(err).To(MatchError(blocks.ErrExhausted))
				g.Expect(s.writes).NotTo(ContainElement(ContainSubstring("podCIDR\"")))
				g.Expect(b.events.of(ReasonNotAvailable)).To(HaveLen(1))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(b.AllocateOrOccupyCIDR(node)).To(Succeed(), "repeated, with the node as it was")
			g.Expect(b.AllocateOrOccupyCIDR(s.node("node0"))).To(Succeed(), "repeated, with the node as it is")
			g.Expect(s.cidrs()["node0"]).To(Equal(x.want))
			g.Expect(b.AllocateOrOccupyCIDR(nil)).To(Succeed())
			g.Expect(b.ReleaseCIDR(nil)).To(Succeed())
		})
	}
}

func TestAReleasedCIDRIsGivenAgain(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	for i, cidr := range []string{"127.123.234.0/30", "127.123.234.4/30", "127.123.234.8/30", "127.123.234.12/30"} {
		s.put("other-"+string(rune('a'+i)), with(cidr))
	}
	b := newBench(t, s, ranges("127.123.234.0/28 30"))
	node := s.put("node0")
	g.Expect(b.AllocateOrOccupyCIDR(node)).To(MatchError(blocks.ErrExhausted))
	other := s.node("other-b")
	g.Expect(b.ReleaseCIDR(other)).To(MatchError(ContainSubstring("still has it")), "a node that is there keeps its CIDR")
	s.remove("other-b")
	g.Expect(b.ReleaseCIDR(other)).To(Succeed())
	g.Expect(b.ReleaseCIDR(other)).To(Succeed(), "repeated")
	g.Expect(b.AllocateOrOccupyCIDR(node)).To(Succeed())
	g.Expect(s.cidrs()["node0"]).To(Equal([]string{"127.123.234.4/30"}))
}

// TestNodesThatAreGoing is upstream's: in one of its releases a node with a
// finalizer had its CIDR given to another one while it was still there.
func TestNodesThatAreGoing(t *testing.T) {
	deleting := func(n *v1.Node) {
		now := metav1.Now()
		n.DeletionTimestamp, n.Finalizers = &now, []string{"example.org/wait"}
	}
	for _, x := range []struct {
		what string
		do   func(*server)
		next string
	}{
		{"there", func(*server) {}, "10.10.1.0/24"},
		{"going", func(s *server) { s.edit("old", deleting) }, "10.10.1.0/24"},
		{"gone", func(s *server) { s.remove("old") }, "10.10.0.0/24"},
	} {
		t.Run(x.what, func(t *testing.T) {
			g := NewWithT(t)
			s := newServer()
			s.put("old", with("10.10.0.0/24"))
			settings := ranges("10.10.0.0/16 24")
			settings.Policy.Order = blocks.Lowest
			b := newBench(t, s, settings)
			x.do(s)
			g.Expect(b.look(t.Context())).To(Succeed())
			s.put("new")
			g.Expect(b.look(t.Context(), "new")).To(Succeed())
			g.Expect(s.cidrs()["new"]).To(Equal([]string{x.next}))
		})
	}
	t.Run("going and without CIDRs", func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		b := newBench(t, s, ranges("10.10.0.0/16 24"))
		s.put("old", deleting)
		g.Expect(b.look(t.Context())).To(Succeed())
		g.Expect(s.cidrs()["old"]).To(BeEmpty(), "a node that goes gets none")
	})
}

func TestSettingsThatCannotWork(t *testing.T) {
	for what, x := range map[string]struct {
		settings Settings
		want     string
	}{
		"no range":        {Settings{}, "it needs a cluster CIDR"},
		"no such type":    {Settings{Type: "Other"}, "invalid type"},
		"no cloud":        {Settings{Type: CloudAllocatorType}, "it needs a cloud"},
		"blocks too big":  {ranges("10.0.0.0/26 24"), "larger than the range"},
		"overlap":         {ranges("10.0.0.0/16 24", "10.0.8.0/24 28"), "overlaps"},
		"limit, no range": {limited(ranges("10.0.0.0/16 24"), "10.0.0.0/17=22-26"), "10.0.0.0/17 is not a range of this cluster"},
		"limit too wide":  {limited(ranges("10.0.0.0/16 24"), "10.0.0.0/16=15-26"), "want MIN from 16 to 24, and MAX from 24 to 32"},
		"limit too small": {limited(ranges("10.0.0.0/16 24"), "10.0.0.0/16=25-26"), "want MIN from 16 to 24, and MAX from 24 to 32"},
		"two limits":      {limited(ranges("10.0.0.0/16 24"), "10.0.0.0/16=23-26", "10.0.0.0/16=22-26"), "the range has another limit"},
		"only services":   {Settings{Ranges: ranges("10.0.0.0/16 24").Ranges, Reserved: prefixes("10.0.0.0/8")}, "no CIDRs remaining"},
		"no cloud either": {Settings{Type: IPAMFromClusterAllocatorType, Ranges: ranges("10.0.0.0/16 24").Ranges}, "it needs a cloud"},
	} {
		_, err := NewAllocator(Deps{Log: quiet()}, x.settings)
		NewWithT(t).Expect(err).To(MatchError(ContainSubstring(x.want)), what)
	}
}
