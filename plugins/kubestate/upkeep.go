// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
)

// Upkeep answers what must be written into the store before its state is
// followed: what it lost of what this node knew (a store that came back empty
// or older), and first values that nobody has written yet. It is pure, and
// where the store is in order it answers nothing. Every node does the same, so
// each message is written only if its key is as it was found. known is what this
// node knew before, found what is there now, and gone the keys that were seen
// being deleted: what is merely not there may have been lost.
type Upkeep func(known, found controller.KubeStateData, gone []string) []Write

// Write is a message for the store.
type Write struct {
	Key     string
	Message proto.Message
}

// keepUp writes what Upkeep wants for one of the states that were known, the
// newest first; true: something was written, by this node or by a faster one.
func (s *Source) keepUp(ctx context.Context, known []map[string]entry, found map[string]entry, gone []string) (bool, error) {
	if s.deps.Upkeep == nil {
		return false, nil
	}
	state := stateOf(found)
	for _, before := range slices.Backward(known) {
		writes := slices.DeleteFunc(s.deps.Upkeep(stateOf(before), state, gone), func(w Write) bool { return heldUnreadably(found, w.Key) })
		if len(writes) > 0 {
			return true, s.write(ctx, writes, found)
		}
	}
	return false, nil
}

// heldUnreadably reports whether key is a node record that is there and cannot be read.
// The store has not lost it: it may be of a later generation than any that this
// node knew, so its holder alone may write it again.
func heldUnreadably(found map[string]entry, key string) bool {
	e, ok := found[key]
	return ok && e.message == nil && kv.NodeRecordID(key) != 0
}

// write writes what nobody else has written since it was found.
func (s *Source) write(ctx context.Context, writes []Write, found map[string]entry) error {
	var conds []kvdb.Cond
	var ops []kvdb.Op
	for _, w := range writes[:min(len(writes), kvdb.MaxOps)] {
		value, err := proto.Marshal(w.Message)
		if err != nil {
			return fmt.Errorf("write %s: %w", w.Key, err)
		}
		conds = append(conds, kvdb.Cond{Key: w.Key, ModRevision: found[w.Key].revision})
		ops = append(ops, kvdb.Put(w.Key, value))
		s.deps.Log.Info("the cluster store lacks something that this node writes", "key", w.Key)
	}
	_, err := s.deps.Store.Txn(ctx, conds, ops)
	if err != nil && !errors.Is(err, kvdb.ErrConditions) {
		return fmt.Errorf("put the store in order: %w", err)
	}
	return nil
}

// stateOf sorts entries by resource.
func stateOf(entries map[string]entry) controller.KubeStateData {
	state := controller.KubeStateData{}
	for _, r := range kv.Resources() {
		state[r.Name] = map[string]proto.Message{}
	}
	for key, e := range entries {
		if e.resource != "" && e.message != nil {
			state[e.resource][key] = e.message
		}
	}
	return state
}
