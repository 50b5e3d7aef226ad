// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// applyKey is written with every change of pools by Apply, so that of two at the
// same time one sees the other's.
const applyKey = "apply"

// attempts bounds how often Apply begins again because others were faster.
const attempts = 20

// Apply makes the pools of the cluster what file wants, or says what that would
// do. A plan that is refused (Plan.Err) changes nothing. Only a file that cannot
// be read and a store that fails are errors.
func Apply(ctx context.Context, store kvdb.Store, reserved []poolplan.Reserved, file []byte, dryRun bool) (poolplan.Plan, error) {
	wanted, err := poolplan.Parse(file)
	if err != nil {
		return poolplan.Plan{}, err
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
	return poolplan.Plan{}, fmt.Errorf("apply pools: others were faster %d times", attempts)
}

func applyOnce(ctx context.Context, store kvdb.Store, reserved []poolplan.Reserved, wanted []poolplan.Wanted, dryRun bool) (poolplan.Plan, error) {
	pools, conds, err := readPools(ctx, store)
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
	if dryRun || plan.Err() != nil || len(plan.Changes) == 0 {
		return plan, nil
	}
	ops := []kvdb.Op{kvdb.Put(applyKey, nil)}
	for _, c := range plan.Changes {
		value, err := proto.Marshal(c.Message())
		if err != nil {
			return plan, err
		}
		ops = append(ops, kvdb.Put(kv.PoolKey(c.To.Name), value))
		if c.From.Generation == 0 {
			conds = append(conds, kvdb.Absent(kv.PoolKey(c.To.Name)))
		}
	}
	_, err = store.Txn(ctx, conds, ops)
	return plan, err
}

// readPools reads the pools, and the conditions under which they are still so.
func readPools(ctx context.Context, store kvdb.Store) (pools []poolplan.Pool, conds []kvdb.Cond, err error) {
	kvs, _, err := store.List(ctx, kv.PoolPrefix, applyKey)
	if err != nil {
		return nil, nil, fmt.Errorf("list the pools: %w", err)
	}
	conds = []kvdb.Cond{{Key: applyKey}}
	for _, x := range kvs {
		if x.Key == applyKey {
			conds[0].ModRevision = x.ModRevision
			continue
		}
		m := &kv.Pool{}
		if err := proto.Unmarshal(x.Value, m); err != nil {
			return nil, nil, fmt.Errorf("pool %s: %w", x.Key, err)
		}
		p, err := poolplan.FromMessage(m)
		if err != nil {
			return nil, nil, fmt.Errorf("pool %s: %w", x.Key, err)
		}
		pools = append(pools, p)
		if len(conds) < kvdb.MaxOps {
			conds = append(conds, kvdb.AtRevision(x.Key, x.ModRevision))
		}
	}
	return pools, conds, nil
}
