// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// stubborn never lets a transaction through.
type stubborn struct{ kvdb.Store }

func (stubborn) Txn(context.Context, []kvdb.Cond, []kvdb.Op) (int64, error) {
	return 0, fmt.Errorf("apply: %w", kvdb.ErrConditions)
}

func TestAClaimGivesUpInTheEnd(t *testing.T) {
	g := NewWithT(t)
	store := stubborn{mem.New()}
	defer store.Close()
	_, err := nodesync.Claim(t.Context(), store, who("a"), nodesync.Held{}, began())
	g.Expect(err).To(MatchError(ContainSubstring("gave up after 100 conflicting writes")))
}

// Whatever the store does at any step of a claim, the next one finds or makes
// exactly one record, and no other node gets that ID.
func TestAFaultyStoreAtEachStep(t *testing.T) {
	for kind, through := range stores() {
		t.Run(kind, func(t *testing.T) { faultAtEachStep(t, through) })
	}
}

func faultAtEachStep(t *testing.T, through func(kvdb.Store) kvdb.Store) {
	for name, fault := range map[string]faulty.Fault{
		"fails": faulty.Fail(), "tears": faulty.Tear(), "is closed": faulty.FailWith(kvdb.ErrClosed), "loses the race": faulty.FailWith(kvdb.ErrConditions),
	} {
		for first, w := range map[string]nodesync.Identity{"new": who("a"), "pinned": pinned("a", 5), "moved": pinned("b", 5), "reinstalled": reinstalled("b"), "back": again(who("b"))} {
			for k := 1; ; k++ {
				g := NewWithT(t)
				store := faulty.New(mem.New())
				claim(t, store, who("b"))
				later := began().Add(fresh)
				store.Reset(faulty.At(k, fault))
				_, err := nodesync.Claim(t.Context(), through(store), w, nodesync.Held{}, later)
				reached := store.Count() >= k
				store.Reset()
				if reached && name != "loses the race" {
					g.Expect(err).To(MatchError(ContainSubstring("node ID for "+w.Name)), "%s at step %d of %s", name, k, first)
				} else {
					g.Expect(err).NotTo(HaveOccurred())
				}
				held, err := nodesync.Claim(t.Context(), through(store), w, nodesync.Held{}, later)
				g.Expect(err).NotTo(HaveOccurred())
				own := 0
				for id, m := range records(g, store) {
					if m.Instance == w.Instance && m.Released == 0 {
						own++
						g.Expect(id).To(Equal(held.ID))
					}
				}
				g.Expect(own).To(Equal(1), "%s at step %d of %s", name, k, first)
				g.Expect(claim(t, store, who("c")).ID).NotTo(Equal(held.ID))
				g.Expect(store.Close()).To(Succeed())
				if !reached {
					g.Expect(k).To(BeNumerically(">", 3), "there are that many steps")
					break
				}
			}
		}
	}
}

// A store that is away is said to be away, not that gave up after 100 conflicting writes.
func TestAStoreThatEndsWithinAClaim(t *testing.T) {
	for k := 1; k <= 8; k++ {
		g := NewWithT(t)
		inner := mem.New()
		store := faulty.New(&rival{inner, 100})
		store.Reset(func(_ string, n int) faulty.Fault {
			if n >= k {
				return faulty.Fail()
			}
			return faulty.Fault{}
		})
		_, err := nodesync.Claim(t.Context(), store, who("a"), nodesync.Held{}, began())
		g.Expect(err).To(MatchError(faulty.ErrInjected))
		g.Expect(store.Count()).To(Equal(k), "it is not asked again")
		g.Expect(store.Close()).To(Succeed())
	}
}

func TestRefusalsSayWhatWouldBeRight(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	claim(t, store, who("a"))
	claimErr := func(w nodesync.Identity, want uint32) error {
		_, err := nodesync.Claim(t.Context(), store, w, nodesync.Held{ID: want}, began())
		return err
	}
	g.Expect(claimErr(reinstalled("a"), 0)).To(MatchError(And(
		ContainSubstring("uuid-of-a"), ContainSubstring("new-uuid-of-a"), ContainSubstring("2000-01-01T00:00:00Z"), ContainSubstring("cadastre node release --force a"))))
	g.Expect(claimErr(with(again(who("a")), func(w *nodesync.Identity) { w.Name = "z" }), 0)).To(MatchError(And(
		ContainSubstring("node a"), ContainSubstring("copied"), ContainSubstring("Remove the state directory"))))
	g.Expect(claimErr(pinned("b", 1), 0)).To(MatchError(And(ContainSubstring("node ID 1 is of node a"), ContainSubstring("cadastre.nodeID"))))
	g.Expect(claimErr(who("b"), 1)).To(MatchError(And(ContainSubstring("node ID 1 is of node a"), ContainSubstring("addresses of it in use"))))
	g.Expect(claimErr(pinned("b", 300), 0)).To(MatchError(And(ContainSubstring("300"), ContainSubstring("254"), ContainSubstring("larger networks"))))
	g.Expect(claimErr(with(who("b"), func(w *nodesync.Identity) { w.Limit = limit(1) }), 0)).To(MatchError(And(
		ContainSubstring("all 1 "), ContainSubstring("cadastre node release"))))
}

// A beat of another instance that cannot be read is named; the claim does not
// guess whether that instance is still there.
func TestWhatCannotBeRead(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	claim(t, store, who("a"))
	_, err := store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.BeatKey(1), []byte{0xff, 0xff, 0xff})})
	g.Expect(err).NotTo(HaveOccurred())
	before := revision(g, store)
	_, err = nodesync.Claim(t.Context(), store, reinstalled("a"), nodesync.Held{}, began().Add(fresh))
	g.Expect(err).To(MatchError(ContainSubstring(kv.BeatKey(1))))
	g.Expect(revision(g, store)).To(Equal(before))
}
