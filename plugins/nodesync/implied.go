// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
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

// withoutClaimed leaves out the IDs that imply a prefix which another node has
// claimed, such as a pinned node address.
func withoutClaimed(ctx context.Context, who Identity, free []uint32) ([]uint32, error) {
	if who.Claims == nil {
		return free, nil
	}
	skip, err := who.Claims.Skip(ctx, who.Name, who.Explicit)
	if err != nil {
		return nil, err
	}
	all := len(free)
	if free = slices.DeleteFunc(free, skip); len(free) == 0 {
		return nil, fmt.Errorf(
			"%w: each of the %d free ones implies an address or a block that another node has claimed: see \"cadastre node list\"",
			ErrNoID,
			all,
		)
	}
	return free, nil
}

// claimed is an ID whose record is written.
type claimed struct {
	Held
	remembered bool // this node had it before
}

// checkImplied makes room for what the ID implies. If another node holds a claim
// of it, an ID that is new to this node is given back, and the claim begins again.
func checkImplied(ctx context.Context, store kvdb.Store, who Identity, c claimed, now time.Time) error {
	if who.Claims == nil {
		return nil
	}
	record := &kv.NodeRecord{}
	revision, err := get(ctx, store, kv.NodeRecordKey(c.ID), record)
	if err != nil {
		return err
	}
	if record.Instance != who.Instance || record.Generation != c.Generation {
		return kvdb.ErrConditions
	}
	if record.ExplicitBlocks && !who.Explicit {
		// The blocks follow from the ID again. A claimant has to see that in the record
		// before the claims are looked at.
		var t txn
		t.put(kv.NodeRecordKey(c.ID), revision, publication{}.applyTo(record, false))
		if _, err := t.commit(ctx, store); err != nil {
			return err
		}
		return kvdb.ErrConditions
	}
	implies := &kv.NodeRecord{Id: c.ID, Name: who.Name, ExplicitBlocks: who.Explicit}
	err = who.Claims.CheckID(ctx, implies, revision, now)
	switch {
	case !errors.Is(err, claims.ErrTaken):
		return err
	case c.remembered || who.Pinned != 0:
		return fmt.Errorf("%w: %w", ErrIDTaken, err)
	}
	record = proto.Clone(record).(*kv.NodeRecord)
	record.Released, record.Clean = now.UnixNano(), true
	var t txn
	t.put(kv.NodeRecordKey(c.ID), revision, record)
	if _, err := t.commit(ctx, store); err != nil {
		return err
	}
	return kvdb.ErrConditions
}

// errImplied is the kind of problem of an ID that implies pod blocks since this start.
var errImplied = errors.New("the pod blocks follow from the node ID since this start")

// newlyImplied returns a problem if the pod blocks follow from the ID and did not when the
// store last confirmed it. Another node may have claimed them meanwhile, which the mirror of
// the store does not tell.
func (k *IDClaimer) newlyImplied() (problem string, kind error) {
	if k.held.ID == 0 || k.deps.Identity.Explicit || !k.saved.Explicit {
		return "", nil
	}
	return "its pod blocks did not follow from it when the cluster store last confirmed it, and another node may have them." +
		" Nothing new is allocated until the store confirms it", errImplied
}

// ClaimsBlocks has the record say that the pod blocks of this node have claims of
// their own. It is called once those that are in use have them: until then the
// blocks of the record, or of its ID, are what other nodes respect.
func (k *IDClaimer) ClaimsBlocks() { k.publishSoon(func(s *publication) { s.explicit = true }) }

// Claimant returns this node as the claimant of prefixes; false while the store
// has not confirmed its ID, or that is in doubt.
func (k *IDClaimer) Claimant() (claims.Node, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	who := k.deps.Identity
	return claims.Node{
			Name:     who.Name,
			Instance: who.Instance,
			ID:       k.held.ID,
			UID:      k.wanted.uid,
		}, k.session &&
			k.problem == ""
}
