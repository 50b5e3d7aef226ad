// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// What the sequencer owes is not bound to the claim that is owed: an answer
// that arrives after the loop went on pays, or makes, another claim's debt.
func TestLateAnswers(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(w *world)
	}{
		{"an answer of before a DEL pays for the ADD after it", func(w *world) {
			w.acceptAdd()
			w.process(0, false) // its answer is on the way
			w.acceptDel()
			w.acceptAdd()
			w.queue[1].gone = true
			w.process(0, false)
			w.process(0, false) // took a lease that nobody hears of
			w.hear(0, true)
		}},
		{"the callers of two ADDs are gone when the answers arrive, the newer first", func(w *world) {
			w.acceptAdd()
			w.process(0, false)
			w.acceptAdd()
			w.process(0, false)
			w.hear(1, false)
			w.hear(0, false)
		}},
		{"a repetition was told, the first caller is gone, a third ADD is abandoned", func(w *world) {
			w.acceptAdd()
			w.process(0, false)
			w.acceptAdd()
			w.process(0, false)
			w.hear(1, true)
			w.acceptAdd()
			w.queue[0].gone = true
			w.hear(0, false)
			w.process(0, false)
		}},
		{"a third ADD is abandoned while a repetition's answer is on the way", func(w *world) {
			w.acceptAdd()
			w.acceptAdd()
			w.acceptAdd()
			w.queue[0].gone, w.queue[2].gone = true, true
			w.process(0, false)
			w.process(0, false)
			w.process(0, false)
			for len(w.queue) > 0 {
				w.process(0, false) // its release
			}
			w.hear(0, true)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld()
			c.do(w)
			w.drain()
			NewWithT(t).Expect(w.wrong()).To(BeEmpty(), strings.Join(w.script, "\n"))
		})
	}
}

// All of it, by search; the shortest way to each wrong end is told.
func TestAllInterleavingsWithLateAnswers(t *testing.T) {
	for name, answers := range map[string]latency{"late": late, "late, or to nobody": lateOrNobody} {
		t.Run(name, func(t *testing.T) {
			shortest := newWorld()
			for seed := range uint64(30000) {
				w := explore(seed, answers)
				if w.wrong() != "" && (shortest.wrong() == "" || len(w.script) < len(shortest.script)) {
					shortest = w
				}
			}
			if shortest.wrong() != "" {
				t.Errorf("%s\n%s", shortest.wrong(), strings.Join(shortest.script, "\n"))
			}
		})
	}
}

// The agent stops while a release waits in the loop's queue: its producer is
// gone by the time the loop asks whether it is still wanted.
func TestAReleaseWhoseProducerIsGone(t *testing.T) {
	g := NewWithT(t)
	s, k := newSequencer(), attachment("c1")
	a := s.acceptAdd(k)
	g.Expect(s.addDone(k, a, true, false)).To(BeTrue())
	s.releaseDone(k, a)
	g.Expect(func() { s.mayRelease(k, a) }).NotTo(Panic())
}
