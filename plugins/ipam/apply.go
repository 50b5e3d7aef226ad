// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// attempts limits how often Apply repeats after conflicting writes.
const attempts = 20

// Apply changes the pools of the cluster to those in file, and returns the plan of the
// changes. With dryRun it changes nothing. A refused plan (Plan.Err) changes nothing
// either. The error is about an unreadable file or a store that fails.
func Apply(
	ctx context.Context,
	store kvdb.Store,
	reserved []poolplan.Reserved,
	file []byte,
	dryRun bool,
) (poolplan.Plan, error) {
	wanted, err := poolplan.Parse(file)
	if err != nil {
		return poolplan.Plan{}, err
	}
	for i, w := range wanted {
		if w.Network == HostPool {
			return poolplan.Plan{Problems: poolplan.Problems{{
				Field: fmt.Sprintf("pools[%d].network", i),
				Value: w.Network,
				Text:  "is each node's own link: choose another name",
			}}}, nil
		}
	}
	for range attempts {
		plan, err := applyOnce(ctx, store, reserved, wanted, dryRun)
		if !errors.Is(err, kvdb.ErrConditions) {
			if err != nil {
				err = fmt.Errorf("apply pools: %w", err)
			}
			return plan, err
		}
	}
	return poolplan.Plan{}, fmt.Errorf("apply pools: gave up after %d conflicting writes", attempts)
}

func applyOnce(
	ctx context.Context,
	store kvdb.Store,
	reserved []poolplan.Reserved,
	wanted []poolplan.Wanted,
	dryRun bool,
) (poolplan.Plan, error) {
	pools, revisions, err := readPools(ctx, store)
	if err != nil {
		return poolplan.Plan{}, err
	}
	s := poolplan.Situation{Pools: pools, Reserved: reserved}
	nodes, err := nodesync.List(ctx, store)
	if err != nil {
		return poolplan.Plan{}, err
	}
	for _, n := range nodes {
		s.Nodes = append(s.Nodes, n.NodeRecord)
		if n.Beat != nil {
			s.Beats = append(s.Beats, n.Beat)
		}
	}
	plan := poolplan.Make(s, wanted)
	if dryRun || len(plan.Changes) == 0 { // a refused plan has no changes
		return plan, nil
	}
	conds := []kvdb.Cond{{Key: kv.PoolsKey, ModRevision: revisions[kv.PoolsKey]}}
	ops := []kvdb.Op{kvdb.Put(kv.PoolsKey, nil)}
	for _, c := range plan.Changes {
		value, err := proto.Marshal(c.Message())
		if err != nil {
			return plan, err
		}
		key := kv.PoolKey(c.To.Name)
		conds = append(conds, kvdb.Cond{Key: key, ModRevision: revisions[key]})
		ops = append(ops, kvdb.Put(key, value))
	}
	for key, revision := range revisions { // as many other pools as possible; kv.PoolsKey covers new ones
		c := kvdb.AtRevision(key, revision)
		if len(conds) < kvdb.MaxOps && !slices.Contains(conds, c) {
			conds = append(conds, c)
		}
	}
	_, err = store.Txn(ctx, conds, ops)
	return plan, err
}

// readPools reads the pools and the revisions of their keys. It leaves out a pool that
// cannot be used: the nodes report it, and a valid one may replace it.
func readPools(ctx context.Context, store kvdb.Store) (pools []poolplan.Pool, revisions map[string]int64, err error) {
	kvs, _, err := store.List(ctx, kv.PoolPrefix, kv.PoolsKey)
	if err != nil {
		return nil, nil, fmt.Errorf("list the pools: %w", err)
	}
	revisions = map[string]int64{}
	for _, x := range kvs {
		revisions[x.Key] = x.ModRevision
		m := &kv.Pool{}
		if x.Key == kv.PoolsKey || proto.Unmarshal(x.Value, m) != nil {
			continue
		}
		if p, err := poolAt(x.Key, m); err == nil {
			pools = append(pools, p)
		}
	}
	return pools, revisions, nil
}
