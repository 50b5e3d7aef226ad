// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package poolplan_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

// choose is one of 0 to n-1.
type choose func(n int) int

func pick[T any](c choose, from ...T) T { return from[c(len(from))] }

// world is a cluster store and nodes that follow it when they get round to it.
type world struct {
	choose
	pools map[string]poolplan.Pool
	nodes map[uint32]*node
	past  []map[string]poolplan.Pool // of the store
	back  bool                       // it was set back, ever
	lie   func(*poolplan.Situation)
	calm  int            // how seldom the store is set back
	count map[string]int // of what has happened
}

// node holds the real use of one node, and its last report.
type node struct {
	id     uint32
	claim  uint64
	view   map[string]poolplan.Pool
	leases map[string]uint64
	report []*kv.PoolUse
}

func newWorld(c choose) *world {
	first := pool("default", "10.0.0.0/16 24")
	return &world{choose: c, pools: map[string]poolplan.Pool{"default": first}, nodes: map[uint32]*node{}, calm: 20, count: map[string]int{}}
}

func ordered[K interface{ ~string | ~uint32 }, V any](m map[K]V) (all []V) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, m[k])
	}
	return all
}

// open returns the blocks from which n allocates.
func (n *node) open() (all []poolplan.Block) {
	pools := ordered(n.view)
	for _, network := range []string{"default", "blue"} {
		open, _, _ := poolplan.Blocks(pools, network, n.id)
		all = append(all, open...)
	}
	return all
}

// active returns the pools from which n allocates.
func (n *node) active() map[string]bool {
	names := map[string]bool{}
	for _, b := range n.open() {
		names[b.Pool] = true
	}
	return names
}

// say is a beat.
func (n *node) say() {
	n.report = nil
	open := n.active()
	for _, p := range ordered(n.view) {
		n.report = append(n.report, &kv.PoolUse{Pool: p.Name, Generation: p.Generation, Open: open[p.Name], Leases: n.leases[p.Name]})
	}
}

func (n *node) follow(p poolplan.Pool) { n.view[p.Name], _ = poolplan.Merge(n.view[p.Name], p) }

// ahead is true where a node knows what the store has forgotten.
func (w *world) ahead() bool {
	for _, n := range w.nodes {
		for name, p := range n.view {
			if p.Generation > w.pools[name].Generation {
				return true
			}
		}
	}
	return false
}

func (w *world) situation() poolplan.Situation {
	s := poolplan.Situation{Pools: ordered(w.pools), Reserved: []poolplan.Reserved{{Name: "serviceCIDR", Net: netip.MustParsePrefix("10.1.128.0/18")}}}
	for _, n := range ordered(w.nodes) {
		name := fmt.Sprint("node-", n.id)
		s.Nodes = append(s.Nodes, &kv.NodeRecord{Id: n.id, Name: name, Instance: name, Generation: n.claim})
		s.Beats = append(s.Beats, &kv.NodeBeat{Id: n.id, Instance: name, Generation: n.claim, Pools: n.report})
	}
	if w.lie != nil {
		w.lie(&s)
	}
	return s
}

// ranges are such as often overlap, or what a removed pool had.
func (w *world) ranges() (all []poolplan.Range) {
	if old := pick(w.choose, ordered(w.pools)...); old.State == poolplan.Removed {
		return old.Ranges
	}
	if w.choose(4) > 0 {
		k, length := w.choose(5), pick(w.choose, 15, 16, 17, 17)
		cidr := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(k), byte(w.choose(2) * 128), 0}), length).Masked()
		all = append(all, poolplan.Range{CIDR: cidr, OneNode: pick(w.choose, 18, 22, 24, 28)})
	}
	if len(all) == 0 || w.choose(3) == 0 {
		cidr := netip.MustParsePrefix(fmt.Sprintf("fd00:%d::/%d", w.choose(5), pick(w.choose, 47, 48, 49))).Masked()
		all = append(all, poolplan.Range{CIDR: cidr, OneNode: 64})
	}
	return all
}

// wanted is a file, mostly of sensible entries.
func (w *world) wanted() (all []poolplan.Wanted) {
	names := []string{fmt.Sprint("new-", w.count["active"])}
	for _, p := range ordered(w.pools) {
		if p.State != poolplan.Removed || w.choose(10) == 0 {
			names = append(names, p.Name)
		}
	}
	for range pick(w.choose, 1, 1, 1, 2, 3) {
		want := poolplan.Wanted{Name: pick(w.choose, names...), Network: pick(w.choose, "", "", "", "blue"), State: poolplan.State(w.choose(3))}
		if old, ok := w.pools[want.Name]; ok {
			want.Network = ""
			if w.choose(4) == 0 {
				want.Ranges = old.Ranges
			}
			if w.choose(4) > 0 {
				want.State = min(old.State+1, poolplan.Removed)
			}
		} else {
			want.State, want.Ranges = poolplan.Active, w.ranges()
		}
		if w.choose(20) == 0 {
			want.Ranges = w.ranges()
		}
		all = append(all, want)
	}
	return all
}

// apply makes a file the cluster's.
func (w *world) apply() error {
	wanted := w.wanted()
	p := poolplan.Make(w.situation(), wanted)
	if (p.Err() != nil) != (len(p.Problems)+len(p.Blocks) > 0) || p.Err() != nil && len(p.Changes)+len(p.Moves) > 0 {
		return fmt.Errorf("refused or not? %+v", p)
	}
	if refused := len(p.Problems)+len(p.Blocks) > 0; refused {
		w.count["refused"]++
		return nil
	}
	if len(p.Changes) > 0 {
		w.past = append(w.past, maps.Clone(w.pools))
	}
	covered, drained := w.covered(), false
	for _, c := range p.Changes {
		if err := legal(w.pools[c.To.Name], c.To); err != nil {
			return fmt.Errorf("%w: %s becomes %s", err, w.pools[c.To.Name], c.To)
		}
		if c.From.Generation == 0 && drained {
			return fmt.Errorf("%s is added when another is drained already", c.To)
		}
		drained = drained || c.To.State == poolplan.Draining
		stored, err := poolplan.FromMessage(c.Message())
		if err != nil || !stored.Equal(c.To) {
			return fmt.Errorf("%s is stored as %s: %w", c.To, stored, err)
		}
		w.pools[c.To.Name] = stored
		w.count[c.To.State.String()]++
	}
	if now := w.covered(); len(p.Changes) > 0 && (covered[0] && !now[0] || covered[1] && !now[1]) {
		return fmt.Errorf("network default allocates in %v, and did in %v", now, covered)
	}
	if again := poolplan.Make(w.situation(), wanted); again.Err() != nil || len(again.Changes) > 0 {
		return fmt.Errorf("applied twice: %+v", again)
	}
	return nil
}

// legal reports whether a pool may become the other one.
func legal(from, to poolplan.Pool) error {
	switch {
	case to.Generation != from.Generation+1:
		return fmt.Errorf("generation %d follows %d", to.Generation, from.Generation)
	case from.Generation == 0 && to.State != poolplan.Active:
		return fmt.Errorf("a new pool is %s", to.State)
	case from.Generation == 0:
		return nil
	case from.State == poolplan.Removed, from.State == poolplan.Active && to.State == poolplan.Removed, from.State == to.State:
		return fmt.Errorf("%s follows %s", to.State, from.State)
	case !slices.Equal(from.Ranges, to.Ranges) || from.Network != to.Network || from.Origin != to.Origin:
		return fmt.Errorf("more than the state changes")
	}
	return nil
}

// covered reports whether network default allocates IPv4 and IPv6.
func (w *world) covered() (families [2]bool) {
	for _, p := range w.pools {
		for _, r := range p.Ranges {
			if p.Network == "default" && p.State == poolplan.Active {
				families[r.CIDR.Addr().BitLen()/128] = true
			}
		}
	}
	return families
}

// step is something that happens.
func (w *world) step() error {
	nodes := ordered(w.nodes)
	var n *node
	if len(nodes) > 0 {
		n = pick(w.choose, nodes...)
	}
	switch act := w.choose(16); {
	case act < 4:
		return w.apply()
	case act == 4 && !w.ahead(): // who joins a store that was set back learns what is not so
		w.join()
	case n == nil:
	case act == 5 && w.choose(4) == 0: // its leases are gone with it
		delete(w.nodes, n.id)
	case act < 8:
		n.follow(pick(w.choose, ordered(w.pools)...))
	case act == 8:
		for _, p := range w.pools {
			n.follow(p)
		}
		n.say()
	case act < 11:
		if open := n.open(); len(open) > 0 {
			n.leases[pick(w.choose, open...).Pool]++
			w.count["allocated"]++
		}
	case act == 11 && w.choose(3) == 0:
		open := n.active()
		maps.DeleteFunc(n.leases, func(name string, _ uint64) bool { return !open[name] })
	case act == 12:
		n.say()
	case act == 13:
		w.putBack(n)
	case act == 14 && w.choose(w.calm) == 0:
		w.setBack()
	}
	return nil
}

// join is a new node, which begins with all that the store has.
func (w *world) join() {
	for id := uint32(1); id <= min(5, poolplan.Largest(ordered(w.pools))); id++ {
		if w.nodes[id] == nil {
			w.nodes[id] = &node{id: id, claim: uint64(w.count["joined"] + 1), view: maps.Clone(w.pools), leases: map[string]uint64{}}
			w.count["joined"]++
			return
		}
	}
}

// putBack stores what n knows and the store does not.
func (w *world) putBack(n *node) {
	for _, known := range ordered(n.view) {
		if p, write := poolplan.Merge(known, w.pools[known.Name]); write {
			w.pools[p.Name] = p
			w.count["put back"]++
		}
	}
}

// setBack restores an older store. Then no file is applied before the nodes have reported
// their use.
func (w *world) setBack() {
	if w.past == nil {
		return
	}
	w.back = true
	i := w.choose(len(w.past))
	w.pools, w.past = maps.Clone(w.past[i]), w.past[:i+1]
	w.count["set back"]++
	for _, n := range w.nodes {
		n.say()
	}
}

// check checks the invariants.
func (w *world) check() error {
	type own struct {
		who    string
		prefix netip.Prefix
	}
	var owned []own
	for _, n := range ordered(w.nodes) {
		open := n.active()
		for _, p := range ordered(n.view) {
			if !open[p.Name] && n.leases[p.Name] == 0 {
				continue
			}
			for _, r := range p.Ranges {
				prefix, err := r.Block(n.id)
				if err != nil {
					return err
				}
				x := own{fmt.Sprintf("node %d in %s", n.id, p), prefix}
				for _, other := range owned {
					if other.prefix.Overlaps(prefix) {
						return fmt.Errorf("%s has %s, and %s has %s", x.who, x.prefix, other.who, other.prefix)
					}
				}
				owned = append(owned, x)
			}
		}
	}
	if w.back {
		return nil // what was put back may overlap, until a pool is removed again
	}
	for _, n := range w.nodes {
		if n.id > poolplan.Largest(ordered(w.pools)) {
			return fmt.Errorf("node %d does not fit", n.id)
		}
	}
	for _, p := range w.pools {
		for _, o := range w.pools {
			for _, r := range p.Ranges {
				for _, s := range o.Ranges {
					if p.Name != o.Name && p.State != poolplan.Removed && o.State != poolplan.Removed && r.CIDR.Overlaps(s.CIDR) {
						return fmt.Errorf("%s and %s", p, o)
					}
				}
			}
		}
	}
	return nil
}

func (w *world) wander(steps int) error {
	for i := range steps {
		if err := w.step(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		if err := w.check(); err != nil {
			return fmt.Errorf("after step %d: %w", i, err)
		}
	}
	return nil
}

// For any files, and however late the nodes follow, no two nodes own
// overlapping blocks, no range changes, and generations rise.
func TestNoBlockIsOwnedTwice(t *testing.T) {
	g := NewWithT(t)
	count := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "choice") })
		err := w.wander(rapid.IntRange(1, 80).Draw(t, "steps"))
		if err != nil {
			t.Fatal(err)
		}
		for what, n := range w.count {
			count[what] += n
		}
	})
	t.Log(count)
	for _, what := range []string{"active", "draining", "refused", "joined", "allocated"} {
		g.Expect(count[what]).To(BeNumerically(">", 0), "%s: the test tests nothing", what)
	}
}

// The same with even chances, which goes further than to begin with small cases.
func TestNoBlockIsOwnedTwiceInALongLife(t *testing.T) {
	g := NewWithT(t)
	count := map[string]int{}
	for seed := range uint64(60) {
		w := newWorld(rand.New(rand.NewPCG(seed, 7)).IntN)
		g.Expect(w.wander(300)).To(Succeed(), "seed %d", seed)
		for what, n := range w.count {
			count[what] += n
		}
	}
	t.Log(count)
	for _, what := range []string{"active", "draining", "removed", "refused", "joined", "allocated", "set back", "put back"} {
		g.Expect(count[what]).To(BeNumerically(">", 20), "%s: the test tests nothing", what)
	}
}

// A plan that believes too much is found out.
func TestTheWorldFindsABrokenPlan(t *testing.T) {
	for name, lie := range map[string]func(*poolplan.Situation){
		"every node has reported": func(s *poolplan.Situation) {
			for _, b := range s.Beats {
				b.Pools = nil
				for _, p := range s.Pools {
					b.Pools = append(b.Pools, &kv.PoolUse{Pool: p.Name, Generation: p.Generation})
				}
			}
		},
		"no node has a lease": func(s *poolplan.Situation) {
			for i, b := range s.Beats {
				s.Beats[i] = &kv.NodeBeat{Id: b.Id, Instance: b.Instance, Generation: b.Generation}
				for _, u := range b.Pools {
					s.Beats[i].Pools = append(s.Beats[i].Pools, &kv.PoolUse{Pool: u.Pool, Generation: u.Generation})
				}
			}
		},
		"the store was never set back": func(s *poolplan.Situation) {
			stored := map[string]uint64{}
			for _, p := range s.Pools {
				stored[p.Name] = p.Generation
			}
			for i, b := range s.Beats {
				s.Beats[i] = &kv.NodeBeat{Id: b.Id, Instance: b.Instance, Generation: b.Generation}
				for _, u := range b.Pools {
					if u.Generation <= stored[u.Pool] {
						s.Beats[i].Pools = append(s.Beats[i].Pools, u)
					}
				}
			}
		},
		"there is no node": func(s *poolplan.Situation) { s.Nodes = nil },
	} {
		t.Run(name, func(t *testing.T) {
			found := 0
			for seed := uint64(0); seed < 200 && found < 3; seed++ {
				w := newWorld(rand.New(rand.NewPCG(seed, 7)).IntN)
				w.lie, w.calm = lie, 3
				if w.wander(300) != nil {
					found++
				}
			}
			NewWithT(t).Expect(found).To(Equal(3), "in 200 worlds")
		})
	}
}
