// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

func TestRelease(t *testing.T) {
	for name, c := range map[string]struct {
		node    string
		after   time.Duration
		force   bool
		stopped bool
		err     error
		clean   bool
	}{
		"there a moment ago":          {"a", fresh - 1, false, false, nodesync.ErrFresh, false},
		"by a clock that is ahead":    {"a", -time.Hour, false, false, nodesync.ErrFresh, false},
		"gone":                        {"a", fresh, false, false, nil, true},
		"ended in good order":         {"a", 1, false, true, nil, true},
		"there a moment ago, forced":  {"a", 1, true, false, nil, false},
		"gone, forced":                {"a", fresh, true, false, nil, true},
		"no node":                     {"c", fresh, true, false, nodesync.ErrNoNode, false},
		"released before":             {"released", fresh, false, false, nodesync.ErrNoNode, false},
		"a name that is but a prefix": {"", fresh, true, false, nodesync.ErrNoNode, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			claim(t, store, who("b"))
			claim(t, store, who("a"))
			claim(t, store, who("released"))
			_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: "released", Force: true, Fresh: 0}, began())
			g.Expect(err).NotTo(HaveOccurred())
			if c.stopped {
				beat := beatOf(g, store, 2)
				beat.Stopped = true
				put(g, store, kv.BeatKey(2), beat)
			}
			before := revision(g, store)
			now := began().Add(c.after)
			gone := nodesync.Gone{Name: c.node, Force: c.force, Fresh: fresh, DryRun: true}
			would, refused := nodesync.Release(t.Context(), store, gone, now)
			g.Expect(revision(g, store)).To(Equal(before), "a dry run")
			gone.DryRun = false
			id, err := nodesync.Release(t.Context(), store, gone, now)
			g.Expect(would).To(Equal(id), "the dry run knows")
			g.Expect(refused != nil).To(Equal(err != nil))
			if c.err != nil {
				g.Expect(err).To(MatchError(c.err))
				g.Expect(revision(g, store)).To(Equal(before))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(id).To(BeNumerically("==", 2))
			g.Expect(records(g, store)[2]).To(And(
				HaveField("Released", now.UnixNano()), HaveField("Clean", c.clean), HaveField("Generation", uint64(1)), HaveField("Instance", "uuid-of-a")))
			g.Expect(records(g, store)[1].Released).To(BeZero())
		})
	}
}

// The copy of a disk under another name does not get the ID of the original, which may be
// alive, when that is released by force. It waits until the beat is old.
func TestTheIDOfACopiedDiskIsReleasedByForce(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	held := claim(t, store, who("a"))
	_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Force: true, Fresh: fresh}, began())
	g.Expect(err).NotTo(HaveOccurred())
	renamed := with(again(who("a")), func(w *nodesync.Identity) { w.Name = "copy" })
	_, err = nodesync.Claim(t.Context(), store, renamed, held, began().Add(fresh-1))
	g.Expect(err).To(MatchError(nodesync.ErrIDTaken))
	g.Expect(nodesync.Claim(t.Context(), store, renamed, held, began().Add(fresh))).To(HaveField("ID", held.ID))
}

// With the term of the cluster instead of fresh no node gets an ID before it ends.
func TestNoReleaseBeforeTheTermEnds(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	claim(t, store, who("a"))
	_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Fresh: expire}, began().Add(expire-1))
	g.Expect(err).To(MatchError(nodesync.ErrFresh))
	g.Expect(nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Fresh: expire}, began().Add(expire))).To(BeNumerically("==", 1))
}

// All IDs that instances of the name have had go; the newest is the answer.
func TestAReleaseOfTwoInstances(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	claim(t, store, who("a"))
	_, err := nodesync.Claim(t.Context(), store, reinstalled("a"), nodesync.Held{}, began().Add(fresh))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Fresh: fresh}, began().Add(2*fresh))).To(BeNumerically("==", 2))
	for id, m := range records(g, store) {
		g.Expect(m.Released).NotTo(BeZero(), "node ID %d", id)
	}
}

// The agent says that it is there while its ID is being released.
func TestAReleaseWhileTheAgentComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		inner := mem.New()
		defer inner.Close()
		a := newNode(t, inner, who("a"), newDisk()).confirm(t)
		time.Sleep(fresh)
		store := &between{inner, 1, func() { a.confirm(t) }}
		_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Fresh: fresh}, time.Now())
		g.Expect(err).To(MatchError(nodesync.ErrFresh))
		g.Expect(records(g, inner)[1].Released).To(BeZero())
	})
}

// An agent whose ID is released by force while it is there claims it again; it
// is given the time to notice, even if there is no other ID.
func TestAForcedReleaseOfALiveAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		store := mem.New()
		defer store.Close()
		a := newNode(t, store, who("a"), newDisk()).confirm(t)
		a.Use()
		_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Force: true, Fresh: fresh}, time.Now())
		g.Expect(err).NotTo(HaveOccurred())

		only := with(who("b"), func(w *nodesync.Identity) { w.Limit = limit(1) })
		_, err = nodesync.Claim(t.Context(), store, only, nodesync.Held{}, time.Now())
		g.Expect(err).To(And(MatchError(nodesync.ErrNoID), MatchError(ContainSubstring("node a"))))
		g.Expect(err).NotTo(MatchError(nodesync.ErrIDTaken), "node b does not ask for a certain ID")
		_, err = nodesync.Claim(t.Context(), store, who("b"), nodesync.Held{ID: 1}, time.Now())
		g.Expect(err).To(MatchError(nodesync.ErrIDTaken))
		_, err = nodesync.Claim(t.Context(), store, pinned("b", 1), nodesync.Held{}, time.Now())
		g.Expect(err).To(MatchError(nodesync.ErrIDTaken))

		a.confirm(t)
		g.Expect(a.Problem()).To(BeEmpty())
		g.Expect(a.Held()).To(Equal(nodesync.Held{ID: 1, Generation: 2}))

		_, err = nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Force: true, Fresh: fresh}, time.Now())
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(fresh) // it was not there any more
		_, err = nodesync.Claim(t.Context(), store, only, nodesync.Held{}, time.Now())
		g.Expect(err).NotTo(HaveOccurred())
		a.confirm(t)
		g.Expect(a.Problem()).To(ContainSubstring("node ID 1 is of node b"))
	})
}

// A name whose state directory was lost, and that may not wait.
func TestAForcedReleaseLetsANewInstanceIn(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	claim(t, store, who("a"))
	_, err := nodesync.Claim(t.Context(), store, reinstalled("a"), nodesync.Held{}, began())
	g.Expect(err).To(MatchError(nodesync.ErrNameInUse))
	_, err = nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Force: true, Fresh: fresh}, began())
	g.Expect(err).NotTo(HaveOccurred())
	held, err := nodesync.Claim(t.Context(), store, reinstalled("a"), nodesync.Held{}, began())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(held.ID).To(BeNumerically("==", 2), "not the one that may be in use")
}

func TestReleaseOnAFaultyStore(t *testing.T) {
	for name, c := range map[string]struct {
		plan     faulty.Plan
		released bool
	}{
		"the list fails":           {faulty.On(faulty.List, 1, faulty.Fail()), false},
		"the transaction fails":    {faulty.On(faulty.Txn, 1, faulty.Fail()), false},
		"its outcome is not known": {faulty.On(faulty.Txn, 1, faulty.Tear()), true},
		"others are always faster": {faulty.Always(faulty.Txn, faulty.FailWith(kvdb.ErrConditions)), false},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := faulty.New(mem.New())
			defer store.Close()
			claim(t, store, who("a"))
			store.Reset(c.plan)
			_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Fresh: fresh}, began().Add(fresh))
			g.Expect(err).To(MatchError(ContainSubstring("release the ID of node a")))
			store.Reset()
			g.Expect(records(g, store)[1].Released != 0).To(Equal(c.released))
			_, err = nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Fresh: fresh}, began().Add(fresh))
			if c.released {
				g.Expect(err).To(MatchError(nodesync.ErrNoNode))
			} else {
				g.Expect(err).NotTo(HaveOccurred())
			}
		})
	}
}

func TestRefusedReleasesSayWhatWouldBeRight(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	claim(t, store, who("a"))
	_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Fresh: fresh}, began())
	g.Expect(err).To(MatchError(And(ContainSubstring("2000-01-01T00:00:00Z"), ContainSubstring("3m0s"), ContainSubstring("--force"))))
	_, err = nodesync.Release(t.Context(), store, nodesync.Gone{Name: "b", Fresh: fresh}, began())
	g.Expect(err).To(MatchError(And(ContainSubstring("node b"), ContainSubstring("cadastre node list"))))
}

// All records, released ones too, in the order of their IDs, with one list.
func TestList(t *testing.T) {
	g := NewWithT(t)
	store := faulty.New(mem.New())
	defer store.Close()
	g.Expect(nodesync.List(t.Context(), store)).To(BeEmpty())
	for _, w := range []nodesync.Identity{pinned("c", 10), pinned("b", 9), who("a")} {
		claim(t, store, w)
	}
	_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: "b", Force: true, Fresh: fresh}, began())
	g.Expect(err).NotTo(HaveOccurred())
	put(g, store, kv.NodeRecordKey(11), &kv.NodeRecord{Id: 11, Name: "d"}) // never beat
	_, err = store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.BeatKey(10), []byte{0xff})})
	g.Expect(err).NotTo(HaveOccurred())
	store.Reset()
	all, err := nodesync.List(t.Context(), store)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(store.Count()).To(Equal(1))
	var names []string
	for _, r := range all {
		names = append(names, r.Name)
	}
	g.Expect(names).To(Equal([]string{"a", "b", "c", "d"}))
	g.Expect(all[0].Beat.Session).To(Equal("run-1-of-a"))
	g.Expect(all[1].Released).NotTo(BeZero())
	g.Expect(all[2].Beat).To(BeNil(), "it cannot be read")
	g.Expect(all[3].Beat).To(BeNil())

	_, err = store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.NodeRecordKey(12), []byte{0xff})})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(nodesync.List(t.Context(), store)).To(HaveLen(4), "one that cannot be read hides no other")
	store.Reset(faulty.Always(faulty.List, faulty.Fail()))
	_, err = nodesync.List(t.Context(), store)
	g.Expect(err).To(MatchError(faulty.ErrInjected))
}

// The beats of a node whose clock is slow look old. Its agent is alive all the same.
func TestAReleaseOfALiveNodeWithASlowClock(t *testing.T) {
	for name, c := range map[string]struct {
		beats, force bool
		err          error
		took         time.Duration
	}{
		"its agent beats":         {true, false, nodesync.ErrFresh, fresh / 2},
		"its agent beats, forced": {true, true, nil, 0},
		"its agent is gone":       {false, false, nil, fresh / 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				store := mem.New()
				defer store.Close()
				claim(t, store, who("a"))
				beat := func() {
					m := beatOf(g, store, 1)
					m.At = time.Now().Add(-365 * 24 * time.Hour).UnixNano()
					put(g, store, kv.BeatKey(1), m)
				}
				beat()
				if c.beats {
					time.AfterFunc(fresh/3, beat)
				}
				began := time.Now()
				_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: "a", Force: c.force, Fresh: fresh, Watch: fresh / 2}, began)
				g.Expect(time.Since(began)).To(Equal(c.took))
				if c.err != nil {
					g.Expect(err).To(MatchError(c.err))
					g.Expect(err).To(MatchError(ContainSubstring("correct the clock of the node")))
					g.Expect(records(g, store)[1].Released).To(BeZero())
				} else {
					g.Expect(err).NotTo(HaveOccurred())
				}
				time.Sleep(fresh) // the timer is over
			})
		})
	}
}
