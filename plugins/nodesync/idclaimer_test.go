// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// bubble runs a test in simulated time over an empty store that may fail.
func bubble(t *testing.T, test func(t *testing.T, g Gomega, store *faulty.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := faulty.New(mem.New())
		t.Cleanup(func() { _ = store.Close() })
		test(t, NewWithT(t), store)
	})
}

// away is a store that answers nothing but errors.
func away(string, int) faulty.Fault { return faulty.Fail() }

// silent is a store that does not answer.
func silent(string, int) faulty.Fault { return faulty.Hold(make(chan struct{})) }

func TestTheFirstClaim(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		d := newDisk()
		a := newNode(t, store, who("a"), d)
		g.Expect(a.ID()).To(BeZero())
		a.confirm(t)
		g.Expect(a.Held()).To(Equal(nodesync.Held{ID: 1, Generation: 1}))
		g.Expect(a.Problem()).To(BeEmpty())
		g.Expect(a.Confirmed()).To(Equal(time.Now()))
		g.Expect(a.events()).To(BeEmpty())
		g.Expect(a.logged()).To(ContainSubstring("node ID claimed"))

		store.Reset(away)
		restarted := newNode(t, store, again(who("a")), d)
		g.Expect(restarted.Held()).To(Equal(a.Held()), "it is on the disk")
		g.Expect(restarted.Problem()).To(BeEmpty())
		g.Expect(restarted.Confirm(t.Context())).To(MatchError(faulty.ErrInjected))
		g.Expect(restarted.Use()).To(BeNumerically("==", 1))
	})
}

// A node that never had an ID and can have none ends; it is not for Run to
// claim the first one.
func TestNoFirstClaim(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		claim(t, store, who("b"))
		b := newNode(t, store, reinstalled("b"), newDisk())
		err := b.Confirm(t.Context())
		g.Expect(err).To(And(MatchError(controller.ErrFatal), MatchError(nodesync.ErrNameInUse)))
		g.Expect(b.ID()).To(BeZero())

		a := newNode(t, store, who("a"), newDisk()).run(t)
		store.Reset(away)
		g.Expect(a.Confirm(t.Context())).To(And(MatchError(faulty.ErrInjected), Not(MatchError(controller.ErrFatal))))
		a.Poke()
		time.Sleep(2 * expire)
		g.Expect(a.ID()).To(BeZero())
		g.Expect(a.Use()).To(BeZero())
		g.Expect(a.Problem()).To(BeEmpty(), "there is no ID to be in doubt")
		store.Reset()
		a.Poke()
		time.Sleep(refresh)
		g.Expect(a.ID()).To(BeZero())
		g.Expect(a.confirm(t).ID()).To(BeNumerically("==", 2), "nothing was derived from no ID")
		a.stop()
	})
}

// The store is wiped. The node that is faster with an ID has it: the other one
// allocates nothing, reports that everywhere, and gets the ID back when it is free.
func TestAWipedStore(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a, b := newNode(t, store, who("a"), newDisk()).confirm(t), newNode(t, store, who("b"), newDisk()).confirm(t)
		a.Use()
		b.Use()
		wipe(g, store)
		b.confirm(t)
		g.Expect(b.Held()).To(Equal(nodesync.Held{ID: 2, Generation: 2}), "that ID again, and not the smallest")
		claim(t, store, who("c"))
		g.Expect(records(g, store)[1].Name).To(Equal("c"))

		a.confirm(t)
		const problem = "node ID 1 is of node c"
		g.Expect(a.Held()).To(Equal(nodesync.Held{ID: 1, Generation: 1}))
		g.Expect(a.Problem()).To(ContainSubstring(problem))
		g.Expect(a.suspension()).To(Equal(a.Problem()))
		g.Expect(a.events()).To(HaveExactElements(ContainSubstring(problem)))
		g.Expect(a.logged()).To(And(ContainSubstring(problem), ContainSubstring("level=ERROR")))
		g.Expect(records(g, store)[1].Name).To(Equal("c"), "nothing is taken from who has it")
		g.Expect(b.Problem()).To(BeEmpty())

		time.Sleep(fresh)
		_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: "c", Fresh: fresh}, time.Now())
		g.Expect(err).NotTo(HaveOccurred())
		a.confirm(t)
		g.Expect(a.Problem()).To(BeEmpty())
		g.Expect(a.suspension()).To(BeEmpty())
		g.Expect(a.Held()).To(Equal(nodesync.Held{ID: 1, Generation: 2}))
		g.Expect(a.events()).To(HaveExactElements(ContainSubstring(problem), ""))
	})
}

// What a node knows of a lost ID it knows after a restart too, also where the
// store is away then.
func TestALostIDStaysLostOverARestart(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		d := newDisk()
		a := newNode(t, store, who("a"), d).confirm(t)
		a.Use()
		wipe(g, store)
		claim(t, store, who("c"))
		a.confirm(t)
		g.Expect(a.Problem()).NotTo(BeEmpty())

		store.Reset(away)
		a = newNode(t, store, again(who("a")), d)
		g.Expect(a.Problem()).To(ContainSubstring("node ID 1 is of node c"), "before anything can be allocated")
		g.Expect(a.suspension()).NotTo(BeEmpty())
		a.run(t)
		time.Sleep(time.Hour)
		g.Expect(a.Problem()).NotTo(BeEmpty())
		g.Expect(a.events()).To(HaveLen(1), "the history of this run has it too")

		store.Reset()
		wipe(g, store)
		time.Sleep(refresh)
		g.Expect(a.Problem()).To(BeEmpty())
		a.stop()
		g.Expect(newNode(t, store, again(again(who("a"))), d).Problem()).To(BeEmpty())
	})
}

// A remembered ID that is taken is given up where nothing depends on it.
func TestARememberedIDThatIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		busy, used bool
		pin        uint32
		id         uint32
	}{
		"nothing depends on it": {false, false, 0, 2},
		"addresses are in use":  {true, false, 0, 1},
		"it was used":           {false, true, 0, 1},
		"it is asked for":       {false, false, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
				d := newDisk()
				w := pinned("a", c.pin)
				newNode(t, store, w, d).confirm(t)
				wipe(g, store)
				claim(t, store, who("c"))
				a := newNode(t, store, again(w), d)
				a.busy = c.busy
				if c.used {
					a.Use()
				}
				a.confirm(t)
				g.Expect(a.ID()).To(Equal(c.id))
				g.Expect(a.Problem() == "").To(Equal(c.id != 1), a.Problem())
				g.Expect(records(g, store)).To(HaveLen(int(c.id)))
			})
		})
	}
}

// An ID that was used at the start, without the store, stays that of the
// process, and is not released behind its back, whatever ID is asked for now.
func TestTheIDOfAProcessNeverChanges(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		d := newDisk()
		newNode(t, store, who("a"), d).confirm(t)
		a := newNode(t, store, again(pinned("a", 10)), d)
		g.Expect(a.Use()).To(BeNumerically("==", 1))
		a.confirm(t)
		g.Expect(a.ID()).To(BeNumerically("==", 1))
		g.Expect(a.Problem()).To(BeEmpty(), "it is still its own")
		g.Expect(a.logged()).To(ContainSubstring("the next start"))
		g.Expect(records(g, store)[1].Released).To(BeZero())
		g.Expect(records(g, store)).To(HaveLen(1))

		next := newNode(t, store, again(again(pinned("a", 10))), d).confirm(t)
		g.Expect(next.Use()).To(BeNumerically("==", 10))
		g.Expect(records(g, store)[1].Released).NotTo(BeZero())
	})
}

// The loop derives addresses from the remembered ID while another one is
// being claimed: whenever it does, it and the IDClaimer agree in the end.
func TestAnIDThatIsUsedWhileItIsClaimed(t *testing.T) {
	for k := 1; k <= 12; k++ {
		bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
			d := newDisk()
			newNode(t, store, who("a"), d).confirm(t)
			var a *node
			var used uint32
			hook := func() { used = a.Use() }
			steps := 0
			store.Reset(func(string, int) faulty.Fault {
				if steps++; steps == k {
					hook()
				}
				return faulty.Fault{}
			})
			a = newNode(t, store, again(pinned("a", 10)), d)
			a.confirm(t)
			if steps < k {
				hook()
			}
			a.confirm(t)
			a.confirm(t)
			g.Expect(a.ID()).To(Equal(used), "step %d of %d", k, steps)
			g.Expect(a.Problem()).To(BeEmpty())
			g.Expect(records(g, store)[used]).To(And(HaveField("Instance", "uuid-of-a"), HaveField("Released", BeZero())))
			g.Expect(newNode(t, store, again(who("a")), d).ID()).To(Equal(used))
		})
	}
}

// A record that changed since it was read is read again before anything is
// said of it: an ID that was stolen is not confirmed, not for a moment.
func TestAStolenIDIsNotConfirmed(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t)
		a.Use()
		confirmed := a.Confirmed()
		time.Sleep(refresh)
		put(g, store, kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "thief", Instance: "uuid-of-thief", Generation: 9})
		a.confirm(t)
		g.Expect(a.Problem()).To(ContainSubstring("thief"))
		g.Expect(a.Confirmed()).To(Equal(confirmed))
		g.Expect(beatOf(g, store, 1).At).To(Equal(confirmed.UnixNano()), "no beat under an ID of another node")
		g.Expect(a.events()).To(HaveLen(1))
	})
}

// The same where it is stolen between the claim and the first beat.
func TestAnIDThatIsStolenAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, inner *faulty.Store) {
		for _, busy := range []bool{false, true} {
			wipe(g, inner)
			store := &between{inner, 2, func() {
				put(g, inner, kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "thief", Instance: "uuid-of-thief", Generation: 9})
			}}
			a := newNode(t, store, who("a"), newDisk())
			a.busy = busy
			a.confirm(t)
			g.Expect(records(g, inner)[a.ID()].Instance).To(Equal("uuid-of-a"))
			g.Expect(a.Problem()).To(BeEmpty())
			g.Expect(a.ID()).To(BeNumerically("==", 2))
		}
	})
}

// Two runs with one identity, of a disk that was copied: the later one has it,
// the earlier one allocates nothing from its next sign of life on.
func TestACopiedDisk(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t).run(t)
		a.Use()
		copied := newNode(t, store, with(who("a"), func(w *nodesync.Identity) { w.Session = "of the copy" }), a.disk.copied()).confirm(t).run(t)
		time.Sleep(refresh)
		g.Expect(a.Problem()).To(ContainSubstring("copied"))
		g.Expect(copied.Problem()).To(BeEmpty())
		time.Sleep(24 * time.Hour)
		g.Expect(a.Problem()).NotTo(BeEmpty())
		g.Expect(copied.Problem()).To(BeEmpty())
		g.Expect(a.events()).To(HaveLen(1))
		g.Expect(copied.events()).To(BeEmpty())
		copied.stop()
		time.Sleep(refresh)
		g.Expect(a.Problem()).To(BeEmpty())
		a.stop()
	})
}

// A copy under another name finds that the identity is in use, and takes nothing.
func TestACopiedDiskUnderAnotherName(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t).run(t)
		w := with(who("a"), func(w *nodesync.Identity) { w.Name, w.Session = "b", "of the copy" })
		b := newNode(t, store, w, a.disk.copied()).confirm(t).run(t)
		time.Sleep(time.Hour)
		g.Expect(b.Problem()).To(ContainSubstring("was its disk copied?"))
		g.Expect(b.suspension()).NotTo(BeEmpty())
		g.Expect(a.Problem()).To(BeEmpty())
		g.Expect(records(g, store)[1].Name).To(Equal("a"))
		g.Expect(b.events()).To(HaveLen(1), "one problem, whatever time its text tells")
		g.Expect(b.Problem()).NotTo(Equal(b.events()[0]), "though the text is of now")
		a.stop()
		b.stop()
	})
}

// A copy that claims another ID takes the first one from the original, which
// does not take it back, and so on: that would never end.
func TestACopiedDiskThatMovesOn(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t).run(t)
		a.Use()
		w := with(pinned("a", 5), func(w *nodesync.Identity) { w.Session = "of the copy" })
		copied := newNode(t, store, w, a.disk.copied()).confirm(t).run(t)
		copied.Use()
		time.Sleep(time.Hour)
		g.Expect(a.Problem()).To(ContainSubstring("copied"))
		g.Expect(copied.Problem()).To(BeEmpty())
		g.Expect(copied.Held()).To(Equal(nodesync.Held{ID: 5, Generation: 2}))
		g.Expect(records(g, store)[1].Released).NotTo(BeZero())
		a.stop()
		copied.stop()
	})
}

// Whatever the store does at any step, a Confirm that fails has changed nothing
// that the node believes, and the next one puts it right.
func TestConfirmOnAFaultyStoreAtEachStep(t *testing.T) {
	for name, fault := range map[string]faulty.Fault{"fails": faulty.Fail(), "tears": faulty.Tear(), "is slow": faulty.Delay(time.Hour)} {
		for state, prepare := range map[string]func(*testing.T, Gomega, kvdb.Store, *node){
			"first":      func(*testing.T, Gomega, kvdb.Store, *node) {},
			"warm":       func(t *testing.T, _ Gomega, _ kvdb.Store, a *node) { a.confirm(t) },
			"wiped":      func(t *testing.T, g Gomega, s kvdb.Store, a *node) { a.confirm(t).Use(); wipe(g, s) },
			"superseded": func(t *testing.T, g Gomega, s kvdb.Store, a *node) { a.confirm(t).Use(); supersede(g, s) },
			"released": func(t *testing.T, g Gomega, s kvdb.Store, a *node) {
				a.confirm(t).Use()
				_, err := nodesync.Release(t.Context(), s, nodesync.Gone{Name: "a", Force: true, Fresh: fresh}, time.Now())
				g.Expect(err).NotTo(HaveOccurred())
			},
		} {
			for k := 1; ; k++ {
				reached := false
				bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
					a := newNode(t, store, who("a"), newDisk())
					prepare(t, g, store, a)
					before := a.Held()
					store.Reset(faulty.At(k, fault))
					err := a.Confirm(t.Context())
					if reached = store.Count() >= k; reached && name != "is slow" {
						g.Expect(err).To(MatchError(faulty.ErrInjected), "%s, %s at step %d", state, name, k)
						g.Expect(a.Held()).To(Equal(before))
					} else {
						g.Expect(err).NotTo(HaveOccurred())
					}
					g.Expect(a.Problem()).To(BeEmpty())
					store.Reset()
					if err == nil {
						g.Expect(beatOf(g, store, 1).At).To(BeNumerically(">=", a.Confirmed().UnixNano()), "others count from the beat, and it not from later")
					}
					a.confirm(t)
					g.Expect(a.Problem()).To(BeEmpty())
					g.Expect(a.events()).To(BeEmpty())
					g.Expect(records(g, store)[1]).To(And(HaveField("Instance", "uuid-of-a"), HaveField("Released", BeZero()), HaveField("Generation", a.Held().Generation)))
					g.Expect(beatOf(g, store, 1).At).To(Equal(time.Now().UnixNano()))
				})
				if !reached {
					break
				}
			}
		}
	}
}

// supersede says that another instance of the name, which is gone, has ID 2.
func supersede(g Gomega, s kvdb.Store) {
	r := records(g, s)[1]
	r.SupersededBy = 2
	put(g, s, kv.NodeRecordKey(1), r)
	put(g, s, kv.NodeRecordKey(2), &kv.NodeRecord{Id: 2, Name: "a", Instance: "another", Generation: 1})
}

// How often the store is asked: once a beat; lists are for claims.
func TestHowOftenTheStoreIsAsked(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		var asked []string
		count := func(f func()) string {
			asked = nil
			store.Reset(func(op string, _ int) faulty.Fault { asked = append(asked, op); return faulty.Fault{} })
			f()
			store.Reset()
			return strings.Join(asked, " ")
		}
		a := newNode(t, store, who("a"), newDisk())
		g.Expect(count(func() { a.confirm(t) })).To(Equal("get list get txn get get txn"))
		g.Expect(count(func() { a.confirm(t) })).To(Equal("txn"))
		a.run(t)
		beats := count(func() { time.Sleep(time.Hour) })
		g.Expect(strings.Count(beats, "txn")).To(BeNumerically("~", 67, 1))
		g.Expect(strings.ReplaceAll(beats, "txn", "")).To(MatchRegexp("^ *$"))
		restarted := newNode(t, store, again(who("a")), a.disk)
		a.stop()
		g.Expect(count(func() { restarted.confirm(t) })).To(Equal("get list get txn get get txn"))
		put(g, store, kv.BeatKey(1), beatOf(g, store, 1))
		g.Expect(count(func() { restarted.confirm(t) })).To(Equal("txn get get txn"), "it looks again")
	})
}

// Beats are jittered, and never further apart than Refresh.
func TestBeatsAreJittered(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		var at []time.Time
		store.Reset(func(op string, _ int) faulty.Fault {
			if op == faulty.Txn {
				at = append(at, time.Now())
			}
			return faulty.Fault{}
		})
		n := 0
		a := newNode(t, store, who("a"), newDisk(), func(d *nodesync.IDClaimerDeps) {
			d.Random = func() float64 { n++; return float64(n%10) / 10 }
		}).confirm(t)
		at = nil
		a.run(t)
		time.Sleep(time.Hour)
		a.stop()
		gaps := map[time.Duration]bool{}
		for i := 1; i < len(at)-1; i++ {
			gap := at[i].Sub(at[i-1])
			gaps[gap] = true
			g.Expect(gap).To(And(BeNumerically(">=", refresh*4/5), BeNumerically("<=", refresh)))
		}
		g.Expect(gaps).To(HaveLen(10))
	})
}

// What the node has of each pool is in each beat.
func TestBeatsTellOfThePools(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t)
		g.Expect(beatOf(g, store, 1).Pools).To(BeEmpty())
		a.mu.Lock()
		a.uses = []*kv.PoolUse{{Pool: "blue", Generation: 3, Open: true, Leases: 7}}
		a.mu.Unlock()
		a.confirm(t)
		g.Expect(beatOf(g, store, 1).Pools).To(HaveExactElements(And(HaveField("Pool", "blue"), HaveField("Leases", uint64(7)))))
		g.Expect(beatOf(g, store, 1)).To(And(HaveField("Instance", "uuid-of-a"), HaveField("Generation", uint64(1)), HaveField("Stopped", false)))
	})
}

// The first claim in a store without any node waits for those that knew more
// of it; no other claim does.
func TestTheFirstClaimOfAll(t *testing.T) {
	const firstWait = 30 * time.Second
	waits := func(d *nodesync.IDClaimerDeps) { d.FirstWait = firstWait }
	for name, c := range map[string]struct {
		before, meanwhile bool // another node is known
		remembered        bool
		id                uint32
		wait              time.Duration
	}{
		"alone":         {false, false, false, 1, firstWait},
		"among others":  {true, false, false, 2, 0},
		"others come":   {false, true, false, 2, firstWait},
		"it is not new": {false, false, true, 3, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
				d := newDisk()
				if c.remembered {
					newNode(t, store, pinned("a", 3), d).confirm(t)
					wipe(g, store)
				}
				other := func() {
					put(g, store, kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "b", Instance: "uuid-of-b", Generation: 4})
				}
				if c.before {
					other()
				}
				if c.meanwhile {
					time.AfterFunc(firstWait/2, other)
				}
				began := time.Now()
				a := newNode(t, store, again(who("a")), d, waits).confirm(t)
				g.Expect(a.ID()).To(Equal(c.id))
				g.Expect(time.Since(began)).To(Equal(c.wait))
			})
		})
	}
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		a := newNode(t, store, who("a"), newDisk(), waits)
		g.Expect(a.Confirm(ctx)).To(And(MatchError(context.DeadlineExceeded), Not(MatchError(controller.ErrFatal))))
		g.Expect(records(g, store)).To(BeEmpty())
	})
}

// A disk that takes nothing: no ID is used that would not be remembered.
func TestADiskThatIsFull(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		d := newDisk()
		a := newNode(t, store, who("a"), d)
		d.full = errors.New("no space left")
		g.Expect(a.Confirm(t.Context())).To(MatchError(ContainSubstring("no space left")))
		g.Expect(a.ID()).To(BeZero())
		d.full = nil
		a.confirm(t)
		g.Expect(a.ID()).To(BeNumerically("==", 1), "the one that was claimed")
		a.Use()

		d.full = errors.New("no space left")
		put(g, store, kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "thief", Instance: "uuid-of-thief", Generation: 9})
		a.confirm(t)
		g.Expect(a.suspension()).To(ContainSubstring("thief"), "what matters now is done first")
		g.Expect(a.logged()).To(ContainSubstring("no space left"))
		d.full = nil
		a.confirm(t)
		g.Expect(newNode(t, store, again(who("a")), d).Problem()).To(ContainSubstring("thief"))
	})
}

func TestADiskThatCannotBeRead(t *testing.T) {
	g := NewWithT(t)
	d := newDisk()
	g.Expect(d.SetLocal("node-id", "{")).To(Succeed())
	_, err := nodesync.NewIDClaimer(nodesync.IDClaimerDeps{Disk: d})
	g.Expect(err).To(MatchError(ContainSubstring("node ID")))
}

// Confirm does not wait for another one longer than its caller does.
func TestConfirmWaitsNoLongerThanItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
		a := newNode(t, store, who("a"), newDisk()).confirm(t)
		store.Reset(silent)
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- a.Confirm(ctx) }()
		synctest.Wait()
		short, done := context.WithTimeout(t.Context(), time.Second)
		defer done()
		g.Expect(a.Confirm(short)).To(MatchError(context.DeadlineExceeded))
		cancel()
		g.Expect(<-first).To(MatchError(context.Canceled))
		store.Reset()
		a.confirm(t)
	})
}

// brokenLoop takes no event.
type brokenLoop struct {
	controller.EventLoop
	err error
}

func (l brokenLoop) PushEvent(controller.Event) error { return fmt.Errorf("push: %w", l.err) }

func TestALoopThatTakesNoEvent(t *testing.T) {
	for err, said := range map[error]bool{controller.ErrEventQueueFull: true, controller.ErrClosedController: false} {
		bubble(t, func(t *testing.T, g Gomega, store *faulty.Store) {
			a := newNode(t, store, who("a"), newDisk(), func(d *nodesync.IDClaimerDeps) { d.EventLoop = brokenLoop{err: err} }).confirm(t)
			a.Use()
			wipe(g, store)
			claim(t, store, who("c"))
			a.confirm(t)
			g.Expect(a.suspension()).NotTo(BeEmpty())
			g.Expect(strings.Contains(a.logged(), "the event history lacks")).To(Equal(said))
		})
	}
}
