// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/backoff"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
)

// ReporterDeps holds the dependencies of a Reporter.
type ReporterDeps struct {
	Log   *slog.Logger
	IPAM  *IPAM
	Store kvdb.Store
	Now   func() time.Time
	Every time.Duration // least time between two reports of mere use; 0: one second
}

// Reporter creates this node's NetResourceSet if there is none, and writes into it the
// addresses that the node uses and its part of the handshake in which blocks go back
// (package handshake). It reports a block as ready only after the loop has committed that
// nothing more is allocated from it. It writes only into the version of the object that
// the loop has seen.
//
// Run drives it. No event waits for it.
type Reporter struct {
	deps    ReporterDeps
	last    time.Time // of the last report
	next    time.Time // earliest time of the next request
	failed  int       // failed requests in a row
	created int64     // revision of the set that was created last
}

const (
	checkEvery = 5 * time.Second  // period of checks without an event: cooling ends without one
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
		case <-r.deps.IPAM.committed.poke:
			timer.Stop()
		case <-timer.C:
		}
		wait = r.check(ctx)
	}
}

// check reports once if there is a change, and returns the time until the next check. The
// loop commits often; a commit does not bring a request forward.
func (r *Reporter) check(ctx context.Context) time.Duration {
	s := r.deps.IPAM.committed.state.Load()
	pause := r.next.Sub(r.deps.Now())
	switch {
	case s == nil:
		return checkEvery
	case pause > 0:
		return pause
	case s.set == nil:
		return r.finish(ctx, r.create(ctx, s.seen))
	}
	early := r.deps.Every - r.deps.Now().Sub(r.last)
	if early > 0 && len(s.set.Releases) == 0 {
		return early
	}
	next := r.deps.IPAM.report(s, s.set)
	switch answered := maps.Equal(next.Releases, s.set.Releases); {
	case answered && sameUse(next, s.set):
		return checkEvery
	case answered && early > 0:
		return early
	}
	written, err := r.write(ctx, s)
	now := r.deps.Now()
	if r.next = now.Add(r.deps.Every); written { // otherwise the loop is behind
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
// waits until the loop has seen the deletion of the object that it created last: until
// then the loop allocates from that one's blocks.
func (r *Reporter) create(ctx context.Context, seen int64) error {
	if seen < r.created {
		return nil
	}
	set := r.deps.IPAM.firstSet()
	if _, found, err := r.deps.Store.Get(ctx, kv.NodeKey(set.Name)); err != nil || !found {
		return err
	}
	key := kv.NetResourceSetKey(set.Name)
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
	r.deps.Log.Info("this node's NetResourceSet was created", "name", set.Name, "claims", len(set.Pool))
	return nil
}

func sameUse(a, b *kv.NetResourceSet) bool {
	equal := func(x, y *kv.NetResource) bool { return proto.Equal(x, y) }
	return maps.EqualFunc(a.Used, b.Used, equal) && maps.Equal(a.CidrStates, b.CidrStates)
}

// write writes the report into the present object, if that is the version that the loop
// has seen. Otherwise events are on their way, after which the loop may allocate again
// from a draining block, even if the object looks the same: the mark that the loop has
// seen may have been removed and set again.
func (r *Reporter) write(ctx context.Context, s *state) (bool, error) {
	key := kv.NetResourceSetKey(s.set.Name)
	x, found, err := r.deps.Store.Get(ctx, key)
	if err != nil || !found {
		return false, err
	}
	is := &kv.NetResourceSet{}
	if err := proto.Unmarshal(x.Value, is); err != nil {
		return false, fmt.Errorf("read %s: %w", key, err)
	}
	if x.ModRevision > s.seen || !sameResources(is, s.set) {
		return false, nil
	}
	next := r.deps.IPAM.report(s, is)
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

// committed holds the state that the loop has committed, for the Reporter.
type committed struct {
	state atomic.Pointer[state]
	poke  chan struct{}
}

// Commit passes the committed state to the Reporter and the Claimer. The loop calls it
// after the ledger's stage.
func (i *IPAM) Commit(context.Context) error {
	if s := i.state.Load(); s.networks != nil { // there was a resync
		i.committed.state.Store(s)
		// nothing is wanted if blocks follow from the node ID: old claims end with their last
		// leases
		if i.Claims != nil {
			i.Claims.Want(kv.PodNetworkClaims, s.wanted)
		}
	}
	select {
	case i.committed.poke <- struct{}{}:
	default:
	}
	return nil
}

// Mark sets the savepoint.
func (i *IPAM) Mark() { i.marked = i.state.Load() }

// UndoToMark restores the state of the savepoint.
func (i *IPAM) UndoToMark() { i.state.Store(i.marked) }

// Undo restores the state of the last commit, as the ledger does: the commit of a later
// event must not pass the state of a failed one to the Reporter.
func (i *IPAM) Undo() {
	s := i.committed.state.Load()
	if s == nil {
		s = beforeResync()
	}
	i.state.Store(s)
}

// report returns set with this node's present part of it.
func (i *IPAM) report(s *state, set *kv.NetResourceSet) *kv.NetResourceSet {
	next := proto.Clone(set).(*kv.NetResourceSet)
	u, open := i.usage(s), spansOf(s.networks[PodPool].open)
	next.Used, next.Releases, next.CidrStates = map[string]*kv.NetResource{}, map[string]string{}, map[string]string{}
	for a, owner := range u.owners {
		resource := set.Pool[u.keys[a]]
		if resource == nil { // it has left the pool while a pod has it
			resource = set.Used[a.String()]
		}
		next.Used[a.String()] = &kv.NetResource{
			Owner:    owner,
			Resource: resource.GetResource(),
			Subnet:   resource.GetSubnet(),
		}
	}
	for key, state := range set.Releases {
		if state := u.answer(s, open, key, handshake.State(state)); state != handshake.None {
			next.Releases[key] = string(state)
		}
	}
	wanted := cmp.Or(set.Marks.GetAllocationThreshold(), defaultThreshold)
	for _, key := range set.PodCidrs {
		next.CidrStates[key] = "in-use"
		if u.free < uint64(max(wanted, 0)) {
			next.CidrStates[key] = "depleted"
		}
	}
	return next
}

// answer returns this node's part of the handshake for one key of the pool.
func (u usage) answer(s *state, open spans, key string, entry handshake.State) handshake.State {
	p, err := handshake.ParseKey(key)
	inPool := s.set.Pool[key] != nil || slices.Contains(s.set.PodCidrs, key)
	answer := handshake.Answer(entry, handshake.Seen{InPool: inPool, Leased: err == nil && u.held.overlap(p)})
	if answer == handshake.Ready && err == nil && open.overlap(p) {
		return entry // the loop has not seen the mark yet
	}
	return answer
}

// defaultThreshold is the number of free addresses below which a CIDR is depleted.
const defaultThreshold = 8

// usage holds the used addresses of the default network.
type usage struct {
	owners map[netip.Addr]string // holder or purpose of each address that is not free
	keys   map[netip.Addr]string // of the pool
	held   spans                 // held addresses, and blocks that contain one
	free   uint64
}

// spans holds sorted prefixes, none of which is within another one. There may be
// thousands, and as many look-ups.
type spans []netip.Prefix

func spansOf(all []netip.Prefix) spans {
	all = slices.SortedFunc(slices.Values(all), netip.Prefix.Compare)
	return withoutInner(all, func(string, string) {})
}

// overlap reports whether p shares an address with one of them: p is within the one
// before its place, or the one after its place is within p.
func (s spans) overlap(p netip.Prefix) bool {
	i, _ := slices.BinarySearchFunc(s, p, netip.Prefix.Compare)
	return i < len(s) && s[i].Overlaps(p) || i > 0 && s[i-1].Overlaps(p)
}

// contain reports whether p is one of them, or within one.
func (s spans) contain(p netip.Prefix) bool {
	i, found := slices.BinarySearchFunc(s, p, netip.Prefix.Compare)
	return found || i > 0 && s[i-1].Overlaps(p)
}

// usage reads the ledger. Staged leases count as held.
func (i *IPAM) usage(s *state) usage {
	u := usage{owners: map[netip.Addr]string{}, keys: map[netip.Addr]string{}}
	stats := slices.DeleteFunc(i.Ledger.Stats(), func(b ledger.BlockStat) bool { return b.Pool != PodPool })
	var held []netip.Prefix
	for _, b := range stats {
		u.free += b.Free
		if b.Held+b.Cooling+b.Quarantined == 0 {
			continue
		}
		if b.Held+b.Quarantined > 0 {
			held = append(held, b.Block)
		}
		for a, what := range edges(b.Block) { // these cannot be allocated either
			u.owners[a], u.keys[a] = "cadastre/"+what, handshake.Key(b.Block)
		}
	}
	for _, l := range i.Ledger.Leases() {
		if l.Pool != PodPool || l.Purpose == ledger.ForInfra {
			continue
		}
		u.owners[l.Addr], u.keys[l.Addr] = holder(l), handshake.Key(l.Block)
		held = append(held, netip.PrefixFrom(l.Addr, l.Addr.BitLen()))
	}
	u.held = spansOf(held)
	return u
}

// holder returns the name of the holder of a lease, for people.
func holder(l ledger.Lease) string {
	who := l.Pod.String()
	if l.Pod.Name == "" {
		who = l.Key.String()
	}
	if l.State != ledger.Held {
		who += " (" + l.State.String() + ")"
	}
	return who
}
