// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// Identity is who claims a node ID, and which IDs will do.
type Identity struct {
	Name     string
	Instance string // UUID of the node's state directory
	Pinned   uint32 // exactly this one; 0: any
	MaxID    uint32 // the largest that fits every subnet of the configuration
}

var (
	// ErrNameInUse is returned where another instance has a record of this name.
	ErrNameInUse = errors.New("another instance has this node's name")
	// ErrIDTaken is returned for a pinned ID that another node has.
	ErrIDTaken = errors.New("the node ID is taken")
	// ErrNoID is returned where every ID that fits is taken, or the own one does not fit.
	ErrNoID = errors.New("no node ID fits")
)

// attempts bounds how often a claim is tried against others who are faster.
const attempts = 100

// Claim finds the ID that this instance has, or claims the smallest free one.
// It is in the store when Claim returns.
func Claim(ctx context.Context, store kvdb.Store, who Identity) (uint32, error) {
	for range attempts {
		id, err := claimOnce(ctx, store, who)
		if !errors.Is(err, kvdb.ErrConditions) {
			if err != nil {
				return 0, fmt.Errorf("claim a node ID for %s: %w", who.Name, err)
			}
			return id, nil
		}
	}
	return 0, fmt.Errorf("claim a node ID for %s: others were faster %d times", who.Name, attempts)
}

func claimOnce(ctx context.Context, store kvdb.Store, who Identity) (uint32, error) {
	kvs, _, err := store.List(ctx, kv.NodeRecordPrefix)
	if err != nil {
		return 0, err
	}
	taken := map[uint32]*kv.NodeRecord{}
	var own *kv.NodeRecord
	var ownRev int64
	for _, x := range kvs {
		m := &kv.NodeRecord{}
		if err := proto.Unmarshal(x.Value, m); err != nil {
			return 0, fmt.Errorf("node record %s: %w", x.Key, err)
		}
		taken[m.Id] = m
		switch {
		case m.Instance == who.Instance:
			own, ownRev = m, x.ModRevision
		case m.Name == who.Name:
			return 0, fmt.Errorf("%w: node ID %d is of instance %s, this one is %s; was the state directory lost, or do two nodes have one name?",
				ErrNameInUse, m.Id, m.Instance, who.Instance)
		}
	}
	id, err := choose(who, own, taken)
	if err != nil {
		return 0, err
	}
	if own != nil && own.Id == id && own.Name == who.Name {
		return id, nil
	}
	record := &kv.NodeRecord{Id: id, Name: who.Name, Instance: who.Instance, Generation: 1}
	var conds []kvdb.Cond
	var ops []kvdb.Op
	if own != nil {
		conds = append(conds, kvdb.AtRevision(kv.NodeRecordKey(own.Id), ownRev))
		record.Generation, record.IpAddresses = own.Generation+1, own.IpAddresses
		if own.Id != id {
			ops = append(ops, kvdb.Delete(kv.NodeRecordKey(own.Id)))
		}
	}
	if own == nil || own.Id != id {
		conds = append(conds, kvdb.Absent(kv.NodeRecordKey(id)))
	}
	value, err := proto.Marshal(record)
	if err != nil {
		return 0, err
	}
	_, err = store.Txn(ctx, conds, append(ops, kvdb.Put(kv.NodeRecordKey(id), value)))
	return id, err
}

// choose is the ID to have: the pinned one, the own one, or the smallest free one.
func choose(who Identity, own *kv.NodeRecord, taken map[uint32]*kv.NodeRecord) (uint32, error) {
	fits := func(id uint32) error {
		if id > who.MaxID {
			return fmt.Errorf("%w: node ID %d is above %d, the largest that fits every subnet: give the nodes larger networks", ErrNoID, id, who.MaxID)
		}
		return nil
	}
	if who.Pinned != 0 {
		if other := taken[who.Pinned]; other != nil && other.Instance != who.Instance {
			return 0, fmt.Errorf("%w: cadastre.nodeID %d is of node %s", ErrIDTaken, who.Pinned, other.Name)
		}
		return who.Pinned, fits(who.Pinned)
	}
	if own != nil {
		return own.Id, fits(own.Id)
	}
	id := uint32(1)
	for taken[id] != nil {
		id++
	}
	return id, fits(id)
}
