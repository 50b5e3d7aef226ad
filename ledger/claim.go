// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

// Request is a claim.
type Request struct {
	Pool     string
	Key      Key // who holds the lease; must not be zero
	Pod      Pod
	Purpose  Purpose
	Families []Family     // one address of each; nil: of every family that the pool has active blocks of
	Wanted   []netip.Addr // exactly these instead

	After  netip.Addr     // not zero: the next one after it, whatever the pool's order is
	Within []netip.Prefix // only of these blocks, in this order
	More   bool           // also where the key has leases already; this claim cannot be repeated
	Expiry Expiry         // not zero: the lease is pending
}

// Claim leases one address of each family asked for, all or none. A key that
// has leases already gets these, without a write; fresh tells the two apart.
// The leases are durable when Claim returns.
func (l *Ledger) Claim(ctx context.Context, req Request) (leases []Lease, fresh bool, err error) {
	st := l.brief()
	leases, fresh, err = st.Claim(req)
	if err != nil {
		return nil, false, err
	}
	if err := st.Commit(ctx); err != nil {
		return nil, false, fmt.Errorf("claim an address for %s: %w", req.Key, err)
	}
	l.briefs.Put(st)
	return leases, fresh, nil
}

// Claim stages what Ledger.Claim would do. Without a commit nothing of it is answered.
func (st *Stage) Claim(req Request) (leases []Lease, fresh bool, err error) {
	return st.claimInto(nil, req)
}

// claimInto is Claim with room for its answer.
func (st *Stage) claimInto(room []Lease, req Request) (leases []Lease, fresh bool, err error) {
	l := st.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if req.Key == (Key{}) {
		return nil, false, fmt.Errorf("claim in pool %q: the key is empty", req.Pool)
	}
	if err := req.Expiry.check(); err != nil {
		return nil, false, fmt.Errorf("claim in pool %q for %s: %w", req.Pool, req.Key, err)
	}
	l.lapse()
	if !req.More {
		have, err := l.settledOf(st, req.Key)
		if err != nil {
			return nil, false, fmt.Errorf("claim for %s: %w", req.Key, err)
		}
		if len(have) > 0 {
			return l.repeat(req, have)
		}
	}
	began := len(st.changes)
	l.gen++
	leases, err = st.claim(room, req)
	if err != nil {
		st.undoTo(began)
		return nil, false, &claimError{req.Pool, req.Key, req.Pod, err}
	}
	return leases, true, nil
}

func describe(k Key, p Pod) string {
	if p.Name == "" {
		return k.String()
	}
	return p.String() + " (" + k.String() + ")"
}

// claimError says what was to be claimed for whom. Its text is made when
// somebody asks: many callers only want to know that a pool is full.
type claimError struct {
	pool string
	key  Key
	pod  Pod
	err  error
}

func (e *claimError) Error() string {
	return fmt.Sprintf("claim in pool %q for %s: %v", e.pool, describe(e.key, e.pod), e.err)
}

func (e *claimError) Unwrap() error { return e.err }

// settledOf are the leases of k, once no other stage is at them.
func (l *Ledger) settledOf(st *Stage, k Key) ([]*lease, error) {
	for {
		var have []*lease
		l.held(k, func(x *lease) bool {
			have = append(have, x)
			return true
		})
		if wait, err := l.others(st, have); err != nil || !wait {
			return have, err
		}
		l.settled.Wait()
	}
}

// others is true where another stage is at one of the leases, and about to
// settle. A stage that somebody fills in several steps is not waited for: it may
// be the caller's own, one level up.
func (l *Ledger) others(st *Stage, xs []*lease) (wait bool, err error) {
	for _, x := range xs {
		switch {
		case x.owner == nil || x.owner == st:
		case !x.owner.brief && !x.owner.committing:
			return false, ErrBusy
		default:
			wait = true
		}
	}
	return wait, nil
}

// repeat answers a claim of a key that has leases.
func (l *Ledger) repeat(req Request, have []*lease) ([]Lease, bool, error) {
	slices.SortFunc(have, func(x, y *lease) int { return x.addr.Compare(y.addr) })
	var leases []Lease
	for _, x := range have {
		switch {
		case x.leaving:
			return nil, false, fmt.Errorf("claim for %s: its release is under way", req.Key)
		case x.block.pool.Name != req.Pool:
			return nil, false, fmt.Errorf("claim in pool %q for %s: %w: %s of pool %q", req.Pool, req.Key, ErrKeyHeld, x.addr, x.block.pool.Name)
		}
		leases = append(leases, x.value())
	}
	for _, a := range req.Wanted {
		if !slices.ContainsFunc(leases, func(x Lease) bool { return x.Addr == a }) {
			return nil, false, fmt.Errorf("claim %s for %s: %w: %s", a, req.Key, ErrKeyHeld, leases[0].Addr)
		}
	}
	return leases, false, nil
}

func (st *Stage) claim(leases []Lease, req Request) ([]Lease, error) {
	l := st.l
	p := l.pools[req.Pool]
	if p == nil {
		return nil, ErrNoPool
	}
	if len(l.suspended) > 0 && req.Purpose != ForInfra {
		return nil, fmt.Errorf("%w: %s", ErrSuspended, l.suspension())
	}
	for _, a := range req.Wanted {
		x, err := st.claimAddr(p, a, req)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a, err)
		}
		leases = append(leases, x.value())
	}
	if len(req.Wanted) > 0 {
		return leases, nil
	}
	families := req.Families
	if families == nil {
		var room [2]Family
		families = p.families(room[:0])
	}
	for _, f := range families {
		x, err := st.claimAny(p, f, req)
		if err != nil {
			return nil, err
		}
		leases = append(leases, x.value())
	}
	if len(leases) == 0 {
		return nil, ErrNoBlock
	}
	return leases, nil
}

// families adds those that the pool has active blocks of to fs.
func (p *pool) families(fs []Family) []Family {
	for f := range p.fam {
		if slices.ContainsFunc(p.fam[f].blocks, func(b *block) bool { return b.state == Active }) {
			fs = append(fs, Family(f))
		}
	}
	return fs
}

// claimAny stages any address of a family; where none is free, the one that
// has cooled longest.
func (st *Stage) claimAny(p *pool, f Family, req Request) (*lease, error) {
	s := &p.fam[f]
	st.l.expire(p, s)
	order := p.Order
	if req.After.IsValid() && FamilyOf(req.After) == f {
		order, s.cursor = Serial, req.After
	}
	if b, a, ok := s.takeFor(order, req.Within); ok {
		return st.put(b, a, nil, req, ""), nil
	}
	for old := s.cooling.head; old != nil; old = old.next {
		if b := s.blockOf(old.addr); b != nil && b.state == Active && !p.isReserved(b, old.addr) && req.allows(b) {
			s.cooling.remove(old)
			s.cursor = old.addr
			return st.put(b, old.addr, old, req, ""), nil
		}
	}
	if !slices.Contains(p.families(nil), f) {
		return nil, fmt.Errorf("%w of family %s yet", ErrNoBlock, f)
	}
	return nil, p.exhausted(f)
}

// allows is true for a block that the request may be served from.
func (r *Request) allows(b *block) bool {
	return len(r.Within) == 0 || slices.Contains(r.Within, b.prefix)
}

// claimAddr stages a named address. Only infra may have one that is never lent.
func (st *Stage) claimAddr(p *pool, a netip.Addr, req Request) (*lease, error) {
	s := &p.fam[FamilyOf(a)]
	st.l.expire(p, s)
	b := s.blockOf(a)
	switch {
	case b == nil:
		return nil, fmt.Errorf("%w: it is in no block of pool %q", ErrOutside, p.Name)
	case b.state != Active:
		return nil, fmt.Errorf("%w: its block %s is draining", ErrOutside, b.prefix)
	case p.excluded[a].stage != nil && p.excluded[a].stage != st:
		return nil, fmt.Errorf("its exclusion is under way: %w", ErrBusy)
	case req.Purpose != ForInfra && p.isExcluded(a):
		return nil, fmt.Errorf("%w: %w by %s", ErrOutside, ErrExcluded, p.by(a))
	case req.Purpose != ForInfra && p.isReserved(b, a):
		return nil, fmt.Errorf("%w: it is reserved by the policy of pool %q", ErrOutside, p.Name)
	}
	old := s.leases[a]
	switch {
	case old == nil:
		b.space.TakeAddr(a)
	case old.state == Cooling:
		s.cooling.remove(old)
	case old.owner == nil && old.purpose == ForInfra && req.Purpose == ForInfra && old.block.state == Draining:
		st.l.unlink(old) // a block that is cut anew has the same gateway
	default:
		return nil, fmt.Errorf("%w: %s by %s", ErrTaken, old.state, describe(old.key, old.pod))
	}
	return st.put(b, a, old, req, ""), nil
}

// put stages the lease of an address that is out of the free ones already; a
// reason makes it quarantined.
func (st *Stage) put(b *block, a netip.Addr, replaced *lease, req Request, reason string) *lease {
	l := st.l
	x := &lease{
		addr: a, block: b, key: req.Key, pod: req.Pod, purpose: req.Purpose, gen: l.gen,
		since: l.opt.Now().UnixNano(), staged: true, owner: st, reason: reason,
	}
	x.timer = l.newTimer(x, req.Expiry)
	x.state = x.timer.state()
	if reason != "" {
		x.state = Quarantined
	}
	l.link(x)
	st.changes = append(st.changes, change{kind: claimed, lease: x, replaced: replaced})
	return x
}

// exhausted counts where the addresses of a family are.
func (p *pool) exhausted(f Family) error {
	e := &Exhausted{Pool: p.Name, Family: f, Cooling: p.fam[f].cooling.n}
	for _, b := range p.fam[f].blocks {
		if b.state == Active {
			e.Size, e.Reserved = e.Size+addrspace.Size(b.prefix), e.Reserved+b.reserved
			e.Held, e.Quarantined = e.Held+b.users-b.quarantined+b.infra, e.Quarantined+b.quarantined
		}
	}
	return e
}

// Quarantine stages a lease of an address that something in the world uses and
// nobody claimed. It does nothing where the address has a lease already, or
// cools after one of the same pod; it fails where no block contains it.
func (st *Stage) Quarantine(pool string, a netip.Addr, pod Pod, reason string) (fresh bool, err error) {
	l := st.l
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.pools[pool]
	if p == nil {
		return false, fmt.Errorf("quarantine %s in pool %q: %w", a, pool, ErrNoPool)
	}
	l.lapse()
	s := &p.fam[FamilyOf(a)]
	b, old := s.blockOf(a), s.leases[a]
	switch {
	case b == nil:
		return false, fmt.Errorf("quarantine %s: %w: it is in no block of pool %q", a, ErrOutside, pool)
	case p.excluded[a].stage != nil:
		return false, fmt.Errorf("quarantine %s: its exclusion is under way: %w", a, ErrBusy)
	case old != nil && (old.state != Cooling || old.pod.Name == pod.Name && old.pod.Namespace == pod.Namespace):
		return false, nil
	case old != nil:
		s.cooling.remove(old)
	default:
		b.space.TakeAddr(a)
	}
	l.gen++
	st.put(b, a, old, Request{Pod: pod}, reason)
	return true, nil
}
