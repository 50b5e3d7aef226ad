// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/kvdb"
)

// TestClusterInARandomWorld has agents live through random calamities of
// themselves, their networks and their etcd, and checks all that may never
// break after each of them.
func TestClusterInARandomWorld(t *testing.T) {
	effort.Need(t, "a world of agents takes tens of seconds")
	s := effort.Seed(t)
	for i := range effort.Times(t, 2) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			tried := attack.Begin(t, attack.World)
			w := newWorld(t, s+uint64(i), 3+i%2)
			g.Expect(w.blame(w.calm())).To(Succeed())
			for range longer(t, 45, 200) {
				tried.Add(1)
				if err := w.step(); err != nil {
					t.Fatal(w.blame(err))
				}
			}
			g.Expect(w.blame(w.calm())).To(Succeed())
			requests, err := w.overlaps()
			g.Expect(err).NotTo(HaveOccurred())
			tried.Except("node IDs that went to another node after the store had lost them, whose addresses are not compared", w.counts["(an ID went to a faster node)"])
			t.Logf("seed %d: %d requests, %d members; %v", w.seed, requests, len(w.members), w.counts)
		})
	}
}

// overlaps compares all times at which addresses were held, but for those of
// nodes that shared an ID after the store had lost it.
func (w *world) overlaps() (requests int, err error) {
	h, single := newHistory(), map[string]bool{}
	for _, d := range w.members {
		single[d.name] = len(d.rivals) == 0 && !d.gone
	}
	all := w.history.Ops()
	for _, op := range all {
		if single[op.Key.Network] {
			h.record(op)
		}
	}
	return len(all), h.checkAddresses()
}

// liar has real agents, and lies about them.
type liar struct {
	*world
	g    *WithT
	a, b *resident
	k, l Key // what a and b have allocated
}

// record returns the store's record of an ID.
func (x liar) record(id uint32) *kv.NodeRecord {
	held, err := x.store.holders()
	x.g.Expect(err).NotTo(HaveOccurred())
	x.g.Expect(held).To(HaveKey(id))
	return held[id].NodeRecord
}

func (x liar) put(id uint32, r *kv.NodeRecord) {
	value, err := proto.Marshal(r)
	x.g.Expect(err).NotTo(HaveOccurred())
	_, err = x.store.store.Txn(x.t.Context(), nil, []kvdb.Op{kvdb.Put(kv.NodeRecordKey(id), value)})
	x.g.Expect(err).NotTo(HaveOccurred())
}

// change is a lie about a record of the store.
func (x liar) change(id uint32, f func(*kv.NodeRecord)) func() {
	return func() {
		r := x.record(id)
		f(r)
		x.put(id, r)
	}
}

// believe is a lie about what a client was told.
func (x liar) believe(d *resident, k Key, address string) func() {
	return func() { d.oracle.belief(k).told = []netip.Addr{netip.MustParseAddr(address)} }
}

// lie holds a false answer, and the check that must find it.
type lie struct {
	says string
	tell func()
	find func() error
}

func (x liar) lies(held string) []lie {
	a, b := x.a, x.b
	check := func() error { return a.check(x.world) }
	return []lie{
		{"of stranger, which is unknown", x.change(a.id, func(r *kv.NodeRecord) { r.Name = "stranger" }), x.look},
		{"but of instance other", x.change(a.id, func(r *kv.NodeRecord) { r.Instance = "other" }), x.look},
		{"has node IDs", x.change(a.id, func(r *kv.NodeRecord) { r.Name, r.Instance = b.name, b.instance }), x.look},
		{"superseded by 9", x.change(a.id, func(r *kv.NodeRecord) { r.SupersededBy = 9 }), x.look},
		{"the generation of node ID", x.change(a.id, func(r *kv.NodeRecord) { r.Generation = 0 }), x.look},
		{fmt.Sprintf("which has %d", b.id), func() {
			moved := x.record(b.id)
			moved.Id = 7
			x.put(7, moved)
			x.change(b.id, func(r *kv.NodeRecord) { r.Released = 1 })()
		}, x.look},
		{"is held by", x.believe(b, x.l, held), x.addresses},
		{"it was told [10.1.9.9]", x.believe(a, x.k, "10.1.9.9"), check},
		{"its ID was 77", func() { a.id = 77 }, check},
		{"its ID is in doubt, although", func() {
			x.change(a.id, func(r *kv.NodeRecord) { r.Name, r.Instance = "thief", "thief" })()
			a.pass()
			x.g.Eventually(a.doubts, healing).Should(Succeed())
		}, check},
		{"has ended by itself, with 1", func() {
			a.agent.kill()
			a.agent = a.launch(x.t, "--state-dir", "/dev/null/none")
			<-a.agent.ended
		}, check},
	}
}

// TestWrongWorldsAreFound lies about a world of two agents in every way that
// an invariant is about.
func TestWrongWorldsAreFound(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	w := newWorld(t, 1, 2)
	g.Expect(w.blame(w.calm())).To(Succeed())
	x := liar{world: w, g: g, a: w.members[0], b: w.members[1]}
	x.k, x.l = x.a.clients[0].keys[0], x.b.clients[0].keys[0]
	g.Expect(x.a.ask(w, x.k, Add, false)).To(Equal(Answered))
	g.Expect(x.b.ask(w, x.l, Add, false)).To(Equal(Answered))
	g.Expect(w.blame(w.calm())).To(Succeed())
	held, others := x.a.book[0].Addr.String(), x.b.book[0].Addr.String()
	x.a.cut() // or they put the records in order before the check
	x.b.cut()
	for _, lie := range x.lies(held) {
		g.Expect(w.look()).To(Succeed(), "before %s", lie.says)
		id := x.a.id
		was := []*kv.NodeRecord{x.record(x.a.id), x.record(x.b.id)}
		lie.tell()
		g.Expect(lie.find()).To(MatchError(ContainSubstring(lie.says)), lie.says)
		x.a.id, w.record = id, map[uint32]uint64{}
		_, err := w.store.store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Delete(kv.NodeRecordKey(7))})
		g.Expect(err).NotTo(HaveOccurred())
		for _, r := range was {
			r.Generation += 10
			x.put(r.Id, r)
		}
		x.believe(x.a, x.k, held)()
		x.believe(x.b, x.l, others)()
	}
}
