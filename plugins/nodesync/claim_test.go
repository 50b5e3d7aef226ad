// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// claimed is one claim, when it was made, and what it must come to.
type claimed struct {
	who  nodesync.Identity
	want uint32
	at   time.Duration
	id   uint32
	err  error
}

// Sequences of claims over one store.
func TestClaims(t *testing.T) {
	renamed := with(again(who("a")), func(w *nodesync.Identity) { w.Name = "a2" })
	few := func(name string) nodesync.Identity {
		return with(who(name), func(w *nodesync.Identity) { w.Limit = limit(2) })
	}
	const late = fresh
	for name, claims := range map[string][]claimed{
		"the smallest free one":       {{who("a"), 0, 0, 1, nil}, {who("b"), 0, 0, 2, nil}, {who("c"), 0, 0, 3, nil}},
		"the same one after a crash":  {{who("a"), 0, 0, 1, nil}, {who("b"), 0, 0, 2, nil}, {again(who("a")), 0, 1, 1, nil}, {again(who("b")), 2, 2, 2, nil}},
		"pinned":                      {{pinned("a", 7), 0, 0, 7, nil}, {who("b"), 0, 0, 1, nil}, {pinned("a", 7), 0, 0, 7, nil}, {who("a"), 0, 0, 7, nil}},
		"pinned to what another has":  {{who("a"), 0, 0, 1, nil}, {pinned("b", 1), 0, late, 0, nodesync.ErrIDTaken}, {who("b"), 0, 0, 2, nil}},
		"pinned later, to another":    {{who("a"), 0, 0, 1, nil}, {pinned("a", 10), 1, 0, 10, nil}, {who("b"), 0, 0, 2, nil}, {who("a"), 0, 0, 10, nil}},
		"pinned above the largest":    {{pinned("a", 255), 0, 0, 0, nodesync.ErrNoID}, {pinned("a", 254), 0, 0, 254, nil}},
		"remembered, in a new store":  {{who("a"), 5, 0, 5, nil}, {who("b"), 0, 0, 1, nil}, {who("a"), 5, 0, 5, nil}},
		"remembered, and taken":       {{who("b"), 0, 0, 1, nil}, {who("a"), 1, late, 0, nodesync.ErrIDTaken}, {who("a"), 0, late, 2, nil}},
		"remembered, and too large":   {{who("a"), 255, 0, 0, nodesync.ErrNoID}},
		"renamed while it was there":  {{who("a"), 0, 0, 1, nil}, {renamed, 1, late - 1, 0, nodesync.ErrInstanceInUse}},
		"renamed":                     {{who("a"), 0, 0, 1, nil}, {renamed, 1, late, 1, nil}, {who("b"), 0, 0, 2, nil}},
		"the name is in use":          {{who("a"), 0, 0, 1, nil}, {reinstalled("a"), 0, late - 1, 0, nodesync.ErrNameInUse}, {who("a"), 0, 0, 1, nil}},
		"by a clock that is ahead":    {{who("a"), 0, time.Hour, 1, nil}, {reinstalled("a"), 0, 0, 0, nodesync.ErrNameInUse}},
		"the name is free again":      {{who("a"), 0, 0, 1, nil}, {reinstalled("a"), 0, late, 2, nil}, {who("b"), 0, late, 3, nil}},
		"back, where another came":    {{who("a"), 0, 0, 1, nil}, {reinstalled("a"), 0, late, 2, nil}, {who("a"), 1, late + 1, 0, nodesync.ErrNameInUse}, {who("a"), 1, 2 * late, 1, nil}, {reinstalled("a"), 2, 2*late + 1, 0, nodesync.ErrNameInUse}},
		"renamed to a name in use":    {{who("a2"), 0, 0, 1, nil}, {who("a"), 0, 0, 2, nil}, {renamed, 2, 1, 0, nodesync.ErrNameInUse}},
		"none left":                   {{few("a"), 0, 0, 1, nil}, {few("b"), 0, 0, 2, nil}, {few("c"), 0, late, 0, nodesync.ErrNoID}, {few("a"), 0, 0, 1, nil}},
		"the own one does not fit":    {{who("a"), 0, 0, 1, nil}, {who("b"), 0, 0, 2, nil}, {who("c"), 0, 0, 3, nil}, {few("c"), 3, 0, 0, nodesync.ErrNoID}},
		"another one by order":        {{pinned("a", 1), 0, 0, 1, nil}, {pinned("a", 2), 1, 0, 2, nil}, {pinned("a", 1), 2, 0, 1, nil}},
		"taken from who has moved on": {{pinned("a", 1), 0, 0, 1, nil}, {pinned("a", 2), 1, 0, 2, nil}, {pinned("b", 1), 0, late - 1, 0, nodesync.ErrIDTaken}, {pinned("b", 1), 0, late, 1, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			generations := map[uint32]uint64{}
			for i, x := range claims {
				held, err := nodesync.Claim(t.Context(), store, x.who, nodesync.Held{ID: x.want, Generation: 1}, began().Add(x.at))
				g.Expect(held.ID).To(Equal(x.id), "claim %d: %v", i, err)
				g.Expect(errors.Is(err, x.err)).To(BeTrue(), "claim %d: %v", i, err)
				all := records(g, store)
				if err == nil {
					g.Expect(all[held.ID]).To(And(HaveField("Name", x.who.Name), HaveField("Instance", x.who.Instance), HaveField("Generation", held.Generation), HaveField("Released", BeZero())))
					g.Expect(beatOf(g, store, held.ID)).To(And(HaveField("Session", x.who.Session), HaveField("NodeName", x.who.Name), HaveField("Generation", held.Generation), HaveField("At", began().Add(x.at).UnixNano())))
				}
				for id, m := range all {
					g.Expect(m.Generation).To(BeNumerically(">=", generations[id]), "claim %d", i)
					generations[id] = m.Generation
				}
			}
		})
	}
}

// IDs are used in the order that costs least: those without a former holder
// by number, then those that were released longest ago.
func TestTheOrderOfIDs(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	now := began()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		claim(t, store, who(name))
	}
	for i, x := range []struct {
		name  string
		clean bool
	}{{"d", false}, {"b", true}, {"a", false}, {"e", false}} {
		when := now.Add(time.Duration(i) * time.Second) // within fresh: only force can do it
		if x.clean {
			_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: x.name, Fresh: time.Second / 2}, when)
			g.Expect(err).NotTo(HaveOccurred())
			continue
		}
		_, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: x.name, Force: true, Fresh: fresh}, when)
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(records(g, store)[2].Clean).To(BeTrue())
	g.Expect(records(g, store)[4].Clean).To(BeFalse())
	now = now.Add(time.Hour)
	for i, want := range []uint32{2, 6, 4, 1, 5} { // clean, never used, then by release
		w := with(who(fmt.Sprint("new-", i)), func(w *nodesync.Identity) { w.Limit = limit(6) })
		held, err := nodesync.Claim(t.Context(), store, w, nodesync.Held{}, now)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(held.ID).To(Equal(want), "claim %d", i)
		if want != 6 {
			g.Expect(held.Generation).To(BeNumerically("==", 2), "it has changed hands")
		}
	}
	_, err := nodesync.Claim(t.Context(), store, with(who("last"), func(w *nodesync.Identity) { w.Limit = limit(6) }), nodesync.Held{}, now)
	g.Expect(err).To(MatchError(nodesync.ErrNoID))
}

// The same against a model that is a map.
func TestTheOrderOfIDsAtRandom(t *testing.T) {
	for seed := range uint64(30) {
		g := NewWithT(t)
		rnd := rand.New(rand.NewPCG(seed, 1))
		store := mem.New()
		type slot struct {
			holder   string
			released time.Time
			clean    bool
		}
		const largest = 5
		slots := map[uint32]*slot{}
		now := began()
		for step := range 60 {
			now = now.Add(time.Hour)
			name := fmt.Sprint("n", rnd.IntN(7))
			if rnd.IntN(3) == 0 { // release
				id, err := nodesync.Release(t.Context(), store, nodesync.Gone{Name: name, Force: true, Fresh: time.Duration(rnd.IntN(2)) * 10 * 24 * 365 * time.Hour}, now)
				held := false
				for i, s := range slots {
					if s.holder == name {
						held = true
						g.Expect(id).To(Equal(i))
						s.holder, s.released, s.clean = "", now, records(g, store)[i].Clean
					}
				}
				g.Expect(err == nil).To(Equal(held), "seed %d, step %d: %v", seed, step, err)
				continue
			}
			want := uint32(0)
			for id := uint32(largest); id >= 1; id-- {
				s := slots[id]
				if s == nil || s.holder == "" && s.clean {
					want = id
				}
			}
			for id, s := range slots {
				if old := slots[want]; (want == 0 || old != nil && old.holder == "" && !old.clean) && s.holder == "" && !s.clean && (want == 0 || s.released.Before(old.released)) {
					want = id
				}
			}
			for id, s := range slots {
				if s.holder == name {
					want = id
				}
			}
			held, err := nodesync.Claim(t.Context(), store, with(who(name), func(w *nodesync.Identity) { w.Limit = limit(largest) }), nodesync.Held{}, now)
			g.Expect(held.ID).To(Equal(want), "seed %d, step %d: %v", seed, step, err)
			if want == 0 {
				g.Expect(err).To(MatchError(nodesync.ErrNoID))
			} else {
				slots[want] = &slot{holder: name}
			}
		}
		g.Expect(store.Close()).To(Succeed())
	}
}

// What limits the IDs is asked with the pools as they are in the store.
func TestPoolsLimitTheIDs(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	put(g, store, kv.PoolKey("small"), &kv.Pool{Name: "small"})
	_, err := store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.PoolKey("broken"), []byte{0xff})})
	g.Expect(err).NotTo(HaveOccurred())
	var asked []string
	w := with(who("a"), func(w *nodesync.Identity) {
		w.Limit = func(pools []*kv.Pool) uint32 {
			for _, p := range pools {
				asked = append(asked, p.Name)
			}
			return 0
		}
	})
	_, err = nodesync.Claim(t.Context(), store, w, nodesync.Held{}, began())
	g.Expect(err).To(MatchError(nodesync.ErrNoID))
	g.Expect(asked).To(Equal([]string{"small"}))
}

// A repeated claim leaves the record alone; one that moves keeps what the
// record says of the node, and releases the old ID, not cleanly.
func TestWhatAClaimWrites(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	claim(t, store, who("a"))
	before, _, err := store.Get(t.Context(), kv.NodeRecordKey(1))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(records(g, store)[1].Generation).To(BeNumerically("==", 1))
	claim(t, store, again(who("a")))
	after, _, err := store.Get(t.Context(), kv.NodeRecordKey(1))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(after.ModRevision).To(Equal(before.ModRevision), "all nodes watch the record")

	put(g, store, kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "a", Instance: "uuid-of-a", Generation: 4, IpAddresses: []string{"192.168.16.1/24"}, NodeUid: "uid"})
	claim(t, store, pinned("a", 9))
	g.Expect(records(g, store)).To(HaveLen(2))
	g.Expect(proto.Equal(records(g, store)[9], &kv.NodeRecord{
		Id: 9, Name: "a", Instance: "uuid-of-a", Generation: 1, IpAddresses: []string{"192.168.16.1/24"}, NodeUid: "uid",
	})).To(BeTrue(), "%v", records(g, store))
	g.Expect(records(g, store)[1]).To(And(HaveField("Generation", uint64(4)), HaveField("Released", began().UnixNano()), HaveField("Clean", false)))
}

// The generation goes on from what the store or the node remembers, whichever
// is more: a store that was wiped or came back older does not take it back.
func TestGenerations(t *testing.T) {
	for name, c := range map[string]struct{ stored, remembered, want uint64 }{
		"as remembered":    {4, 4, 4},
		"the store knows":  {5, 4, 5}, // claimed, and not yet remembered when the agent crashed
		"the store forgot": {3, 4, 5},
		"a new store":      {0, 4, 5},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			if c.stored != 0 {
				put(g, store, kv.NodeRecordKey(3), &kv.NodeRecord{Id: 3, Name: "a", Instance: "uuid-of-a", Generation: c.stored})
			}
			g.Expect(nodesync.Claim(t.Context(), store, who("a"), nodesync.Held{ID: 3, Generation: c.remembered}, began())).To(Equal(nodesync.Held{ID: 3, Generation: c.want}))
			g.Expect(records(g, store)[3].Generation).To(Equal(c.want))
		})
	}
}

// Of two records of one instance, which a store may have after it lost its past,
// the one counts whose addresses are in use.
func TestTwoRecordsOfOneInstance(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	for _, id := range []uint32{3, 5} {
		put(g, store, kv.NodeRecordKey(id), &kv.NodeRecord{Id: id, Name: "a", Instance: "uuid-of-a", Generation: 4})
	}
	for _, id := range []uint32{5, 3} {
		g.Expect(nodesync.Claim(t.Context(), store, who("a"), nodesync.Held{ID: id, Generation: 4}, began())).To(Equal(nodesync.Held{ID: id, Generation: 4}))
	}
	g.Expect(claim(t, store, who("a")).ID).To(BeNumerically("==", 5), "the later one")
}

// The name goes to the new instance; the record of the old one stays held and
// says who came.
func TestTheOldRecordOfAName(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	claim(t, store, who("a"))
	_, err := nodesync.Claim(t.Context(), store, reinstalled("a"), nodesync.Held{}, began().Add(fresh))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(records(g, store)[1]).To(And(HaveField("SupersededBy", uint32(2)), HaveField("Released", BeZero()), HaveField("Generation", uint64(1)), HaveField("Instance", "uuid-of-a")))
	g.Expect(records(g, store)[2].SupersededBy).To(BeZero())
}

// Fifty nodes at the same time get fifty IDs; those that choose at random do
// it in few attempts.
func TestConcurrentClaims(t *testing.T) {
	for name, random := range map[string]func() float64{"in order": nil, "at random": rand.Float64} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			const n = 50
			store := mem.New()
			defer store.Close()
			held, errs := make([]nodesync.Held, n), make([]error, n)
			var wg sync.WaitGroup
			for i := range n {
				w := with(who(fmt.Sprint("node-", i)), func(w *nodesync.Identity) { w.Random = random })
				wg.Go(func() { held[i], errs[i] = nodesync.Claim(t.Context(), store, w, nodesync.Held{}, began()) })
			}
			wg.Wait()
			got := map[uint32]bool{}
			for i, h := range held {
				g.Expect(errs[i]).NotTo(HaveOccurred())
				got[h.ID] = true
			}
			g.Expect(got).To(HaveLen(n))
			g.Expect(got).NotTo(HaveKey(uint32(0)))
			g.Expect(records(g, store)).To(HaveLen(n))
		})
	}
}

// Of two instances of one name that claim at the same time one is refused, also
// where each has addresses of another ID.
func TestConcurrentClaimsOfOneName(t *testing.T) {
	for name, want := range map[string]uint32{"the same ID": 0, "another ID": 2} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			inner := mem.New()
			defer inner.Close()
			store := &between{inner, 1, func() {
				_, err := nodesync.Claim(t.Context(), inner, who("a"), nodesync.Held{ID: want / 2}, began())
				g.Expect(err).NotTo(HaveOccurred())
			}}
			_, err := nodesync.Claim(t.Context(), store, reinstalled("a"), nodesync.Held{ID: want}, began())
			g.Expect(err).To(MatchError(nodesync.ErrNameInUse))
			g.Expect(records(g, inner)).To(HaveLen(1))
		})
	}
}

// between does something before the n-th transaction from now on.
type between struct {
	kvdb.Store
	n    int
	work func()
}

func (b *between) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	if b.n--; b.n == 0 {
		b.work()
	}
	return b.Store.Txn(ctx, conds, ops)
}

// rival lets another node be faster, so many times.
type rival struct {
	kvdb.Store
	times int
}

func (r *rival) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	if r.times > 0 {
		r.times--
		if _, err := nodesync.Claim(ctx, r.Store, who(fmt.Sprint("rival-", r.times)), nodesync.Held{}, began()); err != nil {
			return 0, err
		}
	}
	return r.Store.Txn(ctx, conds, ops)
}

func TestALostRaceIsRunAgain(t *testing.T) {
	g := NewWithT(t)
	store := &rival{mem.New(), 40}
	defer store.Close()
	g.Expect(claim(t, store, who("slow")).ID).To(BeNumerically("==", 41))
	g.Expect(records(g, store)).To(HaveLen(41))
}

// A pinned or remembered ID that another node takes meanwhile is refused, not fought for.
func TestALostRaceForOneID(t *testing.T) {
	for name, w := range map[string]nodesync.Identity{"pinned": pinned("slow", 1), "remembered": who("slow")} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := &rival{mem.New(), 1}
			defer store.Close()
			_, err := nodesync.Claim(t.Context(), store, w, nodesync.Held{ID: 1, Generation: 7}, began())
			g.Expect(err).To(And(MatchError(nodesync.ErrIDTaken), MatchError(ContainSubstring("rival-0"))))
		})
	}
}

// The same where nothing was to be claimed: the ID was this node's a moment ago.
func TestALostRaceForTheOwnID(t *testing.T) {
	g := NewWithT(t)
	inner := mem.New()
	defer inner.Close()
	held := claim(t, inner, who("a"))
	store := &between{inner, 1, func() {
		put(g, inner, kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "thief", Instance: "uuid-of-thief", Generation: 2})
	}}
	_, err := nodesync.Claim(t.Context(), store, again(who("a")), held, began())
	g.Expect(err).To(MatchError(nodesync.ErrIDTaken))
	g.Expect(beatOf(g, inner, 1).Session).To(Equal("run-1-of-a"))
}

// What a claim has concluded from a beat must still be so when it is written:
// the node of that name comes back at this very moment.
func TestAClaimWhileTheOtherComesBack(t *testing.T) {
	g := NewWithT(t)
	inner := mem.New()
	defer inner.Close()
	claim(t, inner, who("a"))
	later := began().Add(fresh)
	store := &between{inner, 1, func() {
		_, err := nodesync.Claim(t.Context(), inner, who("a"), nodesync.Held{}, later)
		g.Expect(err).NotTo(HaveOccurred())
	}}
	_, err := nodesync.Claim(t.Context(), store, reinstalled("a"), nodesync.Held{}, later)
	g.Expect(err).To(MatchError(nodesync.ErrNameInUse))
	g.Expect(records(g, inner)[1].SupersededBy).To(BeZero())
}

// It comes back while another ID has to be left alone: that is not the reason.
func TestAClaimWhileTheOtherComesBackAndOneIDIsLeft(t *testing.T) {
	g := NewWithT(t)
	inner := mem.New()
	defer inner.Close()
	claim(t, inner, who("a"))
	later := began().Add(fresh)
	_, err := nodesync.Claim(t.Context(), inner, pinned("b", 3), nodesync.Held{}, later)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = nodesync.Release(t.Context(), inner, nodesync.Gone{Name: "b", Force: true, Fresh: fresh}, later)
	g.Expect(err).NotTo(HaveOccurred())
	store := &between{inner, 1, func() {
		_, err := nodesync.Claim(t.Context(), inner, who("a"), nodesync.Held{}, later)
		g.Expect(err).NotTo(HaveOccurred())
	}}
	_, err = nodesync.Claim(t.Context(), store, with(reinstalled("a"), func(w *nodesync.Identity) { w.Limit = limit(3) }), nodesync.Held{}, later)
	g.Expect(err).To(MatchError(nodesync.ErrNameInUse))
}
