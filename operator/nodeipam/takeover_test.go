// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
)

// A leader has ended while its patch of one node was under way, and the API
// server refuses or loses all that the next leader writes to that node.
func TestANodeThatCannotBeWrittenHoldsUpNoOther(t *testing.T) {
	for _, broken := range []fault{fail, refuse} {
		t.Run(broken.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				s := newServer()
				s.lag = 1_000_000 // until arrive is called
				s.fault = func(c call) fault {
					if c.node == "stuck" && c.allocates() {
						return delay
					}
					return none
				}
				s.put("stuck")
				first := start(t, s, ranges("10.0.0.0/28 30"), withFence)
				pass(time.Second)
				first.end()
				offered := intentOf(s.node("stuck"))
				g.Expect(offered).To(HaveLen(1))

				s.fault = func(c call) fault {
					if c.node == "stuck" && c.what != "get" {
						return broken
					}
					return none
				}
				for i := range 4 { // as many as there are blocks
					s.put(fmt.Sprint("n", i))
				}
				next := start(t, s, ranges("10.0.0.0/28 30"), withFence)
				defer next.end()
				pass(time.Second)
				served := 0
				for name, have := range s.cidrs() {
					served += len(have)
					g.Expect(have).NotTo(ContainElement(offered[0].String()), "%s got what may be under way to another node", name)
				}
				g.Expect(served).To(Equal(3), "all blocks but the one that may be under way")

				s.arrive()
				pass(time.Minute)
				g.Expect(s.cidrs()["stuck"]).To(Equal([]string{offered[0].String()}))
				g.Expect(next.held()).To(HaveLen(4))
			})
		})
	}
}

// A program without a fence, as upstream's callers are, writes podCIDRs and
// nothing else, and leaves no trace of an offer that has been accepted.
func TestWhatIsWrittenToANode(t *testing.T) {
	for name, x := range map[string]struct {
		fence func(*Deps)
		want  int // patches of a node until it has its podCIDRs
	}{
		"without a fence": {withoutFence, 1},
		"with a fence":    {withFence, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				s := newServer()
				s.put("before", func(n *v1.Node) { n.Annotations = map[string]string{"other": "x"} })
				c := start(t, s, ranges("10.0.0.0/24 28"), x.fence)
				defer c.end()
				pass(time.Second)
				s.put("later")
				pass(time.Minute)
				for _, name := range []string{"before", "later"} {
					g.Expect(s.cidrs()[name]).To(HaveLen(1))
				}
				g.Expect(s.writes).To(HaveLen(2 * x.want))
				g.Expect(s.node("before").Annotations).To(Equal(map[string]string{"other": "x"}))
				g.Expect(s.node("later").Annotations).To(BeEmpty())
			})
		})
	}
}

// A person removes the annotation while the node is being given its podCIDRs.
// Without it the next leader would not know what is under way.
func TestPodCIDRsAreOnlySentToANodeThatSaysSo(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	s.put("a")
	b := newBench(t, s, ranges("10.0.0.0/24 28"), withFence)
	removed := 0
	s.fault = func(c call) fault {
		if !c.allocates() {
			return none
		}
		node := s.nodes["a"].DeepCopy()
		g.Expect(node.Annotations).To(HaveKeyWithValue(IntentAnnotation, "10.0.0.0/28"))
		if removed++; removed <= 3 {
			s.rv++
			delete(node.Annotations, IntentAnnotation)
			node.ResourceVersion = fmt.Sprint(s.rv)
			s.nodes["a"] = node
		}
		return none
	}
	g.Expect(b.lookUntilItWorks(t.Context())).To(Succeed())
	g.Expect(s.cidrs()["a"]).To(Equal([]string{"10.0.0.0/28"}))
}

// A node may write its own annotations: what is there counts only if it can be
// an offer.
func TestAnIntentThatIsNoOffer(t *testing.T) {
	for name, intent := range map[string]string{
		"the whole network": "10.0.0.0/24",
		"half of it":        "10.0.0.0/25",
		"every block":       "10.0.0.0/28,10.0.0.16/28,10.0.0.32/28,10.0.0.48/28,10.0.0.64/28,10.0.0.80/28,10.0.0.96/28,10.0.0.112/28",
		"a part of a block": "10.0.0.0/30",
		"another network":   "192.168.0.0/28",
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			s := newServer()
			s.put("a", func(n *v1.Node) { n.Annotations = map[string]string{IntentAnnotation: intent} })
			s.put("b")
			b := newBench(t, s, ranges("10.0.0.0/24 28"), withFence)
			g.Expect(b.held()).To(BeEmpty())
			g.Expect(b.look(t.Context(), "b", "a")).To(Succeed())
			g.Expect(s.cidrs()).To(Equal(map[string][]string{"b": {"10.0.0.0/28"}, "a": {"10.0.0.16/28"}}))
		})
	}
}
