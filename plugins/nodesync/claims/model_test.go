// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package claims_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

const (
	fresh  = 3 * time.Minute
	expire = 5 * time.Minute
)

// epoch is the time at which the worlds begin.
func epoch() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }

// implied has node ID n imply block 10.1.n.0/24 and node address 192.168.16.n.
func implied(r *kv.NodeRecord, _ []*kv.Pool) (all []claims.Target) {
	n := byte(r.Id)
	all = append(all, claims.NodeAddress(netip.AddrFrom4([4]byte{192, 168, 16, n})))
	if r.ExplicitBlocks {
		return all
	}
	all = append(all, claims.Block(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, n, 0}), 24)))
	for _, text := range r.PodCidrs {
		all = append(all, claims.Block(netip.MustParsePrefix(text)))
	}
	return all
}

// world is a store with nodes that believe to have prefixes.
type world struct {
	t       *testing.T
	g       *WithT
	store   *mem.Store
	now     time.Time
	beliefs map[string]map[claims.Target]bool // by node and instance
	terms   map[string]time.Duration          // nodeIDs.expire of a node, if another one than expire
	history []string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, g: NewWithT(t), store: mem.New(), now: epoch(), beliefs: map[string]map[claims.Target]bool{}}
	t.Cleanup(func() { _ = w.store.Close() })
	return w
}

func (w *world) put(key string, m proto.Message) {
	value, err := proto.Marshal(m)
	w.g.Expect(err).NotTo(HaveOccurred())
	_, err = w.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, value)})
	w.g.Expect(err).NotTo(HaveOccurred())
}

// joins gives a node its record and a beat.
func (w *world) joins(n claims.Node) claims.Node {
	w.put(kv.NodeRecordKey(n.ID), &kv.NodeRecord{Id: n.ID, Name: n.Name, Instance: n.Instance, Generation: 1, ExplicitBlocks: true})
	w.beats(n)
	return n
}

func (w *world) beats(n claims.Node) {
	w.put(kv.BeatKey(n.ID), &kv.NodeBeat{
		Id: n.ID, Instance: n.Instance, Session: "s", At: w.now.UnixNano(), NodeName: n.Name, Expire: int64(w.term(n)),
	})
}

// term returns how long a node allocates without the store.
func (w *world) term(n claims.Node) time.Duration { return cmp.Or(w.terms[n.Name], expire) }

// of returns the register of a node, which knows its own configuration.
func (w *world) of(n claims.Node, store kvdb.Store) claims.Register {
	r := w.register(store)
	r.Expire = w.term(n)
	return r
}

func (w *world) register(store kvdb.Store) claims.Register {
	return claims.Register{Store: store, Implied: implied, Fresh: fresh, Expire: expire}
}

func (w *world) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

func (w *world) believes(n claims.Node, t claims.Target, yes bool) {
	key := n.Name + "/" + n.Instance
	if w.beliefs[key] == nil {
		w.beliefs[key] = map[claims.Target]bool{}
	}
	if yes {
		w.beliefs[key][t] = true
	} else {
		delete(w.beliefs[key], t)
	}
	w.note("%s %s %v: %v", key, t.Network, t.Prefix, yes)
}

// forgets is a node that has stopped allocating: it was killed, or its term is over.
func (w *world) forgets(n claims.Node) {
	delete(w.beliefs, n.Name+"/"+n.Instance)
	w.note("%s stops", n.Name)
}

// check fails where two nodes believe to have one address.
func (w *world) check() {
	for a, as := range w.beliefs {
		for b, bs := range w.beliefs {
			for x := range as {
				for y := range bs {
					if a < b && x.Overlaps(y) {
						w.t.Fatalf("both %s and %s have %s:\n%v", a, b, x.Prefix, w.history)
					}
				}
			}
		}
	}
}

// asks is a process that asks for t some times.
func (w *world) asks(n claims.Node, t claims.Target, times int) func(kvdb.Store) error {
	return func(store kvdb.Store) error {
		for range times {
			o, err := w.of(n, store).Ask(context.Background(), n, t, w.now)
			if err != nil {
				w.note("%s: %v", n.Name, err)
				if errors.Is(err, errCrashed) {
					return err
				}
				continue
			}
			w.believes(n, t, o.Held)
		}
		return nil
	}
}

// restores is a process that asks again for what it held.
func (w *world) restores(n claims.Node, t claims.Target) func(kvdb.Store) error {
	return func(store kvdb.Store) error {
		o, err := w.register(store).Restore(context.Background(), n, t, w.now)
		if err == nil {
			w.believes(n, t, o.Held)
		}
		return err
	}
}

// wipes empties the store; nodes that are there write their records again.
func (w *world) wipes(nodes ...claims.Node) {
	kvs, _, err := w.store.List(context.Background(), "")
	w.g.Expect(err).NotTo(HaveOccurred())
	for _, x := range kvs {
		_, err := w.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Delete(x.Key)})
		w.g.Expect(err).NotTo(HaveOccurred())
	}
	for _, n := range nodes {
		w.joins(n)
	}
	w.note("the store is wiped")
}

// claimsID is a process that claims a node ID which implies addresses.
func (w *world) claimsID(n claims.Node, explicit bool) func(kvdb.Store) error {
	return func(store kvdb.Store) error {
		r := w.of(n, store)
		record := &kv.NodeRecord{Id: n.ID, Name: n.Name, Instance: n.Instance, Generation: 1, ExplicitBlocks: explicit}
		value, err := proto.Marshal(record)
		if err != nil {
			return err
		}
		rev, err := store.Txn(context.Background(), []kvdb.Cond{kvdb.Absent(kv.NodeRecordKey(n.ID))}, []kvdb.Op{kvdb.Put(kv.NodeRecordKey(n.ID), value)})
		if err != nil {
			return err
		}
		if err = r.CheckID(context.Background(), record, rev, w.now); err != nil {
			if errors.Is(err, claims.ErrTaken) { // gives it back
				_, err = store.Txn(context.Background(), []kvdb.Cond{kvdb.AtRevision(kv.NodeRecordKey(n.ID), rev)}, []kvdb.Op{kvdb.Delete(kv.NodeRecordKey(n.ID))})
			}
			return err
		}
		for _, t := range implied(record, nil) {
			w.believes(n, t, true)
		}
		return nil
	}
}

// givesUp is a process that ends its held claim, as an agent does after the last
// lease: its event loop stops first, then the claim is pending, then it goes.
func (w *world) givesUp(n claims.Node, t claims.Target) func(kvdb.Store) error {
	return func(store kvdb.Store) error {
		r, key := w.register(store), t.Key(n.Name)
		x, _, err := store.Get(context.Background(), key)
		if err != nil {
			return err
		}
		c := &kv.PrefixClaim{}
		if x.ModRevision == 0 || proto.Unmarshal(x.Value, c) != nil || !c.Held {
			return nil //nolint:nilerr // a claim that cannot be read is not held
		}
		w.believes(n, t, false)
		rev, err := r.Withdraw(context.Background(), c, key, x.ModRevision)
		if err != nil {
			return err
		}
		return r.Delete(context.Background(), key, rev)
	}
}

// releases marks the record of a node that holds its ID as released by force.
func (w *world) releases(n claims.Node) {
	x, _, err := w.store.Get(context.Background(), kv.NodeRecordKey(n.ID))
	w.g.Expect(err).NotTo(HaveOccurred())
	r := &kv.NodeRecord{}
	w.g.Expect(proto.Unmarshal(x.Value, r)).To(Succeed())
	r.Released = w.now.UnixNano()
	w.put(kv.NodeRecordKey(n.ID), r)
	w.note("%s is released by force", n.Name)
}

func (w *world) held(t claims.Target) (nodes []string) {
	for n, all := range w.beliefs {
		if all[t] {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

func node(name string, id uint32) claims.Node {
	return claims.Node{Name: name, Instance: "i-" + name, ID: id}
}

func block(text string) claims.Target { return claims.Block(netip.MustParsePrefix(text)) }

func address(text string) claims.Target { return claims.NodeAddress(netip.MustParseAddr(text)) }

// scenario holds what happens before the interleaved processes, and what must
// be true in the end.
type scenario struct {
	before func(*world) []func(kvdb.Store) error
	after  func(*world)
}

func wide() claims.Target { return block("10.1.77.0/24") }

// contests are the scenarios in which two nodes want the same addresses.
func contests() map[string]scenario {
	wide, narrow := wide(), block("10.1.77.128/25")
	return map[string]scenario{
		"two nodes, one prefix": {func(w *world) []func(kvdb.Store) error {
			return []func(kvdb.Store) error{w.asks(w.joins(node("a", 1)), wide, 1), w.asks(w.joins(node("b", 2)), wide, 1)}
		}, func(w *world) {
			w.g.Expect(w.held(wide)).To(HaveLen(1), "one of them has it: %v", w.history)
		}},
		"overlapping prefixes": {func(w *world) []func(kvdb.Store) error {
			return []func(kvdb.Store) error{w.asks(w.joins(node("a", 1)), wide, 1), w.asks(w.joins(node("b", 2)), narrow, 1)}
		}, func(w *world) {
			w.g.Expect(append(w.held(wide), w.held(narrow)...)).To(HaveLen(1))
		}},
		"a pinned address and the ID that implies it": {func(w *world) []func(kvdb.Store) error {
			return []func(kvdb.Store) error{w.asks(w.joins(node("a", 1)), address("192.168.16.2"), 1), w.claimsID(node("b", 2), true)}
		}, func(w *world) {
			run(w.store, &every{}, w.check, w.asks(node("a", 1), address("192.168.16.2"), 1))
			w.g.Expect(w.held(address("192.168.16.2"))).To(HaveLen(1), "%v", w.history)
		}},
		"a podCIDR and the ID that implies it": {func(w *world) []func(kvdb.Store) error {
			return []func(kvdb.Store) error{w.asks(w.joins(node("a", 1)), block("10.1.2.0/24"), 1), w.claimsID(node("b", 2), false)}
		}, func(w *world) {}},
	}
}

// endings are the scenarios in which a claim ends.
func endings() map[string]scenario {
	wide := wide()
	return map[string]scenario{
		"the holder gives up": {func(w *world) []func(kvdb.Store) error {
			a, b := w.joins(node("a", 1)), w.joins(node("b", 2))
			run(w.store, &every{}, w.check, w.asks(a, wide, 1))
			w.g.Expect(w.held(wide)).To(ConsistOf("a/i-a"))
			return []func(kvdb.Store) error{w.givesUp(a, wide), w.asks(b, wide, 1)}
		}, func(w *world) {
			run(w.store, &every{}, w.check, w.asks(node("b", 2), wide, 1))
			w.g.Expect(w.held(wide)).To(ConsistOf("b/i-b"), "%v", w.history)
		}},
		"a dead node's pending claim": {func(w *world) []func(kvdb.Store) error {
			a, b, c := w.joins(node("a", 1)), w.joins(node("b", 2)), w.joins(node("c", 3))
			kill := &plan{choose: func(int) int { return 0 }, fates: []fate{served, served, served, crashed}}
			run(w.store, kill, w.check, w.asks(a, wide, 1))
			w.forgets(a)
			w.now = w.now.Add(2 * fresh)
			w.beats(b)
			w.beats(c)
			return []func(kvdb.Store) error{w.asks(b, wide, 1), w.asks(c, wide, 1)}
		}, func(w *world) {
			w.g.Expect(w.held(wide)).To(HaveLen(1), "%v", w.history)
		}},
		"the same name on a new machine": {func(w *world) []func(kvdb.Store) error {
			a, b := w.joins(node("a", 1)), w.joins(node("b", 2))
			run(w.store, &every{}, w.check, w.asks(a, wide, 1))
			w.now = w.now.Add(expire + time.Second)
			w.forgets(a) // its term is over
			w.beats(b)
			again := w.joins(claims.Node{Name: "a", Instance: "i-a2", ID: 3})
			return []func(kvdb.Store) error{w.asks(again, wide, 1), w.asks(b, wide, 1)}
		}, func(w *world) {
			w.g.Expect(w.held(wide)).To(ConsistOf("a/i-a2"), "it inherits: %v", w.history)
		}},
		"one name on two living machines": {func(w *world) []func(kvdb.Store) error {
			a := w.joins(node("a", 1))
			run(w.store, &every{}, w.check, w.asks(a, wide, 1))
			w.now = w.now.Add(expire - time.Second) // it does not beat, and still allocates
			return []func(kvdb.Store) error{w.asks(w.joins(claims.Node{Name: "a", Instance: "i-a2", ID: 3}), wide, 1)}
		}, func(w *world) {
			w.g.Expect(w.held(wide)).To(ConsistOf("a/i-a"))
		}},
		"a released node stays away": {func(w *world) []func(kvdb.Store) error {
			a, b, c := w.joins(node("a", 1)), w.joins(node("b", 2)), w.joins(node("c", 3))
			run(w.store, &every{}, w.check, w.asks(a, wide, 1))
			w.g.Expect(w.register(w.store).End(context.Background(), "a", w.now)).To(Succeed())
			w.now = w.now.Add(expire)
			w.forgets(a)
			w.beats(b)
			w.beats(c)
			return []func(kvdb.Store) error{w.asks(b, wide, 1), w.asks(c, wide, 1)}
		}, func(w *world) {
			w.g.Expect(w.held(wide)).To(Or(ConsistOf("b/i-b"), ConsistOf("c/i-c")), "%v", w.history)
		}},
		"a released node comes back": {func(w *world) []func(kvdb.Store) error {
			a, b := w.joins(node("a", 1)), w.joins(node("b", 2))
			run(w.store, &every{}, w.check, w.asks(a, wide, 1))
			w.now = w.now.Add(fresh)
			w.g.Expect(w.register(w.store).End(context.Background(), "a", w.now)).To(Succeed())
			o, err := w.register(w.store).Ask(context.Background(), b, wide, w.now)
			w.g.Expect(err).NotTo(HaveOccurred())
			w.g.Expect(o.Blocker.Ends).To(BeTemporally("==", epoch().Add(expire)), "it may still allocate until then")
			w.now = w.now.Add(expire)
			w.forgets(a)
			w.beats(b)
			return []func(kvdb.Store) error{w.asks(a, wide, 1), w.asks(b, wide, 1)}
		}, func(w *world) {
			w.g.Expect(w.held(wide)).To(HaveLen(1), "%v", w.history)
		}},
	}
}

// losses are the scenarios in which the store forgets.
func losses() map[string]scenario {
	wide := wide()
	return map[string]scenario{
		"the holder is back, and another node waits": {func(w *world) []func(kvdb.Store) error {
			a, b := w.joins(node("a", 1)), w.joins(node("b", 2))
			run(w.store, &every{}, w.check, w.asks(a, wide, 1))
			w.forgets(a)
			w.wipes(a, b)
			w.put(wide.Key("b"), &kv.PrefixClaim{Network: wide.Network, Prefix: wide.Prefix.String(), Node: "b", NodeId: 2, Instance: "i-b"})
			return []func(kvdb.Store) error{w.restores(a, wide), w.asks(b, wide, 1)}
		}, func(w *world) {
			w.g.Expect(w.held(wide)).To(HaveLen(1), "%v", w.history)
		}},
		"the holder is back before the other node looks": {func(w *world) []func(kvdb.Store) error {
			a, b := w.joins(node("a", 1)), w.joins(node("b", 2))
			run(w.store, &every{}, w.check, w.asks(a, wide, 1))
			w.forgets(a)
			w.wipes(a, b)
			w.put(wide.Key("b"), &kv.PrefixClaim{Network: wide.Network, Prefix: wide.Prefix.String(), Node: "b", NodeId: 2, Instance: "i-b"})
			return []func(kvdb.Store) error{w.restores(a, wide)}
		}, func(w *world) {
			w.g.Expect(w.held(wide)).To(ConsistOf("a/i-a"), "it comes before a claim that is only pending: %v", w.history)
		}},
	}
}

// Each scenario runs once in every order of its single requests.
func TestEveryInterleaving(t *testing.T) {
	all := contests()
	maps.Copy(all, endings())
	maps.Copy(all, losses())
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			tried := attack.Begin(t, attack.Schedule)
			schedules := 0
			for e, more := (&every{}), true; more; more = e.more() {
				w := newWorld(t)
				for _, err := range run(w.store, e, w.check, c.before(w)...) {
					w.g.Expect(err).To(Or(Not(HaveOccurred()), MatchError(kvdb.ErrConditions)))
				}
				c.after(w)
				schedules++
				tried.Add(1)
			}
			t.Logf("%d interleavings", schedules)
		})
	}
}

// plan is a schedule of functions.
type plan struct {
	choose func(int) int
	fates  []fate
}

func (p *plan) next(n int) int { return p.choose(n) }

func (p *plan) fate() fate {
	if len(p.fates) == 0 {
		return served
	}
	f := p.fates[0]
	p.fates = p.fates[1:]
	return f
}

// random is a schedule with faults.
type random struct{ *rand.Rand }

func (r random) next(n int) int { return r.IntN(n) }

func (r random) fate() fate {
	switch r.IntN(40) {
	case 0:
		return crashed
	case 1, 2:
		return lostReply
	}
	return served
}

// Nodes of different configurations claim, give up, die, are released, by force too, and come
// back, over a store whose writes are single and whose replies get lost. No address is believed by two,
// and in the end every prefix that a living node asks for is held by one.
func TestRandomWorlds(t *testing.T) {
	targets := []claims.Target{block("10.1.77.0/24"), block("10.1.77.0/25"), block("10.1.78.0/24"), address("192.168.16.4"), block("10.1.4.0/24")}
	tried := attack.Begin(t, attack.ClaimWorld)
	for seed := range uint64(400) {
		tried.Add(1)
		w := newWorld(t)
		rnd := random{rand.New(rand.NewPCG(seed, 7))}
		w.terms = map[string]time.Duration{}
		for _, name := range []string{"a", "b", "c", "d"} {
			w.terms[name] = time.Duration(1+rnd.IntN(5)) * expire
		}
		var nodes []claims.Node
		for i, name := range []string{"a", "b", "c"} {
			nodes = append(nodes, w.joins(node(name, uint32(i+1))))
		}
		late, forced := node("d", 4), time.Time{}
		for range 12 {
			var processes []func(kvdb.Store) error
			var at []claims.Node
			for _, n := range nodes {
				t := targets[rnd.IntN(len(targets))]
				f := w.asks(n, t, 1+rnd.IntN(2))
				if rnd.IntN(3) == 0 {
					f = w.givesUp(n, t)
				}
				processes, at = append(processes, f), append(at, n)
			}
			if rnd.IntN(4) == 0 && w.beliefs["d/i-d"] == nil && forced.IsZero() {
				w.beats(late)
				processes, at = append(processes, w.claimsID(late, rnd.IntN(2) == 0)), append(at, late)
			}
			for i, err := range run(w.store, rnd, w.check, processes...) {
				if errors.Is(err, errCrashed) && at[i].Name != "d" {
					w.forgets(at[i]) // and starts again, with what the store says
				}
			}
			if rnd.IntN(4) == 0 { // a node is away until its term is over, and is released
				n := nodes[rnd.IntN(len(nodes))]
				w.forgets(n)
				w.now = w.now.Add(w.term(n))
				_ = w.register(w.store).End(context.Background(), n.Name, w.now)
			}
			switch {
			case forced.IsZero() && w.beliefs["d/i-d"] != nil:
				w.beats(late)
				if rnd.IntN(3) == 0 { // it has lost the store, and is released by force
					forced = w.now
					w.releases(late)
				}
			case !forced.IsZero():
				w.now = w.now.Add(expire)
				if !w.now.Before(forced.Add(w.term(late))) {
					w.forgets(late)
				}
			}
			for _, n := range nodes {
				w.beats(n)
			}
			w.check()
		}
		for range 3 {
			for _, n := range nodes {
				run(w.store, &every{}, w.check, w.asks(n, targets[2], 1))
			}
		}
		w.g.Expect(w.held(targets[2])).To(HaveLen(1), "seed %d: %v", seed, w.history)
	}
}
