// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package handshake_test

import (
	"maps"
	"math/rand/v2"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/handshake"
)

func TestTheAgentAnswers(t *testing.T) {
	for _, c := range []struct {
		what  string
		entry handshake.State
		seen  handshake.Seen
		want  handshake.State
	}{
		{"free", handshake.Marked, handshake.Seen{InPool: true}, handshake.Ready},
		{"leased", handshake.Marked, handshake.Seen{InPool: true, Leased: true}, handshake.DoNotRelease},
		{"foreign", handshake.Marked, handshake.Seen{}, handshake.DoNotRelease},
		{"its own answer stands", handshake.Ready, handshake.Seen{InPool: true}, handshake.Ready},
		{"a lease wins", handshake.Ready, handshake.Seen{InPool: true, Leased: true}, handshake.DoNotRelease},
		{"refused", handshake.DoNotRelease, handshake.Seen{InPool: true}, handshake.DoNotRelease},
		{"released, still in the pool", handshake.Released, handshake.Seen{InPool: true}, handshake.Released},
		{"released and out", handshake.Released, handshake.Seen{}, handshake.None},
	} {
		NewWithT(t).Expect(handshake.Answer(c.entry, c.seen)).To(Equal(c.want), c.what)
	}
}

func TestTheOperatorDecides(t *testing.T) {
	for _, c := range []struct {
		what  string
		entry handshake.State
		want  handshake.Want
		next  handshake.State
		call  bool
	}{
		{"too much", handshake.None, handshake.Want{Excess: true}, handshake.Marked, false},
		{"enough", handshake.None, handshake.Want{}, handshake.None, false},
		{"no answer yet", handshake.Marked, handshake.Want{}, handshake.Marked, false},
		{"abort before the answer", handshake.Marked, handshake.Want{Needed: true}, handshake.None, false},
		{"abort after the answer", handshake.Ready, handshake.Want{Needed: true}, handshake.None, false},
		{"ready", handshake.Ready, handshake.Want{Excess: true}, handshake.Released, true},
		{"refused", handshake.DoNotRelease, handshake.Want{Excess: true}, handshake.None, false},
		{"no way back", handshake.Released, handshake.Want{Needed: true}, handshake.Released, true},
		{"done", handshake.Released, handshake.Want{Gone: true}, handshake.Released, false},
		{"given again", handshake.Released, handshake.Want{Gone: true, Back: true}, handshake.None, false},
		{"nonsense", "soon", handshake.Want{}, handshake.None, false},
	} {
		g := NewWithT(t)
		next := handshake.Decide(c.entry, c.want)
		g.Expect(next).To(Equal(c.next), c.what)
		g.Expect(handshake.Call(next, c.want)).To(Equal(c.call), c.what)
	}
}

// object is the NetResourceSet.
type object struct {
	rv      int
	entries map[int]handshake.State
	pool    map[int]bool
}

func (o object) copy() object {
	return object{o.rv, maps.Clone(o.entries), maps.Clone(o.pool)}
}

// operator holds the knowledge of one process. A second one may run at the same time.
type operator struct {
	view object
	gone map[int]bool
}

// call is one that is under way to the provider, which may arrive late.
type call struct {
	address int
	by      *operator
}

// world is both sides and what is between them.
type world struct {
	rng    *rand.Rand
	faults bool
	api    object
	cloud  map[int]bool // what the node has
	leases map[int]bool
	need   bool // the node needs all that it has
	agent  object
	ops    []*operator
	calls  []call
	seed   uint64
}

const addresses = 3

func newWorld(seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), seed: seed, faults: true, cloud: map[int]bool{}, leases: map[int]bool{}}
	w.api = object{1, map[int]handshake.State{}, map[int]bool{}}
	for a := range addresses {
		w.cloud[a], w.api.pool[a] = true, true
	}
	w.agent = w.api.copy()
	w.ops = []*operator{w.newOperator(), w.newOperator()}
	return w
}

func (w *world) newOperator() *operator { return &operator{w.api.copy(), map[int]bool{}} }

// write replaces what change changes if from is the newest version. The writer
// may not learn of it.
func (w *world) write(from *object, change func(o *object)) {
	if from.rv != w.api.rv {
		return // conflict
	}
	if w.faults && w.rng.IntN(6) == 0 {
		return // lost on its way
	}
	change(&w.api)
	w.api.rv++
	if !w.faults || w.rng.IntN(6) > 0 {
		*from = w.api.copy()
	}
}

func set(o *object, a int, s handshake.State) {
	if s == handshake.None {
		delete(o.entries, a)
		return
	}
	o.entries[a] = s
}

// operate is one step of an operator with one address.
func (w *world) operate(op *operator, a int) {
	entry := op.view.entries[a]
	want := handshake.Want{Excess: !w.need, Needed: w.need, Gone: op.gone[a]}
	if entry == handshake.None && (!op.view.pool[a] || op.gone[a]) {
		delete(op.gone, a)
		return
	}
	next := handshake.Decide(entry, want)
	switch {
	case next != entry:
		w.write(&op.view, func(o *object) { set(o, a, next) })
	case handshake.Call(entry, want):
		w.calls = append(w.calls, call{a, op})
	case op.gone[a] && op.view.pool[a]:
		w.write(&op.view, func(o *object) { delete(o.pool, a) })
	}
}

// arrive lets a call reach the provider; the answer may be lost, and the call too.
func (w *world) arrive(t *testing.T) {
	if len(w.calls) == 0 {
		return
	}
	i := w.rng.IntN(len(w.calls))
	c := w.calls[i]
	w.calls = append(w.calls[:i], w.calls[i+1:]...)
	if w.faults && w.rng.IntN(5) == 0 {
		return
	}
	if w.leases[c.address] {
		t.Fatalf("address %d is released while it is leased, seed %d", c.address, w.seed)
	}
	delete(w.cloud, c.address)
	if !w.faults || w.rng.IntN(5) > 0 {
		c.by.gone[c.address] = true
	}
}

// serve is one step of the agent.
func (w *world) serve(t *testing.T, a int) {
	switch w.rng.IntN(3) {
	case 0:
		entry := w.agent.entries[a]
		if next := handshake.Answer(entry, handshake.Seen{InPool: w.agent.pool[a], Leased: w.leases[a]}); next != entry {
			w.write(&w.agent, func(o *object) { set(o, a, next) })
		}
	case 1:
		if w.faults && w.agent.pool[a] && handshake.Allocatable(w.agent.entries[a]) {
			if !w.cloud[a] {
				t.Fatalf("address %d is allocated and the node does not have it, seed %d", a, w.seed)
			}
			w.leases[a] = true
		}
	case 2:
		delete(w.leases, a)
	}
}

func (w *world) step(t *testing.T) {
	a, which := w.rng.IntN(addresses), w.rng.IntN(10)
	op := w.ops[w.rng.IntN(len(w.ops))]
	switch which {
	case 0, 1:
		op.view = w.api.copy()
	case 2, 3:
		w.operate(op, a)
	case 4:
		w.agent = w.api.copy()
	case 5, 6:
		w.serve(t, a)
	case 7:
		w.arrive(t)
	case 8:
		w.need = w.faults && w.rng.IntN(2) == 0
	case 9:
		if w.faults && w.rng.IntN(8) == 0 {
			if w.rng.IntN(2) == 0 {
				*op = operator{w.api.copy(), map[int]bool{}} // killed and started; its calls go on
			} else {
				w.agent = w.api.copy()
			}
		}
	}
}

func TestNothingIsReleasedWhileLeasedNorStuck(t *testing.T) {
	given := 0
	for seed := range uint64(400) {
		w := newWorld(seed)
		for range 600 {
			w.step(t)
		}
		w.faults, w.need = false, false
		for range 4000 {
			w.step(t)
		}
		g := NewWithT(t)
		g.Expect(w.api.entries).To(BeEmpty(), "seed %d: an entry is stuck", seed)
		g.Expect(w.cloud).To(BeEmpty(), "seed %d: too much, and it is not given back", seed)
		g.Expect(w.api.pool).To(BeEmpty(), "seed %d", seed)
		given += addresses
	}
	NewWithT(t).Expect(given).To(Equal(400 * addresses))
}

func TestRenewedDemandGetsBackWhatWasNotReleased(t *testing.T) {
	for seed := range uint64(200) {
		w := newWorld(1000 + seed)
		for range 40 {
			w.step(t)
		}
		w.faults = false
		for range 2000 {
			w.step(t)
			w.need = true
		}
		for a := range addresses {
			NewWithT(t).Expect(w.api.entries[a]).To(Equal(handshake.None), "seed %d: %v", seed, w.api)
			NewWithT(t).Expect(w.api.pool[a]).To(Equal(w.cloud[a]), "seed %d", seed)
		}
	}
}
