// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// impliedBy has node ID n imply node address 192.168.16.n and, without claims of
// its own, block 10.1.n.0/24.
func impliedBy(r *kv.NodeRecord, _ []*kv.Pool) []claims.Target {
	n := byte(r.Id)
	all := []claims.Target{claims.NodeAddress(netip.AddrFrom4([4]byte{192, 168, 16, n}))}
	if !r.ExplicitBlocks {
		all = append(all, claims.Block(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, n, 0}), 24)))
	}
	return all
}

// claiming is w with the claims of a store.
func claiming(s kvdb.Store, w nodesync.Identity, explicit bool) nodesync.Identity {
	return with(w, func(w *nodesync.Identity) {
		w.Claims, w.Explicit, w.Limit = &claims.Register{Store: s, Implied: impliedBy, Fresh: fresh, Expire: expire}, explicit, limit(3)
	})
}

// prefixClaim is a claim of a node, whose node ID is 9.
func prefixClaim(t claims.Target, node string, held bool) *kv.PrefixClaim {
	return &kv.PrefixClaim{Network: t.Network, Prefix: t.Prefix.String(), Node: node, NodeId: 9, Instance: "uuid-of-" + node, Held: held, Since: 1}
}

func putClaim(g Gomega, s kvdb.Store, t claims.Target, node string, held bool) {
	put(g, s, t.Key(node), prefixClaim(t, node, held))
}

func addressTarget(text string) claims.Target { return claims.NodeAddress(netip.MustParseAddr(text)) }

func blockTarget(text string) claims.Target { return claims.Block(netip.MustParsePrefix(text)) }

// A node ID is not for a node if another one has a claim of what the ID implies.
func TestANewIDImpliesNothingThatIsClaimed(t *testing.T) {
	for name, c := range map[string]struct {
		target   claims.Target
		node     string
		held     bool
		explicit bool
		want     uint32
	}{
		"its address is pinned elsewhere":         {addressTarget("192.168.16.1"), "p", true, false, 2},
		"its address is about to be pinned":       {addressTarget("192.168.16.1"), "p", false, false, 2},
		"its address is pinned by this node":      {addressTarget("192.168.16.1"), "a", true, false, 1},
		"its block is claimed elsewhere":          {blockTarget("10.1.1.128/25"), "p", true, false, 2},
		"all blocks are claimed elsewhere":        {blockTarget("10.1.0.0/16"), "p", true, false, 0},
		"blocks do not follow from IDs":           {blockTarget("10.1.0.0/16"), "p", true, true, 1},
		"an address, and blocks that do not":      {addressTarget("192.168.16.1"), "p", true, true, 2},
		"an address that no ID of a node implies": {addressTarget("192.168.16.77"), "p", true, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			putClaim(g, store, c.target, c.node, c.held)
			held, err := nodesync.Claim(t.Context(), store, claiming(store, who("a"), c.explicit), nodesync.Held{}, began())
			g.Expect(held.ID).To(Equal(c.want))
			if c.want == 0 {
				g.Expect(err).To(MatchError(nodesync.ErrNoID))
				g.Expect(err).To(MatchError(ContainSubstring("each of the 3 free ones implies an address or a block that another node has claimed")))
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(records(g, store)).To(HaveLen(1))
			g.Expect(records(g, store)[c.want].ExplicitBlocks).To(Equal(c.explicit))
		})
	}
}

// interrupted is a store in which another node is at work just before the first
// transaction.
type interrupted struct {
	kvdb.Store
	happens func()
}

func (s *interrupted) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	if f := s.happens; f != nil {
		s.happens = nil
		f()
	}
	return s.Store.Txn(ctx, conds, ops)
}

// Another node claims what an ID implies after this node has looked, and before
// the ID is this node's: the ID is given back, and another one claimed.
func TestANewIDThatTurnsOutToBeTaken(t *testing.T) {
	g := NewWithT(t)
	inner := mem.New()
	defer inner.Close()
	store := &interrupted{inner, func() { putClaim(g, inner, addressTarget("192.168.16.1"), "p", true) }}
	held, err := nodesync.Claim(t.Context(), store, claiming(store, who("a"), false), nodesync.Held{}, began())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(held.ID).To(BeNumerically("==", 2))
	all := records(g, inner)
	g.Expect(all[2].Released).To(BeZero())
	g.Expect(all[1].Released).NotTo(BeZero())
	g.Expect(all[1].Clean).To(BeTrue(), "nothing of it was used")
}

// A claim that is only pending, and older than the record, begins again: it sees
// the record then. A claim of the ID's own node does not count.
func TestAPendingClaimMakesRoomForAnID(t *testing.T) {
	g := NewWithT(t)
	inner := mem.New()
	defer inner.Close()
	pin := addressTarget("192.168.16.1")
	store := &interrupted{inner, func() { putClaim(g, inner, pin, "p", false) }}
	held, err := nodesync.Claim(t.Context(), store, claiming(store, who("a"), false), nodesync.Held{}, began())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(held.ID).To(BeNumerically("==", 1))
	left, err := claims.List(t.Context(), inner)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(left).To(BeEmpty())
}

// An ID that the node has addresses of, or was told to have, is not
// exchanged: the conflict is reported, with the holder.
func TestAnIDWithoutAChoiceIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		who  nodesync.Identity
		want uint32
	}{
		"remembered": {who("a"), 1},
		"pinned":     {pinned("a", 1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			putClaim(g, store, addressTarget("192.168.16.1"), "p", true)
			_, err := nodesync.Claim(t.Context(), store, claiming(store, c.who, false), nodesync.Held{ID: c.want, Generation: 1}, began())
			g.Expect(err).To(And(MatchError(nodesync.ErrIDTaken), MatchError(claims.ErrTaken)))
			g.Expect(err).To(MatchError(ContainSubstring("node ID 1 implies 192.168.16.1/32, and node p holds 192.168.16.1/32")))
			g.Expect(records(g, store)[1].GetReleased()).To(BeZero(), "no other node may have the ID: its leases are in use")
		})
	}
}

// A record of the last version says nothing of claims: other nodes respect its
// podCIDRs until all blocks in use have claims. A new record needs no such time.
func TestWhenTheBlocksOfANodeHaveClaims(t *testing.T) {
	for name, c := range map[string]struct {
		before   *kv.NodeRecord
		beat     bool // of an earlier run
		explicit bool
		first    bool // after the ID is confirmed
		then     bool // after the claims are held
	}{
		"a new node":                             {nil, false, true, true, true},
		"a new node with blocks of its ID":       {nil, false, false, false, false},
		"reconfigured to blocks with claims":     {&kv.NodeRecord{Generation: 1}, false, true, false, true},
		"restarted, with blocks of its ID":       {&kv.NodeRecord{Generation: 1}, false, false, false, false},
		"restarted":                              {&kv.NodeRecord{Generation: 1, ExplicitBlocks: true}, false, true, true, true},
		"restarted, and its beat is there":       {&kv.NodeRecord{Generation: 1, ExplicitBlocks: true}, true, true, true, true},
		"reconfigured to blocks of its ID":       {&kv.NodeRecord{Generation: 1, ExplicitBlocks: true}, false, false, false, false},
		"reconfigured, its record is an old one": {&kv.NodeRecord{Generation: 1, SupersededBy: 3}, false, true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := NewWithT(t)
				store := mem.New()
				defer store.Close()
				w := claiming(store, who("a"), c.explicit)
				if c.beat {
					put(g, store, kv.BeatKey(1), &kv.NodeBeat{Id: 1, Instance: w.Instance, Session: "an earlier run", Stopped: true, NodeName: "a"})
				}
				if c.before != nil {
					c.before.Id, c.before.Name, c.before.Instance = 1, w.Name, w.Instance
					put(g, store, kv.NodeRecordKey(1), c.before)
				}
				n := newNode(t, store, w, newDisk())
				_, ok := n.Claimant()
				g.Expect(ok).To(BeFalse(), "the store has not confirmed the ID yet")
				n.confirm(t)
				g.Expect(records(g, store)[1].ExplicitBlocks).To(Equal(c.first))
				me, ok := n.Claimant()
				g.Expect(ok).To(BeTrue())
				g.Expect(me).To(Equal(claims.Node{Name: "a", Instance: w.Instance, ID: 1}))
				n.ClaimsBlocks()
				n.confirm(t)
				g.Expect(records(g, store)[1].ExplicitBlocks).To(Equal(c.then))
			})
		})
	}
}

// A node whose ID is in doubt claims nothing.
func TestANodeInDoubtIsNoClaimant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		store := mem.New()
		defer store.Close()
		n := newNode(t, store, claiming(store, who("a"), true), newDisk()).confirm(t)
		n.Use()
		time.Sleep(fresh)
		wipe(g, store)
		claim(t, store, who("b"))
		n.confirm(t)
		g.Expect(n.Problem()).NotTo(BeEmpty())
		_, ok := n.Claimant()
		g.Expect(ok).To(BeFalse())
	})
}
