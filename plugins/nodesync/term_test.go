// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// An agent that is cut off allocates until 5/6 of the term have passed since it was
// confirmed, not a moment longer. It makes no difference how the store is away and how
// often the agent is asked. Then the agent says so once, and goes on when it is confirmed
// again.
func TestAnAgentThatIsCutOff(t *testing.T) {
	for name, plan := range map[string]faulty.Plan{"fails": away, "does not answer": silent} {
		for _, every := range []time.Duration{10 * time.Second, refresh, 23 * time.Hour} {
			t.Run(name+", asked every "+every.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
					a := newNode(
						t,
						store,
						who("a"),
						newDisk(),
						func(d *nodesync.IDClaimerDeps) { d.Refresh = every },
					).confirm(
						t,
					).run(
						t,
					)
					a.Use()
					store.Reset(plan)
					last := a.Confirmed()
					time.Sleep(time.Until(last.Add(term)) - 1)
					g.Expect(a.Problem()).To(BeEmpty())
					g.Expect(a.suspension()).To(BeEmpty())
					time.Sleep(2 * time.Nanosecond)
					synctest.Wait()
					g.Expect(a.Problem()).To(ContainSubstring("not confirmed node ID 1"))
					g.Expect(a.suspension()).To(Equal(a.Problem()))
					time.Sleep(expire)
					g.Expect(a.events()).To(HaveLen(1))
					g.Expect(a.Confirmed()).To(Equal(last))
					g.Expect(a.ID()).To(BeNumerically("==", 1), "it stays what it was")

					store.Reset()
					a.stop() // where the store does not answer, a beat is still under way
					restarted := newNode(t, store, again(who("a")), a.disk)
					g.Expect(restarted.suspension()).NotTo(BeEmpty(), "nor does the next run allocate anything")
					restarted.confirm(t)
					g.Expect(restarted.suspension()).To(BeEmpty())
					g.Expect(restarted.Problem()).To(BeEmpty())
				})
			})
		}
	}
}

// A store that is away for less makes no problem.
func TestAShortAbsence(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t).run(t)
		for range 5 {
			store.Reset(away)
			time.Sleep(term - 2*refresh)
			store.Reset()
			time.Sleep(2 * refresh)
		}
		g.Expect(a.events()).To(BeEmpty())
		a.stop()
	})
}

// Another node may have the ID once the term is over: by then the agent has stopped,
// and when it comes back it takes nothing from it.
func TestTheIDOfAnAgentThatIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		inner := mem.New()
		defer inner.Close()
		store := faulty.New(inner) // of a alone
		a := newNode(t, store, who("a"), newDisk()).confirm(t).run(t)
		a.Use()
		store.Reset(away)
		last := beatOf(g, inner, 1).At
		time.Sleep(time.Until(time.Unix(0, last).Add(expire)) - 1)
		_, err := nodesync.Release(t.Context(), inner, nodesync.Gone{Name: "a", Fresh: expire}, time.Now())
		g.Expect(err).To(MatchError(nodesync.ErrFresh))
		g.Expect(a.suspension()).NotTo(BeEmpty())
		time.Sleep(time.Nanosecond)
		_, err = nodesync.Release(t.Context(), inner, nodesync.Gone{Name: "a", Fresh: expire}, time.Now())
		g.Expect(err).NotTo(HaveOccurred())
		b := newNode(t, inner, who("b"), newDisk()).confirm(t)
		g.Expect(b.ID()).To(BeNumerically("==", 1))
		store.Reset()
		time.Sleep(2 * refresh)
		g.Expect(a.Problem()).To(ContainSubstring("node b"))
		g.Expect(a.events()).To(HaveLen(2), "first the time, then the fact")
		g.Expect(records(g, inner)[1].Name).To(Equal("b"))
		a.stop()
	})
}

// The disk knows closely enough when the ID was confirmed, however long ago it
// was claimed, and is written seldom.
func TestARestartWithoutTheStore(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t).run(t)
		time.Sleep(30 * time.Hour)
		g.Expect(a.disk.written()).To(BeNumerically("~", 30, 2))
		store.Reset(away)
		last := a.Confirmed()
		a.stop()
		a = newNode(t, store, again(who("a")), a.disk).run(t)
		g.Expect(a.Problem()).To(BeEmpty(), "it was confirmed a minute ago")
		g.Expect(last.Sub(a.Confirmed())).To(And(BeNumerically(">=", 0), BeNumerically("<=", expire/24+refresh)))
		time.Sleep(time.Until(last.Add(term - expire/24 - refresh)))
		g.Expect(a.Problem()).To(BeEmpty())
		a.stop()
		a = newNode(t, store, again(again(who("a"))), a.disk).run(t)
		time.Sleep(time.Until(last.Add(term)))
		synctest.Wait()
		g.Expect(a.Problem()).NotTo(BeEmpty())
		a.stop()
	})
}

// A node that was off for longer allocates nothing before the store has confirmed its ID,
// not even until Run looks at it.
func TestAStartAfterALongTime(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		d := newDisk()
		newNode(t, store, who("a"), d).confirm(t)
		time.Sleep(term)
		a := newNode(t, store, again(who("a")), d)
		g.Expect(a.suspension()).NotTo(BeEmpty())
		store.Reset(away)
		a.run(t)
		time.Sleep(refresh)
		g.Expect(a.suspension()).NotTo(BeEmpty())
		store.Reset()
		time.Sleep(refresh)
		g.Expect(a.suspension()).To(BeEmpty())
		g.Expect(a.events()).To(HaveExactElements(Not(BeEmpty()), BeEmpty()))
		a.stop()
	})
}

// If a clock is set ahead, the term is over earlier. If it is set back, by more than clocks
// are corrected, the offset is unknown, so nothing is allocated until the store has
// confirmed the ID.
func TestAClockThatIsSet(t *testing.T) {
	for name, c := range map[string]struct {
		jump      time.Duration
		allocates bool
	}{"ahead": {expire, false}, "a little ahead": {time.Hour, true}, "back": {-2 * time.Hour, false}, "a little back": {-time.Minute, true}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
				a := newNode(t, store, who("a"), newDisk()).confirm(t).run(t)
				store.Reset(away)
				a.jump(c.jump)
				time.Sleep(2 * refresh)
				g.Expect(a.Problem() == "").To(Equal(c.allocates), a.Problem())
				store.Reset()
				time.Sleep(2 * refresh)
				g.Expect(a.Problem()).To(BeEmpty())
				a.stop()

				store.Reset(away)
				next := newNode(t, store, again(who("a")), a.disk, func(d *nodesync.IDClaimerDeps) {
					d.Now = func() time.Time { return a.now().Add(c.jump) }
				})
				g.Expect(next.Problem() == "").To(Equal(c.allocates), next.Problem())
			})
		})
	}
}

// An agent that ends says so, so that no node has to wait for it.
func TestGoodbye(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t).run(t)
		time.Sleep(time.Second)
		a.stop()
		g.Expect(
			beatOf(g, store, 1),
		).To(
			And(
				HaveField("Stopped", true),
				HaveField("At", time.Now().UnixNano()),
				HaveField("Session", "run-1-of-a"),
				HaveField("Generation", uint64(1)),
			),
		)
		g.Expect(records(g, store)[1].Released).To(BeZero(), "its addresses may be in use")
		g.Expect(newNode(t, store, reinstalled("a"), newDisk()).confirm(t).ID()).To(BeNumerically("==", 2))
		back := newNode(t, store, again(who("a")), a.disk).run(t)
		back.Use()
		back.confirm(t)
		g.Expect(back.Problem()).To(ContainSubstring("another instance"))
		back.stop()
		g.Expect(
			beatOf(g, store, 1),
		).To(
			HaveField("Session", "run-1-of-a"),
			"it was not confirmed, and has nothing to say",
		)
	})
}

// No agent says lastBeatTimeout for another one, or waits for a store that is away.
func TestNoGoodbye(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		none := newNode(t, store, who("none"), newDisk()).run(t)
		none.stop()
		g.Expect(revision(g, store)).To(BeZero())

		a := newNode(t, store, who("a"), newDisk()).confirm(t).run(t)
		later := newNode(t, store, again(who("a")), a.disk.copied()).confirm(t)
		a.stop()
		g.Expect(beatOf(g, store, 1)).To(And(HaveField("Stopped", false), HaveField("Session", "run-1-of-a+")))

		later.run(t)
		store.Reset(silent)
		began := time.Now()
		later.stop()
		g.Expect(time.Since(began)).To(Equal(2 * time.Second))

		busy := newNode(t, store, again(who("a")), a.disk).run(t)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = busy.Confirm(ctx) }() // of a caller that does not end
		synctest.Wait()
		began = time.Now()
		busy.stop()
		g.Expect(time.Since(began)).To(Equal(2 * time.Second))
		cancel()
	})
}

// At each step of a lastBeatTimeout the store may fail: the next run is not hindered.
func TestGoodbyeOnAFaultyStore(t *testing.T) {
	for name, fault := range map[string]faulty.Fault{"fails": faulty.Fail(), "tears": faulty.Tear(), "races": faulty.FailWith(kvdb.ErrConditions)} {
		for k := 1; k <= 3; k++ {
			bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
				a := newNode(t, store, who("a"), newDisk()).confirm(t).run(t)
				store.Reset(faulty.At(k, fault))
				a.stop()
				store.Reset()
				if name == "races" && k == 2 {
					g.Expect(beatOf(g, store, 1).Stopped).To(BeTrue(), "it is tried again")
				}
				b := newNode(t, store, again(who("a")), a.disk).confirm(t)
				g.Expect(b.Problem()).To(BeEmpty(), "%s at step %d", name, k)
				g.Expect(beatOf(g, store, 1).Stopped).To(BeFalse())
			})
		}
	}
}
