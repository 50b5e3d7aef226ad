// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/backoff"
	"github.com/cadastre/cadastre/kvdb"
)

// Granted is a version of the set whose blocks an Allocator has granted, durably.
type Granted struct {
	Set      *kv.NetResourceSet // nil: the node has none
	Revision int64              // of the store, up to which Set is the newest version
	Usable                      // what the node makes of Set
}

// Allocator allocates addresses from the blocks of the node's set.
type Allocator interface {
	// Granted returns the newest version whose blocks are granted. ok is false if there
	// is none yet, or if the addresses of running pods are not all leased yet.
	Granted() (g Granted, ok bool)
	// Changed receives a value after each change of leases or of Granted.
	Changed() <-chan struct{}
	// First returns the set to create for a node that has none.
	First(node *kv.Node) *kv.NetResourceSet
	// Report returns set with the node's present part. set grants the same as g.
	Report(ctx context.Context, g Granted, set *kv.NetResourceSet) (*kv.NetResourceSet, error)
}

// ReporterDeps holds the dependencies of a Reporter.
type ReporterDeps struct {
	Log       *slog.Logger
	Node      string // whose set it is
	Allocator Allocator
	Store     kvdb.Store
	Now       func() time.Time
	Every     time.Duration // least time between two reports of mere use; 0: one second
}

// Reporter creates the node's NetResourceSet if there is none. It writes into the set
// the addresses that the node uses and the node's part of the handshake in which blocks
// go back (package handshake). It writes only into the version of the object that the
// Allocator has granted.
//
// Run drives it. No allocation waits for it.
type Reporter struct {
	deps    ReporterDeps
	last    time.Time // of the last report
	next    time.Time // earliest time of the next request
	failed  int       // failed requests in a row
	created int64     // revision of the set that was created last
}

const (
	checkEvery = 5 * time.Second  // period of checks without a change: cooling ends without one
	retryLimit = 30 * time.Second // the longest wait after an error
)

// NewReporter returns a Reporter.
func NewReporter(deps ReporterDeps) *Reporter {
	if deps.Every == 0 {
		deps.Every = time.Second
	}
	return &Reporter{deps: deps}
}

// Run reports until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	for wait := time.Duration(0); ; {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-r.deps.Allocator.Changed():
			timer.Stop()
		case <-timer.C:
		}
		wait = r.check(ctx)
	}
}

// check reports once if there is a change, and returns the time until the next check. An
// event loop commits often; a commit does not bring a request forward.
func (r *Reporter) check(ctx context.Context) time.Duration {
	g, ok := r.deps.Allocator.Granted()
	pause := r.next.Sub(r.deps.Now())
	switch {
	case !ok:
		return checkEvery
	case pause > 0:
		return pause
	case g.Set == nil:
		return r.finish(ctx, r.create(ctx, g.Revision))
	}
	early := r.deps.Every - r.deps.Now().Sub(r.last)
	if early > 0 && len(g.Set.Releases) == 0 {
		return early
	}
	next, err := r.deps.Allocator.Report(ctx, g, g.Set)
	if err != nil {
		return r.finish(ctx, err)
	}
	switch answered := maps.Equal(next.Releases, g.Set.Releases); {
	case answered && sameUse(next, g.Set):
		return checkEvery
	case answered && early > 0:
		return early
	}
	written, err := r.write(ctx, g)
	now := r.deps.Now()
	if r.next = now.Add(r.deps.Every); written { // otherwise the Allocator is behind
		r.last, r.next = now, time.Time{}
	}
	return r.finish(ctx, err)
}

// finish records the outcome of a request, and returns the time until the next check.
func (r *Reporter) finish(ctx context.Context, err error) time.Duration {
	if err == nil || ctx.Err() != nil {
		r.failed = 0
		return checkEvery
	}
	if r.failed++; r.failed == 1 {
		r.deps.Log.Warn("the NetResourceSet of this node cannot be written, trying again", "error", err)
	}
	wait := backoff.Policy{First: r.deps.Every, Limit: retryLimit}.After(r.failed)
	r.next = r.deps.Now().Add(wait)
	return wait
}

// create creates the object of an existing Node: it was never created, was deleted, or
// was lost with the store. It claims the blocks in use before another node gets them. It
// waits until the Allocator has seen the deletion of the object that it created last:
// until then that one's blocks are allocated from.
func (r *Reporter) create(ctx context.Context, seen int64) error {
	if seen < r.created {
		return nil
	}
	x, found, err := r.deps.Store.Get(ctx, kv.NodeKey(r.deps.Node))
	if err != nil || !found {
		return err
	}
	node := &kv.Node{}
	if err := proto.Unmarshal(x.Value, node); err != nil {
		return fmt.Errorf("read %s: %w", x.Key, err)
	}
	node.Name = r.deps.Node
	key, set := kv.NetResourceSetKey(r.deps.Node), r.deps.Allocator.First(node)
	value, err := proto.Marshal(set)
	if err != nil {
		return fmt.Errorf("create %s: %w", key, err)
	}
	created, err := r.deps.Store.Txn(ctx, []kvdb.Cond{kvdb.Absent(key)}, []kvdb.Op{kvdb.Put(key, value)})
	switch {
	case errors.Is(err, kvdb.ErrConditions): // another writer was faster
		return nil
	case err != nil:
		return fmt.Errorf("create %s: %w", key, err)
	}
	r.created = created
	r.deps.Log.Info("this node's NetResourceSet was created",
		"name", set.Name, "claims", len(set.Pool)+len(set.PodCidrs))
	return nil
}

// write writes the report into the present object, if that is the version that the
// Allocator has granted. Otherwise changes are on their way, after which the node may
// allocate again from a draining block, even if the object looks the same. The mark that
// the Allocator has seen may have been removed and set again.
func (r *Reporter) write(ctx context.Context, g Granted) (bool, error) {
	key := kv.NetResourceSetKey(r.deps.Node)
	x, found, err := r.deps.Store.Get(ctx, key)
	if err != nil || !found {
		return false, err
	}
	is := &kv.NetResourceSet{}
	if err := proto.Unmarshal(x.Value, is); err != nil {
		return false, fmt.Errorf("read %s: %w", key, err)
	}
	if x.ModRevision > g.Revision || !SameGrants(is, g.Set) {
		return false, nil
	}
	next, err := r.deps.Allocator.Report(ctx, g, is)
	if err != nil {
		return false, err
	}
	if sameUse(next, is) && maps.Equal(next.Releases, is.Releases) {
		return false, nil
	}
	value, err := proto.Marshal(next)
	if err != nil {
		return false, fmt.Errorf("report to %s: %w", key, err)
	}
	unchanged := []kvdb.Cond{kvdb.AtRevision(key, x.ModRevision)}
	_, err = r.deps.Store.Txn(ctx, unchanged, []kvdb.Op{kvdb.Put(key, value)})
	if errors.Is(err, kvdb.ErrConditions) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("report to %s: %w", key, err)
	}
	return true, nil
}
