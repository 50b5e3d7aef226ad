// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

const (
	homeName = "default.10-1-77-0-24.a"
	homeKey  = kv.PrefixClaimPrefix + homeName
)

// home is the claim of node a, which its agent wrote long ago.
func home() *kv.PrefixClaim {
	return &kv.PrefixClaim{Network: kv.PodNetworkClaims, Prefix: "10.1.77.0/24", Node: "a", NodeId: 1, Instance: "one", NodeUid: "uid-a", Held: true,
		Since: began().Add(-100 * expire).UnixNano()}
}

// beats writes a last beat of an instance.
func beats(g Gomega, store kvdb.Store, id uint32, instance string, at time.Time) {
	put(g, store, kv.BeatKey(id), &kv.NodeBeat{Id: id, Instance: instance, At: at.UnixNano()})
}

func claimAt(g Gomega, store kvdb.Store, key string) *kv.PrefixClaim {
	x, found, err := store.Get(context.Background(), key)
	g.Expect(err).NotTo(HaveOccurred())
	if !found {
		return nil
	}
	c := &kv.PrefixClaim{}
	g.Expect(proto.Unmarshal(x.Value, c)).To(Succeed())
	return c
}

func TestClaimsEndByRule(t *testing.T) {
	same := func(*kv.PrefixClaim) {}
	for what, x := range map[string]struct {
		change func(*kv.PrefixClaim)
		silent time.Duration // since the last beat of the claim's instance
		nodes  []string
		want   bool // it ends
	}{
		"the node is gone, and its agent":           {same, expire, nil, true},
		"the node is gone, its agent is not":        {same, expire - 1, nil, false},
		"by a clock that is ahead":                  {same, -expire, nil, false},
		"the node is there":                         {same, 100 * expire, []string{"a"}, false},
		"another node is there":                     {same, expire, []string{"b"}, true},
		"the node was made again":                   {func(c *kv.PrefixClaim) { c.NodeUid = "other" }, expire, []string{"a"}, true},
		"made again, and the agent is there":        {func(c *kv.PrefixClaim) { c.NodeUid = "other" }, expire - 1, []string{"a"}, false},
		"of every node of its name":                 {func(c *kv.PrefixClaim) { c.NodeUid = "" }, expire, []string{"a"}, false},
		"of every node of its name, which is gone":  {func(c *kv.PrefixClaim) { c.NodeUid = "" }, expire, nil, true},
		"pending, and the node is gone":             {func(c *kv.PrefixClaim) { c.Held = false }, expire, nil, true},
		"pending, and the agent is there":           {func(c *kv.PrefixClaim) { c.Held = false }, expire - 1, nil, false},
		"its end has passed":                        {func(c *kv.PrefixClaim) { c.Ends = began().UnixNano() }, 0, []string{"a"}, true},
		"its end has not passed":                    {func(c *kv.PrefixClaim) { c.Ends = began().Add(1).UnixNano() }, 0, []string{"a"}, false},
		"its end has not passed, the node is gone":  {func(c *kv.PrefixClaim) { c.Ends = began().Add(1).UnixNano() }, expire, nil, true},
		"written before the first beat":             {func(c *kv.PrefixClaim) { c.Instance, c.Since = "new", began().Add(1-expire).UnixNano() }, expire, nil, false},
		"written long ago, and there is no beat":    {func(c *kv.PrefixClaim) { c.Instance = "new" }, 0, nil, true},
		"the agent beats under another ID":          {func(c *kv.PrefixClaim) { c.NodeId = 7 }, expire - 1, nil, false},
		"another instance beats under the claim ID": {func(c *kv.PrefixClaim) { c.Instance = "old" }, 0, nil, true},
	} {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			c := home()
			x.change(c)
			put(g, store, homeKey, c)
			beats(g, store, 1, "one", began().Add(-x.silent))
			before := revision(g, store)
			ended, err := nodesync.EndClaims(t.Context(), store, nodesync.Expired{After: expire, Node: only(x.nodes...)}, began())
			g.Expect(err).NotTo(HaveOccurred())
			if x.want {
				g.Expect(ended).To(Equal([]string{homeName}))
				g.Expect(claimAt(g, store, homeKey)).To(BeNil())
			} else {
				g.Expect(ended).To(BeEmpty())
				g.Expect(revision(g, store)).To(Equal(before), "nothing was written")
			}
		})
	}
}

// TestAnAgentThatComesBackWhileItsClaimEnds: at every moment the claim is either
// there for the agent, or the agent can see that it ends.
func TestAnAgentThatComesBackWhileItsClaimEnds(t *testing.T) {
	comesBack := func(g Gomega, store kvdb.Store) { beats(g, store, 1, "one", began()) }
	renews := func(g Gomega, store kvdb.Store) { // as claims.Register.Ask does
		c := claimAt(g, store, homeKey)
		g.Expect(c.Ends).NotTo(BeZero(), "the agent sees that it ends")
		c.Ends = 0
		put(g, store, homeKey, c)
	}
	for what, x := range map[string]struct {
		asked  func(Gomega, kvdb.Store) // when it was asked whether the Node is there
		listed func(Gomega, kvdb.Store) // when the beats were listed for the second time
	}{
		"before the end is written":      {comesBack, nil},
		"after the beats were read":      {nil, func(g Gomega, s kvdb.Store) { comesBack(g, s); renews(g, s) }},
		"after the end, without a beat":  {nil, renews},
		"and has changed it before that": {func(g Gomega, s kvdb.Store) { put(g, s, homeKey, home()) }, nil},
	} {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			put(g, store, homeKey, home())
			beats(g, store, 1, "one", began().Add(-expire))
			lists := 0
			hooked := listed{store, func() {
				if lists++; lists == 2 && x.listed != nil {
					x.listed(g, store)
				}
			}}
			e := nodesync.Expired{After: expire, Node: func(string) (string, bool, error) {
				if x.asked != nil {
					x.asked(g, store)
				}
				return "", false, nil
			}}
			ended, err := nodesync.EndClaims(t.Context(), hooked, e, began())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(ended).To(BeEmpty())
			g.Expect(claimAt(g, store, homeKey)).To(And(HaveField("Held", true), HaveField("Ends", BeZero())))
		})
	}
}

// TestTheOperatorEndsWhileAClaimEnds: the claim keeps others out meanwhile, and
// the next run ends it.
func TestTheOperatorEndsWhileAClaimEnds(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	put(g, store, homeKey, home())
	beats(g, store, 1, "one", began().Add(-expire))
	e := nodesync.Expired{After: expire, Node: only()}
	_, err := nodesync.EndClaims(t.Context(), &secondListFails{Store: store}, e, began())
	g.Expect(err).To(MatchError(errAway))
	g.Expect(claimAt(g, store, homeKey).GetEnds()).To(Equal(began().Add(expire).UnixNano()))
	g.Expect(nodesync.EndClaims(t.Context(), store, e, began().Add(time.Second))).To(Equal([]string{homeName}))
}

var errAway = errors.New("the store is away")

// secondListFails is a store that goes away after it was listed once.
type secondListFails struct {
	kvdb.Store
	lists int
}

func (s *secondListFails) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	if s.lists++; s.lists > 1 {
		return nil, 0, errAway
	}
	return s.Store.List(ctx, prefixes...)
}

func TestAClaimThatCannotBeDecidedHarmsNoOther(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	other := home()
	other.Node, other.Prefix = "b", "10.1.78.0/24"
	otherKey := kv.PrefixClaimKey(other.Network, netip.MustParsePrefix(other.Prefix), other.Node)
	put(g, store, homeKey, home())
	put(g, store, otherKey, other)
	_, err := store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.PrefixClaimPrefix+"unreadable", []byte{0xff}), kvdb.Put(kv.BeatKey(9), []byte{0xff})})
	g.Expect(err).NotTo(HaveOccurred())
	ended, err := nodesync.EndClaims(t.Context(), store, nodesync.Expired{After: expire, Node: func(name string) (string, bool, error) {
		if name == "a" {
			return "", false, errAway
		}
		return "", false, nil
	}}, began())
	g.Expect(err).To(And(MatchError(errAway), MatchError(ContainSubstring("the claim of node a for 10.1.77.0/24"))))
	g.Expect(ended).To(Equal([]string{"default.10-1-78-0-24.b"}))
	g.Expect(claimAt(g, store, homeKey)).NotTo(BeNil())
}
