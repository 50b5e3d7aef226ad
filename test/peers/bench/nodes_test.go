// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
)

// clusterConf has room for 65 000 nodes.
const clusterConf = `
ipamConfig:
  podSubnetCIDR: 10.0.0.0/8
  podSubnetOneNodePrefixLen: 24
  vppHostSubnetCIDR: 172.16.0.0/12
  vppHostSubnetOneNodePrefixLen: 28
  nodeInterconnectCIDR: 100.64.0.0/16
  vxlanCIDR: 100.65.0.0/16
  serviceCIDR: 198.18.0.0/15
`

// others returns the objects of node i in the cluster's store, by key: its record, and as
// its blocks come from external IPAM also its Node and its claim.
func others(i int) map[string]proto.Message {
	name, block := fmt.Sprintf("node-%05d", i), blockOf(i)
	id := uint32(i + 2) // 1 is this node's
	address := netip.AddrFrom4([4]byte{100, 64, byte(id >> 8), byte(id)})
	return map[string]proto.Message{
		kv.NodeRecordKey(id): &kv.NodeRecord{
			Id:          id,
			Name:        name,
			Generation:  1,
			IpAddresses: []string{address.String() + "/16"},
		},
		kv.NodeKey(name): &kv.Node{Name: name, Uid: name, PodCidrs: []string{block.String()}},
		kv.PrefixClaimKey(kv.PodNetworkClaims, block, name): &kv.PrefixClaim{
			Network: kv.PodNetworkClaims,
			Prefix:  block.String(),
			Node:    name,
			NodeId:  id,
			Held:    true,
		},
	}
}

// blockOf returns the block of pods that external IPAM has assigned to node i.
func blockOf(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), 0}), 24)
}

// clusterOf returns the state of a cluster of n other nodes.
func clusterOf(n int) controller.KubeStateData {
	state := controller.KubeStateData{}
	for i := range n {
		for key, m := range others(i) {
			r, _ := kv.ResourceOf(key)
			if state[r.Name] == nil {
				state[r.Name] = map[string]proto.Message{}
			}
			state[r.Name][key] = m
		}
	}
	return state
}

// BenchmarkNodeUpdate is the change of one node in a cluster of many, from its event to the
// routes in the transaction. What changes is the node's address, the podCIDRs of its Node,
// or its claim, which decides about the routes to other nodes.
func BenchmarkNodeUpdate(b *testing.B) {
	const netresource = "cadastre: {podBlocks: netresource, kvdb: {type: kubernetes}}"
	for _, mode := range []struct {
		name, conf string
		change     func(m proto.Message) proto.Message // nil: m is not what changes
	}{
		{"nodeid", "cadastre: {coolDown: 0s}", moveAddress},
		{"podcidr", "cadastre: {podBlocks: podcidr}", movePodCIDR},
		{"claims", "cadastre: {podBlocks: podcidr}", moveClaim},
		{"netresource", netresource, movePodCIDR},
		{"netresource-claims", netresource, moveClaim},
	} {
		for _, nodes := range []int{100, 1000, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", mode.name, nodes), func(b *testing.B) {
				n := newNodeWith(b, ledger.NullJournal{}, clusterConf+mode.conf)
				n.resync(b, clusterOf(nodes))
				var changes [][2]*controller.KubeStateChange // there and back
				for i := range nodes {
					all := others(i)
					for _, key := range slices.Sorted(maps.Keys(all)) {
						if next := mode.change(all[key]); next != nil {
							r, _ := kv.ResourceOf(key)
							changes = append(changes, [2]*controller.KubeStateChange{
								{Key: key, Resource: r.Name, Prev: all[key], New: next},
								{Key: key, Resource: r.Name, Prev: next, New: all[key]},
							})
						}
					}
				}
				at := 0
				for b.Loop() { // in steps: the loop stays busy between the marks
					for range updates {
						ev := changes[at/2%len(changes)][at%2]
						at++
						if err := n.loop.PushEventWait(b.Context(), ev); err != nil {
							b.Fatal(err)
						}
					}
					n.reach(b)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(at), "ns/update")
			})
		}
	}
}

// updates is the number of updates in a step.
const updates = 64

func moveAddress(m proto.Message) proto.Message {
	record, ok := proto.Clone(m).(*kv.NodeRecord)
	if !ok {
		return nil
	}
	record.IpAddresses = []string{netip.MustParsePrefix(record.IpAddresses[0]).Addr().Next().String() + "/16"}
	return record
}

func movePodCIDR(m proto.Message) proto.Message {
	node, ok := proto.Clone(m).(*kv.Node)
	if !ok {
		return nil
	}
	node.PodCidrs = []string{netip.PrefixFrom(netip.MustParsePrefix(node.PodCidrs[0]).Addr(), 25).String()}
	return node
}

func moveClaim(m proto.Message) proto.Message {
	claim, ok := proto.Clone(m).(*kv.PrefixClaim)
	if !ok {
		return nil
	}
	claim.Held = false
	return claim
}

// resync gives the loop a state of the cluster.
func (n *node) resync(tb testing.TB, state controller.KubeStateData) {
	tb.Helper()
	done := make(chan error, 1)
	ev := &controller.DBResync{KubeState: state, OnDone: func(err error) { done <- err }}
	if err := n.loop.PushEvent(ev); err != nil {
		tb.Fatal(err)
	}
	if err := <-done; err != nil {
		tb.Fatal(err)
	}
}

// reach waits until the loop has processed all events before, and what followed from them.
func (n *node) reach(tb testing.TB) {
	tb.Helper()
	m := make(mark)
	if err := n.loop.PushEventWait(tb.Context(), m); err != nil {
		tb.Fatal(err)
	}
	<-m
}

// mark is an event that no handler handles; it is closed when it is done.
type mark chan struct{}

func (mark) GetName() string                                   { return "Mark" }
func (mark) String() string                                    { return "Mark" }
func (mark) Method() controller.EventMethodType                { return controller.Update }
func (mark) TransactionType() controller.UpdateTransactionType { return controller.BestEffort }
func (mark) Direction() controller.UpdateDirectionType         { return controller.Forward }
func (mark) IsBlocking() bool                                  { return false }
func (m mark) Done(error)                                      { close(m) }
