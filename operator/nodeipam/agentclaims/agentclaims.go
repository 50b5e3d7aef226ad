// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package agentclaims reads, from the cluster store, which pod blocks the agents
// of the nodes claim. It implements nodeipam.Claims.
//
// A PrefixClaim of the pod network counts until it has ended. The NodeRecord of
// an agent that does not write claims counts as holding the podCIDRs that it
// records, until the node is released and its agent has stopped allocating. A
// value that cannot be read counts for nothing, as it does for agents.
//
// A Reader keeps no state: it lists the store with each call, and any goroutine
// may call it. It returns an error if the store does not answer.
package agentclaims

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// Reader reads the claims of a cluster store.
type Reader struct {
	Store  kvdb.Store
	Expire time.Duration    // how long after its last beat an agent may still allocate
	Now    func() time.Time // decides which claims have ended
}

var _ nodeipam.Claims = Reader{}

// Claims implements nodeipam.Claims.
func (r Reader) Claims(ctx context.Context) (all []nodeipam.Claim, err error) {
	kvs, _, err := r.Store.List(ctx, kv.PrefixClaimPrefix, kv.NodeRecordPrefix, kv.BeatPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the claims and the nodes: %w", err)
	}
	beats := lastBeats(kvs)
	for _, x := range kvs {
		switch {
		case strings.HasPrefix(x.Key, kv.PrefixClaimPrefix):
			all = r.claim(all, x)
		case strings.HasPrefix(x.Key, kv.NodeRecordPrefix):
			all = r.record(all, x, beats)
		}
	}
	return all, nil
}

// lastBeats returns the last beat under each node ID.
func lastBeats(kvs []kvdb.KeyValue) map[uint32]*kv.NodeBeat {
	beats := map[uint32]*kv.NodeBeat{}
	for _, x := range kvs {
		b := &kv.NodeBeat{}
		if strings.HasPrefix(x.Key, kv.BeatPrefix) && proto.Unmarshal(x.Value, b) == nil {
			beats[b.Id] = b
		}
	}
	return beats
}

// claim appends what a PrefixClaim says.
func (r Reader) claim(all []nodeipam.Claim, x kvdb.KeyValue) []nodeipam.Claim {
	c := &kv.PrefixClaim{}
	if proto.Unmarshal(x.Value, c) != nil || c.Network != kv.PodNetworkClaims {
		return all
	}
	block, err := netip.ParsePrefix(c.Prefix)
	if err != nil || kv.PrefixClaimKey(c.Network, block, c.Node) != x.Key {
		return all
	}
	if c.Ends != 0 && !r.Now().Before(time.Unix(0, c.Ends)) {
		return all
	}
	return append(all, nodeipam.Claim{Node: c.Node, Block: block.Masked(), Held: c.Held, Since: time.Unix(0, c.Since)})
}

// record appends the podCIDRs that a NodeRecord implies: that of an agent whose
// blocks have no claims.
func (r Reader) record(all []nodeipam.Claim, x kvdb.KeyValue, beats map[uint32]*kv.NodeBeat) []nodeipam.Claim {
	n := &kv.NodeRecord{}
	if proto.Unmarshal(x.Value, n) != nil {
		return all
	}
	beat := beats[n.Id]
	if beat.GetInstance() != n.Instance {
		beat = nil
	}
	if n.ExplicitBlocks || !r.uses(n, beat) {
		return all
	}
	for _, text := range n.PodCidrs {
		if block, err := netip.ParsePrefix(text); err == nil {
			all = append(all, nodeipam.Claim{Node: n.Name, Block: block.Masked(), Held: true})
		}
	}
	return all
}

// uses reports whether the agent of a record may still allocate from what the
// record says. The agent of a released or superseded record may do so until it
// has not reached the store for Expire, or for as long as its beat says.
func (r Reader) uses(n *kv.NodeRecord, beat *kv.NodeBeat) bool {
	switch {
	case n.Released == 0 && n.SupersededBy == 0:
		return true
	case n.Clean || beat == nil:
		return false
	}
	return r.Now().Before(time.Unix(0, beat.At).Add(max(r.Expire, time.Duration(beat.Expire))))
}
