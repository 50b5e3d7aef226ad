// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
)

// entry is the pool of an ID. One that is not known was known to an earlier
// Driver, whose records are lost: the ID says what it is.
func (d *Driver) entry(ctx context.Context, key string) (*entry, error) {
	e, released := d.known(key)
	switch {
	case e != nil:
		return e, nil
	case released:
		return nil, ErrPoolNotFound
	}
	return d.adopt(ctx, key)
}

// known is the pool of an ID, nil if there is none, perhaps because it was released.
func (d *Driver) known(key string) (e *entry, released bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if e = d.entries[key]; e == nil {
		_, released = d.released[key]
		_, ended := d.closed[key]
		released = released || ended
	}
	return e, released
}

// adopt opens a pool by its ID. The address that Docker gives to the gateway,
// unless told otherwise, is kept back: the engine does not say again which it is.
func (d *Driver) adopt(ctx context.Context, key string) (*entry, error) {
	id, err := parsePoolID(key)
	if err != nil {
		return nil, err
	}
	d.change.Lock()
	defer d.change.Unlock()
	if e := d.entries[key]; e != nil {
		return e, nil
	}
	r := d.realms[id.space]
	if r == nil {
		return nil, fmt.Errorf("%w: %q", ErrBadPool, id.space)
	}
	if b := r.books[id.prefix]; b == nil {
		if err := r.overlapping(id.prefix, nil); err != nil {
			return nil, err
		}
	} else if b.pool != id.ledgerPool() {
		return nil, fmt.Errorf("%w: %s is of pool %q of the ledger", ErrPoolOverlap, id.prefix, b.pool)
	}
	e := &entry{id: id, key: key, refs: 1}
	if err := d.openFirst(ctx, e); err != nil {
		return nil, err
	}
	d.log.Warn("a Docker pool that is not on record is served as its ID says", "pool", key)
	first := e.lends.Addr()
	if e.book.reserves(first) {
		first = first.Next()
	}
	if _, _, err := d.take(ctx, e, e, first, owner{gateway: true}); err != nil {
		d.log.Warn("the likely gateway of a Docker pool could not be kept back", "pool", key, "address", first, "error", err)
	}
	return e, nil
}

// openFirst opens the pool of the ledger, writes the record and makes e known. A
// pool that was opened in vain has no leases: it is closed with the next change.
func (d *Driver) openFirst(ctx context.Context, e *entry) (err error) {
	if e.book = d.realms[e.id.space].books[e.id.prefix]; e.book == nil {
		e.book = newBook(e.id)
	}
	fresh := !e.book.open.Load()
	if err = d.open(ctx, []*entry{e}); err == nil {
		err = d.save(ctx, saving{e.key, e.record()})
	}
	if err == nil {
		d.insert(e)
	} else if fresh && e.book.entries == 0 {
		d.strays[e.book.pool] = struct{}{}
	}
	return err
}

// ready opens what requests for e are served from.
func (d *Driver) ready(ctx context.Context, e *entry) error {
	members := d.members(e)
	if !slices.ContainsFunc(members, func(m *entry) bool { return !m.book.open.Load() }) {
		return nil
	}
	d.change.Lock()
	defer d.change.Unlock()
	return d.open(ctx, members)
}

// answer is an address with the length of its pool's prefix.
type answer = netip.Prefix

// request serves RequestAddress.
func (d *Driver) request(ctx context.Context, key string, a netip.Addr, options map[string]string) (answer, error) {
	who := ownerOf(options)
	e, err := d.entry(ctx, key)
	if err != nil {
		return answer{}, err
	}
	if err := d.ready(ctx, e); err != nil {
		return answer{}, err
	}
	if who.gateway { // which may change the record
		d.change.Lock()
		defer d.change.Unlock()
	}
	e.book.life.RLock()
	defer e.book.life.RUnlock()
	if e.gone {
		return answer{}, ErrPoolNotFound
	}
	if a.IsValid() {
		return d.named(ctx, e, a, who)
	}
	return d.lend(ctx, e, who, d.config.Serial || options[AllocSerialPrefix] == "true")
}

// with calls f while m cannot end; e is held already. One that is not open has
// nothing to give yet, and nothing to take back.
func (e *entry) with(m *entry, f func() error) error {
	if m.book != e.book {
		m.book.life.RLock()
		defer m.book.life.RUnlock()
	}
	if m.gone || !m.book.open.Load() {
		return ErrNoAvailableIPs
	}
	return f()
}

// lend lends any address: of the pool, or, if that is full, of the next one of
// its group.
func (d *Driver) lend(ctx context.Context, e *entry, who owner, serial bool) (answer, error) {
	var full error
	for _, m := range d.members(e) {
		var a netip.Addr
		err := e.with(m, func() (err error) {
			a, err = d.lendFrom(ctx, e, m, who, serial)
			return err
		})
		if err == nil {
			return netip.PrefixFrom(a, m.book.prefix.Bits()), nil
		}
		if !errors.Is(err, ErrNoAvailableIPs) {
			return answer{}, err
		}
		if full != nil {
			err = fmt.Errorf("%w; %w", full, err)
		}
		full = err
	}
	return answer{}, full
}

// lendFrom lends any address of m for e.
func (d *Driver) lendFrom(ctx context.Context, e, m *entry, who owner, serial bool) (netip.Addr, error) {
	b := m.book
	key := who.numbered(e.key, d.number.Add(1))
	if m.lends == b.prefix && !b.pods { // as the ledger lends
		req := ledger.Request{Pool: b.pool, Key: key, Purpose: who.purpose(b), Families: b.family, More: true} // nobody has this key
		if serial && !d.config.Serial {
			req.After = b.last()
		}
		l, err := d.ledger.ClaimOne(ctx, req)
		if err != nil {
			return netip.Addr{}, classed(err)
		}
		b.lent(l.Addr, false)
		return l.Addr, nil
	}
	return d.pick(ctx, m, serial, ledger.Request{Pool: b.pool, Key: key, Purpose: who.purpose(b)})
}

// pick claims an address that the index chooses.
func (d *Driver) pick(ctx context.Context, m *entry, serial bool, req ledger.Request) (netip.Addr, error) {
	b, fresh, inside := m.book, !m.book.learned(), false
	claim := func(a netip.Addr) error {
		req.Wanted = []netip.Addr{a}
		_, _, err := d.ledger.Claim(ctx, req)
		if err == nil {
			b.lent(a, false)
		}
		return err
	}
	if fresh {
		b.learn(d.ledger.Leases())
	}
	for {
		a, ok := b.next(m.lends, serial)
		if !ok && !fresh && d.outdated(b) {
			fresh = true
			b.learn(d.ledger.Leases())
			continue
		}
		if !ok {
			break
		}
		err := claim(a)
		switch {
		case err == nil:
			return a, nil
		case errors.Is(err, ledger.ErrTaken):
		case errors.Is(err, ledger.ErrOutside) && (inside || d.isOpen(b)): // one that the pod network never lends
			inside = true
		default:
			b.freed(a)
			return netip.Addr{}, classed(err)
		}
	}
	for _, a := range b.cooling(m.lends) { // the one that has cooled longest, as the ledger would
		if claim(a) == nil {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%w: %s of pool %q", ErrNoAvailableIPs, m.lends, b.pool)
}

// outdated is true where the ledger may have something to lend that the index
// has for held: its block has more free addresses than the index.
func (d *Driver) outdated(b *book) bool {
	return slices.ContainsFunc(d.ledger.Stats(), func(s ledger.BlockStat) bool {
		return s.Pool == b.pool && (s.Cooling > 0 || s.Free > b.free())
	})
}

// isOpen is true where the ledger lends from all of b.
func (d *Driver) isOpen(b *book) bool {
	return slices.ContainsFunc(d.blocks(b.pool), func(x netip.Prefix) bool { return within(b.prefix, x) })
}

// named lends a certain address, or answers who has it already.
func (d *Driver) named(ctx context.Context, e *entry, a netip.Addr, who owner) (answer, error) {
	members := d.members(e)
	i := slices.IndexFunc(members, func(m *entry) bool { return m.book.prefix.Contains(a) })
	if i < 0 {
		return answer{}, fmt.Errorf("%w: %s is not in %s", ErrIPOutOfRange, a, e.book.prefix)
	}
	m := members[i]
	if m.book.reserves(a) {
		return answer{}, fmt.Errorf("%w: %s is the network or the broadcast address of %s", ErrIPAlreadyAllocated, a, m.book.prefix)
	}
	err := e.with(m, func() error {
		l, fresh, err := d.take(ctx, e, m, a, who)
		if err == nil && !fresh {
			err = d.repeat(ctx, e, l, who)
		}
		return err
	})
	return netip.PrefixFrom(a, m.book.prefix.Bits()), err
}

// take claims a of m for e; if somebody holds it, it gives that lease.
func (d *Driver) take(ctx context.Context, e, m *entry, a netip.Addr, who owner) (l ledger.Lease, fresh bool, err error) {
	for range 2 { // the second time for what was claimed meanwhile
		if l, ok := d.ledger.Lookup(m.book.pool, a); ok && l.State != ledger.Cooling {
			return l, false, nil
		}
		leases, fresh, claimed := d.ledger.Claim(ctx, ledger.Request{
			Pool: m.book.pool, Key: who.named(e.key, a), Purpose: who.purpose(m.book), Wanted: []netip.Addr{a},
		})
		if claimed == nil && fresh {
			m.book.lent(a, true)
			return leases[0], true, nil
		}
		if err = classed(claimed); claimed != nil && !errors.Is(claimed, ledger.ErrTaken) {
			break
		}
	}
	if err == nil {
		err = ErrIPAlreadyAllocated
	}
	return ledger.Lease{}, false, err
}

// repeat says whether a request for an address that l holds is answered by l.
func (d *Driver) repeat(ctx context.Context, e *entry, l ledger.Lease, who owner) error {
	has := holder(l)
	switch {
	case !d.through(e, l):
	case who.gateway && has.is(who):
		return d.share(ctx, e, l.Addr, 1)
	case has.is(who), !who.known() && d.replays.Confirm(l.Generation):
		if who.known() {
			d.replays.Confirm(l.Generation)
		}
		return nil
	}
	return fmt.Errorf("%w: %s is %s by %s for a %s", ErrIPAlreadyAllocated, l.Addr, l.State, l.Key, l.Purpose)
}

// through is true where l was taken through e, or through one of its group.
func (d *Driver) through(e *entry, l ledger.Lease) bool {
	switch {
	case l.Purpose == ledger.ForPod:
		return false
	case l.Key.Network == e.key || e.id.group == "":
		return l.Key.Network == e.key
	}
	id, err := parsePoolID(l.Key.Network)
	return err == nil && id.inGroup() == e.id.inGroup()
}

// share counts the networks that have a gateway, beside the first one.
func (d *Driver) share(ctx context.Context, e *entry, a netip.Addr, n int) error {
	was, key := e.shared[a.String()], a.String()
	set := func(n int) {
		if e.shared == nil {
			e.shared = map[string]int{}
		}
		if e.shared[key] = n; n == 0 {
			delete(e.shared, key)
		}
	}
	set(was + n)
	if err := d.save(ctx, saving{e.key, e.record()}); err != nil {
		set(was)
		return err
	}
	return nil
}

// ended notes that a is released. While it cools the index has it for held.
func (d *Driver) ended(b *book, a netip.Addr) {
	b.live.Add(-1)
	if !b.learned() {
		return
	}
	if _, cools := d.ledger.Lookup(b.pool, a); !cools {
		b.freed(a)
	}
}

// release serves ReleaseAddress.
func (d *Driver) release(ctx context.Context, key string, a netip.Addr) error {
	e, _ := d.known(key)
	if e == nil {
		return ErrBadPool
	}
	gateway, err := d.releaseFrom(ctx, e, a, false)
	if !gateway {
		return err
	}
	d.change.Lock()
	defer d.change.Unlock()
	_, err = d.releaseFrom(ctx, e, a, true)
	return err
}

// releaseSimply releases a where it is what most addresses are: of a container,
// in a pool of its own. Otherwise it has done nothing.
func (d *Driver) releaseSimply(ctx context.Context, e, m *entry, a netip.Addr) (done bool, err error) {
	if e != m || m.book.pods || e.id.group != "" {
		return false, nil
	}
	n, err := d.ledger.Free(ctx, ledger.Selector{Addr: a, Pool: m.book.pool, Purpose: ledger.ForDocker, Network: e.key})
	if errors.Is(err, ledger.ErrNotOwner) {
		return false, nil
	}
	if err == nil && n > 0 {
		d.ended(m.book, a)
	}
	return true, err
}

// releaseFrom releases a. It leaves a gateway to those who may change the record.
func (d *Driver) releaseFrom(ctx context.Context, e *entry, a netip.Addr, changing bool) (gateway bool, err error) {
	e.book.life.RLock()
	defer e.book.life.RUnlock()
	if e.gone {
		return false, ErrBadPool
	}
	members := d.members(e)
	i := slices.IndexFunc(members, func(m *entry) bool { return m.book.prefix.Contains(a) })
	if i < 0 {
		return false, fmt.Errorf("%w: %s is not in %s", ErrIPOutOfRange, a, e.book.prefix)
	}
	m := members[i]
	err = e.with(m, func() error {
		if done, err := d.releaseSimply(ctx, e, m, a); done {
			return err
		}
		l, ok := d.ledger.Lookup(m.book.pool, a)
		if !ok || !d.through(e, l) {
			return nil // released already, or never taken through this pool
		}
		if gateway = holder(l).gateway; gateway && !changing {
			return nil
		}
		if gateway && e.shared[a.String()] > 0 {
			return d.share(ctx, e, a, -1)
		}
		leases, err := d.ledger.Release(ctx, ledger.Selector{Addr: a, Pool: l.Pool, Purpose: l.Purpose, Generation: l.Generation})
		if errors.Is(err, ledger.ErrNotOwner) || err == nil && len(leases) == 0 {
			return nil // released meanwhile
		}
		if err != nil {
			return err
		}
		d.ended(m.book, a)
		return nil
	})
	if errors.Is(err, ErrNoAvailableIPs) { // m ended, and its leases with it
		err = nil
	}
	return gateway, err
}
