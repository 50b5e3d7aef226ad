// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/operator/blocks"
)

// world is an API server, a lease, and processes that want to lead. Every
// request waits until the world says when it arrives, and when, and whether,
// its answer does. What was sent by a process that leads no more, or that is
// dead, may arrive as late as the world likes.
type world struct {
	t      *testing.T
	rnd    *rand.Rand
	server *server
	holder string
	term   int
	procs  []*process
	mu     sync.Mutex // of what follows: who wakes by a timer has not seen what the world has done
	open   []*request // sent, and not answered
	loose  []func()   // patches whose senders have given up, or died
	names  int
	log    []string
	calm   bool // no more faults, and no more changes
}

// request waits for the world.
type request struct {
	proc   *process
	what   string
	do     func() (any, error)
	done   bool // it has arrived; the answer has not
	answer any
	err    error
	turn   chan struct{}
}

// process is one that leads, has led, or will. It goes on until the fence tells
// it that it leads no more, however long ago that was.
type process struct {
	*world
	name    string
	cache   *nodeCache
	elected chan int
	poke    chan struct{}
	last    *Allocator
}

var errDead = errors.New("the process is dead")

// send is a request of a process.
func (p *process) send(ctx context.Context, what string, do func() (any, error)) (any, error) {
	r := &request{proc: p, what: what, do: do, turn: make(chan struct{})}
	p.mu.Lock()
	p.open = append(p.open, r) // the world looks only when all are waiting
	p.mu.Unlock()
	select {
	case <-r.turn:
		return r.answer, r.err
	case <-ctx.Done():
		return nil, errDead
	}
}

func (p *process) get(ctx context.Context, name string) (*v1.Node, error) {
	x, err := p.send(ctx, "get "+name, func() (any, error) { return p.server.get(ctx, name) })
	node, _ := x.(*v1.Node)
	return node, err
}

func (p *process) list(ctx context.Context) ([]v1.Node, error) {
	x, err := p.send(ctx, "list", func() (any, error) { return p.server.list(ctx) })
	all, _ := x.([]v1.Node)
	return all, err
}

func (p *process) patch(ctx context.Context, name string, body []byte) (*v1.Node, error) {
	x, err := p.send(ctx, "patch "+name+" "+string(body), func() (any, error) { return p.server.patch(ctx, name, body) })
	node, _ := x.(*v1.Node)
	return node, err
}

func (p *process) patchStatus(context.Context, string, []byte) error { return nil }

// lease is the fence of one leadership.
type lease struct {
	*process
	term int
}

func (l lease) Term() string { return fmt.Sprint(l.name, "/", l.term) }

func (l lease) Check(ctx context.Context) error {
	_, err := l.send(ctx, "lease", func() (any, error) {
		if l.holder != l.name || l.world.term != l.term {
			return nil, ErrDeposed
		}
		return nil, nil
	})
	return err
}

// live leads again and again, until the context ends.
func (p *process) live(ctx context.Context) {
	for {
		select {
		case term := <-p.elected:
			p.lead(ctx, term)
		case <-p.poke:
		case <-ctx.Done():
			return
		}
	}
}

func (p *process) lead(ctx context.Context, term int) {
	settings := ranges("10.0.0.0/28 30")
	settings.Workers, settings.Policy.Order = 1, blocks.Lowest
	a, err := NewAllocator(Deps{Log: quiet(), Now: newClock().Now, Fence: lease{p, term}, Instance: fmt.Sprint(p.name, term)}, settings)
	if err != nil {
		panic(err)
	}
	a.api, a.reports.api, a.lister = p, p, p.cache
	p.last = a
	for ctx.Err() == nil {
		if err = a.load(ctx); err == nil {
			err = p.round(ctx, a)
		}
		if errors.Is(err, ErrDeposed) {
			return
		}
		select {
		case <-p.poke:
		case <-ctx.Done():
		}
	}
}

// round looks at every node that the cache has or that holds blocks.
func (p *process) round(ctx context.Context, a *Allocator) error {
	names := p.cache.names()
	for _, o := range a.assigned.all() {
		names = append(names, o.Name)
	}
	for _, name := range names {
		if err := a.sync(ctx, name); errors.Is(err, ErrDeposed) {
			return err
		}
	}
	return nil
}

func (w *world) say(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

// step does one thing of all that could happen now.
func (w *world) step() {
	var could []func()
	add := func(weight int, f func()) {
		for range weight {
			could = append(could, f)
		}
	}
	for _, r := range w.requests() {
		add(6, func() { w.advance(r) })
		if !w.calm {
			add(1, func() { w.lose(r) })
		}
	}
	for i := range w.loose {
		add(2, func() { w.arrive(i) })
	}
	for _, p := range w.procs {
		add(1, func() {
			select {
			case p.poke <- struct{}{}:
			default:
			}
		})
		for _, name := range slices.Sorted(maps.Keys(w.server.nodes)) {
			add(1, func() { p.cache.refresh(w.server, name) })
		}
		for _, name := range p.cache.names() {
			add(1, func() { p.cache.refresh(w.server, name) })
		}
	}
	add(2, func() { time.Sleep(20 * time.Millisecond) })
	if !w.calm {
		add(3, w.change)
		weight := 1
		if slices.ContainsFunc(w.requests(), func(r *request) bool { return !r.done && strings.Contains(r.what, "podCIDRs") }) {
			weight = 6 // when it matters most
		}
		add(weight, func() { w.elect(w.procs[w.rnd.IntN(len(w.procs))]) })
	}
	could[w.rnd.IntN(len(could))]()
}

// advance lets a request arrive, or its answer, or both.
func (w *world) advance(r *request) {
	if !r.done {
		r.answer, r.err = r.do()
		r.done = true
		w.say("%s: %s: %v", r.proc.name, r.what, r.err)
		if w.rnd.IntN(3) == 0 {
			return
		}
	}
	w.close(r)
}

func (w *world) close(r *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = slices.DeleteFunc(w.open, func(x *request) bool { return x == r })
	close(r.turn)
}

// lose lets the sender believe that a request has failed. It may still arrive.
func (w *world) lose(r *request) {
	if !r.done && w.rnd.IntN(3) > 0 {
		w.loose = append(w.loose, func() {
			_, err := r.do()
			w.say("%s, late: %s: %v", r.proc.name, r.what, err)
		})
	}
	w.say("%s: %s: lost", r.proc.name, r.what)
	r.answer, r.err = nil, errLost
	w.close(r)
}

func (w *world) arrive(i int) {
	f := w.loose[i]
	w.loose = slices.Delete(w.loose, i, i+1)
	f()
}

// change makes a node, deletes one, or makes one again under its name.
func (w *world) change() {
	names := slices.Sorted(maps.Keys(w.server.nodes))
	if len(names) < 3 {
		w.names++
		w.server.put(fmt.Sprint("n", w.names))
		w.say("n%d is made", w.names)
		return
	}
	name := names[w.rnd.IntN(len(names))]
	w.server.remove(name)
	w.say("%s is gone", name)
	if w.rnd.IntN(2) == 0 {
		w.server.put(name)
		w.say("%s is made again", name)
	}
}

// elect gives the lease to p. The process that had it does not learn of that.
func (w *world) elect(p *process) {
	w.holder = p.name
	w.term++
	w.say("%s leads, term %d", p.name, w.term)
	select {
	case <-p.elected:
	default:
	}
	p.elected <- w.term
}

// run lets so many things happen, and then waits until all is quiet.
func (w *world) run(steps int) error {
	ctx, cancel := context.WithCancel(w.t.Context())
	defer synctest.Wait()
	defer cancel()
	for _, p := range w.procs {
		go p.live(ctx)
	}
	var bad error
	w.server.watch = func(s *server) {
		if err := s.overlaps(); err != nil && bad == nil {
			bad = err
		}
	}
	w.elect(w.procs[0])
	for range steps {
		synctest.Wait()
		if w.step(); bad != nil {
			return bad
		}
	}
	w.calm = true
	w.elect(w.procs[1])
	for n := 0; ; n++ {
		synctest.Wait()
		if w.allAssigned() {
			return nil
		}
		if w.step(); bad != nil {
			return bad
		}
		if n == 20000 {
			return fmt.Errorf("it is never quiet: %v", w.server.cidrs())
		}
	}
}

// requests are those that are not answered.
func (w *world) requests() []*request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.open)
}

// ready is true when the nodes are read.
func (a *Allocator) ready() bool {
	if !a.loading.TryLock() {
		return false
	}
	defer a.loading.Unlock()
	return a.loaded
}

// allAssigned reports whether all nodes have CIDRs, and the leader knows it.
func (w *world) allAssigned() bool {
	if len(w.requests()) > 0 || len(w.loose) > 0 || w.procs[1].last == nil || !w.procs[1].last.ready() {
		return false
	}
	b := &bench{Allocator: w.procs[1].last}
	held := b.held()
	for name, have := range w.server.cidrs() {
		if len(have) != 1 || !slices.Equal(held[name], have) {
			return false
		}
	}
	return len(held) == len(w.server.nodes)
}

// newWorld has two processes.
func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), server: newServer()}
	for _, name := range []string{"one", "two"} {
		w.procs = append(w.procs, &process{world: w, name: name, cache: &nodeCache{nodes: map[string]*v1.Node{}},
			elected: make(chan int, 1), poke: make(chan struct{}, 1)})
	}
	return w
}

// Upstream has no fence: what an old leader has under way arrives after the new
// one has listed the nodes, which then gives the same block again.
func TestLeadersDoNotCollide(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed)
			if err := w.run(250); err != nil {
				for _, line := range w.log[max(0, len(w.log)-60):] {
					t.Log(line)
				}
				NewWithT(t).Expect(err).NotTo(HaveOccurred(), "seed %d", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// TestLatePatchesCollideWithNothing shows one by one what the worlds above come
// upon by chance.
func TestLatePatchesCollideWithNothing(t *testing.T) {
	for _, x := range []struct {
		what   string
		late   func(call) bool // the patch that arrives when another process leads
		before func(*server)   // before the new leader begins
		after  func(*server)   // after that
		want   string          // what the next node gets
	}{
		{"the podCIDRs", call.allocates, func(*server) {}, func(*server) {}, "10.0.0.16/28"},
		{"the intent", func(c call) bool { return !c.allocates() }, func(*server) {}, func(*server) {}, "10.0.0.0/28"},
		{"made again before", call.allocates, func(s *server) { s.remove("a"); s.put("a") }, func(*server) {}, "10.0.0.0/28"},
		{"made again after", call.allocates, func(*server) {}, func(s *server) { s.remove("a"); s.put("a") }, "10.0.0.16/28"},
		{"gone", call.allocates, func(s *server) { s.remove("a") }, func(*server) {}, "10.0.0.0/28"},
	} {
		t.Run(x.what, func(t *testing.T) {
			g := NewWithT(t)
			s := newServer()
			old := newBench(t, s, ranges("10.0.0.0/24 28"), withFence, func(d *Deps) { d.Instance = "old" })
			s.put("a")
			s.lag = 1000
			s.fault = func(c call) fault {
				switch {
				case c.what == "patch" && x.late(c):
					return delay
				case c.what == "get":
					return fail
				}
				return none
			}
			g.Expect(old.look(t.Context(), "a")).NotTo(Succeed())
			s.fault = nil
			x.before(s)
			leader := newBench(t, s, ranges("10.0.0.0/24 28"), withFence, func(d *Deps) { d.Instance = "new" })
			x.after(s)
			s.put("b")
			g.Expect(leader.look(t.Context(), "b")).To(Succeed())
			g.Expect(s.cidrs()["b"]).To(Equal([]string{x.want}))
			g.Expect(s.late).NotTo(BeEmpty())
			s.arrive()
			g.Expect(s.overlaps()).To(Succeed())
			g.Expect(leader.look(t.Context())).To(Succeed())
			g.Expect(s.overlaps()).To(Succeed())
			g.Expect(leader.held()).To(Equal(s.cidrs()))
		})
	}
}

// A write that changes nothing refuses no late patch.
func TestEveryWithdrawalChangesTheNode(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	node := s.put("a")
	b := newBench(t, s, ranges("10.0.0.0/24 28"))
	seen := []string{s.node("a").ResourceVersion}
	for range 3 {
		live, err := b.withdraw(t.Context(), node)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(intentOf(live)).To(BeEmpty())
		g.Expect(seen).NotTo(ContainElement(live.ResourceVersion))
		seen = append(seen, live.ResourceVersion)
	}
	for _, random := range []float64{.1, .2} { // the same process, and the same term
		again := newBench(t, s, ranges("10.0.0.0/24 28"), func(d *Deps) { d.Random = func() float64 { return random } })
		live, err := again.withdraw(t.Context(), node)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(seen).NotTo(ContainElement(live.ResourceVersion))
		seen = append(seen, live.ResourceVersion)
	}
	s.remove("a")
	g.Expect(b.withdraw(t.Context(), node)).To(BeNil())
	s.put("a")
	g.Expect(b.withdraw(t.Context(), node)).To(BeNil(), "it is another one")
}
