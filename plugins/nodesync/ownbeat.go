// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// own holds what the store has of this node, as this node read or wrote it last.
type own struct {
	record           *kv.NodeRecord
	recordAt, beatAt int64 // revisions
}

// beat writes the beat of the agent and what the node reports of itself. It does nothing
// and returns false if the record is not of held any more.
func (k *IDClaimer) beat(ctx context.Context, held Held) (bool, error) {
	for range attempts {
		if k.own.record == nil || k.own.record.Id != held.ID {
			if err := k.readOwn(ctx, held.ID); err != nil {
				return false, err
			}
		}
		r, who := k.own.record, k.deps.Identity
		if r == nil || r.Name != who.Name || r.Instance != who.Instance || r.Generation != held.Generation ||
			r.Released != 0 ||
			r.SupersededBy != 0 {
			k.own = own{}
			return false, nil
		}
		err := k.beatOnce(ctx, held)
		if err == nil {
			return true, nil
		}
		if !errors.Is(err, kvdb.ErrConditions) { // another process has written: look again
			return false, fmt.Errorf("beat of node ID %d: %w", held.ID, err)
		}
	}
	return false, fmt.Errorf("beat of node ID %d: gave up after %d conflicting writes", held.ID, attempts)
}

// beatOnce writes the beat, and the record if it changes, where both are as
// they were. Unless it succeeds they have to be read again.
func (k *IDClaimer) beatOnce(ctx context.Context, held Held) error {
	k.mu.Lock()
	publication := k.wanted // its slices are never changed
	k.mu.Unlock()
	now := k.own
	now.record = publication.applyTo(k.own.record, k.deps.Identity.Explicit)
	endQuarantine(now.record, k.deps.Now())
	var t txn
	if proto.Equal(now.record, k.own.record) {
		t.conds = append(t.conds, kvdb.AtRevision(kv.NodeRecordKey(held.ID), now.recordAt))
	} else {
		t.put(kv.NodeRecordKey(held.ID), now.recordAt, now.record)
	}
	beat := k.deps.Identity.beat(held, k.deps.Now())
	beat.Pools = k.poolUses()
	beat.DockerSubnets, beat.DockerSubnetsMore = k.dockerSubnets()
	t.put(kv.BeatKey(held.ID), now.beatAt, beat)
	k.own = own{}
	if err := k.twins.try(beat); err != nil {
		return err
	}
	rev, err := t.commit(ctx, k.deps.Store)
	if err != nil {
		return err
	}
	k.twins.wrote(beat, rev)
	if now.beatAt = rev; len(t.ops) == 2 {
		now.recordAt = rev
	}
	k.own = now
	k.mu.Lock()
	k.stored = publication
	k.mu.Unlock()
	return nil
}

// readOwn reads the record and the beat. It fails while the beat is a twin's. A
// record that cannot be read is none: the claim decides about it.
func (k *IDClaimer) readOwn(ctx context.Context, id uint32) error {
	k.own = own{}
	x, found, err := k.deps.Store.Get(ctx, kv.NodeRecordKey(id))
	if err != nil || !found {
		return err
	}
	record, err := readRecord(x)
	if err != nil {
		k.deps.Log.Warn("the record of this node cannot be read", "error", err)
		return nil
	}
	last, err := readBeat(ctx, k.deps.Store, id)
	if err != nil {
		return err
	}
	if err := k.twins.look(id, reachedAt(record), last, k.deps.Now()); err != nil {
		return err
	}
	k.own = own{record, x.ModRevision, last.revision}
	return nil
}

// get reads one message; the revision is 0 where there is none.
func get(ctx context.Context, store kvdb.Store, key string, into proto.Message) (revision int64, err error) {
	x, found, err := store.Get(ctx, key)
	if err != nil || !found {
		return 0, err
	}
	if err := proto.Unmarshal(x.Value, into); err != nil {
		return 0, fmt.Errorf("value of %s: %w", key, err)
	}
	return x.ModRevision, nil
}

// lastBeatTimeout limits the time that an agent that stops waits for the store.
const lastBeatTimeout = 2 * time.Second

// writeLastBeat tells other nodes that this agent has stopped.
func (k *IDClaimer) writeLastBeat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lastBeatTimeout)
	defer cancel()
	select {
	case k.busy <- struct{}{}:
		defer func() { <-k.busy }()
	case <-ctx.Done():
		return
	}
	held := k.Held()
	for ctx.Err() == nil { // a beat that was cut off may still arrive
		last := &kv.NodeBeat{}
		at, err := get(ctx, k.deps.Store, kv.BeatKey(held.ID), last)
		if err != nil || at == 0 || last.Session != k.deps.Identity.Session ||
			k.twins != nil && !k.twins.own(last, at) {
			return // the store is away, or the ID is another process's: no last beat is due
		}
		last.At, last.Stopped = k.deps.Now().UnixNano(), true
		var t txn
		t.put(kv.BeatKey(held.ID), at, last)
		if _, err := t.commit(ctx, k.deps.Store); !errors.Is(err, kvdb.ErrConditions) {
			return
		}
	}
}
