// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// Exclusion keeps an address from being allocated, whether or not it has a lease now
// and whether or not a block contains it yet. It is durable and is not a lease.
type Exclusion struct {
	Pool   string
	Addr   netip.Addr
	Owner  string // component or person that excludes the address
	Reason string
}

// exclusion is an Exclusion in the ledger. One with a stage is not committed yet; its
// address is not allocated any more.
type exclusion struct {
	owner, reason string
	stage         *Stage
}

// exclusionChange is the begin or the end of an exclusion.
type exclusionChange struct {
	pool       *pool
	addr       netip.Addr
	before     exclusion
	was        bool   // it was excluded before
	lease      *lease // of the address
	readmitted bool
}

// Exclude excludes an address. A second call replaces the owner and the reason.
func (l *Ledger) Exclude(ctx context.Context, e Exclusion) error {
	err := l.autocommit(ctx, func(st *Stage) error { return st.exclude(e) })
	return explain(err, "exclude %s from pool %q", e.Addr, e.Pool)
}

// Readmit ends the exclusion of an address, if there is one.
func (l *Ledger) Readmit(ctx context.Context, pool string, a netip.Addr) error {
	err := l.autocommit(ctx, func(st *Stage) error { return st.readmit(pool, a) })
	return explain(err, "readmit %s to pool %q", a, pool)
}

// Exclude stages the change that Ledger.Exclude commits.
func (st *Stage) Exclude(e Exclusion) error {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	return st.exclude(e)
}

// Readmit stages the change that Ledger.Readmit commits.
func (st *Stage) Readmit(pool string, a netip.Addr) error {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	return st.readmit(pool, a)
}

func (st *Stage) exclude(e Exclusion) error {
	if e.Pool == "" || !e.Addr.IsValid() || e.Addr.Is4In6() || e.Addr.Zone() != "" {
		return fmt.Errorf(
			"exclude address %s from pool %q: a pool and a plain IPv4 or IPv6 address are needed",
			e.Addr,
			e.Pool,
		)
	}
	if err := st.changeExclusion(e, false); err != nil {
		return fmt.Errorf("exclude %s from pool %q: %w", e.Addr, e.Pool, err)
	}
	return nil
}

func (st *Stage) readmit(pool string, a netip.Addr) error {
	if err := st.changeExclusion(Exclusion{Pool: pool, Addr: a}, true); err != nil {
		return fmt.Errorf("readmit %s to pool %q: %w", a, pool, err)
	}
	return nil
}

// changeExclusion stages the begin of an exclusion, or its end. It waits for other
// stages that change the address.
func (st *Stage) changeExclusion(e Exclusion, readmit bool) error {
	l := st.l
	st.asked = true
	for {
		l.expirePending()
		p := l.pools[e.Pool]
		if p == nil && readmit {
			return nil
		}
		p = l.pool(e.Pool)
		x := p.fam[FamilyOf(e.Addr)].lease(e.Addr)
		now, was := p.excluded[e.Addr]
		by := now.stage
		if x != nil && x.owner != nil {
			by = x.owner
		}
		switch {
		case by == nil:
			if now.owner != e.Owner || now.reason != e.Reason || was == readmit {
				st.stageExclusion(
					&exclusionChange{pool: p, addr: e.Addr, before: now, was: was, lease: x, readmitted: readmit},
					e,
				)
			}
			return nil
		case by == st || !by.autocommit && !by.committing:
			return ErrBusy
		}
		l.ended.Wait()
	}
}

func (st *Stage) stageExclusion(b *exclusionChange, e Exclusion) {
	if b.lease != nil && b.lease.state == Cooling {
		b.lease = nil // it may end before the commit
	}
	if b.lease != nil {
		b.lease.owner = st
	}
	st.changes = append(st.changes, change{kind: excluded, exclusion: b, event: st.event})
	if b.readmitted {
		// Until the commit the address stays excluded.
		b.pool.excluded[b.addr] = exclusion{b.before.owner, b.before.reason, st}
		return
	}
	b.pool.addExclusion(b.addr, exclusion{e.Owner, e.Reason, st})
}

// addExclusion keeps a out of the spaces of the blocks that contain it.
func (p *pool) addExclusion(a netip.Addr, e exclusion) {
	if !p.isExcluded(a) {
		p.reserveMore(a, 1)
		p.fam[FamilyOf(a)].occupyAll(a)
	}
	if p.excluded == nil {
		p.excluded = map[netip.Addr]exclusion{}
	}
	p.excluded[a] = e
}

// removeExclusion undoes addExclusion.
func (p *pool) removeExclusion(a netip.Addr) {
	delete(p.excluded, a)
	p.reserveMore(a, -1)
	fp := &p.fam[FamilyOf(a)]
	if fp.lease(a) != nil {
		return
	}
	if b := fp.blockOf(a); b != nil {
		fp.vacate(b, a)
	}
}

// reserveMore counts a, which is not excluded, as reserved or not, in the blocks
// that do not reserve it by policy.
func (p *pool) reserveMore(a netip.Addr, n int) {
	fp := &p.fam[FamilyOf(a)]
	for i := range fp.lengths {
		if b := fp.blockOfLength(a, fp.lengths[i].bits); b != nil && !p.isReserved(b, a) {
			b.reserved += uint64(n)
		}
	}
}

// revert undoes the staged change.
func (b *exclusionChange) revert() {
	if b.lease != nil {
		b.lease.owner = nil
	}
	if b.was {
		b.pool.excluded[b.addr] = b.before
		return
	}
	b.pool.removeExclusion(b.addr)
}

// apply makes the durable change effective.
func (b *exclusionChange) apply() {
	if b.lease != nil {
		b.lease.owner = nil
	}
	if b.readmitted {
		b.pool.removeExclusion(b.addr)
		return
	}
	e := b.pool.excluded[b.addr]
	e.stage = nil
	b.pool.excluded[b.addr] = e
}

// op returns the record of the address after the change.
func (b *exclusionChange) op(l *Ledger) (kvdb.Op, error) {
	x := b.lease
	if x == nil { // or one that is cooling
		x = b.pool.fam[FamilyOf(b.addr)].lease(b.addr)
	}
	e := b.pool.excluded[b.addr]
	defer func() { b.pool.excluded[b.addr] = e }()
	if b.readmitted {
		delete(b.pool.excluded, b.addr)
	}
	if x == nil {
		return l.emptyOp(b.pool, b.addr)
	}
	return l.leaseOp(x)
}

// emptyOp returns the record of an address without a lease: its exclusion, or none.
func (l *Ledger) emptyOp(p *pool, a netip.Addr) (kvdb.Op, error) {
	key := leaseKey(p.Name, a)
	e, ok := p.excluded[a]
	if !ok {
		return kvdb.Delete(key), nil
	}
	m := l.newRecord(a)
	m.BlockBits, m.Pool = uint32(a.BitLen()), p.Name
	m.State, m.Reason, m.NoLease = uint32(Quarantined), e.reason, true
	e.write(m)
	return record(key, m)
}

func (e exclusion) write(m *kv.Lease) {
	m.Excluded, m.ExcludedBy, m.ExcludedReason = true, e.owner, e.reason
}

// by returns the owner of the exclusion of a and its reason.
func (p *pool) by(a netip.Addr) string {
	e := p.excluded[a]
	if e.reason == "" {
		return e.owner
	}
	return e.owner + " (" + e.reason + ")"
}

// Excluded returns the exclusion of an address, if it has a committed one.
func (l *Ledger) Excluded(pool string, a netip.Addr) (Exclusion, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.pools[pool]; p != nil {
		if e, ok := p.excluded[a]; ok && e.stage == nil {
			return Exclusion{pool, a, e.owner, e.reason}, true
		}
	}
	return Exclusion{}, false
}

// Exclusions returns all committed exclusions, by pool and address.
func (l *Ledger) Exclusions() []Exclusion {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []Exclusion
	for _, p := range l.pools {
		for a, e := range p.excluded {
			if e.stage == nil {
				all = append(all, Exclusion{p.Name, a, e.owner, e.reason})
			}
		}
	}
	slices.SortFunc(all, func(x, y Exclusion) int {
		return cmp.Or(strings.Compare(x.Pool, y.Pool), x.Addr.Compare(y.Addr))
	})
	return all
}
