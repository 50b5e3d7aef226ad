// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// Cool makes a free address of a pool cool since an uptime, for a face that
// restores leases from a format of its own. After an error of the journal the
// address cools all the same, and the next commit writes its record.
func (l *Ledger) Cool(ctx context.Context, pool string, a netip.Addr, since time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := context.Cause(ctx)
	if err == nil {
		err = l.coolFree(pool, a, since)
	}
	if err == nil {
		err = l.flush(ctx)
	}
	if err != nil {
		return fmt.Errorf("cool %s in pool %q: %w", a, pool, err)
	}
	return nil
}

func (l *Ledger) coolFree(pool string, a netip.Addr, since time.Duration) error {
	b, err := l.freeIn(pool, a)
	if err != nil {
		return err
	}
	b.family().occupyAll(a)
	l.gen++
	x := l.newLease()
	x.addr, x.block, x.gen = a, b, l.gen
	x.state, x.cooled = Cooling, since
	x.since = l.opt.Now().Add(since - l.opt.Uptime()).UnixNano()
	l.link(x, 0)
	b.family().insertCooling(x)
	l.noteLease(Restored, x, "")
	l.dirty[leaseKey(pool, a)] = struct{}{}
	l.wakeRun()
	return nil
}

// Move moves the lease of an address, held or cooling, to another pool whose
// block has the address free. Nothing else of the lease changes. After an error
// of the journal the lease has moved all the same, and the next commit writes
// both records.
func (l *Ledger) Move(ctx context.Context, from, to string, a netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := context.Cause(ctx)
	if err == nil {
		err = l.move(from, to, a)
	}
	if err == nil {
		err = l.flush(ctx)
	}
	if err != nil {
		return fmt.Errorf("move %s from pool %q to pool %q: %w", a, from, to, err)
	}
	return nil
}

func (l *Ledger) move(from, to string, a netip.Addr) error {
	source := l.pools[from]
	if source == nil {
		return ErrNoPool
	}
	fp := &source.fam[FamilyOf(a)]
	x := fp.lease(a)
	switch {
	case x == nil:
		return fmt.Errorf("%w: it has no lease", ErrOutside)
	case x.owner != nil:
		return ErrBusy
	}
	b, err := l.freeIn(to, a)
	if err != nil {
		return err
	}
	cooling := x.state == Cooling
	if cooling {
		fp.removeCooling(x)
	} else {
		l.unlink(x)
	}
	l.drop(x)
	left := x.block
	b.family().occupyAll(a)
	x.block = b
	l.link(x, l.hash(&x.key))
	if cooling {
		b.family().insertCooling(x)
	}
	l.noteLease(Moved, x, "from pool "+from)
	l.dirty[leaseKey(from, a)] = struct{}{}
	l.dirty[leaseKey(to, a)] = struct{}{}
	l.sweep(left)
	l.wakeRun()
	return nil
}

// freeIn returns the active block of a pool in which a is free.
func (l *Ledger) freeIn(pool string, a netip.Addr) (*block, error) {
	p := l.pools[pool]
	if p == nil {
		return nil, ErrNoPool
	}
	fp := &p.fam[FamilyOf(a)]
	l.expireCooling(p, fp)
	b := fp.blockOf(a)
	switch {
	case b == nil || b.state != Active:
		return nil, fmt.Errorf("%w: no active block has it", ErrOutside)
	case !b.space.IsFree(netip.PrefixFrom(a, a.BitLen())):
		return nil, ErrTaken
	}
	return b, nil
}
