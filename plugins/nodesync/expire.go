// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// Expired says when a node is gone for good.
type Expired struct {
	After time.Duration // without a beat; more than the agents' Expire
	// Node returns the UID of the node that the cluster has under a name now, ""
	// if that is not known. found is false if there is none.
	Node func(name string) (uid string, found bool, err error)
}

// ReleaseExpired releases the IDs of nodes that are gone, and returns their names. A node
// is gone if no agent of its name has beaten for e.After, whether it ended in good order
// or not, and the cluster has no such node. An agent stops allocation before that time,
// so the IDs may be claimed at once. A record that has no beat gets one now, so that its
// time begins to run. What cannot be decided for one node keeps no other from being
// released.
func ReleaseExpired(ctx context.Context, store kvdb.Store, e Expired, now time.Time) (released []string, err error) {
	nodes, err := List(ctx, store)
	if err != nil {
		return nil, err
	}
	byName := map[string][]Registered{}
	for _, n := range nodes {
		if n.Released == 0 {
			byName[n.Name] = append(byName[n.Name], n)
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		done, err := releaseExpired(ctx, store, e, byName[name], now)
		switch {
		case errors.Is(err, kvdb.ErrConditions): // the agent is back, or another node was faster
		case err != nil:
			errs = append(errs, fmt.Errorf("release the ID of node %s: %w", name, err))
		case done:
			released = append(released, name)
		}
	}
	return released, errors.Join(errs...)
}

// releaseExpired releases all records of one name, or none.
func releaseExpired(
	ctx context.Context,
	store kvdb.Store,
	e Expired,
	records []Registered,
	now time.Time,
) (bool, error) {
	var begin, end txn
	for _, n := range records {
		if n.Beat == nil {
			begin.put(
				kv.BeatKey(n.Id),
				n.beatAt,
				&kv.NodeBeat{
					Id:         n.Id,
					Instance:   n.Instance,
					Generation: n.Generation,
					At:         now.UnixNano(),
					Stopped:    true,
					NodeName:   n.Name,
				},
			)
			begin.conds = append(begin.conds, kvdb.AtRevision(kv.NodeRecordKey(n.Id), n.revision))
			continue
		}
		if now.Sub(time.Unix(0, n.Beat.At)) < e.After { // also by a clock that is ahead of ours
			return false, nil
		}
		n.Released, n.Clean = now.UnixNano(), true
		end.put(kv.NodeRecordKey(n.Id), n.revision, n.NodeRecord)
		end.conds = append(end.conds, kvdb.AtRevision(kv.BeatKey(n.Id), n.beatAt))
	}
	if len(begin.ops) > 0 {
		_, err := begin.commit(ctx, store)
		return false, err
	}
	if _, found, err := e.Node(records[0].Name); err != nil || found {
		return false, err
	}
	_, err := end.commit(ctx, store)
	return err == nil, err
}
