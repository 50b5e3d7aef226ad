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

// ReporterDeps is what a Reporter is given.
type ReporterDeps struct {
	Log   *slog.Logger
	IPAM  *IPAM
	Store kvdb.Store
	Now   func() time.Time
	Every time.Duration // least time between two reports of mere use; 0: one second
}

// Reporter makes this node's NetResourceSet where there is none, and writes into
// it what the node uses, and its half of the handshake in which addresses go back
// (package handshake). It says that a block is ready to go only when the loop has
// committed that it is lent no more, and writes only into the version of the
// object that the loop has seen.
//
// It is driven by Run alone. No event waits for it.
type Reporter struct {
	deps   ReporterDeps
	last   time.Time // report
	next   time.Time // request, at the earliest
	failed int       // requests in a row
	made   int64     // revision of the set that was made last
}

// How often a Reporter looks by itself, since cooling ends without an event, and
// how long it waits after an error at most.
const (
	lookEvery  = 5 * time.Second
	retryLimit = 30 * time.Second
)

// NewReporter makes a Reporter.
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
		wait = r.look(ctx)
	}
}

// look reports once if there is something new, and answers when to look again.
// The loop commits often; no commit has a request sent before its time.
func (r *Reporter) look(ctx context.Context) time.Duration {
	s := r.deps.IPAM.committed.state.Load()
	pause := r.next.Sub(r.deps.Now())
	switch {
	case s == nil:
		return lookEvery
	case pause > 0:
		return pause
	case s.set == nil:
		return r.told(ctx, r.make(ctx, s.seen))
	}
	early := r.deps.Every - r.deps.Now().Sub(r.last)
	if early > 0 && len(s.set.Releases) == 0 {
		return early
	}
	next := r.deps.IPAM.report(s, s.set)
	switch answered := maps.Equal(next.Releases, s.set.Releases); {
	case answered && sameUse(next, s.set):
		return lookEvery
	case answered && early > 0:
		return early
	}
	written, err := r.write(ctx, s)
	now := r.deps.Now()
	if r.next = now.Add(r.deps.Every); written { // otherwise the loop is behind
		r.last, r.next = now, time.Time{}
	}
	return r.told(ctx, err)
}

// told notes how a request has ended, and answers when to look again.
func (r *Reporter) told(ctx context.Context, err error) time.Duration {
	if err == nil || ctx.Err() != nil {
		r.failed = 0
		return lookEvery
	}
	if r.failed++; r.failed == 1 {
		r.deps.Log.Warn("the NetResourceSet of this node cannot be written; this is tried again", "error", err)
	}
	wait := backoff.Policy{First: r.deps.Every, Limit: retryLimit}.After(r.failed)
	r.next = r.deps.Now().Add(wait)
	return wait
}

// make makes the object where there is a Node and none: it was never made, was
// deleted, or lost with the store. What is in use is claimed by it, before
// somebody else is given it. Not before the loop has seen the end of the one that
// was made last: until then it is going to lend what that one has.
func (r *Reporter) make(ctx context.Context, seen int64) error {
	if seen < r.made {
		return nil
	}
	set := r.deps.IPAM.firstSet()
	if _, found, err := r.deps.Store.Get(ctx, kv.NodeKey(set.Name)); err != nil || !found {
		return err
	}
	key := kv.NetResourceSetKey(set.Name)
	value, err := proto.Marshal(set)
	if err != nil {
		return fmt.Errorf("make %s: %w", key, err)
	}
	made, err := r.deps.Store.Txn(ctx, []kvdb.Cond{kvdb.Absent(key)}, []kvdb.Op{kvdb.Put(key, value)})
	switch {
	case errors.Is(err, kvdb.ErrConditions): // it is there by now
		return nil
	case err != nil:
		return fmt.Errorf("make %s: %w", key, err)
	}
	r.made = made
	r.deps.Log.Info("this node's NetResourceSet is made", "name", set.Name, "claims", len(set.Pool))
	return nil
}

func sameUse(a, b *kv.NetResourceSet) bool {
	return maps.EqualFunc(a.Used, b.Used, func(x, y *kv.NetResource) bool { return proto.Equal(x, y) }) && maps.Equal(a.CidrStates, b.CidrStates)
}

// write writes the report into the object as it is, if that is the version that
// the loop has acted upon. Otherwise events are on their way, by which it may
// lend again what it does not now, even where the object says the same: the mark
// that the loop has seen may have been taken back, and set anew.
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
	_, err = r.deps.Store.Txn(ctx, []kvdb.Cond{kvdb.AtRevision(key, x.ModRevision)}, []kvdb.Op{kvdb.Put(key, value)})
	if errors.Is(err, kvdb.ErrConditions) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("report to %s: %w", key, err)
	}
	return true, nil
}

// committed is what the loop has committed, for the Reporter.
type committed struct {
	state atomic.Pointer[state]
	poke  chan struct{}
}

// Commit has the Reporter and the Claimer look at what was committed. It comes
// behind the ledger's stage.
func (i *IPAM) Commit(context.Context) error {
	if s := i.state.Load(); s.networks != nil { // there was a resync
		i.committed.state.Store(s)
		if i.Claims != nil { // none are wanted where blocks follow from the node ID: earlier ones end with their last leases
			i.Claims.Want(kv.PodNetworkClaims, s.wanted)
		}
	}
	select {
	case i.committed.poke <- struct{}{}:
	default:
	}
	return nil
}

// Undo goes back to what was committed last, as the ledger does: the commit of a
// later event must not tell the Reporter what failed in this one.
func (i *IPAM) Undo() {
	s := i.committed.state.Load()
	if s == nil {
		s = beforeResync()
	}
	i.state.Store(s)
}

// report is set with this node's part of it, as the ledger has it now.
func (i *IPAM) report(s *state, set *kv.NetResourceSet) *kv.NetResourceSet {
	next := proto.Clone(set).(*kv.NetResourceSet)
	u, open := i.usage(s), spansOf(s.networks[PodPool].open)
	next.Used, next.Releases, next.CidrStates = map[string]*kv.NetResource{}, map[string]string{}, map[string]string{}
	for a, owner := range u.owners {
		next.Used[a.String()] = &kv.NetResource{Owner: owner, Resource: set.Pool[u.keys[a]].GetResource(), Subnet: set.Pool[u.keys[a]].GetSubnet()}
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

// answer is this node's half of the handshake over one key of the pool.
func (u usage) answer(s *state, open spans, key string, entry handshake.State) handshake.State {
	p, err := handshake.ParseKey(key)
	inPool := s.set.Pool[key] != nil || slices.Contains(s.set.PodCidrs, key)
	answer := handshake.Answer(entry, handshake.Seen{InPool: inPool, Leased: err == nil && u.held.overlap(p)})
	if answer == handshake.Ready && err == nil && open.overlap(p) {
		return entry // the loop has not seen it yet
	}
	return answer
}

// defaultThreshold is below how many free addresses a CIDR is depleted.
const defaultThreshold = 8

// usage is what is used of the default network.
type usage struct {
	owners map[netip.Addr]string // what cannot be lent, and why
	keys   map[netip.Addr]string // of the pool
	held   spans                 // addresses, and blocks, that somebody has something of
	free   uint64
}

// spans are prefixes in order, none of which is within another one. There may be
// thousands, and as many are looked for among them.
type spans []netip.Prefix

func spansOf(all []netip.Prefix) spans {
	all = slices.SortedFunc(slices.Values(all), netip.Prefix.Compare)
	return withoutInner(all, func(string, string) {})
}

// overlap is whether p has an address of one of them: it is within the one before
// its place, or the one behind it is within p.
func (s spans) overlap(p netip.Prefix) bool {
	i, _ := slices.BinarySearchFunc(s, p, netip.Prefix.Compare)
	return i < len(s) && s[i].Overlaps(p) || i > 0 && s[i-1].Overlaps(p)
}

// contain is whether p is one of them, or within one.
func (s spans) contain(p netip.Prefix) bool {
	i, found := slices.BinarySearchFunc(s, p, netip.Prefix.Compare)
	return found || i > 0 && s[i-1].Overlaps(p)
}

// usage reads the ledger. What is only claimed so far counts as held.
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
		for a, what := range edges(b.Block) { // nobody could be lent them either
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

// holder is who has a lease, for people.
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
