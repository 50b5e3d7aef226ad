// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// Repair returns the kubestate.Repair of node records for the agent of node name. A record
// never disappears. The store lost a record that this node knew if the store lacks it, or
// has it of an earlier generation and released. This node writes it again, whichever node
// it is of. Otherwise a newcomer could claim the ID of a node that is about to come back,
// and routes to nodes that are alive would go.
//
// A record that the store has as held is written by its own node only, which raises its
// generation when it is back. The ID is in no danger until then, and with the API server
// as the store another node's agent may not write the record. A record of another
// instance is left alone, however early, unless it was cleanly released: its holder may
// have allocated addresses of the ID. Nor is a release repeated that an older store does
// not have: the agent may be back.
//
// With a record that was lost go the claims of its node, which are written first:
// otherwise another node could claim what a node holds that is not back yet.
func Repair(name string) kubestate.Repair {
	return func(known, found controller.KubeStateData, _ []string) (writes []kubestate.Write) {
		writes = lostClaims(known, found)
		for _, key := range slices.Sorted(maps.Keys(known[kubestate.NodeRecords])) {
			mine, ok := known[kubestate.NodeRecords][key].(*kv.NodeRecord)
			there, _ := found[kubestate.NodeRecords][key].(*kv.NodeRecord)
			if ok && later(mine, there) && mayWrite(name, mine, there) {
				writes = append(writes, kubestate.Write{Key: key, Message: proto.Clone(mine)})
			}
		}
		return writes
	}
}

// mayWrite reports whether the agent of node name may write a over b: a record of
// its own, or over one that no node holds.
func mayWrite(name string, a, b *kv.NodeRecord) bool {
	return b == nil || b.Released != 0 && a.Generation > b.Generation || a.Name == name && b.Name == name
}

// later reports whether a is a later version of b, so that b may be overwritten.
func later(a, b *kv.NodeRecord) bool {
	if b != nil && b.Instance != a.Instance && (b.Released == 0 || !b.Clean) {
		return false
	}
	if b == nil || a.Generation != b.Generation {
		return a.Generation > b.GetGeneration()
	}
	return a.Released == 0 && b.Released == 0 && a.SupersededBy != 0 && b.SupersededBy == 0
}

// lostClaims returns the held claims that the store lost together with the record
// of their node, except those of which another node holds the addresses by now. A
// claim that is gone while the record is as it was has ended.
func lostClaims(known, found controller.KubeStateData) (writes []kubestate.Write) {
	for _, key := range slices.Sorted(maps.Keys(known[kubestate.PrefixClaims])) {
		mine, ok := known[kubestate.PrefixClaims][key].(*kv.PrefixClaim)
		if !ok || !mine.Held || mine.Ends != 0 || found[kubestate.PrefixClaims][key] != nil {
			continue
		}
		record, ok := known[kubestate.NodeRecords][kv.NodeRecordKey(mine.NodeId)].(*kv.NodeRecord)
		there, _ := found[kubestate.NodeRecords][kv.NodeRecordKey(mine.NodeId)].(*kv.NodeRecord)
		if ok && record.Name == mine.Node && later(record, there) && !heldByAnother(mine, found) {
			writes = append(writes, kubestate.Write{Key: key, Message: proto.Clone(mine)})
		}
	}
	return writes
}

// heldByAnother reports whether another node holds addresses of a claim.
func heldByAnother(c *kv.PrefixClaim, found controller.KubeStateData) bool {
	t, err := claims.TargetOf(c)
	for _, m := range found[kubestate.PrefixClaims] {
		other, ok := m.(*kv.PrefixClaim)
		if u, failed := claims.TargetOf(
			other,
		); ok && err == nil && failed == nil && other.Held && other.Node != c.Node &&
			t.Overlaps(u) {
			return true
		}
	}
	return err != nil
}
