// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agentclaims_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/operator/nodeipam/agentclaims"
)

func now() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }

const expire = 6 * time.Minute

func put(g Gomega, store kvdb.Store, key string, m proto.Message) {
	value, err := proto.Marshal(m)
	g.Expect(err).NotTo(HaveOccurred())
	_, err = store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, value)})
	g.Expect(err).NotTo(HaveOccurred())
}

// claimsOf reads the claims of a store as "node block held".
func claimsOf(g Gomega, store kvdb.Store) (all []string) {
	claims, err := agentclaims.Reader{Store: store, Expire: expire, Now: now}.Claims(context.Background())
	g.Expect(err).NotTo(HaveOccurred())
	for _, c := range claims {
		all = append(all, fmt.Sprint(c.Node, " ", c.Block, " ", c.Held))
	}
	return all
}

func TestPrefixClaims(t *testing.T) {
	for what, x := range map[string]struct {
		change func(*kv.PrefixClaim)
		want   string // empty: it counts for nothing
	}{
		"held":                     {func(*kv.PrefixClaim) {}, "a 10.1.77.0/24 true"},
		"pending":                  {func(c *kv.PrefixClaim) { c.Held = false }, "a 10.1.77.0/24 false"},
		"of IPv6":                  {func(c *kv.PrefixClaim) { c.Prefix = "fd00:1::/64" }, "a fd00:1::/64 true"},
		"ends later":               {func(c *kv.PrefixClaim) { c.Ends = now().Add(1).UnixNano() }, "a 10.1.77.0/24 true"},
		"has ended":                {func(c *kv.PrefixClaim) { c.Ends = now().UnixNano() }, ""},
		"of a node address":        {func(c *kv.PrefixClaim) { c.Network, c.Prefix = kv.NodeNetworkClaims, "192.168.16.2/32" }, ""},
		"of another pod network":   {func(c *kv.PrefixClaim) { c.Network = "blue" }, ""},
		"without a prefix to read": {func(c *kv.PrefixClaim) { c.Prefix = "10.1.77.0" }, ""},
	} {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			c := &kv.PrefixClaim{Network: kv.PodNetworkClaims, Prefix: "10.1.77.0/24", Node: "a", Held: true, Since: now().UnixNano()}
			x.change(c)
			block, _ := netip.ParsePrefix(c.Prefix)
			put(g, store, kv.PrefixClaimKey(c.Network, block, c.Node), c)
			if x.want == "" {
				g.Expect(claimsOf(g, store)).To(BeEmpty())
			} else {
				g.Expect(claimsOf(g, store)).To(Equal([]string{x.want}))
			}
		})
	}
}

func TestClaimsThatCannotBeRead(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	c := &kv.PrefixClaim{Network: kv.PodNetworkClaims, Prefix: "10.1.77.0/24", Node: "a", Held: true}
	put(g, store, kv.PrefixClaimKey(c.Network, netip.MustParsePrefix("10.1.78.0/24"), "a"), c)
	_, err := store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.PrefixClaimPrefix+"default.x.a", []byte{0xff}), kvdb.Put(kv.NodeRecordKey(1), []byte{0xff})})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(claimsOf(g, store)).To(BeEmpty())
}

// TestRecordsOfTheLastVersion: an agent that writes no claims holds what its
// record says, for as long as it may allocate.
func TestRecordsOfTheLastVersion(t *testing.T) {
	released := func(n *kv.NodeRecord) { n.Released = now().UnixNano() }
	for what, x := range map[string]struct {
		change func(*kv.NodeRecord)
		silent time.Duration // since the last beat
		want   bool
	}{
		"holds its ID":                       {func(*kv.NodeRecord) {}, 100 * expire, true},
		"released, and may allocate":         {released, expire - 1, true},
		"released, and has stopped":          {released, expire, false},
		"released as clean":                  {func(n *kv.NodeRecord) { released(n); n.Clean = true }, 0, false},
		"superseded, and may allocate":       {func(n *kv.NodeRecord) { n.SupersededBy = 2 }, expire - 1, true},
		"superseded, and has stopped":        {func(n *kv.NodeRecord) { n.SupersededBy = 2 }, expire, false},
		"released, the beat is another's":    {func(n *kv.NodeRecord) { released(n); n.Instance = "other" }, 0, false},
		"released, the beat is not there":    {func(n *kv.NodeRecord) { released(n); n.Id = 2 }, 0, false},
		"a podCIDR that cannot be read":      {func(n *kv.NodeRecord) { n.PodCidrs = []string{"nonsense"} }, 0, false},
		"one podCIDR of two cannot be read":  {func(n *kv.NodeRecord) { n.PodCidrs = append(n.PodCidrs, "nonsense") }, 0, true},
		"released, without podCIDRs at last": {func(n *kv.NodeRecord) { released(n); n.PodCidrs = nil }, 0, false},
	} {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			store := mem.New()
			defer store.Close()
			n := &kv.NodeRecord{Id: 1, Name: "a", Instance: "one", PodCidrs: []string{"10.1.77.0/24"}}
			x.change(n)
			put(g, store, kv.NodeRecordKey(n.Id), n)
			put(g, store, kv.BeatKey(1), &kv.NodeBeat{Id: 1, Instance: "one", At: now().Add(-x.silent).UnixNano()})
			if x.want {
				g.Expect(claimsOf(g, store)).To(Equal([]string{"a 10.1.77.0/24 true"}))
			} else {
				g.Expect(claimsOf(g, store)).To(BeEmpty())
			}
		})
	}
}

// The record of an agent whose blocks have claims counts for nothing.
func TestAnAgentThatWritesClaims(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	put(g, store, kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "a", Instance: "one", PodCidrs: []string{"10.1.77.0/24"}, ExplicitBlocks: true})
	g.Expect(claimsOf(g, store)).To(BeEmpty())
	put(g, store, kv.BeatKey(1), &kv.NodeBeat{Id: 1, Instance: "one", At: now().UnixNano(), NodeName: "a"})
	g.Expect(claimsOf(g, store)).To(BeEmpty())
}

// deaf does not answer.
type deaf struct{ kvdb.Store }

var errDown = errors.New("connection refused")

func (d deaf) List(context.Context, ...string) ([]kvdb.KeyValue, int64, error) {
	return nil, 0, errDown
}

func TestAStoreThatDoesNotAnswer(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	_, err := agentclaims.Reader{Store: deaf{store}, Expire: expire, Now: now}.Claims(t.Context())
	g.Expect(err).To(MatchError(errDown))
}
