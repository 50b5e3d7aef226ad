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
)

// Upkeep is the kubestate.Upkeep of node records: a record never disappears, so
// one that this node knew and the store lacks, or has of an earlier generation,
// was lost by the store and is written again, whosesoever it is. Otherwise a
// newcomer could claim the ID of a node that is about to come back, and routes
// to nodes that are alive would go. A record of another instance is left alone,
// however early, unless it was cleanly released: addresses of that ID may be lent
// already, by somebody who is not told. Who comes back finds its ID taken. Nor is
// a release repeated that an older store does not know: the agent may be back.
func Upkeep(known, found controller.KubeStateData, _ []string) (writes []kubestate.Write) {
	for _, key := range slices.Sorted(maps.Keys(known[kubestate.NodeRecords])) {
		mine, ok := known[kubestate.NodeRecords][key].(*kv.NodeRecord)
		there, _ := found[kubestate.NodeRecords][key].(*kv.NodeRecord)
		if ok && later(mine, there) {
			writes = append(writes, kubestate.Write{Key: key, Message: proto.Clone(mine)})
		}
	}
	return writes
}

// later is whether a is what became of b, and b may be written over.
func later(a, b *kv.NodeRecord) bool {
	if b != nil && b.Instance != a.Instance && (b.Released == 0 || !b.Clean) {
		return false
	}
	if b == nil || a.Generation != b.Generation {
		return a.Generation > b.GetGeneration()
	}
	return a.Released == 0 && b.Released == 0 && a.SupersededBy != 0 && b.SupersededBy == 0
}
