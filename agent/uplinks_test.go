// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

// lastingStore outlives the agents that use it.
type lastingStore struct{ *mem.Store }

func (lastingStore) Close() error { return nil }

// A pod stays on its interface while agents start without the NetResourceSet: it was deleted
// while none ran, and the mirror of the cluster does not have it either.
func TestAnAgentThatStartsWithoutItsSetKeepsTheUplinksOfPods(t *testing.T) {
	m := &vm{t: t, g: NewWithT(t), node: nodeIn(t), store: lastingStore{mem.New()}, conf: "cadastre: {podBlocks: netresource, coolDown: 0s, kvdb: {type: kubernetes}, dataplane: linux, transport: none, nodeIDs: {quarantine: 0s}, controller: {remoteDBProbingInterval: 100ms, delayLocalResync: 1s}}"}
	t.Cleanup(m.end)
	set := &kv.NetResourceSet{
		Name: "a", Pool: map[string]*kv.NetResource{"10.9.0.7": {Resource: "eni-1"}, "10.9.1.7": {Resource: "eni-2"}},
		Interfaces: map[string]*kv.NetResourceInterface{
			"eni-1": {Mac: "02:00:00:00:00:01", Ranges: []*kv.SubnetRange{{Cidr: "10.9.0.0/24", Gateway: "10.9.0.1"}}},
			"eni-2": {Mac: "02:00:00:00:00:02", Ranges: []*kv.SubnetRange{{Cidr: "10.9.1.0/24", Gateway: "10.9.1.1"}}},
		},
	}
	value, err := proto.Marshal(set)
	m.g.Expect(err).NotTo(HaveOccurred())
	_, err = m.store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(kv.NetResourceSetKey("a"), value)})
	m.g.Expect(err).NotTo(HaveOccurred())
	m.start()
	m.g.Expect(m.add("a").String()).To(Equal("10.9.0.7"))
	values := func() map[string]proto.Message {
		all, err := m.sink.Dump(t.Context())
		m.g.Expect(err).NotTo(HaveOccurred())
		return all
	}
	key := kv.SinkUplinkPrefix + "eni-1"
	want := values()
	m.g.Expect(want).To(HaveKey(key))
	m.end()

	_, err = m.store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Delete(kv.NetResourceSetKey("a"))})
	m.g.Expect(err).NotTo(HaveOccurred())
	for range 3 { // each learns from the one before
		m.start()
		m.g.Eventually(values, soon, 20*time.Millisecond).Should(HaveKey(kv.SinkSourcePrefix + "10.9.0.7"))
		m.g.Expect(m.status().NodeName).To(Equal("a"))
		m.g.Expect(proto.Equal(values()[key], want[key])).To(BeTrue(), "%s", values()[key])
		m.g.Expect(proto.Equal(values()[kv.SinkSourcePrefix+"10.9.0.7"], want[kv.SinkSourcePrefix+"10.9.0.7"])).To(BeTrue())
		m.g.Expect(values()).NotTo(HaveKey(kv.SinkUplinkPrefix + "eni-2"))
		m.end()
	}
	m.start()
	m.g.Eventually(values, soon, 20*time.Millisecond).Should(HaveKey(kv.SinkSourcePrefix + "10.9.0.7"))
	m.g.Eventually(func() error { _, err := m.cni("DEL", "a"); return err }, soon, 20*time.Millisecond).Should(Succeed())
	m.g.Eventually(values, soon, 20*time.Millisecond).ShouldNot(HaveKey(kv.SinkSourcePrefix + "10.9.0.7"))
	m.end()
	m.start()
	m.g.Eventually(values, soon, 20*time.Millisecond).Should(HaveKey("node"))
	m.g.Expect(values()).NotTo(HaveKey(key))
}
