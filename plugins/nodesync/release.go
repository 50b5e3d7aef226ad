// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

var (
	// ErrNoNode is returned for the release of a node that holds no ID.
	ErrNoNode = errors.New("no node of this name holds an ID")
	// ErrFresh is returned for the release of a node whose agent was there not long ago.
	ErrFresh = errors.New("the node's agent was there not long ago")
)

// Registered is a node record and its last beat, nil for none.
type Registered struct {
	*kv.NodeRecord
	Beat *kv.NodeBeat

	revision, beatAt int64
}

// List reads all node records, released ones too, by ID. It lists the store once.
func List(ctx context.Context, store kvdb.Store) ([]Registered, error) {
	kvs, _, err := store.List(ctx, kv.NodeRecordPrefix, kv.BeatPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	byID, beats := map[uint32]Registered{}, map[string]kvdb.KeyValue{}
	for _, x := range kvs {
		if r, ok := kv.ResourceOf(x.Key); ok && r.Name == kv.NodeRecordResource {
			m := &kv.NodeRecord{}
			if proto.Unmarshal(x.Value, m) != nil {
				continue // the claim that would write it over says so
			}
			byID[m.Id] = Registered{NodeRecord: m, revision: x.ModRevision}
			continue
		}
		beats[x.Key] = x
	}
	var all []Registered
	for id, r := range byID {
		x, m := beats[kv.BeatKey(id)], &kv.NodeBeat{}
		r.beatAt = x.ModRevision
		if r.beatAt != 0 && proto.Unmarshal(x.Value, m) == nil { // one that cannot be read is none
			r.Beat = m
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Registered) int { return cmp.Compare(a.Id, b.Id) })
	return all, nil
}

// Gone is a node that is gone for good.
type Gone struct {
	Name  string
	Force bool          // also if its agent was there not long ago
	Fresh time.Duration // how long ago that is
}

// Release gives up the ID of a node that is gone. It is refused while the node's
// agent was there within the last g.Fresh, unless g.Force is set. Without force the ID counts as cleanly released: it may be the
// next to be claimed.
func Release(ctx context.Context, store kvdb.Store, g Gone, now time.Time) (uint32, error) {
	for range attempts {
		id, err := releaseOnce(ctx, store, g, now)
		if !errors.Is(err, kvdb.ErrConditions) {
			if err != nil {
				return 0, fmt.Errorf("release the ID of node %s: %w", g.Name, err)
			}
			return id, nil
		}
	}
	return 0, fmt.Errorf("release the ID of node %s: others were faster %d times", g.Name, attempts)
}

func releaseOnce(ctx context.Context, store kvdb.Store, g Gone, now time.Time) (id uint32, err error) {
	nodes, err := List(ctx, store)
	if err != nil {
		return 0, err
	}
	var t txn
	for _, n := range nodes {
		if n.Name != g.Name || n.Released != 0 {
			continue
		}
		alive := fresh(n.Beat, Identity{Fresh: g.Fresh}, now)
		if alive && !g.Force {
			return 0, fmt.Errorf("%w, at %s: stop it and wait %s; --force does it now, and the agent will claim the ID again if it is still there", ErrFresh, at(n.Beat), g.Fresh)
		}
		n.Released, n.Clean = now.UnixNano(), !alive
		t.put(kv.NodeRecordKey(n.Id), n.revision, n.NodeRecord)
		t.conds = append(t.conds, kvdb.Cond{Key: kv.BeatKey(n.Id), ModRevision: n.beatAt}) // or the agent is back
		if id == 0 || n.SupersededBy == 0 {
			id = n.Id
		}
	}
	if id == 0 {
		return 0, fmt.Errorf("%w: see \"cadastre node list\"", ErrNoNode)
	}
	_, err = t.commit(ctx, store)
	return id, err
}
