// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
)

// Assigned is an address of a pod and the interface that it is of.
type Assigned struct {
	Addr   netip.Addr
	Device int // -1 where the interface is not attached
}

// AssignPodIPv4Address assigns an address to a key, and says of which interface
// it is. The same key has the same address.
func (ds *DataStore) AssignPodIPv4Address(ipamKey IPAMKey) (string, int, error) {
	return ds.assignText(ipamKey, ledger.IPv4)
}

// AssignPodIPv6Address is AssignPodIPv4Address for the other family. A key has
// one address, of one family.
func (ds *DataStore) AssignPodIPv6Address(ipamKey IPAMKey) (string, int, error) {
	return ds.assignText(ipamKey, ledger.IPv6)
}

func (ds *DataStore) assignText(key IPAMKey, f ledger.Family) (string, int, error) {
	x, err := ds.Assign(context.Background(), key, IPAMMetadata{}, f)
	if err != nil {
		return "", -1, err
	}
	return x.Addr.String(), x.Device, nil
}

// UnassignPodIPv4Address takes the address of a key back, which then cools. It
// does so for either family. A key without an address is ErrUnknownPod, which
// to somebody who wants it gone is a success.
func (ds *DataStore) UnassignPodIPv4Address(ipamKey IPAMKey) (ip string, deviceNumber int, err error) {
	x, err := ds.Unassign(context.Background(), ipamKey)
	if err != nil {
		return "", -1, err
	}
	return x.Addr.String(), x.Device, nil
}

// Assign is AssignPodIPv4Address with all there is to say: for which pod, which
// checkpoints keep beside the key, and the family.
func (ds *DataStore) Assign(ctx context.Context, key IPAMKey, pod IPAMMetadata, f ledger.Family) (Assigned, error) {
	if key.IsZero() {
		return Assigned{}, fmt.Errorf("assign an address: the key is empty")
	}
	ds.life.RLock()
	defer ds.life.RUnlock()
	if err := errors.Join(ds.failed, ds.refused); err != nil {
		return Assigned{}, fmt.Errorf("assign an address to %s: %w", key, err)
	}
	owner := ds.owner(key)
	owner.Lock()
	defer owner.Unlock()
	return ds.assign(ctx, key, pod, f)
}

// assign is Assign, with nobody else at the key.
func (ds *DataStore) assign(ctx context.Context, key IPAMKey, pod IPAMMetadata, f ledger.Family) (Assigned, error) {
	st := ds.stage()
	defer ds.putBack(st)
	req := claimOf(key, pod)
	ds.hints.Lock()
	s, x, err := ds.claim(ctx, st, &req, f)
	before := netip.Addr{}
	if err == nil {
		before = s.prior
	}
	ds.hints.Unlock()
	if err != nil { // also if the key has an address
		if have := ds.book.ByKey(ledgerKey(key)); len(have) > 0 {
			return ds.repeat(ctx, st, have[0], f)
		}
		return Assigned{}, fmt.Errorf("assign an address to %s: %w", key, err)
	}
	if st != nil {
		if err := st.Commit(ctx); err != nil {
			ds.takeBack(s, x, before)
			return Assigned{}, fmt.Errorf("assign %s to %s: %w", x, key, err)
		}
	}
	return Assigned{x, s.lane.of.Device}, nil
}

// stage is for what is written before it is true; nil where nothing is written.
func (ds *DataStore) stage() *ledger.Stage {
	if ds.journal == nil {
		return nil
	}
	return ds.stages.Get().(*ledger.Stage)
}

func (ds *DataStore) putBack(st *ledger.Stage) {
	if st != nil {
		ds.stages.Put(st)
	}
}

func ledgerKey(k IPAMKey) ledger.Key {
	return ledger.Key{Network: k.NetworkName, ContainerID: k.ContainerID, IfName: k.IfName}
}

func claimOf(k IPAMKey, m IPAMMetadata) ledger.Request {
	return ledger.Request{Key: ledgerKey(k), Pod: ledger.Pod{Namespace: m.K8SPodNamespace, Name: m.K8SPodName}}
}

// owner is held by whoever is at the lease of a key, or of its placeholder.
func (ds *DataStore) owner(k IPAMKey) *sync.Mutex {
	return &ds.owners[maphash.String(ds.seed, k.ContainerID)%uint64(len(ds.owners))]
}

// repeat answers for a key that has an address. Nothing is staged in st; after
// a write that failed there is something to write all the same.
func (ds *DataStore) repeat(ctx context.Context, st *ledger.Stage, have ledger.Lease, f ledger.Family) (Assigned, error) {
	l := ds.lanes[have.Pool]
	var err error
	if st != nil {
		err = st.Commit(ctx)
	}
	switch {
	case err != nil:
	case l == nil:
		err = fmt.Errorf("it has %s: %w", have.Addr, ErrNotAttached)
	case l.family != f:
		err = fmt.Errorf("family %s: %w: %s", f, ledger.ErrKeyHeld, have.Addr)
	default:
		return Assigned{have.Addr, l.of.Device}, nil
	}
	return Assigned{}, fmt.Errorf("assign an address to %s: %w", have.Key, err)
}

// claim claims, or stages the claim of, an address that is free and does not
// cool. ds.hints is held.
func (ds *DataStore) claim(ctx context.Context, st *ledger.Stage, req *ledger.Request, f ledger.Family) (*spot, netip.Addr, error) {
	now := instant{clock: ds.clock}
	req.Families, req.Within, req.Rested = []ledger.Family{f}, ds.within[:], true
	for _, l := range ds.order[f] {
		if now.before(l.until) {
			continue
		}
		req.Pool = l.pool
		next := never
		for _, s := range l.spots {
			if !now.before(s.until) {
				a, err := ds.claimFrom(ctx, st, s, req)
				if !errors.Is(err, ledger.ErrExhausted) {
					return s, a, err
				}
				s.until = ds.rested(s)
			}
			next = min(next, s.until)
		}
		l.until = next
	}
	return nil, netip.Addr{}, ds.exhausted(f)
}

// claimFrom claims the next free address of s, or stages that.
func (ds *DataStore) claimFrom(ctx context.Context, st *ledger.Stage, s *spot, req *ledger.Request) (a netip.Addr, err error) {
	ds.within[0], req.After = s.prefix, s.lent
	fresh := false
	if st == nil {
		a, fresh, err = ds.book.ClaimAddr(ctx, req)
	} else {
		a, fresh, err = st.ClaimAddr(req)
	}
	switch {
	case err != nil:
		return a, err
	case !fresh:
		return a, ledger.ErrKeyHeld
	}
	s.advance(a)
	if s.prefix.IsSingleIP() {
		s.until = never
	}
	return a, nil
}

// advance moves the cursor to an address that is claimed.
func (s *spot) advance(a netip.Addr) {
	if s.prior = s.lent; !s.prior.IsValid() {
		s.prior = a.Prev()
	}
	s.lent = a
	if len(s.failed) > 0 {
		delete(s.failed, a)
	}
}

// takeBack has a claim that could not be written leave the cursor where it was
// before. If the claims after it fail, too, the cursor goes back by all of them.
func (ds *DataStore) takeBack(s *spot, a, before netip.Addr) {
	ds.hints.Lock()
	defer ds.hints.Unlock()
	if s.failed == nil {
		s.failed = map[netip.Addr]netip.Addr{}
	}
	s.failed[a] = before
	for {
		before, failed := s.failed[s.lent]
		if !failed {
			break
		}
		delete(s.failed, s.lent)
		s.lent = before
	}
	s.until, s.lane.until = 0, 0
}

// rested is when an address of s, none of which is free, will have cooled.
func (ds *DataStore) rested(s *spot) time.Duration {
	since, cools := ds.book.Cooling(s.lane.pool, s.prefix)
	if !cools {
		return never
	}
	return ds.clock.since(since) + ds.opt.CoolDown
}

// spot is the block of l that a is of.
func (l *lane) spot(a netip.Addr) *spot {
	i, found := slices.BinarySearchFunc(l.spots, a, func(s *spot, a netip.Addr) int { return s.prefix.Addr().Compare(a) })
	if !found {
		i--
	}
	if i < 0 || !l.spots[i].prefix.Contains(a) {
		return nil
	}
	return l.spots[i]
}

// free notes that an address of s will be free after the cool-down.
func (ds *DataStore) free(s *spot, coolDown time.Duration) {
	ds.hints.Lock()
	defer ds.hints.Unlock()
	at := time.Duration(0) // at once: that needs no clock
	if coolDown > 0 {
		at = ds.clock.now() + coolDown
	}
	s.until, s.lane.until = min(s.until, at), min(s.lane.until, at)
}

// exhausted says that nothing is free, and when something will be.
func (ds *DataStore) exhausted(f ledger.Family) error {
	next, total := never, uint64(0)
	for _, l := range ds.order[f] {
		next = min(next, l.until)
		for _, s := range l.spots {
			total += addrspace.Size(s.prefix)
		}
	}
	if next == never {
		return fmt.Errorf("%w of family %s: all %d are assigned", ErrNoAvailableIP, f, total)
	}
	return fmt.Errorf("%w of family %s: all %d are assigned or cooling, the next one for %s", ErrNoAvailableIP, f, total, next-ds.clock.now())
}

// Unassign is UnassignPodIPv4Address with a context.
func (ds *DataStore) Unassign(ctx context.Context, key IPAMKey) (Assigned, error) {
	if key.IsZero() {
		return Assigned{}, ErrUnknownPod
	}
	x, leftOver, err := ds.unassign(ctx, key)
	if leftOver {
		return ds.unassignLast(ctx, key)
	}
	return x, err
}

// unassign does it, unless the block would better go as well.
func (ds *DataStore) unassign(ctx context.Context, key IPAMKey) (_ Assigned, leftOver bool, _ error) {
	ds.life.RLock()
	defer ds.life.RUnlock()
	if err := errors.Join(ds.failed, ds.refused); err != nil {
		return Assigned{}, false, fmt.Errorf("take the address of %s back: %w", key, err)
	}
	owner := ds.owner(key)
	owner.Lock()
	defer owner.Unlock()
	a, pool, leftOver, err := ds.release(ctx, key)
	switch {
	case err != nil:
		return Assigned{}, false, fmt.Errorf("take the address of %s back: %w", key, err)
	case leftOver:
		return Assigned{}, true, nil
	case a == netip.Addr{}:
		return Assigned{}, false, ErrUnknownPod
	}
	l := ds.lanes[pool]
	if l == nil {
		return Assigned{a, -1}, false, nil
	}
	if s := l.spot(a); s != nil {
		ds.free(s, ds.opt.CoolDown)
	}
	return Assigned{a, l.of.Device}, false, nil
}

// release releases what key has; the address is zero where that is nothing.
// What is of a block that would better go as well is left over.
func (ds *DataStore) release(ctx context.Context, key IPAMKey) (a netip.Addr, pool string, leftOver bool, err error) {
	if ds.journal == nil { // nothing was restored: no pod has an address of such a block
		for _, k := range ds.names(&[2]IPAMKey{}, key) {
			if a, pool, err = ds.book.FreeKey(ctx, ledgerKey(k)); err != nil || a.IsValid() {
				break
			}
		}
		return a, pool, false, err
	}
	st := ds.stages.Get().(*ledger.Stage)
	defer ds.stages.Put(st)
	x, err := ds.stageRelease(st, key)
	if err != nil {
		return a, "", false, err
	}
	if l := ds.lanes[x.Pool]; l != nil && l.prefixes != ds.opt.PrefixMode {
		st.Undo()
		return a, "", true, nil
	}
	return x.Addr, x.Pool, false, st.Commit(ctx)
}

// names are the keys that what key has may be found under: it or its placeholder.
func (ds *DataStore) names(room *[2]IPAMKey, key IPAMKey) []IPAMKey {
	room[0] = key
	if ds.CheckpointMigrationPhase >= 2 {
		return room[:1]
	}
	room[1] = IPAMKey{NetworkName: BackfillNetworkName, ContainerID: key.ContainerID, IfName: BackfillNetworkIface}
	return room[:]
}

// stageRelease stages the release of what key has, or its placeholder; the
// lease is zero where that is nothing.
func (ds *DataStore) stageRelease(st *ledger.Stage, key IPAMKey) (ledger.Lease, error) {
	for _, k := range ds.names(&[2]IPAMKey{}, key) {
		found, err := st.Release(ledger.Selector{Key: ledgerKey(k)})
		if err != nil {
			return ledger.Lease{}, err
		}
		if len(found) > 0 {
			return found[0], nil
		}
	}
	return ledger.Lease{}, nil
}

// unassignLast takes an address back that is of a block of the other mode,
// which goes with its last pod.
func (ds *DataStore) unassignLast(ctx context.Context, key IPAMKey) (Assigned, error) {
	ds.life.Lock()
	defer ds.life.Unlock()
	st := ds.book.Begin()
	x, err := ds.stageRelease(st, key)
	if err != nil {
		return Assigned{}, fmt.Errorf("take the address of %s back: %w", key, err)
	}
	device := -1
	_, s := ds.place(x.Block)
	if s != nil {
		device = s.lane.of.Device
	}
	if s != nil && len(s.leases(ds)) == 1 && s.lane.prefixes != ds.opt.PrefixMode {
		st.Undo()
		err = ds.retire(s, []ledger.Lease{x})
	} else {
		err = st.Commit(ctx)
	}
	switch {
	case err != nil:
		return Assigned{}, fmt.Errorf("take the address of %s back: %w", key, err)
	case x.Addr == netip.Addr{}: // somebody was faster
		return Assigned{}, ErrUnknownPod
	}
	return Assigned{x.Addr, device}, nil
}
