// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/ledger/addrspace"
)

// Assigned is the address of a pod with the interface that has it.
type Assigned struct {
	Addr   netip.Addr
	Device int // device number of the interface; -1 if it is not attached
}

// AssignPodIPv4Address assigns an address to a key, and returns it with the
// device number of its interface. A repeated call returns the same address.
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

// UnassignPodIPv4Address releases the address of a key, of either family; the
// address then cools. A key without an address is ErrUnknownPod, which a caller
// that wants the address released may treat as success.
func (ds *DataStore) UnassignPodIPv4Address(ipamKey IPAMKey) (ip string, deviceNumber int, err error) {
	x, err := ds.Unassign(context.Background(), ipamKey)
	if err != nil {
		return "", -1, err
	}
	return x.Addr.String(), x.Device, nil
}

// Assign is AssignPodIPv4Address with a context, the pod's name, which
// checkpoints keep beside the key, and the family.
func (ds *DataStore) Assign(ctx context.Context, key IPAMKey, pod IPAMMetadata, f ledger.Family) (Assigned, error) {
	if key.IsZero() {
		return Assigned{}, fmt.Errorf("assign an address: the key is empty")
	}
	if ctx.Err() != nil {
		return Assigned{}, fmt.Errorf("assign an address to %s: %w", key, context.Cause(ctx))
	}
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	x, err := ds.assign(ctx, key, pod, f)
	if err != nil {
		return Assigned{}, fmt.Errorf("assign an address to %s: %w", key, err)
	}
	return x, nil
}

func (ds *DataStore) assign(ctx context.Context, key IPAMKey, pod IPAMMetadata, f ledger.Family) (Assigned, error) {
	if err := errors.Join(ds.failed, ds.refused); err != nil {
		return Assigned{}, err
	}
	req := claimOf(key, pod)
	req.Families, req.Rested = []ledger.Family{f}, true
	for {
		pool, wait, ok := ds.ledger.FirstFree(f, ds.order[f])
		if ok {
			req.Pool = pool
			a, fresh, err := ds.ledger.ClaimAddr(ctx, &req)
			switch {
			case err == nil && fresh:
				return Assigned{a, ds.subpools[pool].device()}, nil
			case errors.Is(err, ledger.ErrExhausted):
				continue // another call was faster
			case err != nil && !errors.Is(err, ledger.ErrKeyHeld):
				return Assigned{}, err
			}
		}
		have := ds.ledger.ByKey(req.Key)
		switch {
		case len(have) > 0:
			return ds.repeat(ctx, have, f)
		case !ok:
			return Assigned{}, ds.noAddress(f, wait)
		}
	}
}

func ledgerKey(k IPAMKey) ledger.Key {
	return ledger.Key{Network: k.NetworkName, ContainerID: k.ContainerID, IfName: k.IfName}
}

func claimOf(k IPAMKey, m IPAMMetadata) ledger.Request {
	return ledger.Request{Key: ledgerKey(k), Pod: ledger.Pod{Namespace: m.K8SPodNamespace, Name: m.K8SPodName}}
}

// repeat answers for a key that has a lease. The empty commit writes what a
// failed one has left to write.
func (ds *DataStore) repeat(ctx context.Context, all []ledger.Lease, f ledger.Family) (Assigned, error) {
	have := all[0]
	for _, l := range all {
		if ledger.FamilyOf(l.Addr) == f {
			have = l
		}
	}
	if err := ds.ledger.Begin().Commit(ctx); err != nil {
		return Assigned{}, err
	}
	s := ds.subpools[have.Pool]
	switch {
	case s == nil:
		return Assigned{}, fmt.Errorf("it has %s: %w", have.Addr, ErrNotAttached)
	case s.family != f:
		return Assigned{}, fmt.Errorf("family %s: %w: %s", f, ledger.ErrKeyHeld, have.Addr)
	}
	return Assigned{have.Addr, s.of.Device}, nil
}

// noAddress returns the error for a family without a free address. wait is the
// rest of the shortest cool-down, negative if no address cools.
func (ds *DataStore) noAddress(f ledger.Family, wait time.Duration) error {
	total := uint64(0)
	for _, b := range ds.blocks {
		if b.of.family == f && b.of.prefixes == ds.opt.PrefixMode && !b.of.of.Excluded {
			total += addrspace.Size(b.prefix)
		}
	}
	if wait < 0 {
		return fmt.Errorf("%w of family %s: all %d are assigned", ErrNoAvailableIP, f, total)
	}
	return fmt.Errorf(
		"%w of family %s: all %d are assigned or cooling, the next one for %s",
		ErrNoAvailableIP,
		f,
		total,
		wait,
	)
}

// Unassign is UnassignPodIPv4Address with a context.
func (ds *DataStore) Unassign(ctx context.Context, key IPAMKey) (Assigned, error) {
	if key.IsZero() {
		return Assigned{}, ErrUnknownPod
	}
	if ctx.Err() != nil {
		return Assigned{}, fmt.Errorf("release the address of %s: %w", key, context.Cause(ctx))
	}
	a, of, err := ds.unassign(ctx, key)
	switch {
	case err != nil:
		return Assigned{}, fmt.Errorf("release the address of %s: %w", key, err)
	case !a.IsValid():
		return Assigned{}, ErrUnknownPod
	case of == nil:
		return Assigned{a, -1}, nil
	case of.prefixes != ds.opt.PrefixMode:
		ds.removeUnused(a)
	}
	return Assigned{a, of.of.Device}, nil
}

// unassign releases the address of a key, or of its placeholder. Without a lease
// the address is zero; without an attached interface the subpool is nil.
func (ds *DataStore) unassign(ctx context.Context, key IPAMKey) (netip.Addr, *subpool, error) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	if err := errors.Join(ds.failed, ds.refused); err != nil {
		return netip.Addr{}, nil, err
	}
	a, pool, err := ds.ledger.FreeKey(ctx, ledgerKey(key))
	if err == nil && !a.IsValid() && ds.CheckpointMigrationPhase < 2 {
		a, pool, err = ds.ledger.FreeKey(ctx, ledger.Key{
			Network:     BackfillNetworkName,
			ContainerID: key.ContainerID,
			IfName:      BackfillNetworkIface,
		})
	}
	if err != nil || !a.IsValid() {
		return a, nil, err
	}
	return a, ds.subpools[pool], nil
}

// removeUnused removes the block of an address, which is of the other mode, if
// no pod has an address of it any more.
func (ds *DataStore) removeUnused(a netip.Addr) {
	defer ds.lock()()
	_, b, found := ds.find(netip.PrefixFrom(a, a.BitLen()))
	if !found || b.of.prefixes == ds.opt.PrefixMode || len(ds.heldIn(b)) > 0 {
		return
	}
	if err := ds.remove(b, nil); err != nil {
		ds.opt.Log.Error("an unused block of the other mode could not be removed",
			"interface", b.of.of.ID, "block", b.prefix, "error", err)
	}
}
