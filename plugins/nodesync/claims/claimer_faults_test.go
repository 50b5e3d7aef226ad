// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// steps returns the writes by which a claim is given back, in order.
func steps() []string { return []string{"withdraw", "delete"} }

// From the moment at which a give-back begins, a claim is not held. One that is
// asked for meanwhile comes back by itself.
func TestABlockIsWantedAgainWhileItIsGivenBack(t *testing.T) {
	for k, step := range steps() {
		t.Run(step, func(t *testing.T) {
			inWorld(t, func(w *world) {
				a := w.holding(node("a", 1), wide()).run()
				arrive := make(chan struct{})
				a.link.Reset(faulty.On(faulty.Txn, k+1, faulty.Hold(arrive)))
				a.wants()
				synctest.Wait() // the write is on its way
				w.g.Expect(a.Hold(wide()).Held).To(BeFalse())
				w.g.Expect(a.Standing(wide()).Held).To(BeFalse())
				w.g.Expect(a.disk.values["claims"]).To(Equal("[]"), "a restart does not believe to hold it either")
				a.wants(wide())
				w.g.Expect(a.Waiting()).To(HaveKey(wide()))
				close(arrive)
				synctest.Wait()
				w.g.Expect(a.Hold(wide()).Held).To(BeTrue())
				w.g.Expect(w.stored(wide())).To(ConsistOf("a/i-a"))
			})
		})
	}
}

// A lease that the loop takes just before the give-back begins keeps the claim.
func TestALeaseAtTheLastMoment(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.holding(node("a", 1), wide())
		a.wants()
		first := 0
		a.onInUse = func(asked int) {
			if first == 0 {
				first = asked
			}
			if asked == first+2 { // for asking, for giving back, and at the last moment
				a.leases(wide(), true)
			}
		}
		a.look()
		w.g.Expect(w.stored(wide())).To(ConsistOf("a/i-a"))
		w.g.Expect(a.Standing(wide()).Held).To(BeTrue())
	})
}

// The outcome of a write is unknown: whatever it is, the next look finishes the
// give-back, or has the claim again if it is wanted again.
func TestAGiveBackOfUnknownOutcome(t *testing.T) {
	for outcome, fault := range map[string]faulty.Fault{"done": faulty.Tear(), "not done": faulty.Fail()} {
		for k, step := range steps() {
			for _, again := range []bool{false, true} {
				name := step + " " + outcome
				if again {
					name += ", and wanted again"
				}
				t.Run(name, func(t *testing.T) {
					inWorld(t, func(w *world) {
						a := w.holding(node("a", 1), wide())
						a.wants()
						a.link.Reset(faulty.On(faulty.Txn, k+1, fault))
						w.g.Expect(a.Confirm(context.Background())).To(MatchError(faulty.ErrInjected))
						w.g.Expect(a.Hold(wide()).Held).To(BeFalse())
						w.g.Expect(a.All()).To(HaveLen(1), "it waits")
						if !again {
							a.wants()
						}
						a.look()
						w.g.Expect(a.Standing(wide()).Held).To(Equal(again))
						w.g.Expect(len(w.stored(wide()))).To(Equal(len(a.All())))
						if again {
							w.g.Expect(w.stored(wide())).To(ConsistOf("a/i-a"))
						}
					})
				})
			}
		}
	}
}

// A claim that was given back, by a write of unknown outcome too, is asked for at
// once when the loop wants it again.
func TestABlockIsWantedAgainLater(t *testing.T) {
	for name, plan := range map[string]faulty.Plan{
		"given back": faulty.At(1000, faulty.Fail()), "withdraw of unknown outcome": faulty.On(faulty.Txn, 1, faulty.Tear()), "delete of unknown outcome": faulty.On(faulty.Txn, 2, faulty.Tear()),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				a := w.holding(node("a", 1), wide()).run()
				a.link.Reset(plan)
				a.wants()
				time.Sleep(refresh / 2)
				w.g.Expect(w.stored(wide())).To(BeEmpty())
				a.wants(wide())
				synctest.Wait()
				w.g.Expect(a.Hold(wide()).Held).To(BeTrue())
			})
		})
	}
}

// The request of a give-back arrives after the claim was asked for again: it must
// not take the claim away.
func TestALateGiveBack(t *testing.T) {
	for k, step := range steps() {
		t.Run(step, func(t *testing.T) {
			inWorld(t, func(w *world) {
				n := w.joins(node("a", 1))
				link := &late{Store: w.store, skip: -1}
				c, err := claims.NewClaimer(claims.ClaimerDeps{
					Log: slog.New(slog.DiscardHandler), Register: w.register(link), Disk: newDisk(), Node: func() (claims.Node, bool) { return n, true },
					InUse: func(claims.Target) bool { return false }, Changed: func() {}, Suspend: func(string) {}, Refresh: refresh, Now: time.Now,
				})
				w.g.Expect(err).NotTo(HaveOccurred())
				c.Hold(wide())
				w.g.Expect(c.Confirm(context.Background())).To(Succeed())
				c.Want(wide().Network, nil)
				link.skip = k
				w.g.Expect(c.Confirm(context.Background())).To(MatchError(errLost))
				c.Hold(wide())
				w.g.Expect(c.Confirm(context.Background())).To(Succeed())
				w.g.Expect(c.Hold(wide()).Held).To(BeTrue())
				w.g.Expect(link.arrive()).To(MatchError(kvdb.ErrConditions))
				w.g.Expect(w.stored(wide())).To(ConsistOf("a/i-a"))
			})
		})
	}
}

// The store was wiped: what this node holds it claims again, before any node that
// only waits for it. What it would have given back it does not.
func TestTheStoreLosesTheClaims(t *testing.T) {
	inWorld(t, func(w *world) {
		other := block("10.1.78.0/24")
		a := w.holding(node("a", 1), wide())
		a.wants(wide(), other)
		a.look()
		told := a.told()
		w.wipes(a.node, node("b", 2))
		key, c := wide().Key("b"), w.pending(node("b", 2), wide())
		w.put(key, c)
		a.look()
		w.g.Expect(w.stored(wide())).To(ConsistOf("a/i-a"))
		w.g.Expect(a.Hold(wide()).Held).To(BeTrue())
		w.g.Expect(a.told()).To(Equal(told), "it was held all the time")

		a.wants(wide())
		w.wipes(a.node)
		a.look()
		w.g.Expect(a.All()).To(HaveLen(1), "what the store lost and the loop does not want is given back")
		w.g.Expect(w.stored(other)).To(BeEmpty())
		w.g.Expect(a.disk.values["claims"]).NotTo(ContainSubstring("10.1.78.0"))
	})
}

// The store was wiped, and another node was faster: this node holds it no more.
func TestAnotherNodeHasTheClaim(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.holding(node("a", 1), wide())
		told := a.told()
		w.wipes(a.node, node("b", 2))
		w.takes(node("b", 2), wide())
		a.look()
		w.g.Expect(a.Hold(wide()).Held).To(BeFalse())
		w.g.Expect(a.Hold(wide()).Blocker.Node).To(Equal("b"))
		w.g.Expect(a.told()).To(Equal(told + 1))
		w.g.Expect(a.lines("waits for a claim")).To(Equal(1))
		w.g.Expect(a.disk.values["claims"]).To(Equal("[]"))
	})
}

// A claim that the disk does not remember is not held: a restart without the store
// would not know of it.
func TestTheDiskIsFull(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.starts(w.joins(node("a", 1)), newDisk())
		a.disk.fill(true)
		a.wants(wide())
		w.g.Expect(a.Confirm(context.Background())).To(MatchError(errDiskFull))
		w.g.Expect(a.Hold(wide()).Held).To(BeFalse())
		a.disk.fill(false)
		a.look()
		w.g.Expect(a.Hold(wide()).Held).To(BeTrue())
		w.g.Expect(a.told()).To(Equal(1))

		a.disk.fill(true) // a restart would believe to hold it
		a.wants()
		w.g.Expect(a.Confirm(context.Background())).To(MatchError(errDiskFull))
		w.g.Expect(w.stored(wide())).To(ConsistOf("a/i-a"))
		a.disk.fill(false)
		a.look()
		w.g.Expect(w.stored(wide())).To(BeEmpty())
	})
}

// One claim that cannot be asked for does not keep the others from being held.
func TestOneClaimFails(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.starts(w.joins(node("a", 1)), newDisk())
		a.link.Reset(faulty.On(faulty.Get, 1, faulty.Fail()))
		a.wants(wide(), block("10.1.78.0/24"))
		w.g.Expect(a.Confirm(context.Background())).To(MatchError(And(ContainSubstring("10.1.77.0/24"), Not(ContainSubstring("10.1.78.0/24")))))
		w.g.Expect(a.Hold(wide()).Held).To(BeFalse())
		w.g.Expect(a.Hold(block("10.1.78.0/24")).Held).To(BeTrue())
		w.g.Expect(a.told()).To(Equal(1))
	})
}

// away is a plan in which the store cannot be reached.
func away(string, int) faulty.Fault { return faulty.Fail() }

// An agent that cannot confirm its claims stops at five sixths of the time after
// which other nodes may have them, and goes on once the store is back.
func TestTheTermOfTheClaims(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.holding(node("a", 1), wide()).run()
		a.Poke()
		synctest.Wait()
		a.link.Reset(away)
		a.Poke()
		term := expire * 5 / 6
		time.Sleep(term - time.Second)
		synctest.Wait()
		w.g.Expect(a.suspension()).To(BeEmpty())
		time.Sleep(2 * time.Second) // it looks each second
		synctest.Wait()
		w.g.Expect(a.suspension()).To(ContainSubstring("has not confirmed the claims of this node since " + time.Now().Add(-term-time.Second).UTC().Format(time.RFC3339)))
		a.link.Reset()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.g.Expect(a.suspension()).To(BeEmpty())
		w.g.Expect(a.Hold(wide()).Held).To(BeTrue())
	})
}

// An agent that holds no claim has nothing that another node could take over.
func TestWithoutAClaimThereIsNoTerm(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.starts(w.joins(node("a", 1)), newDisk())
		a.link.Reset(away)
		a.wants(wide())
		a.run()
		time.Sleep(2 * expire)
		synctest.Wait()
		w.g.Expect(a.suspension()).To(BeEmpty())
	})
}

// The reader of the store confirms the claims at the moment at which Run finds
// them overdue: the agent must not stay suspended.
func TestTheTermEndsWhileTheStoreComesBack(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.holding(node("a", 1), wide())
		a.link.Reset(away)
		found := make(chan struct{})
		a.onSuspend = func(reason string) {
			if reason != "" {
				<-found
			}
		}
		a.run()
		a.Poke()
		time.Sleep(expire)
		synctest.Wait() // Run is about to suspend
		a.link.Reset()
		confirmed := make(chan error, 1)
		go func() { confirmed <- a.Confirm(context.Background()) }()
		synctest.Wait()
		close(found)
		w.g.Expect(<-confirmed).To(Succeed())
		synctest.Wait()
		w.g.Expect(a.suspension()).To(BeEmpty())
	})
}

// A caller that gives up does not wait for the look of another one.
func TestACallerThatGivesUp(t *testing.T) {
	inWorld(t, func(w *world) {
		a := w.starts(w.joins(node("a", 1)), newDisk())
		arrive := make(chan struct{})
		a.link.Reset(faulty.At(1, faulty.Hold(arrive)))
		a.wants(wide())
		first := make(chan error, 1)
		go func() { first <- a.Confirm(context.Background()) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		w.g.Expect(a.Confirm(ctx)).To(MatchError(context.DeadlineExceeded))
		w.g.Expect(a.Hold(wide()).Held).To(BeFalse(), "Hold does not wait")
		close(arrive)
		w.g.Expect(<-first).To(Succeed())
		w.g.Expect(a.Hold(wide()).Held).To(BeTrue())
	})
}

// An agent that is upgraded from a version that claimed nothing has leases, and its
// record keeps other nodes out. One of these asked first: it must not have the block.
func TestLeasesOfAVersionThatClaimedNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		b := w.joins(node("b", 2))
		w.put(kv.NodeRecordKey(2), &kv.NodeRecord{Id: 2, Name: "b", Instance: "i-b", Generation: 1, PodCidrs: []string{"10.1.77.0/24"}})
		a := w.starts(w.joins(node("a", 1)), newDisk())
		a.wants(wide())
		a.look()
		w.g.Expect(a.Waiting()[wide()].Blocker.NodeID).To(BeNumerically("==", 2))
		c := w.starts(b, newDisk(), wide())
		c.leases(wide(), true)
		c.look()
		w.g.Expect(c.Hold(wide()).Held).To(BeTrue())
		w.joins(b) // all its blocks have claims
		a.look()
		w.g.Expect(a.Waiting()[wide()].Blocker.String()).To(HavePrefix("node b holds 10.1.77.0/24"))
	})
}
