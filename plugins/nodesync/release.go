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
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
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
// Records that cannot be read are left out.
func List(ctx context.Context, store kvdb.Store) ([]Registered, error) {
	all, _, err := ListAll(ctx, store)
	return all, err
}

// ListAll is List with the records that cannot be read, likewise by ID.
func ListAll(ctx context.Context, store kvdb.Store) (all []Registered, unreadable []Unreadable, err error) {
	kvs, _, err := store.List(ctx, kv.NodeRecordPrefix, kv.BeatPrefix)
	if err != nil {
		return nil, nil, fmt.Errorf("list the nodes: %w", err)
	}
	byID, beats := map[uint32]Registered{}, map[string]kvdb.KeyValue{}
	for _, x := range kvs {
		if r, ok := kv.ResourceOf(x.Key); !ok || r.Name != kv.NodeRecordResource {
			beats[x.Key] = x
			continue
		}
		m, err := readRecord(x)
		switch {
		case err == nil:
			byID[m.Id] = Registered{NodeRecord: m, revision: x.ModRevision}
		case m != nil:
			unreadable = append(unreadable, Unreadable{m.Id, err})
		}
	}
	for id, r := range byID {
		x, m := beats[kv.BeatKey(id)], &kv.NodeBeat{}
		r.beatAt = x.ModRevision
		if r.beatAt != 0 && proto.Unmarshal(x.Value, m) == nil { // one that cannot be read is none
			r.Beat = m
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Registered) int { return cmp.Compare(a.Id, b.Id) })
	slices.SortFunc(unreadable, func(a, b Unreadable) int { return cmp.Compare(a.ID, b.ID) })
	return all, unreadable, nil
}

// Gone is a node that is gone for good.
type Gone struct {
	Name   string
	Force  bool             // also if its agent was there not long ago
	Fresh  time.Duration    // how long ago that is
	Expire time.Duration    // how long after its last beat an agent may allocate; 0: Fresh
	Watch  time.Duration    // how long to look for a further beat, whatever the node's clock says; 0: not at all
	Claims *claims.Register // of prefixes; nil: there are none
	DryRun bool             // only look whether Release is refused
}

// Release gives up the ID and ends the claims of a node that is gone. It is refused while
// the node's agent was there within the last g.Fresh, and while its agent beats: a node
// with a slow clock writes old beats. If g.Force is set, neither refuses it. An agent may
// still allocate if it has been silent for less than g.Expire and has not said that it
// ends. Its ID is not released cleanly: another node gets it only after that time. So it
// is with the claims.
func Release(ctx context.Context, store kvdb.Store, g Gone, now time.Time) (uint32, error) {
	r := release{Gone: g, now: now, wrote: map[uint32]*kv.NodeRecord{}, watched: map[uint32]int64{}}
	if err := r.watch(ctx, store); err != nil {
		return 0, fmt.Errorf("release the ID of node %s: %w", g.Name, err)
	}
	for range attempts {
		id, err := r.once(ctx, store)
		if !errors.Is(err, kvdb.ErrConditions) {
			if err != nil {
				return 0, fmt.Errorf("release the ID of node %s: %w", g.Name, err)
			}
			return id, g.endClaims(ctx, now)
		}
	}
	return 0, fmt.Errorf("release the ID of node %s: others were faster %d times", g.Name, attempts)
}

func (g Gone) endClaims(ctx context.Context, now time.Time) error {
	if g.Claims == nil || g.DryRun {
		return nil
	}
	return g.Claims.End(ctx, g.Name, now)
}

// release is one under way.
type release struct {
	Gone
	now   time.Time
	wrote map[uint32]*kv.NodeRecord // or tried to: a store without transactions may have done so

	watched map[uint32]int64 // revisions of beats when the watch began
}

// watch waits while agents that look dead may beat.
func (r *release) watch(ctx context.Context, store kvdb.Store) error {
	if r.Force || r.Watch <= 0 {
		return nil
	}
	nodes, err := List(ctx, store)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if n.Name != r.Name || n.Released != 0 {
			continue
		}
		if fresh(n.Beat, Identity{Fresh: r.Fresh}, r.now) {
			return nil // it is refused without a watch
		}
		if n.Beat != nil && !n.Beat.Stopped {
			r.watched[n.Id] = n.beatAt
		}
	}
	if len(r.watched) == 0 {
		return nil
	}
	watch, cancel := context.WithTimeout(ctx, r.Watch)
	defer cancel()
	<-watch.Done()
	return ctx.Err()
}

// beats reports whether the agent of a node has beaten since the watch began.
func (r *release) beats(n Registered) bool {
	began, ok := r.watched[n.Id]
	return ok && n.beatAt != began && n.Beat != nil && !n.Beat.Stopped
}

// once releases what the node has, and then says that it is clean. These are two steps: in
// a store without transactions the node's agent may have come back between the look at its
// beat and the release. It would then have an ID that any node may claim.
func (r *release) once(ctx context.Context, store kvdb.Store) (id uint32, err error) {
	nodes, err := List(ctx, store)
	if err != nil {
		return 0, err
	}
	var t txn
	var gone []Registered
	for _, n := range nodes {
		mine := n.Released != 0 && proto.Equal(n.NodeRecord, r.wrote[n.Id])
		if n.Name != r.Name || n.Released != 0 && !mine {
			continue
		}
		alive := fresh(n.Beat, Identity{Fresh: r.Fresh}, r.now)
		if !alive && !r.Force && !mine && r.beats(n) {
			return 0, fmt.Errorf(
				"%w: it beats, and its clock says %s: correct the clock of the node; stop it before a release",
				ErrFresh,
				at(n.Beat),
			)
		}
		if alive && !r.Force && !mine {
			return 0, fmt.Errorf(
				"%w, at %s: stop it and wait %s; --force does it now, and the agent will claim the ID again if it is still there",
				ErrFresh,
				at(n.Beat),
				r.Fresh,
			)
		}
		if !mine {
			n.Released, n.Clean = r.now.UnixNano(), false
			t.put(kv.NodeRecordKey(n.Id), n.revision, n.NodeRecord)
			t.conds = append(t.conds, kvdb.Cond{Key: kv.BeatKey(n.Id), ModRevision: n.beatAt}) // or the agent is back
			r.wrote[n.Id] = n.NodeRecord
		}
		if !mayAllocate(n.Beat, max(r.Fresh, r.Expire), r.now) {
			gone = append(gone, n)
		}
		if id == 0 || n.SupersededBy == 0 {
			id = n.Id
		}
	}
	if id == 0 {
		return 0, fmt.Errorf("%w: see \"cadastre node list\"", ErrNoNode)
	}
	if r.DryRun {
		return id, nil
	}
	if len(t.ops) > 0 {
		if _, err := t.commit(ctx, store); err != nil {
			return id, err
		}
	}
	return id, clean(ctx, store, gone)
}

// clean marks released IDs as unused, if no node has claimed them or beaten since.
func clean(ctx context.Context, store kvdb.Store, gone []Registered) error {
	for _, n := range gone {
		m := &kv.NodeRecord{}
		revision, err := get(ctx, store, kv.NodeRecordKey(n.Id), m)
		if err != nil {
			return err
		}
		if !proto.Equal(m, n.NodeRecord) {
			continue
		}
		m.Clean = true
		t := txn{conds: []kvdb.Cond{{Key: kv.BeatKey(n.Id), ModRevision: n.beatAt}}}
		t.put(kv.NodeRecordKey(n.Id), revision, m)
		if _, err := t.commit(ctx, store); err != nil && !errors.Is(err, kvdb.ErrConditions) {
			return err
		}
	}
	return nil
}
