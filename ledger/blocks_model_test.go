// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
)

// estate is a naive model of one IPv4 pool without cool-down: it looks at every
// address of 10.0.0.0/25.
type estate struct {
	pool     ledger.Pool
	listed   []netip.Prefix                     // the active blocks as SetBlocks named them
	states   map[netip.Prefix]ledger.BlockState // of all blocks
	leases   map[netip.Addr]netip.Prefix        // the block of each lease
	excluded map[netip.Addr]bool
	cursor   netip.Addr
}

func (e *estate) active(a netip.Addr) (netip.Prefix, bool) {
	for p, s := range e.states {
		if s == ledger.Active && p.Contains(a) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

func (e *estate) isFree(a netip.Addr) bool {
	p, ok := e.active(a)
	if !ok || e.excluded[a] {
		return false
	}
	if _, leased := e.leases[a]; leased {
		return false
	}
	edge := a == p.Addr() || !p.Contains(a.Next())
	policy := slices.ContainsFunc(e.pool.Exclude, func(x netip.Prefix) bool { return x.Contains(a) })
	return !policy && (!e.pool.ReserveEdges || !edge || p.IsSingleIP())
}

// pick returns the address that a claim gets, the zero Addr if none is free.
func (e *estate) pick(req ledger.Request) netip.Addr {
	within := req.Within
	if req.Listed {
		within = e.listed
	}
	if len(within) == 0 {
		within = []netip.Prefix{pfx("10.0.0.0/25")}
	}
	from := e.cursor.Next()
	if cmp.Or(req.Order, e.pool.Order) == ledger.Lowest {
		from = netip.Addr{}
	}
	for _, part := range within {
		var lowest netip.Addr
		for a := part.Addr(); part.Contains(a); a = a.Next() {
			switch {
			case !e.isFree(a):
				continue
			case from.IsValid() && !a.Less(from):
				return a
			case !lowest.IsValid():
				lowest = a
			}
		}
		if lowest.IsValid() {
			return lowest
		}
	}
	return netip.Addr{}
}

// forget removes the draining blocks that have no lease.
func (e *estate) forget() {
	for p, s := range e.states {
		if s == ledger.Draining && !e.hasLease(p) {
			delete(e.states, p)
		}
	}
	if len(e.states) == 0 {
		e.cursor = netip.Addr{} // a pool without blocks starts at its lowest address again
	}
}

func (e *estate) hasLease(p netip.Prefix) bool {
	for _, of := range e.leases {
		if of == p {
			return true
		}
	}
	return false
}

func (e *estate) setBlocks(blocks []netip.Prefix) {
	for p := range e.states {
		e.states[p] = ledger.Draining
	}
	for _, p := range blocks {
		e.states[p] = ledger.Active
	}
	e.listed = blocks
}

// random returns some of the addresses as blocks that do not overlap, in any order.
func randomBlocks(rnd *rand.Rand) (blocks []netip.Prefix) {
	for a := ip("10.0.0.0"); pfx("10.0.0.0/25").Contains(a); {
		p := netip.PrefixFrom(a, 26+rnd.IntN(6))
		if p.Masked() != p {
			p = netip.PrefixFrom(a, 31)
		}
		if rnd.IntN(3) > 0 {
			blocks = append(blocks, p)
		}
		for p.Contains(a) {
			a = a.Next()
		}
	}
	rnd.Shuffle(len(blocks), func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
	return blocks
}

// TestBlocksAgreeWithANaiveModel opens, drains and replaces overlapping blocks,
// excludes addresses, and lets commits fail. It compares each address that is
// claimed, and the free addresses of each block, with a search of all addresses.
func TestBlocksAgreeWithANaiveModel(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			w := newWalk(NewWithT(t), rand.New(rand.NewPCG(seed, 17)))
			for range 200 {
				w.step()
				w.compare()
			}
		})
	}
}

// walk takes the same random steps on a ledger and on the model.
type walk struct {
	*bench
	*estate
	rnd   *rand.Rand
	fault journal.Fault
	names map[netip.Addr]int // the key of each lease
	last  int
}

func newWalk(g Gomega, rnd *rand.Rand) *walk {
	w := &walk{rnd: rnd, names: map[netip.Addr]int{}, estate: &estate{
		pool:     ledger.Pool{Name: "default", Order: ledger.Order(rnd.IntN(2)), ReserveEdges: rnd.IntN(2) == 0},
		states:   map[netip.Prefix]ledger.BlockState{},
		leases:   map[netip.Addr]netip.Prefix{},
		excluded: map[netip.Addr]bool{},
	}}
	w.bench = open(g, &journal.Faulty{Journal: journal.NewMemory(), Plan: func(int64) journal.Fault { return w.fault }})
	w.bench.pool(w.estate.pool)
	return w
}

func (w *walk) addr() netip.Addr {
	a := ip("10.0.0.0")
	for range w.rnd.IntN(128) {
		a = a.Next()
	}
	return a
}

func (w *walk) step() {
	w.fault = journal.None
	if w.rnd.IntN(8) == 0 {
		w.fault = []journal.Fault{journal.Fail, journal.Tear}[w.rnd.IntN(2)]
	}
	switch op := w.rnd.IntN(20); {
	case op < 9:
		w.claimOne()
	case op < 13:
		w.releaseOne()
	case op < 15:
		w.changeBlocks()
	case op < 16:
		w.undoneBlocks()
	case op < 18:
		w.exclude()
	case op < 19:
		w.changePolicy()
	}
}

func (w *walk) request() ledger.Request {
	w.last++
	req := ledger.Request{Pool: "default", Key: key(w.last), Families: []ledger.Family{ledger.IPv4}}
	switch w.rnd.IntN(6) {
	case 0, 1:
		req.Order = ledger.Lowest
	case 2:
		req.Listed = true
	case 3:
		req.Within = randomBlocks(w.rnd)
	}
	return req
}

// want returns what the model says of a request. A part of no active block has
// no free address for it.
func (w *walk) want(req *ledger.Request) netip.Addr {
	if req.Listed && len(w.listed) == 0 {
		return netip.Addr{}
	}
	if req.Within == nil {
		return w.pick(*req)
	}
	model := *req
	model.Within = slices.DeleteFunc(slices.Clone(req.Within), func(part netip.Prefix) bool {
		p, ok := w.active(part.Addr())
		return !ok || p.Bits() > part.Bits()
	})
	if len(model.Within) == 0 {
		return netip.Addr{}
	}
	return w.pick(model)
}

func (w *walk) claimOne() {
	req := w.request()
	if req.Within != nil && len(req.Within) == 0 {
		return
	}
	want := w.want(&req)
	got, _, err := w.ClaimAddr(context.Background(), &req)
	if want.IsValid() {
		w.cursor = want
	}
	switch {
	case !want.IsValid():
		w.g.Expect(err).To(HaveOccurred())
	case w.fault != journal.None:
		w.g.Expect(err).To(MatchError(journal.ErrInjected))
	default:
		w.g.Expect(err).NotTo(HaveOccurred())
		w.g.Expect(got).To(Equal(want), "%+v", req)
		p, _ := w.active(want)
		w.leases[want], w.names[want] = p, w.last
	}
}

func (w *walk) releaseOne() {
	for a, n := range w.names {
		_, err := w.Release(context.Background(), ledger.Selector{Key: key(n)})
		if err == nil {
			delete(w.names, a)
			delete(w.leases, a)
			w.forget()
		}
		return
	}
}

func (w *walk) changeBlocks() {
	blocks := randomBlocks(w.rnd)
	st := w.Begin()
	w.g.Expect(st.SetBlocks("default", blocks)).To(Succeed())
	if st.Commit(context.Background()) == nil {
		w.setBlocks(blocks)
		w.forget()
	}
}

// undoneBlocks claims from blocks that are staged and then undone: a new block
// with a lease drains.
func (w *walk) undoneBlocks() {
	before, listed := map[netip.Prefix]ledger.BlockState{}, w.listed
	for p, s := range w.states {
		before[p] = s
	}
	st := w.Begin()
	blocks := randomBlocks(w.rnd)
	w.g.Expect(st.SetBlocks("default", blocks)).To(Succeed())
	w.setBlocks(blocks)
	w.fault = journal.None
	w.claimOne()
	w.claimOne()
	st.Undo()
	for p := range w.states {
		if s, ok := before[p]; ok {
			w.states[p] = s
		} else {
			w.states[p] = ledger.Draining
		}
	}
	w.listed = listed
	for p := range w.states {
		if _, ok := before[p]; !ok && !w.hasLease(p) {
			delete(w.states, p)
		}
	}
	w.forget()
}

func (w *walk) exclude() {
	a := w.addr()
	if w.excluded[a] {
		if w.Readmit(context.Background(), "default", a) == nil {
			delete(w.excluded, a)
		}
	} else if w.Exclude(context.Background(), ledger.Exclusion{Pool: "default", Addr: a, Owner: "model"}) == nil {
		w.excluded[a] = true
	}
}

func (w *walk) changePolicy() {
	next := w.estate.pool
	next.ReserveEdges = w.rnd.IntN(2) == 0
	next.Order = ledger.Order(w.rnd.IntN(2))
	next.Exclude = nil
	for range w.rnd.IntN(4) {
		next.Exclude = append(next.Exclude, netip.PrefixFrom(w.addr(), 25+w.rnd.IntN(8)))
	}
	st := w.Begin()
	w.g.Expect(st.SetPool(next)).To(Succeed())
	if st.Commit(context.Background()) == nil {
		w.estate.pool = next
	} else {
		st.Undo()
	}
}

func (w *walk) compare() {
	w.fault = journal.None
	w.consistent()
	want, got := map[string]uint64{}, map[string]uint64{}
	for p, s := range w.states {
		n := uint64(0)
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			if s == ledger.Active && w.isFree(a) {
				n++
			}
		}
		want[fmt.Sprint(p, s)] = n
	}
	for _, s := range w.Stats() {
		got[fmt.Sprint(s.Block, s.State)] = s.Free
	}
	w.g.Expect(got).To(Equal(want))
}
