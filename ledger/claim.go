// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/api/kv"
)

// Request describes a claim.
type Request struct {
	Pool     string
	Key      Key // owner of the lease; not zero
	Pod      Pod
	NetNS    string // path of the pod's network namespace; "": not known
	NetNSID  kv.NetNSID
	Wired    bool          // the southbound makes the wire of the attachment
	MAC      string        // requested for the pod's end of the wire; "": derived from the key
	Accepted time.Duration // the uptime at which the request was accepted; 0: not known
	Purpose  Purpose
	Families []Family     // one address of each; nil: every family of which the pool has active blocks
	Wanted   []netip.Addr // exactly these addresses instead

	Order  Order          // Lowest or Serial: instead of the pool's order
	Within []netip.Prefix // only of these blocks and parts of blocks, the first one with room
	Except []netip.Prefix // none of these addresses of Within
	Listed bool           // without Within: the first block with room in the order of SetBlocks
	More   bool           // a further lease of a key that has leases; this claim cannot be repeated
	Rested bool           // never an address that cools
	Expiry Expiry         // not zero: the lease is pending
}

// Claim leases one address of each family of the request, all or none. A key that
// has leases already gets these, and fresh is false; they keep the pod of their own
// claim. If the claim names another network namespace than theirs, they get that one, and
// otherwise nothing is written. The leases are durable when Claim returns.
func (l *Ledger) Claim(ctx context.Context, req Request) (leases []Lease, fresh bool, err error) {
	err = l.autocommit(ctx, func(st *Stage) (err error) {
		leases, fresh, err = st.claimInto(nil, &req)
		return err
	})
	if err != nil {
		return nil, false, explain(err, "claim an address for %s", req.Key)
	}
	return leases, fresh, nil
}

// ClaimAddr is Claim of one address, for a caller that only needs the address and
// whether it is a new one.
func (l *Ledger) ClaimAddr(ctx context.Context, req *Request) (a netip.Addr, fresh bool, err error) {
	if len(req.Wanted)+len(req.Families) != 1 {
		return a, false, fmt.Errorf(
			"claim one address in pool %q for %s: %d families and %d addresses are named, want one of both",
			req.Pool,
			req.Key,
			len(req.Families),
			len(req.Wanted),
		)
	}
	err = l.autocommit(ctx, func(st *Stage) (err error) {
		a, fresh, err = st.claimAddr(req)
		return err
	})
	if err != nil {
		return netip.Addr{}, false, explain(err, "claim an address for %s", req.Key)
	}
	return a, fresh, nil
}

// Claim stages what Ledger.Claim commits.
func (st *Stage) Claim(req Request) (leases []Lease, fresh bool, err error) {
	st.l.mu.Lock()
	defer st.l.mu.Unlock()
	return st.claimInto(nil, &req)
}

func (st *Stage) claimAddr(req *Request) (a netip.Addr, fresh bool, err error) {
	var room [1]Lease
	leases, fresh, err := st.claimInto(room[:0], req)
	switch {
	case err != nil:
		return a, false, err
	case len(leases) != 1:
		return a, false, fmt.Errorf("claim one address in pool %q for %s: %w of %d addresses",
			req.Pool, req.Key, ErrKeyHeld, len(leases))
	}
	return leases[0].Addr, fresh, nil
}

// claimInto stages a claim and appends its leases to room.
func (st *Stage) claimInto(room []Lease, req *Request) (leases []Lease, fresh bool, err error) {
	have, hash, err := st.l.admit(st, req)
	if err != nil {
		return nil, false, err
	}
	if len(have) > 0 {
		if err = st.l.repeatable(req, have); err == nil {
			err = st.move(have, req)
		}
		if err != nil {
			return nil, false, err
		}
		st.resume(have)
		for _, x := range have {
			st.repeated = append(st.repeated, leaseKey(x.block.pool.Name, x.addr))
		}
		return values(have), false, nil
	}
	began := st.here()
	leases, err = st.claim(room, req, hash)
	if err != nil {
		st.undoTo(began)
		return nil, false, req.failed(err)
	}
	return leases, true, nil
}

// admit checks a claim. It returns the leases that its key has already, and the hash
// of the key.
func (l *Ledger) admit(st *Stage, req *Request) (have []*lease, hash uint32, err error) {
	if req.Key == (Key{}) {
		return nil, 0, fmt.Errorf("claim in pool %q: the key is empty", req.Pool)
	}
	if err := req.Expiry.check(); err != nil {
		return nil, 0, fmt.Errorf("claim in pool %q for %s: %w", req.Pool, req.Key, err)
	}
	l.expirePending()
	hash = l.hash(&req.Key)
	if !req.More {
		if have, err = l.leasesOfKey(st, &req.Key, hash); err != nil {
			return nil, 0, fmt.Errorf("claim for %s: %w", req.Key, err)
		}
	}
	if len(have) == 0 {
		l.gen++
	}
	return have, hash, nil
}

func (r *Request) failed(err error) error { return &claimError{r.Pool, r.Key, r.Pod, err} }

// describe returns an owner for an error text.
func describe(k Key, p Pod) string {
	if p.Name == "" {
		return k.String()
	}
	return p.String() + " (" + k.String() + ")"
}

// claimError adds the pool and the owner to the error of a claim. Error makes the
// text: a claim of a full pool often needs none.
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

// leasesOfKey returns the leases of k, whose hash is h. It waits for other stages that
// change them.
func (l *Ledger) leasesOfKey(st *Stage, k *Key, h uint32) ([]*lease, error) {
	for {
		var have []*lease
		l.held(k, h, func(x *lease) bool {
			have = append(have, x)
			return true
		})
		if wait, err := l.changedByOther(st, have); err != nil || !wait {
			return have, err
		}
		l.ended.Wait()
		l.expirePending()
	}
}

// changedByOther reports whether a stage other than st changes one of the leases and
// is about to end. It returns ErrBusy for a stage that is still being filled: that
// one may be the caller's own, one level up, so that waiting for it would not end.
func (l *Ledger) changedByOther(st *Stage, xs []*lease) (wait bool, err error) {
	for _, x := range xs {
		switch {
		case x.owner == nil || x.owner == st:
		case !x.owner.autocommit && !x.owner.committing:
			return false, ErrBusy
		default:
			wait = true
		}
	}
	return wait, nil
}

// repeatable sorts the leases that the key of a claim has, and returns the reason why
// they do not answer the claim.
func (l *Ledger) repeatable(req *Request, have []*lease) error {
	slices.SortFunc(have, compareAddr)
	for _, x := range have {
		switch {
		case x.releasing:
			return fmt.Errorf("claim for %s: its release is in progress", req.Key)
		case x.block.pool.Name != req.Pool:
			return fmt.Errorf(
				"claim in pool %q for %s: %w: %s of pool %q",
				req.Pool,
				req.Key,
				ErrKeyHeld,
				x.addr,
				x.block.pool.Name,
			)
		}
	}
	for _, a := range req.Wanted {
		if !slices.ContainsFunc(have, func(x *lease) bool { return x.addr == a }) {
			return fmt.Errorf("claim %s for %s: %w: %s", a, req.Key, ErrKeyHeld, have[0].addr)
		}
	}
	return nil
}

// move stages that leases belong to the network namespace that a repeated claim names. The
// runtime has made the pod's namespace again, and the leases' own one has ended or is not known.
func (st *Stage) move(have []*lease, req *Request) error {
	for _, x := range have {
		switch same, certain := req.NetNSID.Is(x.netnsID); {
		case !req.NetNSID.Known(), same, !certain && x.netnsID.Known():
			continue
		case x.owner != nil:
			return fmt.Errorf("claim for %s: %s is staged already: %w", req.Key, x.addr, ErrBusy)
		}
		st.changes = append(st.changes, change{kind: moved, lease: x, netns: x.netns, netnsID: x.netnsID})
		x.netns, x.netnsID, x.owner = req.NetNS, req.NetNSID, st
	}
	return nil
}

func (st *Stage) claim(leases []Lease, req *Request, hash uint32) ([]Lease, error) {
	p, err := st.l.poolFor(req)
	if err != nil {
		return nil, err
	}
	for _, a := range req.Wanted {
		found, err := st.l.pickAddr(st, p, a, req)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a, err)
		}
		leases = append(leases, st.allocate(found, req, hash, "").value())
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
		found, err := st.l.pickAny(p, f, req)
		if err != nil {
			return nil, err
		}
		leases = append(leases, st.allocate(found, req, hash, "").value())
	}
	if len(leases) == 0 {
		return nil, ErrNoBlock
	}
	return leases, nil
}

// poolFor returns the pool of a claim.
func (l *Ledger) poolFor(req *Request) (*pool, error) {
	p := l.pools[req.Pool]
	if p == nil {
		return nil, ErrNoPool
	}
	if len(l.suspended) > 0 && req.Purpose != ForInfra {
		return nil, fmt.Errorf("%w: %s", ErrSuspended, l.suspension())
	}
	return p, nil
}

// place is an address that was taken for a lease.
type place struct {
	block    *block
	addr     netip.Addr
	replaced *lease // the lease before: cooling, or infra of a draining block
}

// families appends the families of which the pool has active blocks.
func (p *pool) families(fs []Family) []Family {
	for f := range p.fam {
		if len(p.fam[f].freeList(byPrefix).blocks) > 0 {
			fs = append(fs, Family(f))
		}
	}
	return fs
}

// pickAny takes any address of a family: a free one, or else the one that has cooled
// longest.
func (l *Ledger) pickAny(p *pool, f Family, req *Request) (place, error) {
	fp := &p.fam[f]
	l.expireCooling(p, fp)
	cursor := fp.cursor(req.Purpose)
	if b, a, ok := fp.takeFor(req, p.from(req, *cursor)); ok {
		fp.taken(b, a)
		*cursor = a
		return place{b, a, nil}, nil
	}
	if old, b := fp.longestCooling(req); old != nil {
		fp.removeCooling(old)
		*cursor = old.addr
		return place{b, old.addr, old}, nil
	}
	var room [2]Family
	if !slices.Contains(p.families(room[:0]), f) {
		return place{}, fmt.Errorf("%w of family %s yet", ErrNoBlock, f)
	}
	return place{}, p.exhausted(f, req)
}

// pickAddr takes a named address. Only infra leases may have a reserved one.
func (l *Ledger) pickAddr(st *Stage, p *pool, a netip.Addr, req *Request) (place, error) {
	fp := &p.fam[FamilyOf(a)]
	l.expireCooling(p, fp)
	b := fp.blockOf(a)
	switch {
	case b == nil:
		return place{}, fmt.Errorf("%w: no block of pool %q contains it", ErrOutside, p.Name)
	case b.state != Active:
		return place{}, fmt.Errorf("%w: its block %s is draining", ErrOutside, b.prefix)
	case p.excluded[a].stage != nil && p.excluded[a].stage != st:
		return place{}, fmt.Errorf("its exclusion is in progress: %w", ErrBusy)
	case req.Purpose != ForInfra && p.isExcluded(a):
		return place{}, fmt.Errorf("%w: %w by %s", ErrOutside, ErrExcluded, p.by(a))
	case req.Purpose != ForInfra && p.isReserved(b, a):
		return place{}, fmt.Errorf("%w: it is reserved by the policy of pool %q", ErrOutside, p.Name)
	}
	old := fp.lease(a)
	switch {
	case old == nil:
		fp.occupyAll(a)
	case old.state == Cooling && !req.Rested:
		fp.removeCooling(old)
	case old.owner == nil && old.purpose == ForInfra && req.Purpose == ForInfra && old.block.state == Draining:
		l.unlink(old) // a block of another size has the same gateway
	default:
		return place{}, fmt.Errorf("%w: %s by %s", ErrTaken, old.state, describe(old.key, old.pod))
	}
	return place{b, a, old}, nil
}

// allocate stages the lease of a place. A reason makes it quarantined.
func (st *Stage) allocate(at place, req *Request, hash uint32, reason string) *lease {
	x := st.l.allocate(at, req, hash, reason)
	x.staged, x.owner = true, st
	st.changes = append(st.changes, change{kind: claimed, lease: x, replaced: at.replaced, event: st.event})
	return x
}

// allocate makes the lease of a place. hash is the hash of its key.
func (l *Ledger) allocate(at place, req *Request, hash uint32, reason string) *lease {
	x := l.newLease()
	x.addr, x.block = at.addr, at.block
	x.key, x.pod, x.netns, x.purpose = req.Key, req.Pod, req.NetNS, req.Purpose
	x.netnsID, x.wired, x.mac, x.accepted = req.NetNSID, req.Wired, req.MAC, req.Accepted
	x.gen, x.reason = l.gen, reason
	x.since = l.opt.Now().UnixNano()
	if req.Expiry != (Expiry{}) {
		x.timer, x.state = l.newTimer(x, req.Expiry), Pending
	}
	if reason != "" {
		x.state = Quarantined
	}
	if at.replaced != nil {
		at.block.family().leases.remove(at.replaced)
	}
	l.link(x, hash)
	return x
}

// Quarantine stages a lease of an address that is in use without a claim. It does
// nothing if the address has a lease, or cools after a lease of the same pod. It
// fails if no block contains the address.
func (st *Stage) Quarantine(pool string, a netip.Addr, pod Pod, reason string) (fresh bool, err error) {
	l := st.l
	l.mu.Lock()
	defer l.mu.Unlock()
	st.asked = true
	p := l.pools[pool]
	if p == nil {
		return false, fmt.Errorf("quarantine %s in pool %q: %w", a, pool, ErrNoPool)
	}
	l.expirePending()
	fp := &p.fam[FamilyOf(a)]
	b, old := fp.blockOf(a), fp.lease(a)
	switch {
	case b == nil:
		return false, fmt.Errorf("quarantine %s: %w: no block of pool %q contains it", a, ErrOutside, pool)
	case p.excluded[a].stage != nil:
		return false, fmt.Errorf("quarantine %s: its exclusion is in progress: %w", a, ErrBusy)
	case old != nil && (old.state != Cooling || old.pod.Name == pod.Name && old.pod.Namespace == pod.Namespace):
		return false, nil
	case old != nil:
		fp.removeCooling(old)
	default:
		fp.occupyAll(a)
	}
	l.gen++
	st.allocate(place{b, a, old}, &Request{Pod: pod}, 0, reason)
	return true, nil
}
