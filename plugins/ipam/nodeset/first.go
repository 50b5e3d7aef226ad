// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset

import (
	"cmp"
	"strings"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/ledger"
)

// First returns the set of a node that has none: with marks, and with the blocks in which
// addresses of a pool of the ledger are held. It is called after the node has committed
// that there is no set: then nothing more is allocated, so these are all. instanceID is the
// provider's name of the machine; "": that of node.
func First(
	node *kv.Node,
	instanceID string,
	marks *kv.NetResourceMarks,
	l *ledger.Ledger,
	pool string,
) *kv.NetResourceSet {
	set := &kv.NetResourceSet{
		Name:       node.GetName(),
		InstanceId: cmp.Or(instanceID, InstanceOf(node.GetProviderId())),
		Pool:       map[string]*kv.NetResource{},
		Marks:      marks,
	}
	for _, b := range l.Stats() {
		if b.Pool == pool && b.Held+b.Cooling+b.Quarantined > 0 {
			set.Pool[handshake.Key(b.Block)] = &kv.NetResource{}
		}
	}
	return set
}

// InstanceOf returns the provider's name of a machine in a Node.spec.providerID: the last
// element, such as i-0abc in aws:///eu-west-1a/i-0abc; "" if there is none.
func InstanceOf(providerID string) string {
	_, path, found := strings.Cut(providerID, "://")
	if !found {
		return ""
	}
	return path[strings.LastIndex(path, "/")+1:]
}
