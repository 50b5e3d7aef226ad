// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

// beating is a store in which a node with a slow clock beats after the first list.
type beating struct {
	kvdb.Store
	beat func()
}

func (b *beating) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	kvs, revision, err := b.Store.List(ctx, prefixes...)
	if b.beat != nil {
		b.beat()
		b.beat = nil
	}
	return kvs, revision, err
}

// TestNodeRelease: a person releases a node that is gone; one whose agent was
// there a moment ago only by force.
func TestNodeRelease(t *testing.T) {
	g := NewWithT(t)
	store := mem.New()
	defer store.Close()
	put := func(key string, m proto.Message) {
		value, err := proto.Marshal(m)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(key, value)})
		g.Expect(err).NotTo(HaveOccurred())
	}
	put(kv.NodeRecordKey(5), &kv.NodeRecord{Id: 5, Name: "n5", Instance: "i5", Generation: 1})
	put(kv.NodeRecordKey(6), &kv.NodeRecord{Id: 6, Name: "n6", Instance: "i6", Generation: 1})
	claim := &kv.PrefixClaim{Network: kv.PodNetworkClaims, Prefix: "10.1.77.0/24", Node: "n5", NodeId: 5, Instance: "i5", Held: true}
	claimKey := kv.PrefixClaimKey(claim.Network, netip.MustParsePrefix(claim.Prefix), claim.Node)
	put(claimKey, claim)
	put(kv.BeatKey(6), &kv.NodeBeat{Id: 6, Instance: "i6", Generation: 1, Session: "s", At: time.Now().UnixNano()})
	slow := &kv.NodeBeat{Id: 7, Instance: "i7", Generation: 1, Session: "s", At: time.Now().Add(-24 * time.Hour).UnixNano()}
	put(kv.NodeRecordKey(7), &kv.NodeRecord{Id: 7, Name: "n7", Instance: "i7", Generation: 1})
	put(kv.BeatKey(7), slow)
	var asked commandLine
	h := host{
		clients: func(o commandLine) (clients, error) {
			if asked = o; o.kubeconfig == "none" {
				return clients{}, errors.New("there is no such file")
			}
			return clients{}, nil
		},
		store: func(o storeOptions, _ clients, _ *slog.Logger) (kvdb.Store, error) {
			g.Expect(o.kind).To(Equal(storeKubernetes))
			return &beating{unclosed{store}, func() { put(kv.BeatKey(7), slow) }}, nil
		},
	}
	for _, x := range []struct {
		args      string
		code      int
		out, errs string
	}{
		{"node release n5 --kubeconfig=f", 0, "released node ID 5 of n5\n", ""},
		{"node release n5", exitFailed, "", "cadastre-operator: node release: release the ID of node n5: no node of this name holds an ID"},
		{"node release n6", exitFailed, "", "the node's agent was there not long ago"},
		{"node release n6 --force", 0, "released node ID 6 of n6\n", ""},
		{"node release n7 --fresh=200ms", exitFailed, "", "correct the clock of the node"},
		{"node release n7 --fresh=200ms --force", 0, "released node ID 7 of n7\n", ""},
		{"node release n6 --kubeconfig=none", exitFailed, "", "there is no such file"},
		{"node release", exitUsage, "", "0 arguments: want one NAME"},
		{"node", exitUsage, "", "see: cadastre-operator --help"},
	} {
		var out, errs bytes.Buffer
		g.Expect(run(t.Context(), strings.Fields(x.args), &out, &errs, h)).To(Equal(x.code), "%s: %s", x.args, &errs)
		g.Expect(out.String()).To(Equal(x.out), x.args)
		g.Expect(errs.String()).To(ContainSubstring(x.errs), x.args)
	}
	g.Expect(asked.kubeconfig).To(Equal("none"))
	released, found, err := store.Get(t.Context(), kv.NodeRecordKey(5))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeTrue())
	m := &kv.NodeRecord{}
	g.Expect(proto.Unmarshal(released.Value, m)).To(Succeed())
	g.Expect(m.Clean).To(BeTrue())
	_, found, err = store.Get(t.Context(), claimKey)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeFalse(), "its claims end, too")
}
