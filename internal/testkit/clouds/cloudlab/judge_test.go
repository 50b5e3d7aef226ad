// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudlab

import (
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/handshake"
)

func TestJudgeFindsAnAddressThatTwoPodsHold(t *testing.T) {
	g := NewWithT(t)
	j, a, now := NewJudge(), netip.MustParseAddr("10.0.0.1"), time.Unix(1000, 0)
	j.Added(now, "p", "m1", []netip.Addr{a})
	j.Deleting(now.Add(time.Second), "p", "m1")
	j.Added(now.Add(2*time.Second), "q", "m2", []netip.Addr{a})
	g.Expect(j.Verdict().Twice).To(BeEmpty())
	j.Added(now.Add(3*time.Second), "r", "m1", []netip.Addr{a})
	g.Expect(j.Verdict().Twice).To(ConsistOf(And(ContainSubstring("r on m1 got 10.0.0.1"), ContainSubstring("q on m2 holds"))))
	g.Expect(j.History(a)).To(HaveLen(4))
	g.Expect(j.Verdict()).To(And(HaveField("Adds", 3), HaveField("Dels", 1), HaveField("Addresses", 1)))
}

func TestJudgeFindsAnAddressThatTheCloudTookAway(t *testing.T) {
	g := NewWithT(t)
	j, a, now := NewJudge(), netip.MustParseAddr("fd00::17"), time.Unix(1000, 0)
	port := Port{ID: "x", Machine: "m1", Blocks: []netip.Prefix{netip.MustParsePrefix("fd00::10/124")}}
	j.Added(now, "p", "m1", []netip.Addr{a})
	j.Read(now.Add(-time.Second), Truth{}) // it began before the ADD had ended
	j.Read(now.Add(time.Second), Truth{Ports: []Port{port}})
	g.Expect(j.Verdict().Foreign).To(BeEmpty())
	g.Expect(j.May("x", a)).To(BeTrue())
	g.Expect(j.May("y", a)).To(BeFalse())
	port.Machine = "m2"
	j.Read(now.Add(2*time.Second), Truth{Ports: []Port{port}})
	g.Expect(j.Verdict().Foreign).To(ConsistOf(ContainSubstring("p on m1 holds fd00::17, which no interface of its machine has")))
	j.Deleting(now.Add(3*time.Second), "p", "m1")
	j.Read(now.Add(4*time.Second), Truth{})
	g.Expect(j.Verdict().Foreign).To(HaveLen(1))
}

func TestJudgeFindsAReleaseWithoutAgreement(t *testing.T) {
	g := NewWithT(t)
	j, now := NewJudge(), time.Unix(1000, 0)
	version := func(state handshake.State) { j.Releasing(now, "n", map[string]handshake.State{"10.0.0.1": state}) }
	version(handshake.Released) // the first one that is seen
	for _, s := range []handshake.State{handshake.Marked, handshake.Ready, handshake.Released, handshake.Released} {
		version(s)
	}
	g.Expect(j.Verdict()).To(And(HaveField("Disagreed", BeEmpty()), HaveField("Released", 1)))
	version(handshake.Marked)
	version(handshake.Released)
	g.Expect(j.Verdict().Disagreed).To(ConsistOf(ContainSubstring(`10.0.0.1 of n is released after "marked-for-release"`)))
	version(handshake.Ready)
	j.Added(now, "p", "m", []netip.Addr{netip.MustParseAddr("10.0.0.1")})
	version(handshake.Released)
	g.Expect(j.Verdict().Disagreed).To(ContainElement(ContainSubstring("is released while p on m holds it")))
}

func TestDifferencesAreNamed(t *testing.T) {
	g := NewWithT(t)
	g.Expect(differ("a", map[string]string{"x": "1"}, "b", map[string]string{"x": "1"})).To(Succeed())
	g.Expect(differ("a", map[string]string{"x": "1", "z": ""}, "b", map[string]string{"x": "2"})).To(MatchError(
		"a and b differ: only the first has [x=1 z=], only the second [x=2]"))
}
