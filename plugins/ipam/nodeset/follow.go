// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/backoff"
	"github.com/cadastre/cadastre/kvdb"
)

// FollowDeps holds the dependencies of Follow.
type FollowDeps struct {
	Log   *slog.Logger
	Store kvdb.Store
	Node  string // whose set it is
}

// Version is one version of the node's set.
type Version struct {
	Set      *kv.NetResourceSet // nil: the node has none
	Revision int64              // of the store, up to which Set is the newest version
}

// errEnded ends a watch that the store has closed without an error.
var errEnded = errors.New("the watch has ended")

// Follow reads the node's set and calls apply with each version, until ctx ends. After an
// error of the store or of apply it reads the set again, with growing pauses. A set that
// cannot be decoded is left out: the node keeps the version before.
func Follow(ctx context.Context, deps FollowDeps, apply func(context.Context, Version) error) {
	f := follower{FollowDeps: deps, apply: apply}
	for failed := 0; ctx.Err() == nil; {
		applied, err := f.once(ctx)
		if applied {
			failed = 0
		}
		failed++
		if ctx.Err() != nil {
			return
		}
		if failed == 1 && !errors.Is(err, errEnded) && !errors.Is(err, kvdb.ErrCompacted) {
			deps.Log.Warn("the NetResourceSet of this node cannot be followed, trying again",
				"node", deps.Node, "error", err)
		}
		timer := time.NewTimer(backoff.Policy{First: followPause, Limit: retryLimit}.After(failed))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

const followPause = 200 * time.Millisecond // the first pause after an error

// follower reads the set of one node.
type follower struct {
	FollowDeps
	apply func(context.Context, Version) error
}

// once lists and then watches the set until an error. applied reports whether a version
// was applied.
func (f *follower) once(ctx context.Context) (applied bool, err error) {
	key := kv.NetResourceSetKey(f.Node)
	all, rev, err := f.Store.List(ctx, key)
	if err != nil {
		return false, err
	}
	listed := kvdb.Event{KeyValue: kvdb.KeyValue{Key: key}, Deleted: true}
	for _, x := range all {
		if x.Key == key {
			listed = kvdb.Event{KeyValue: x}
		}
	}
	listed.ModRevision = rev
	if err := f.deliver(ctx, listed); err != nil {
		return false, err
	}
	w, err := f.Store.Watch(ctx, key, rev+1)
	if err != nil {
		return true, err
	}
	defer w.Close()
	for batch := range w.Events() {
		for _, ev := range batch {
			if ev.Key != key {
				continue
			}
			if err := f.deliver(ctx, ev); err != nil {
				return true, err
			}
		}
	}
	if err := w.Err(); err != nil {
		return true, err
	}
	return true, errEnded
}

// deliver applies one version.
func (f *follower) deliver(ctx context.Context, ev kvdb.Event) error {
	v := Version{Revision: ev.ModRevision}
	if !ev.Deleted {
		v.Set = &kv.NetResourceSet{}
		if err := proto.Unmarshal(ev.Value, v.Set); err != nil {
			f.Log.Error(
				"the NetResourceSet of this node cannot be read: the version before stays",
				"key",
				ev.Key,
				"error",
				err,
			)
			return nil
		}
	}
	if err := f.apply(ctx, v); err != nil {
		return fmt.Errorf("apply revision %d of %s: %w", ev.ModRevision, ev.Key, err)
	}
	return nil
}
