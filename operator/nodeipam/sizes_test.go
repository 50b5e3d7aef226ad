// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
)

// Upstream's book knows one size. With another one after a restart, a part of a
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
	g.Expect(leaked(b.book.stat())).To(Succeed())
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
