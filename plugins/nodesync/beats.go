// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// lastBeat is the last beat of an ID.
type lastBeat struct {
	beat     *kv.NodeBeat // nil: there is none, or it cannot be read
	revision int64        // 0: there is none
	err      error        // why it cannot be read
}

// beat reads a beat, nil for none. What is decided by it holds while it stays the last.
func (r *register) beat(ctx context.Context, store kvdb.Store, id uint32) (*kv.NodeBeat, error) {
	b, err := r.lastBeat(ctx, store, id)
	return b.beat, cmp.Or(err, b.err)
}

// lastBeat reads a beat once. It fails if the store does.
func (r *register) lastBeat(ctx context.Context, store kvdb.Store, id uint32) (lastBeat, error) {
	if b, ok := r.beats[id]; ok {
		return b, nil
	}
	b, err := readBeat(ctx, store, id)
	if err == nil {
		r.beats[id] = b
	}
	return b, err
}

func readBeat(ctx context.Context, store kvdb.Store, id uint32) (b lastBeat, err error) {
	x, found, err := store.Get(ctx, kv.BeatKey(id))
	if err != nil || !found {
		return b, err
	}
	b.revision, b.beat = x.ModRevision, &kv.NodeBeat{}
	if err := proto.Unmarshal(x.Value, b.beat); err != nil {
		b.beat, b.err = nil, fmt.Errorf("value of %s: %w", x.Key, err)
	}
	return b, nil
}

// lookForTwin fails while a twin of this process beats under id.
func (r *register) lookForTwin(ctx context.Context, store kvdb.Store, who Identity, id uint32, now time.Time) error {
	b, err := r.lastBeat(ctx, store, id)
	if err != nil {
		return err
	}
	return who.twins.look(id, reachedAt(r.byID[id].NodeRecord), b, now)
}

// reachedAt returns the addresses by which people reach a node, as its record has them.
func reachedAt(r *kv.NodeRecord) []string {
	if underlay := r.GetUnderlay(); len(underlay) > 0 {
		return underlay
	}
	return r.GetMgmtAddresses()
}

// beat returns the beat of this run under an ID that it holds.
func (who Identity) beat(held Held, now time.Time) *kv.NodeBeat {
	return &kv.NodeBeat{
		Id: held.ID, Instance: who.Instance, Generation: held.Generation, Session: who.Session, At: now.UnixNano(),
		ProductUuid: who.Machine.ProductUUID, BootId: who.Machine.BootID, NodeName: who.Name,
		Expire: int64(who.Expire),
	}
}
