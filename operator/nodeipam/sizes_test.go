// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/operator/blocks"
)

// limited lets nodes ask for block sizes, as the flag does.
func limited(s Settings, limits ...string) Settings {
	r := &reader{options: Options{SizeLimits: limits}, settings: Settings{Ranges: s.Ranges}}
	r.limits()
	if len(r.settings.SizeLimits) != len(limits) {
		panic(fmt.Sprint(r.errs))
	}
	s.SizeLimits = r.settings.SizeLimits
	return s
}

func labelled(name, text string) func(*v1.Node) {
	return func(n *v1.Node) { n.Labels = map[string]string{name: text} }
}

func TestNodesWantOtherSizes(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	b := newBench(t, s, limited(ranges("10.0.0.0/16 24", "fd00::/48 64"), "10.0.0.0/16=22-26", "fd00::/48=64-72"))
	s.put("large", labelled(SizeIPv4, "22"))
	s.put("small", func(n *v1.Node) { n.Annotations = map[string]string{SizeIPv4: "26", SizeIPv6: "72"} })
	s.put("usual")
	g.Expect(b.look(t.Context(), "usual", "large", "small")).To(Succeed())
	g.Expect(s.cidrs()["usual"]).To(Equal([]string{"10.0.0.0/24", "fd00::/64"}))
	g.Expect(s.cidrs()["large"]).To(Equal([]string{"10.0.4.0/22", "fd00:0:0:1::/64"}))
	g.Expect(s.cidrs()["small"]).To(Equal([]string{"10.0.8.0/26", "fd00:0:0:2::/72"}))
	g.Expect(b.events.events).To(BeEmpty())

	for name, x := range map[string]struct{ label, text, want string }{
		"wrong":      {SizeIPv4, "many", "10.0.0.0/16=22-26"},
		"too-large":  {SizeIPv4, "21", "10.0.0.0/16=22-26"},
		"too-small":  {SizeIPv4, "27", "10.0.0.0/16=22-26"},
		"large-IPv6": {SizeIPv6, "63", "fd00::/48=64-72"},
	} {
		s.put(name, labelled(x.label, x.text))
		for range 3 {
			g.Expect(b.look(t.Context(), name)).To(And(MatchError(ErrQuarantined), MatchError(blocks.ErrSize)))
		}
		g.Expect(s.cidrs()[name]).To(BeEmpty(), "podCIDRs are set once: those of another size would stay")
		g.Expect(b.events.of(ReasonInvalidSize)).To(ContainElement(And(HavePrefix(name+" "),
			ContainSubstring(fmt.Sprintf("%s=%q: want a prefix length within --%s %s", x.label, x.text, FlagSizeLimits, x.want)))))
	}
	g.Expect(b.events.of(ReasonInvalidSize)).To(HaveLen(4), "each once")
	s.edit("wrong", func(n *v1.Node) { n.Labels = nil })
	g.Expect(b.look(t.Context(), "wrong")).To(Succeed())
	g.Expect(conditionOf(s.node("wrong"), ConditionProblem).Status).To(Equal(v1.ConditionFalse))
}

// Anyone who may label a node could take half of the cluster's network with it.
func TestSizesAreNotReadWithoutLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		for _, name := range []string{"half", "other-half"} {
			s.put(name, labelled(SizeIPv4, "17"))
		}
		for i := range 6 {
			s.put(fmt.Sprint("n", i))
		}
		c := start(t, s, ranges("10.0.0.0/16 24", "fd00::/48 64"))
		defer c.end()
		pass(time.Hour)
		for name, have := range s.cidrs() {
			g.Expect(have).To(ConsistOf(HaveSuffix("/24"), HaveSuffix("/64")), name)
		}
		g.Expect(c.events.of(ReasonInvalidSize)).To(HaveLen(2), "each of the two is told once")
		g.Expect(c.events.of(ReasonInvalidSize)[0]).To(ContainSubstring(`%s="17" is not read: the operator has no --%s`, SizeIPv4, FlagSizeLimits))
		g.Expect(c.allocator.Status().Problems).To(BeEmpty())
	})
}

// A limit is that of its range, also for a function that a program has given.
func TestLimitsAreThoseOfTheirRange(t *testing.T) {
	g := NewWithT(t)
	settings := ranges("10.0.0.0/16 24")
	settings.Ranges = append(settings.Ranges, blocks.Range{Prefix: pfx("10.8.0.0/16"), Bits: 25})
	settings = limited(settings, "10.8.0.0/16=22-26")
	s := newServer()
	b := newBench(t, s, settings)
	s.put("a", labelled(SizeIPv4, "22"))
	s.put("b")
	g.Expect(b.look(t.Context(), "a", "b")).To(Succeed())
	g.Expect(s.cidrs()).To(Equal(map[string][]string{"a": {"10.8.0.0/22"}, "b": {"10.0.0.0/24"}}))

	settings.SizeOf = func(*v1.Node, []netip.Prefix) ([]int, error) { return []int{17}, nil }
	s = newServer()
	b = newBench(t, s, settings)
	s.put("a")
	g.Expect(b.look(t.Context(), "a")).To(MatchError(blocks.ErrSize))
	g.Expect(s.cidrs()["a"]).To(BeEmpty())
}

// Upstream's cidrset knows one size. With another one after a restart, a part of a
// live node's block is given away.
func TestBlockSizesChangeAtRuntime(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	s.watch = func(s *server) { g.Expect(s.overlaps()).To(Succeed()) }
	b := newBench(t, s, ranges("10.0.0.0/20 24"))
	n := 0
	for i, bits := range []int{24, 26, 22, 28, 23, 24, 32, 21} {
		if i > 0 {
			g.Expect(b.ResizeRange(pfx("10.0.0.0/20"), bits)).To(Succeed())
		}
		for range 3 {
			n++
			s.put(fmt.Sprint("n", n))
			if err := b.look(t.Context(), fmt.Sprint("n", n)); err == nil {
				g.Expect(s.cidrs()[fmt.Sprint("n", n)]).To(ConsistOf(HaveSuffix(fmt.Sprint("/", bits))))
			}
			if n%4 == 0 {
				s.remove(fmt.Sprint("n", n-3))
				_ = b.look(t.Context(), fmt.Sprint("n", n-3))
			}
		}
		again := newBench(t, s, ranges(fmt.Sprint("10.0.0.0/20 ", bits)), func(d *Deps) { d.Instance = fmt.Sprint(i) })
		for name, have := range s.cidrs() { // another process finds the same
			if len(have) > 0 {
				g.Expect(again.held()[name]).To(Equal(have))
			}
		}
	}
	for name := range s.cidrs() {
		s.remove(name)
	}
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(leaked(b.assigned.stat())).To(Succeed())
}

// A node whose wish changes keeps what it was offered: a patch may be under way.
func TestAWishThatChangesAfterTheOffer(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	b := newBench(t, s, ranges("10.0.0.0/20 24"))
	s.put("a")
	s.fault = func(c call) fault {
		if c.what == "patch" {
			return fail
		}
		return none
	}
	g.Expect(b.look(t.Context(), "a")).NotTo(Succeed())
	s.fault = nil
	s.edit("a", func(n *v1.Node) { n.Labels = map[string]string{SizeIPv4: "22"} })
	g.Expect(b.look(t.Context(), "a")).To(Succeed())
	g.Expect(s.cidrs()["a"]).To(Equal([]string{"10.0.0.0/24"}))
}

// Upstream refuses more than 2^16 blocks of IPv6.
func TestIPv6HasNoLimitOf16Bits(t *testing.T) {
	for _, x := range []struct{ cluster, first, last string }{
		{"fd00::/40 64", "fd00::/64", "fd00:0:ff:ffff::/64"},
		{"fd00::/32 64", "fd00::/64", "fd00:0:ffff:ffff::/64"},
		{"fd00::/8 120", "fd00::/120", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ff00/120"},
	} {
		g := NewWithT(t)
		s := newServer()
		s.put("last", with(x.last))
		b := newBench(t, s, ranges(x.cluster))
		s.put("first")
		g.Expect(b.look(t.Context())).To(Succeed())
		g.Expect(s.cidrs()["first"]).To(Equal([]string{x.first}))
	}
}
