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

// Check compares the ledger with itself and with its journal, and says in
// plain sentences what does not fit. No commit is made meanwhile.
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

// checkMemory looks at every lease from every side that it can be found from.
func (l *Ledger) checkMemory() (findings []string) {
	say := func(format string, args ...any) { findings = append(findings, fmt.Sprintf(format, args...)) }
	armed := 0
	for _, name := range slices.Sorted(maps.Keys(l.pools)) {
		p := l.pools[name]
		armed += len(p.timers)
		l.checkTimers(p, say)
		for i := range p.fam {
			s := &p.fam[i]
			cooling := 0
			for _, x := range slices.SortedFunc(s.leases.all(), compareAddr) {
				l.checkLease(p, s, x, say)
				if x.state == Cooling {
					cooling++
				}
			}
			if cooling != s.cooling.n {
				say("pool %q: %d addresses are cooling, %d are queued for it", name, cooling, s.cooling.n)
			}
			if len(s.blocks) == 1 {
				b := s.blocks[0]
				if got, want := b.space.Free(), addrspace.Size(b.prefix)-b.outside(s); got != want && addrspace.Size(b.prefix) != ^uint64(0) {
					say("block %s of pool %q: %d addresses are free, %d should be", b.prefix, name, got, want)
				}
			}
		}
	}
	if armed != l.armed {
		say("%d expiries are queued, %d should be", armed, l.armed)
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

// outside is how many addresses of b are not free: reserved or leased.
func (b *block) outside(s *side) uint64 {
	n := b.reserved
	for x := range s.leases.all() {
		if b.prefix.Contains(x.addr) && !b.pool.isReserved(b, x.addr) {
			n++
		}
	}
	return n
}

func (l *Ledger) checkLease(p *pool, s *side, x *lease, say func(string, ...any)) {
	if !slices.Contains(s.blocks, x.block) || !x.block.prefix.Contains(x.addr) {
		say("%s of pool %q is in no block", x.addr, p.Name)
		return
	}
	if s.lease(x.addr) != x {
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

// wanted is what the journal should have, but for what is dirty or under way.
func (l *Ledger) wanted() (map[string][]byte, error) {
	want := map[string][]byte{}
	add := func(op kvdb.Op, err error) error {
		if _, dirty := l.dirty[op.Key]; !dirty {
			want[op.Key] = op.Value
		}
		return err
	}
	for _, p := range l.pools {
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
	for _, p := range l.pools { // what somebody is at
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
			findings = append(findings, fmt.Sprintf("the journal has record %q, the ledger does not know it", r.Key))
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
