// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// A node whose blocks had claims is restarted, and they follow from its ID now. A
// claim that another node has just written, and that is not held yet, must see it.
func TestBlocksFollowFromTheIDAgain(t *testing.T) {
	g, store, now := NewWithT(t), mem.New(), began()
	defer func() { _ = store.Close() }()
	derived := claims.Block(netip.MustParsePrefix("10.1.1.0/24"))
	who := who("a")
	who.Expire = 5 * time.Minute
	who.Claims = &claims.Register{Store: store, Fresh: fresh, Expire: who.Expire, Implied: func(r *kv.NodeRecord, _ []*kv.Pool) []claims.Target {
		if r.ExplicitBlocks || len(r.PodCidrs) > 0 {
			return nil
		}
		return []claims.Target{derived}
	}}
	put(g, store, kv.NodeNameKey("a"), &kv.NodeName{Id: 1, Instance: who.Instance})
	put(g, store, kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "a", Instance: who.Instance, Generation: 1, ExplicitBlocks: true, PodCidrs: []string{"10.1.77.0/24"}})
	b := claims.Node{Name: "b", Instance: "uuid-of-b", ID: 2}
	put(g, store, kv.BeatKey(2), &kv.NodeBeat{Id: 2, Instance: b.Instance, At: now.UnixNano()})
	put(g, store, derived.Key("b"), &kv.PrefixClaim{Network: derived.Network, Prefix: derived.Prefix.String(), Node: "b", NodeId: 2, Instance: b.Instance})

	_, err := nodesync.Claim(context.Background(), store, who, nodesync.Held{ID: 1, Generation: 1}, now)
	g.Expect(err).NotTo(HaveOccurred())
	x, _, err := store.Get(context.Background(), kv.NodeRecordKey(1))
	g.Expect(err).NotTo(HaveOccurred())
	record := &kv.NodeRecord{}
	g.Expect(proto.Unmarshal(x.Value, record)).To(Succeed())
	g.Expect(record).To(And(HaveField("ExplicitBlocks", false), HaveField("PodCidrs", BeEmpty())))
	o, err := who.Claims.Ask(context.Background(), b, derived, now)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(o.Held).To(BeFalse(), "a allocates from it")
}
