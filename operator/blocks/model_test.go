// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// epoch returns the time at which the tests begin; they count seconds from there.
func epoch() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// naive is the model: lists, and a look at every address for every question.
// Its universe has 256 addresses.
type naive struct {
	universe netip.Prefix
	ranges   []*naiveRange
	claims   []naiveClaim
	pending  map[naiveClaim]bool
	reserved []netip.Prefix
	cooling  []naiveCooling
	coolDown int
	now      int
}

type naiveRange struct {
	Range
	draining bool
	cursor   int // an address, from the beginning of the range
}

type naiveClaim struct {
	owner  Owner
	prefix netip.Prefix
}

type naiveCooling struct {
	prefix netip.Prefix
	since  int
}

func (m *naive) span(p netip.Prefix) (first, end int) {
	first = int(addrspace.Distance(m.universe, p.Addr().BitLen(), m.universe.Addr(), p.Addr()))
	return first, first + 1<<(p.Addr().BitLen()-p.Bits())
}

func (m *naive) prefix(at, size int) netip.Prefix {
	a, _ := addrspace.Nth(m.universe, uint64(at))
	bits := a.BitLen()
	for ; size > 1; size /= 2 {
		bits--
	}
	return netip.PrefixFrom(a, bits)
}

func (m *naive) rangeAt(at int) *naiveRange {
	for _, r := range m.ranges {
		if first, end := m.span(r.Prefix); first <= at && at < end {
			return r
		}
	}
	return nil
}

// claimed reports whether the address is reserved or has an owner.
func (m *naive) claimed(at int) bool {
	in := func(p netip.Prefix) bool { first, end := m.span(p); return first <= at && at < end }
	return slices.ContainsFunc(m.reserved, in) || slices.ContainsFunc(m.claims, func(c naiveClaim) bool { return in(c.prefix) })
}

func (m *naive) cold(at int) bool {
	return slices.ContainsFunc(m.cooling, func(c naiveCooling) bool {
		first, end := m.span(c.prefix)
		return first <= at && at < end
	})
}

func (m *naive) free(at int) bool { return !m.claimed(at) && !m.cold(at) }

func (m *naive) allFree(at, size int) bool {
	for i := at; i < at+size; i++ {
		if !m.free(i) {
			return false
		}
	}
	return true
}

func (m *naive) tick() {
	m.cooling = slices.DeleteFunc(m.cooling, func(c naiveCooling) bool { return m.now-c.since >= m.coolDown })
}

func (m *naive) blocks(o Owner) (all []netip.Prefix) {
	for _, c := range m.claims {
		if c.owner == o {
			all = append(all, c.prefix)
		}
	}
	return all
}

// wish holds the request of an allocation.
type wish struct {
	bits          int
	order         Order
	prefer, taken []netip.Prefix
}

// takenIn returns the first of the wish's taken prefixes that overlaps a block.
func (w wish) takenIn(block netip.Prefix) (netip.Prefix, bool) {
	i := slices.IndexFunc(w.taken, block.Overlaps)
	if i < 0 {
		return netip.Prefix{}, false
	}
	return w.taken[i], true
}

// preferred takes the first preferred block that serves a pool.
func (m *naive) preferred(pool int, w wish) (netip.Prefix, bool) {
	for _, p := range w.prefer {
		first, end := m.span(p)
		r := m.rangeAt(first)
		if r == nil || m.rangeAt(end-1) != r || r.Pool != pool || r.draining || p.Bits() != cmp.Or(w.bits, r.Bits) {
			continue
		}
		if m.allFree(first, end-first) {
			return p, true
		}
		var cold []netip.Prefix
		claimed := false
		for at := first; at < end; at++ {
			claimed = claimed || m.claimed(at)
		}
		for _, c := range m.cooling {
			if c.prefix.Overlaps(p) {
				cold = append(cold, c.prefix)
			}
		}
		if !claimed && slices.Equal(cold, []netip.Prefix{p}) {
			m.cooling = slices.DeleteFunc(m.cooling, func(c naiveCooling) bool { return c.prefix == p })
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// excluded counts the free blocks of a pool that the wish says are taken.
func (m *naive) excluded(pool int, w wish) (n uint64) {
	for _, r := range m.ranges {
		bits := cmp.Or(w.bits, r.Bits)
		if r.Pool != pool || r.draining || bits < r.Prefix.Bits() || bits > r.Prefix.Addr().BitLen() {
			continue
		}
		first, end := m.span(r.Prefix)
		size := 1 << (r.Prefix.Addr().BitLen() - bits)
		for at := first; at < end; at += size {
			if m.allFree(at, size) {
				n++
			}
		}
	}
	return n
}

func (m *naive) next(r *naiveRange, w wish) (netip.Prefix, bool) {
	bits, order := cmp.Or(w.bits, r.Bits), w.order
	if r.draining || bits < r.Prefix.Bits() || bits > r.Prefix.Addr().BitLen() {
		return netip.Prefix{}, false
	}
	first, end := m.span(r.Prefix)
	size := 1 << (r.Prefix.Addr().BitLen() - bits)
	from := (r.cursor + size - 1) / size * size
	if order == Lowest || from >= end-first {
		from = 0
	}
	for n := range (end - first) / size {
		at := first + (from+n*size)%(end-first)
		if _, taken := w.takenIn(m.prefix(at, size)); !taken && m.allFree(at, size) {
			r.cursor = (at - first + size) % (end - first)
			return m.prefix(at, size), true
		}
	}
	return netip.Prefix{}, false
}

// allocate returns the blocks of o; or, where a pool has none for it, how many
// of that pool are free and taken.
func (m *naive) allocate(o Owner, w wish) (blocks []netip.Prefix, excluded uint64, ok bool) {
	m.tick()
	claims, cooling, cursors := slices.Clone(m.claims), slices.Clone(m.cooling), []int{}
	for _, r := range m.ranges {
		cursors = append(cursors, r.cursor)
	}
	pools, has := map[int]bool{}, map[int]bool{}
	for _, r := range m.ranges {
		pools[r.Pool] = true
	}
	for _, p := range m.blocks(o) {
		first, end := m.span(p)
		r := m.rangeAt(first)
		if r == nil || m.rangeAt(end-1) != r {
			return m.blocks(o), 0, true // a foreign one serves all pools of the family
		}
		has[r.Pool] = true
	}
	for pool := range 2 {
		if has[pool] || !pools[pool] {
			continue
		}
		p, ok := m.preferred(pool, w)
		for i := 0; i < len(m.ranges) && !ok; i++ {
			if r := m.ranges[i]; r.Pool == pool {
				p, ok = m.next(r, w)
			}
		}
		if !ok {
			excluded = m.excluded(pool, w)
			for _, c := range m.claims[len(claims):] {
				delete(m.pending, c)
			}
			m.claims, m.cooling = claims, cooling
			for i, r := range m.ranges {
				r.cursor = cursors[i]
			}
			return nil, excluded, false
		}
		m.claims = append(m.claims, naiveClaim{o, p})
		m.pending[naiveClaim{o, p}] = true
	}
	return m.blocks(o), 0, len(m.blocks(o)) > 0
}

func (m *naive) occupy(o Owner, p netip.Prefix) {
	m.tick()
	if slices.Contains(m.claims, naiveClaim{o, p}) {
		delete(m.pending, naiveClaim{o, p})
		return
	}
	if first, end := m.span(p); m.rangeAt(first) != nil && m.rangeAt(first) == m.rangeAt(end-1) {
		if i := slices.IndexFunc(m.cooling, func(c naiveCooling) bool { return c.prefix == p }); i >= 0 {
			m.cooling = slices.Delete(m.cooling, i, i+1)
		}
	}
	m.claims = append(m.claims, naiveClaim{o, p})
}

// drop takes p from o. The part without another owner cools, if cool is set.
func (m *naive) drop(o Owner, p netip.Prefix, cool bool) {
	i := slices.Index(m.claims, naiveClaim{o, p})
	m.claims = slices.Delete(m.claims, i, i+1)
	delete(m.pending, naiveClaim{o, p})
	first, end := m.span(p)
	if cool && m.coolDown > 0 {
		m.cool(first, end-first)
	}
}

// cool lets the parts of size addresses that have no owner cool, in the fewest prefixes.
func (m *naive) cool(at, size int) {
	alone, inside := true, true
	for i := at; i < at+size; i++ {
		alone = alone && !m.claimed(i)
		inside = inside && m.rangeAt(i) != nil && m.rangeAt(i) == m.rangeAt(at)
	}
	if alone && inside {
		m.cooling = append(m.cooling, naiveCooling{m.prefix(at, size), m.now})
	} else if size > 1 {
		m.cool(at, size/2)
		m.cool(at+size/2, size/2)
	}
}

// compare compares everything that the Set returns with the model.
func (m *naive) compare(s *Set) error {
	m.tick()
	stat := s.Stat(epoch().Add(time.Duration(m.now) * time.Second))
	for i, r := range m.ranges {
		first, end := m.span(r.Prefix)
		var used uint64
		size := 1 << (r.Prefix.Addr().BitLen() - r.Bits)
		for at := first; at < end; at += size {
			if !m.allFree(at, size) {
				used++
			}
		}
		if got := stat.Ranges[i]; got.Used != used || got.Range != r.Range {
			return fmt.Errorf("range %v: used %d of %v, the model says %d", r.Range, got.Used, got.Range, used)
		}
		r := s.ranges[i]
		for at := first; at < end; at++ {
			p := m.prefix(at, 1)
			if p.Bits() > r.unit {
				p = netip.PrefixFrom(p.Addr(), r.unit).Masked()
			}
			if got := r.free.IsFree(p); got != m.free(at) {
				return fmt.Errorf("%s is free: %v, the model says %v", p, got, !got)
			}
		}
	}
	owners := map[Owner]bool{}
	for _, c := range m.claims {
		owners[c.owner] = true
	}
	if stat.Owners != len(owners) || stat.Pending != len(m.pending) {
		return fmt.Errorf("%d owners, %d of them pending; the model says %d, %d", stat.Owners, stat.Pending, len(owners), len(m.pending))
	}
	for _, h := range s.owners {
		o := h.owner
		want := m.blocks(o)
		got, gotPending := s.Blocks(o)
		slices.SortFunc(want, netip.Prefix.Compare)
		slices.SortFunc(got, netip.Prefix.Compare)
		pending := slices.ContainsFunc(want, func(p netip.Prefix) bool { return m.pending[naiveClaim{o, p}] })
		if !slices.Equal(want, got) || gotPending != pending {
			return fmt.Errorf("%v has %v, pending %v; the model says %v, %v", o, got, gotPending, want, pending)
		}
	}
	return nil
}

// conflicts reports whether a part of p is reserved or has another owner.
func (m *naive) conflicts(o Owner, p netip.Prefix) bool {
	return slices.ContainsFunc(m.reserved, p.Overlaps) ||
		slices.ContainsFunc(m.claims, func(c naiveClaim) bool { return c.owner != o && c.prefix.Overlaps(p) })
}

// harness draws operations, and applies them to the Set and to the model.
type harness struct {
	*rapid.T
	s     *Set
	m     *naive
	order Order
}

func (p *harness) at() time.Time { return epoch().Add(time.Duration(p.m.now) * time.Second) }

func (p *harness) owner() Owner {
	n := rapid.IntRange(0, 11).Draw(p.T, "owner")
	return NewOwner(fmt.Sprint("n", n/2), fmt.Sprint(n)) // pairs have the same name
}

func (p *harness) block() netip.Prefix {
	k := rapid.SampledFrom([]int{0, 1, 2, 3, 3, 3, 4, 4, 4, 5, 6, 8}).Draw(p.T, "size")
	at := rapid.IntRange(0, 256>>k-1).Draw(p.T, "at") << k
	return p.m.prefix(at, 1<<k)
}

func (p *harness) Allocate() {
	o, w := p.owner(), wish{order: p.order}
	if rapid.IntRange(0, 2).Draw(p.T, "sized") == 0 {
		w.bits = p.m.universe.Addr().BitLen() - rapid.IntRange(0, 6).Draw(p.T, "bits")
	}
	for range rapid.IntRange(0, 2).Draw(p.T, "preferred") {
		prefer := p.block()
		if n := len(p.m.cooling); n > 0 && rapid.Bool().Draw(p.T, "cooling") {
			prefer = p.m.cooling[rapid.IntRange(0, n-1).Draw(p.T, "which")].prefix
			if w.bits != 0 && rapid.Bool().Draw(p.T, "a part, or more") {
				prefer = netip.PrefixFrom(prefer.Addr(), w.bits).Masked()
			}
		}
		w.prefer = append(w.prefer, prefer)
	}
	for range rapid.IntRange(0, 3).Draw(p.T, "taken") {
		w.taken = append(w.taken, p.block())
	}
	want, excluded, ok := p.m.allocate(o, w)
	got, err := p.s.Choose(o, Choice{Sizes: []int{w.bits, w.bits}, Prefer: w.prefer, Taken: w.takenIn}, p.at())
	if (err == nil) != ok || !slices.Equal(got, want) {
		p.Fatalf("allocate %+v for %v: %v, %v; the model says %v", w, o, got, err, want)
	}
	var full *Exhausted
	if errors.As(err, &full) && full.claimed != excluded {
		p.Fatalf("allocate %+v for %v: %v; the model says %d are taken", w, o, err, excluded)
	}
}

func (p *harness) Occupy() {
	o, block := p.owner(), p.block()
	p.m.occupy(o, block)
	err := p.s.Occupy(o, block, p.at())
	if p.m.conflicts(o, block) != errors.Is(err, errConflict) {
		p.Fatalf("occupy %s for %v: %v, the model says conflict: %v", block, o, err, p.m.conflicts(o, block))
	}
	if first, end := p.m.span(block); (p.m.rangeAt(first) == nil || p.m.rangeAt(first) != p.m.rangeAt(end-1)) && err == nil {
		p.Fatalf("occupy %s for %v, which no range has", block, o)
	}
}

func (p *harness) Confirm() {
	o := p.owner()
	p.s.Confirm(o)
	for _, b := range p.m.blocks(o) {
		delete(p.m.pending, naiveClaim{o, b})
	}
}

func (p *harness) Release() {
	o := p.owner()
	p.m.tick()
	blocks := p.m.blocks(o)
	for i := range blocks {
		p.m.drop(o, blocks[len(blocks)-1-i], true)
	}
	if err := p.s.Release(o, p.at()); (err == nil) != (len(blocks) > 0) {
		p.Fatalf("release %v: %v, the model says %v", o, err, blocks)
	}
}

func (p *harness) ReleaseOrReturnOne() {
	o := p.owner()
	p.m.tick()
	blocks := p.m.blocks(o)
	if len(blocks) == 0 {
		return
	}
	b := rapid.SampledFrom(blocks).Draw(p.T, "block")
	cool := rapid.Bool().Draw(p.T, "cool")
	p.m.drop(o, b, cool)
	var err error
	if cool {
		err = p.s.ReleaseBlock(o, b, p.at())
	} else {
		p.s.expire(p.at())
		err = p.s.Return(o, b)
	}
	if err != nil {
		p.Fatal(err)
	}
}

func (p *harness) Reserve() {
	if len(p.m.reserved) > 1 {
		return
	}
	block := p.m.prefix(rapid.IntRange(0, 31).Draw(p.T, "at")*8, 8)
	p.m.tick()
	p.s.expire(p.at())
	if !slices.Contains(p.m.reserved, block) {
		if first, end := p.m.span(block); p.m.rangeAt(first) != nil && p.m.rangeAt(first) == p.m.rangeAt(end-1) {
			p.m.cooling = slices.DeleteFunc(p.m.cooling, func(c naiveCooling) bool { return c.prefix == block })
		}
		p.m.reserved = append(p.m.reserved, block)
	}
	p.s.Reserve(block)
}

func (p *harness) Range() {
	k := rapid.SampledFrom([]int{3, 4, 5, 6, 7}).Draw(p.T, "size")
	prefix := p.m.prefix(rapid.IntRange(0, 256>>k-1).Draw(p.T, "at")<<k, 1<<k)
	width := p.m.universe.Addr().BitLen()
	r := Range{prefix, width - rapid.IntRange(0, min(k, 4)).Draw(p.T, "block"), rapid.IntRange(0, 1).Draw(p.T, "pool")}
	clash := slices.ContainsFunc(p.m.ranges, func(old *naiveRange) bool { return old.Prefix.Overlaps(prefix) })
	if r.Pool > p.s.pools {
		clash = true
	}
	if err := p.s.AddRange(r); (err == nil) == clash {
		p.Fatalf("add %v: %v", r, err)
	}
	if !clash {
		p.m.ranges = append(p.m.ranges, &naiveRange{Range: r})
	}
}

func (p *harness) ChangeRange() {
	if len(p.m.ranges) == 0 {
		return
	}
	p.m.tick()
	p.s.expire(p.at())
	i := rapid.IntRange(0, len(p.m.ranges)-1).Draw(p.T, "range")
	r := p.m.ranges[i]
	switch rapid.IntRange(0, 3).Draw(p.T, "change") {
	case 0:
		r.draining = true
		NewWithT(p.T).Expect(p.s.DrainRange(r.Prefix)).To(Succeed())
	case 1:
		r.draining = false
		NewWithT(p.T).Expect(p.s.ResumeRange(r.Prefix)).To(Succeed())
	case 2:
		r.Bits = r.Prefix.Addr().BitLen() - rapid.IntRange(0, min(4, r.Prefix.Addr().BitLen()-r.Prefix.Bits())).Draw(p.T, "bits")
		NewWithT(p.T).Expect(p.s.Resize(r.Prefix, r.Bits)).To(Succeed())
	case 3:
		first, end := p.m.span(r.Prefix)
		inUse := slices.ContainsFunc(p.m.claims, func(c naiveClaim) bool { return c.prefix.Overlaps(r.Prefix) })
		for at := first; at < end; at++ {
			inUse = inUse || p.m.cold(at)
		}
		if err := p.s.RemoveRange(r.Prefix); (err == nil) == inUse {
			p.Fatalf("remove %s: %v, the model says in use: %v", r.Prefix, err, inUse)
		} else if err == nil {
			p.m.ranges = slices.Delete(p.m.ranges, i, i+1)
		}
	}
}

func (p *harness) Wait() { p.m.now += rapid.IntRange(1, 8).Draw(p.T, "seconds") }

func TestSetAgreesWithModel(t *testing.T) {
	for _, universe := range []string{"10.1.2.0/24", "255.255.255.0/24", "fd00::ff00/120"} {
		t.Run(universe, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				order := rapid.SampledFrom([]Order{NextFit, Lowest}).Draw(rt, "order")
				coolDown := rapid.SampledFrom([]int{0, 5}).Draw(rt, "cool-down")
				p := &harness{rt, New(Policy{order, time.Duration(coolDown) * time.Second}),
					&naive{universe: pfx(universe), pending: map[naiveClaim]bool{}, coolDown: coolDown}, order}
				p.Range()
				rt.Repeat(map[string]func(*rapid.T){
					"":                func(rt *rapid.T) { NewWithT(rt).Expect(p.m.compare(p.s)).To(Succeed()) },
					"allocate":        func(rt *rapid.T) { p.T = rt; p.Allocate() },
					"allocate more":   func(rt *rapid.T) { p.T = rt; p.Allocate() },
					"occupy":          func(rt *rapid.T) { p.T = rt; p.Occupy() },
					"confirm":         func(rt *rapid.T) { p.T = rt; p.Confirm() },
					"release":         func(rt *rapid.T) { p.T = rt; p.Release() },
					"give one back":   func(rt *rapid.T) { p.T = rt; p.ReleaseOrReturnOne() },
					"reserve":         func(rt *rapid.T) { p.T = rt; p.Reserve() },
					"add a range":     func(rt *rapid.T) { p.T = rt; p.Range() },
					"change a range":  func(rt *rapid.T) { p.T = rt; p.ChangeRange() },
					"let time go by":  func(rt *rapid.T) { p.T = rt; p.Wait() },
					"give all a turn": func(rt *rapid.T) { p.T = rt; p.Occupy(); p.Allocate(); p.Release() },
				})
			})
		})
	}
}
