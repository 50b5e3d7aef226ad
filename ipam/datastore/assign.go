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
	st := ds.stages.Get().(*ledger.Stage)
	defer ds.stages.Put(st)

	ds.hints.Lock()
	s, x, err := ds.claim(st, claimOf(key, pod), f)
	ds.hints.Unlock()
	if err != nil { // also if the key has an address
		if have := ds.book.ByKey(ledgerKey(key)); len(have) > 0 {
			return ds.repeat(ctx, st, have[0], f)
		}
		return Assigned{}, fmt.Errorf("assign an address to %s: %w", key, err)
	}
	if err := st.Commit(ctx); err != nil {
		ds.free(s, 0)
		return Assigned{}, fmt.Errorf("assign %s to %s: %w", x, key, err)
	}
	return Assigned{x, s.lane.of.Device}, nil
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
	err := st.Commit(ctx)
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

// claim stages the claim of an address that is free and does not cool.
// ds.hints is held.
func (ds *DataStore) claim(st *ledger.Stage, req ledger.Request, f ledger.Family) (*spot, netip.Addr, error) {
	now := ds.clock.now()
	req.Wanted = ds.wanted[:]
	for _, l := range ds.order[f] {
		if l.until > now {
			continue
		}
		req.Pool = l.pool
		next := never
		for _, s := range l.spots {
			if s.until <= now {
				if err := ds.claimFrom(st, s, &req, now); err != nil || !st.Empty() {
					return s, ds.wanted[0], err
				}
			}
			next = min(next, s.until)
		}
		l.until = next
	}
	return nil, netip.Addr{}, ds.exhausted(f, now)
}

// claimFrom stages the claim of an address of s, if one is free. Otherwise it
// notes when to look again.
func (ds *DataStore) claimFrom(st *ledger.Stage, s *spot, req *ledger.Request, now time.Duration) error {
	until, first := never, s.after(s.lent)
	for a := first; ; {
		x, taken := ds.book.Lookup(s.lane.pool, a)
		ends := time.Duration(0)
		if taken && x.State == ledger.Cooling {
			ends = ds.clock.since(x.Since) + ds.opt.CoolDown
			taken = ends > now
			until = min(until, ends)
		}
		if !taken {
			req.Wanted[0] = a
			_, fresh, err := st.Claim(*req)
			if err == nil && !fresh {
				return ledger.ErrKeyHeld
			}
			if err == nil {
				s.lent = a
				if s.prefix.IsSingleIP() {
					s.until = never
				}
				return nil
			}
			if !errors.Is(err, ledger.ErrTaken) { // by a claim that is under way
				return err
			}
		}
		if a = s.after(a); a == first {
			s.until = until
			return nil
		}
	}
}

// after is the address of s that follows a, the first one after the last.
func (s *spot) after(a netip.Addr) netip.Addr {
	if a.IsValid() {
		if a = a.Next(); s.prefix.Contains(a) {
			return a
		}
	}
	return s.prefix.Addr()
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
	at := ds.clock.now() + coolDown
	s.until, s.lane.until = min(s.until, at), min(s.lane.until, at)
}

// exhausted says that nothing is free, and when something will be.
func (ds *DataStore) exhausted(f ledger.Family, now time.Duration) error {
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
	return fmt.Errorf("%w of family %s: all %d are assigned or cooling, the next one for %s", ErrNoAvailableIP, f, total, next-now)
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
	st := ds.stages.Get().(*ledger.Stage)
	defer ds.stages.Put(st)
	x, err := ds.stageRelease(st, key)
	if err != nil {
		return Assigned{}, false, err
	}
	l := ds.lanes[x.Pool]
	if l != nil && l.prefixes != ds.opt.PrefixMode {
		st.Undo()
		return Assigned{}, true, nil
	}
	if err := st.Commit(ctx); err != nil {
		return Assigned{}, false, fmt.Errorf("take the address of %s back: %w", key, err)
	}
	switch {
	case x.Addr == netip.Addr{}:
		return Assigned{}, false, ErrUnknownPod
	case l == nil:
		return Assigned{x.Addr, -1}, false, nil
	}
	if s := l.spot(x.Addr); s != nil {
		ds.free(s, ds.opt.CoolDown)
	}
	return Assigned{x.Addr, l.of.Device}, false, nil
}

// stageRelease stages the release of what key has, or its placeholder; the
// lease is zero where that is nothing.
func (ds *DataStore) stageRelease(st *ledger.Stage, key IPAMKey) (ledger.Lease, error) {
	keys := []IPAMKey{key, {NetworkName: BackfillNetworkName, ContainerID: key.ContainerID, IfName: BackfillNetworkIface}}
	if ds.CheckpointMigrationPhase >= 2 {
		keys = keys[:1]
	}
	for _, k := range keys {
		found, err := st.Release(ledger.Selector{Key: ledgerKey(k)})
		if err != nil {
			return ledger.Lease{}, fmt.Errorf("take the address of %s back: %w", k, err)
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
		return Assigned{}, err
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
