// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/faulty"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// who is a node whose instance follows from its name.
func who(name string) nodesync.Identity {
	return nodesync.Identity{Name: name, Instance: "uuid-of-" + name, MaxID: 254}
}

func pinned(name string, id uint32) nodesync.Identity {
	w := who(name)
	w.Pinned = id
	return w
}

// records are the node records of a store, by key.
func records(g Gomega, s kvdb.Store) map[string]*kv.NodeRecord {
	kvs, _, err := s.List(context.Background(), kv.NodeRecordPrefix)
	g.Expect(err).NotTo(HaveOccurred())
	all := map[string]*kv.NodeRecord{}
	for _, x := range kvs {
		m := &kv.NodeRecord{}
		g.Expect(proto.Unmarshal(x.Value, m)).To(Succeed())
		all[x.Key] = m
	}
	return all
}

func put(g Gomega, s kvdb.Store, key string, m proto.Message) int64 {
	value, err := proto.Marshal(m)
	g.Expect(err).NotTo(HaveOccurred())
	rev, err := s.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, value)})
	g.Expect(err).NotTo(HaveOccurred())
	return rev
}

// A sequence of claims over one store; each says what it must come to.
func TestClaims(t *testing.T) {
	type claim struct {
		who nodesync.Identity
		id  uint32
		err error
	}
	renamed, reinstalled := who("a"), who("a")
	renamed.Name, reinstalled.Instance = "a2", "another-uuid"
	impostor := who("b")
	impostor.Instance = who("a").Instance // as a2 was, but the name is taken
	few := func(name string) nodesync.Identity { w := who(name); w.MaxID = 2; return w }
	shrunk := who("c")
	shrunk.MaxID = 2
	for _, c := range []struct {
		name   string
		claims []claim
	}{
		{"the smallest free one", []claim{{who("a"), 1, nil}, {who("b"), 2, nil}, {who("c"), 3, nil}}},
		{"the same one after a restart", []claim{{who("a"), 1, nil}, {who("b"), 2, nil}, {who("a"), 1, nil}, {who("b"), 2, nil}}},
		{"pinned", []claim{{pinned("a", 7), 7, nil}, {who("b"), 1, nil}, {pinned("a", 7), 7, nil}, {who("a"), 7, nil}}},
		{"pinned to what another has", []claim{{who("a"), 1, nil}, {pinned("b", 1), 0, nodesync.ErrIDTaken}, {who("b"), 2, nil}}},
		{"pinned later, to another one", []claim{{who("a"), 1, nil}, {pinned("a", 10), 10, nil}, {who("b"), 1, nil}, {who("a"), 10, nil}}},
		{"pinned above the largest", []claim{{pinned("a", 255), 0, nodesync.ErrNoID}, {pinned("a", 254), 254, nil}}},
		{"renamed", []claim{{who("a"), 1, nil}, {renamed, 1, nil}, {who("b"), 2, nil}}},
		{"another instance with the name", []claim{{who("a"), 1, nil}, {reinstalled, 0, nodesync.ErrNameInUse}, {who("a"), 1, nil}}},
		{"renamed to a name in use", []claim{{who("a"), 1, nil}, {who("b"), 2, nil}, {impostor, 0, nodesync.ErrNameInUse}}},
		{"none left", []claim{{few("a"), 1, nil}, {few("b"), 2, nil}, {few("c"), 0, nodesync.ErrNoID}, {few("a"), 1, nil}}},
		{"the own one does not fit any more", []claim{{who("a"), 1, nil}, {who("b"), 2, nil}, {who("c"), 3, nil}, {shrunk, 0, nodesync.ErrNoID}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			for i, x := range c.claims {
				id, err := nodesync.Claim(t.Context(), store, x.who)
				g.Expect(id).To(Equal(x.id), "claim %d: %v", i, err)
				g.Expect(errors.Is(err, x.err)).To(BeTrue(), "claim %d: %v", i, err)
				if err == nil {
					g.Expect(records(g, store)[kv.NodeRecordKey(id)].Name).To(Equal(x.who.Name))
				}
			}
			byID := map[uint32]bool{}
			for key, m := range records(g, store) {
				g.Expect(key).To(Equal(kv.NodeRecordKey(m.Id)))
				g.Expect(byID[m.Id]).To(BeFalse())
				byID[m.Id] = true
			}
		})
	}
}

// A hole that a node left is filled first.
func TestAFreedIDIsUsedAgain(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	for _, n := range []string{"a", "b", "c"} {
		_, err := nodesync.Claim(t.Context(), store, who(n))
		g.Expect(err).NotTo(HaveOccurred())
	}
	_, err := store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Delete(kv.NodeRecordKey(2))})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(nodesync.Claim(t.Context(), store, who("d"))).To(BeNumerically("==", 2))
}

// A repeated claim writes nothing; one that changes the record keeps its addresses.
func TestWhatAClaimWrites(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	rev := func() int64 { _, rev, _ := store.List(t.Context(), ""); return rev }
	_, err := nodesync.Claim(t.Context(), store, who("a"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(records(g, store)["nodes/1"]).To(HaveField("Instance", "uuid-of-a"))
	g.Expect(records(g, store)["nodes/1"]).To(HaveField("Generation", uint64(1)))
	before := rev()
	_, err = nodesync.Claim(t.Context(), store, who("a"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(rev()).To(Equal(before))

	put(g, store, "nodes/1", &kv.NodeRecord{Id: 1, Name: "a", Instance: "uuid-of-a", Generation: 4, IpAddresses: []string{"192.168.16.1/24"}})
	_, err = nodesync.Claim(t.Context(), store, pinned("a", 9))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(records(g, store)).To(HaveLen(1))
	g.Expect(proto.Equal(records(g, store)["nodes/9"], &kv.NodeRecord{
		Id: 9, Name: "a", Instance: "uuid-of-a", Generation: 5, IpAddresses: []string{"192.168.16.1/24"},
	})).To(BeTrue(), "%v", records(g, store))
}

// Fifty nodes at the same time get fifty IDs.
func TestConcurrentClaims(t *testing.T) {
	g := NewWithT(t)
	const n = 50
	store := mem.New()
	defer store.Close()
	ids, errs := make([]uint32, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { ids[i], errs[i] = nodesync.Claim(t.Context(), store, who(fmt.Sprint("node-", i))) })
	}
	wg.Wait()
	got := map[uint32]bool{}
	for i, id := range ids {
		g.Expect(errs[i]).NotTo(HaveOccurred())
		g.Expect(id).To(BeNumerically("<=", n))
		got[id] = true
	}
	g.Expect(got).To(HaveLen(n))
	g.Expect(got).NotTo(HaveKey(uint32(0)))
	g.Expect(records(g, store)).To(HaveLen(n))
}

// rival lets another node be faster, so many times.
type rival struct {
	kvdb.Store
	times int
}

func (r *rival) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	if r.times > 0 {
		r.times--
		if _, err := nodesync.Claim(ctx, r.Store, who(fmt.Sprint("rival-", r.times))); err != nil {
			return 0, err
		}
	}
	return r.Store.Txn(ctx, conds, ops)
}

func TestALostRaceIsRunAgain(t *testing.T) {
	g := NewWithT(t)
	store := &rival{mem.New(), 20}
	defer store.Close()
	g.Expect(nodesync.Claim(t.Context(), store, who("slow"))).To(BeNumerically("==", 21))
	g.Expect(records(g, store)).To(HaveLen(21))
}

// A pinned ID that somebody takes meanwhile is refused in the end, not fought for.
func TestALostRaceForAPinnedID(t *testing.T) {
	g := NewWithT(t)
	store := &rival{mem.New(), 1}
	defer store.Close()
	_, err := nodesync.Claim(t.Context(), store, pinned("slow", 1))
	g.Expect(err).To(MatchError(nodesync.ErrIDTaken))
	g.Expect(err).To(MatchError(ContainSubstring("rival-0")))
}

// stubborn never lets a transaction through.
type stubborn struct{ kvdb.Store }

func (stubborn) Txn(context.Context, []kvdb.Cond, []kvdb.Op) (int64, error) {
	return 0, fmt.Errorf("apply: %w", kvdb.ErrConditions)
}

func TestAClaimGivesUpInTheEnd(t *testing.T) {
	g := NewWithT(t)
	store := stubborn{mem.New()}
	defer store.Close()
	_, err := nodesync.Claim(t.Context(), store, who("a"))
	g.Expect(err).To(MatchError(ContainSubstring("others were faster")))
}

// Whatever the store does to one claim, the next finds or makes exactly one record.
func TestAFaultyStore(t *testing.T) {
	for name, plan := range map[string]faulty.Plan{
		"the list fails":            faulty.On(faulty.List, 1, faulty.Fail()),
		"the transaction fails":     faulty.On(faulty.Txn, 1, faulty.Fail()),
		"its outcome is not known":  faulty.On(faulty.Txn, 1, faulty.Tear()),
		"the store is gone for now": faulty.Always(faulty.List, faulty.FailWith(kvdb.ErrClosed)),
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := faulty.New(mem.New(), plan)
			defer store.Close()
			_, err := nodesync.Claim(t.Context(), store, who("a"))
			g.Expect(err).To(MatchError(ContainSubstring("node ID for a")))
			store.Reset()
			g.Expect(nodesync.Claim(t.Context(), store, who("a"))).To(BeNumerically("==", 1))
			g.Expect(nodesync.Claim(t.Context(), store, who("b"))).To(BeNumerically("==", 2))
			g.Expect(records(g, store)).To(HaveLen(2))
		})
	}
}

func TestRefusalsSayWhatWouldBeRight(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	_, err := nodesync.Claim(t.Context(), store, who("a"))
	g.Expect(err).NotTo(HaveOccurred())
	reinstalled := who("a")
	reinstalled.Instance = "another-uuid"
	_, err = nodesync.Claim(t.Context(), store, reinstalled)
	g.Expect(err).To(MatchError(And(ContainSubstring("uuid-of-a"), ContainSubstring("another-uuid"), ContainSubstring("state directory"))))
	_, err = nodesync.Claim(t.Context(), store, pinned("b", 1))
	g.Expect(err).To(MatchError(And(ContainSubstring("cadastre.nodeID 1"), ContainSubstring("node a"))))
	_, err = nodesync.Claim(t.Context(), store, pinned("b", 300))
	g.Expect(err).To(MatchError(And(ContainSubstring("300"), ContainSubstring("254"))))
}

// A record that cannot be read is named; the claim does not guess whose it is.
func TestARecordThatCannotBeRead(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	_, err := store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put("nodes/3", []byte{0xff, 0xff, 0xff})})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = nodesync.Claim(t.Context(), store, who("a"))
	g.Expect(err).To(MatchError(ContainSubstring("nodes/3")))
}
