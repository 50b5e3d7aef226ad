// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// ErrTaken is returned for a node ID that implies a prefix of another node.
var ErrTaken = errors.New("another node holds a prefix that follows from the node ID")

// CheckID makes room for what a node ID implies, after its record was written at
// revision. Pending claims of other nodes that are older are deleted: they begin
// again, and see the record, as newer ones do by themselves. It fails with
// ErrTaken if another node holds a claim for it.
func (r Register) CheckID(ctx context.Context, record *kv.NodeRecord, revision int64, now time.Time) error {
	for range attempts {
		v, err := r.view(ctx)
		if err != nil {
			return fmt.Errorf("check what node ID %d implies: %w", record.Id, err)
		}
		in := slices.DeleteFunc(r.inTheWay(v, record), func(c stored) bool { return !c.Held && c.revision > revision })
		if len(in) == 0 {
			return nil
		}
		c := in[0]
		if c.Held && !ended(c.PrefixClaim, now) {
			return fmt.Errorf(
				"%w: node ID %d implies %s, and %s",
				ErrTaken,
				record.Id,
				c.Prefix,
				v.blockedBy(c.PrefixClaim, r.Expire),
			)
		}
		if err := r.Delete(ctx, c.key, c.revision); err != nil && !errors.Is(err, kvdb.ErrConditions) {
			return fmt.Errorf("check what node ID %d implies: %w", record.Id, err)
		}
	}
	return fmt.Errorf("check what node ID %d implies: gave up after %d conflicting writes", record.Id, attempts)
}

// inTheWay returns the claims of other nodes for what a record implies, the held ones first.
func (r Register) inTheWay(v view, record *kv.NodeRecord) (all []stored) {
	implied := r.Implied(record, v.pools)
	for _, key := range slices.Sorted(maps.Keys(v.claims)) {
		c := v.claims[key]
		t, _ := TargetOf(c.PrefixClaim)
		if c.Node != record.Name && slices.ContainsFunc(implied, t.Overlaps) {
			all = append(all, c)
		}
	}
	slices.SortStableFunc(all, func(a, b stored) int {
		switch {
		case a.Held == b.Held:
			return 0
		case a.Held:
			return -1
		}
		return 1
	})
	return all
}

// Skip returns a function that reports whether a node ID implies a prefix that
// another node than name has a claim for, as the store is now. A claimant of an
// ID skips such IDs.
func (r Register) Skip(ctx context.Context, name string, explicit bool) (func(id uint32) bool, error) {
	v, err := r.view(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the claims: %w", err)
	}
	if len(v.claims) == 0 {
		return func(uint32) bool { return false }, nil
	}
	var others []Target // decoded once: there are thousands of IDs and claims
	for _, c := range v.claims {
		if t, err := TargetOf(c.PrefixClaim); err == nil && c.Node != name {
			others = append(others, t)
		}
	}
	return func(id uint32) bool {
		implied := r.Implied(&kv.NodeRecord{Id: id, Name: name, ExplicitBlocks: explicit}, v.pools)
		return slices.ContainsFunc(others, func(t Target) bool { return slices.ContainsFunc(implied, t.Overlaps) })
	}, nil
}

// End ends the claims of a node that was released. Those of an agent that stopped
// allocating by itself by now, Expire after its last beat, end at once. The others end
// from that time on. A claim that changes meanwhile is looked at again.
func (r Register) End(ctx context.Context, node string, now time.Time) error {
	for range attempts {
		v, err := r.view(ctx)
		if err != nil {
			return fmt.Errorf("end the claims of node %s: %w", node, err)
		}
		err = nil
		for _, key := range slices.Sorted(maps.Keys(v.claims)) {
			if c := v.claims[key]; c.Node == node {
				err = errors.Join(err, r.end(ctx, v, c, now))
			}
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, kvdb.ErrConditions) {
			return fmt.Errorf("end the claims of node %s: %w", node, err)
		}
	}
	return fmt.Errorf("end the claims of node %s: gave up after %d conflicting writes", node, attempts)
}

func (r Register) end(ctx context.Context, v view, c stored, now time.Time) error {
	at := now
	if b := v.beat(c.NodeId, c.Instance); b != nil && !b.Stopped {
		at = time.Unix(0, b.At).Add(r.mayAllocate(b))
	}
	if !c.Held || !now.Before(at) {
		return r.Delete(ctx, c.key, c.revision)
	}
	if c.Ends != 0 {
		return nil
	}
	m := proto.Clone(c.PrefixClaim).(*kv.PrefixClaim)
	m.Ends = at.UnixNano()
	_, err := r.put(ctx, c.key, c.revision, m)
	return err
}

// List returns all claims that can be read, by key.
func List(ctx context.Context, store kvdb.Store) ([]*kv.PrefixClaim, error) {
	kvs, _, err := store.List(ctx, kv.PrefixClaimPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the claims: %w", err)
	}
	var all []*kv.PrefixClaim
	for _, x := range kvs {
		if c := decode(x); c != nil {
			all = append(all, c)
		}
	}
	return all, nil
}
