// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger/addrspace"
)

// Check compares the tables and lists of the ledger with each other and with the
// journal, and describes each difference. No commit is made meanwhile.
func (l *Ledger) Check(ctx context.Context) (findings []string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pause()
	defer l.endWriting()
	findings = l.checkMemory()
	if _, null := l.journal.(NullJournal); null {
		return findings, nil
	}
	more, err := l.checkJournal(ctx)
	findings = append(findings, more...)
	if err != nil {
		return findings, fmt.Errorf("check the ledger: %w", err)
	}
	return findings, nil
}

// checkMemory compares every lease with each table and list that should hold it.
func (l *Ledger) checkMemory() (findings []string) {
	say := func(format string, args ...any) { findings = append(findings, fmt.Sprintf(format, args...)) }
	timersArmed := 0
	for _, name := range slices.Sorted(maps.Keys(l.pools)) {
		p := l.pools[name]
		timersArmed += len(p.timers)
		l.checkTimers(p, say)
		for i := range p.fam {
			fp := &p.fam[i]
			cooling := 0
			for _, x := range slices.SortedFunc(fp.leases.all(), compareAddr) {
				l.checkLease(p, fp, x, say)
				if x.state == Cooling {
					cooling++
				}
			}
			if cooling != fp.cooling.n {
				say("pool %q: %d addresses are cooling, %d are queued for it", name, cooling, fp.cooling.n)
			}
			fp.checkBlocks(say)
		}
	}
	if timersArmed != l.timersArmed {
		say("%d expiries are queued, want %d", timersArmed, l.timersArmed)
	}
	return findings
}

// checkTimers compares the expiries of leases with those that are queued.
func (l *Ledger) checkTimers(p *pool, say func(string, ...any)) {
	n := 0
	for i := range p.fam {
		for x := range p.fam[i].leases.all() {
			switch t := x.timer; {
			case t == nil:
			case x.state != Pending:
				say("%s of pool %q is %s and has an expiry", x.addr, p.Name, x.state)
			case !t.ends():
			case t.lease != x || t.index >= len(p.timers) || p.timers[t.index] != t:
				say("the expiry of %s of pool %q is not queued", x.addr, p.Name)
			default:
				n++
			}
		}
	}
	if n != len(p.timers) {
		say("pool %q: %d leases expire, %d expiries are queued", p.Name, n, len(p.timers))
	}
}

// checkBlocks compares the free addresses of each block with its leases, and the
// free lists with the blocks.
func (fp *familyPool) checkBlocks(say func(string, ...any)) {
	lists := [freeLists]*freeList{fp.freeList(byPrefix), fp.freeList(byRank)}
	if !slices.IsSortedFunc(fp.blocks, func(x, y *block) int { return comparePrefix(x.prefix, y.prefix) }) {
		say("the blocks %v are not sorted", fp.blocks)
	}
	for _, b := range fp.blocks {
		name, size, outside, cooling := b.pool.Name, addrspace.Size(b.prefix), b.reserved, 0
		for _, x := range fp.leasesIn(b.prefix) {
			if !b.pool.isReserved(b, x.addr) {
				outside++
			}
			if x.block == b && x.state == Cooling {
				cooling++
			}
		}
		if got := b.space.Free(); got != size-outside && size != ^uint64(0) {
			say("block %s of pool %q: %d addresses are free, want %d", b.prefix, name, got, size-outside)
		}
		if cooling != b.cooling.n {
			say(
				"block %s of pool %q: %d addresses are cooling, %d are queued for it",
				b.prefix,
				name,
				cooling,
				b.cooling.n,
			)
		}
		for by, l := range lists {
			if b.state != Active {
				continue
			}
			i := b.at[by]
			if has := b.space.Free() > 0; l.blocks[i] != b || l.room[i/64]>>(i%64)&1 == 1 != has {
				say("block %s of pool %q is not in free list %d as it is", b.prefix, name, by)
			}
		}
	}
}

// checkLease looks for x in its block and in the tables.
func (l *Ledger) checkLease(p *pool, fp *familyPool, x *lease, say func(string, ...any)) {
	if i, ok := fp.search(x.block.prefix); !ok || fp.blocks[i] != x.block || !x.block.prefix.Contains(x.addr) {
		say("%s of pool %q has no block", x.addr, p.Name)
		return
	}
	if fp.lease(x.addr) != x {
		say("%s of pool %q cannot be found by its address", x.addr, p.Name)
	}
	if x.block.space.IsFree(netip.PrefixFrom(x.addr, x.addr.BitLen())) {
		say("%s of pool %q is leased and free at once", x.addr, p.Name)
	}
	if x.state == Cooling || x.key == (Key{}) {
		return
	}
	found := false
	l.held(&x.key, l.hash(&x.key), func(y *lease) bool { found = y == x; return !found })
	if !found {
		say("%s of pool %q cannot be found by its key %s", x.addr, p.Name, x.key)
	}
}

// wanted returns the records that the journal should have, without those that are
// dirty or that a stage changes.
func (l *Ledger) wanted() (map[string][]byte, error) {
	want := map[string][]byte{}
	add := func(op kvdb.Op, err error) error {
		if _, dirty := l.dirty[op.Key]; !dirty {
			want[op.Key] = op.Value
		}
		return err
	}
	for _, p := range l.pools {
		if !p.staged && p.hasPolicyRecord() {
			if err := add(policyOp(p)); err != nil {
				return nil, err
			}
		}
		for i := range p.fam {
			for _, b := range p.fam[i].blocks {
				if b.staged {
					continue
				}
				if err := add(blockOp(b)); err != nil {
					return nil, err
				}
			}
			for x := range p.fam[i].leases.all() {
				if x.owner != nil || p.excluded[x.addr].stage != nil {
					continue
				}
				if err := add(l.leaseOp(x)); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, p := range l.pools {
		for a, e := range p.excluded {
			if e.stage != nil || p.fam[FamilyOf(a)].lease(a) != nil {
				continue
			}
			if err := add(l.emptyOp(p, a)); err != nil {
				return nil, err
			}
		}
	}
	return want, nil
}

// checkJournal compares the journal with memory. Claims go on meanwhile, up to
// their commit.
func (l *Ledger) checkJournal(ctx context.Context) (findings []string, err error) {
	want, err := l.wanted()
	if err != nil {
		return nil, err
	}
	unsure := maps.Clone(l.dirty)
	for _, p := range l.pools { // records that a stage changes
		if p.staged {
			unsure[policyKey(p.Name)] = struct{}{}
		}
		for a, e := range p.excluded {
			if e.stage != nil {
				unsure[leaseKey(p.Name, a)] = struct{}{}
			}
		}
		for i := range p.fam {
			for _, b := range p.fam[i].blocks {
				if b.staged {
					unsure[blockKey(p.Name, b.prefix)] = struct{}{}
				}
			}
			for x := range p.fam[i].leases.all() {
				if x.owner != nil {
					unsure[leaseKey(p.Name, x.addr)] = struct{}{}
				}
			}
		}
	}
	l.mu.Unlock()
	defer l.mu.Lock()
	err = l.journal.Load(ctx, func(r kvdb.KeyValue) error {
		v, ok := want[r.Key]
		_, skip := unsure[r.Key]
		switch {
		case skip || r.Key == metaKey:
		case !ok:
			findings = append(findings, fmt.Sprintf("the journal has record %q, the ledger has none", r.Key))
		case !bytes.Equal(v, r.Value) && r.Key[:1] != leasePrefix:
			findings = append(findings, fmt.Sprintf("record %q of the journal differs from the ledger", r.Key))
		case r.Key[:1] == leasePrefix && !sameLease(v, r.Value):
			findings = append(findings, fmt.Sprintf("lease record %q of the journal differs from the ledger", r.Key))
		}
		delete(want, r.Key)
		return nil
	})
	for _, key := range slices.Sorted(maps.Keys(want)) {
		if _, skip := unsure[key]; skip {
			continue
		}
		findings = append(findings, fmt.Sprintf("record %q is missing in the journal", key))
	}
	return findings, err
}
