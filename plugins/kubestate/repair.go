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

// Repair returns what to write into the store before this node follows its state. These
// are values that this node knew and the store lost (because it came back empty or
// older), and first values that no node has written yet. It returns nothing if the store
// is in order. It is pure. All nodes call theirs, so each message is written only if its
// key has not changed since. known holds what this node knew before, found the present
// content, deleted the keys that the Source saw being deleted: any other missing value
// may have been lost.
type Repair func(known, found controller.KubeStateData, deleted []string) []Write

// Write holds a message for the store.
type Write struct {
	Key     string
	Message proto.Message
}

// repair writes what Repair returns for one of the states that were known, the newest
// first. written is true if something was written, by this node or by a faster one.
func (s *Source) repair(
	ctx context.Context,
	known []map[string]entry,
	found map[string]entry,
	deleted []string,
) (written bool, err error) {
	if s.deps.Repair == nil {
		return false, nil
	}
	state := stateOf(found)
	for _, before := range slices.Backward(known) {
		writes := s.deps.Repair(stateOf(before), state, deleted)
		writes = slices.DeleteFunc(writes, func(w Write) bool { return isUnreadableRecord(found, w.Key) })
		if len(writes) > 0 {
			return true, s.write(ctx, writes, found)
		}
	}
	return false, nil
}

// isUnreadableRecord reports whether found has a node record at key that cannot be read.
// The store has not lost it. It may be of a later generation than any that this node
// knew, so only its holder may write it again.
func isUnreadableRecord(found map[string]entry, key string) bool {
	e, ok := found[key]
	return ok && e.message == nil && kv.NodeRecordID(key) != 0
}

// write writes messages whose keys have not changed since they were found.
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
		s.deps.Log.Info("the cluster store lacks a value that this node writes", "key", w.Key)
	}
	_, err := s.deps.Store.Txn(ctx, conds, ops)
	if err != nil && !errors.Is(err, kvdb.ErrConditions) {
		return fmt.Errorf("repair the store: %w", err)
	}
	return nil
}

// stateOf returns the entries by resource.
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
