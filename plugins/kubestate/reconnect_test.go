// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// pauses notes how long a Source has waited before each List.
type pauses struct {
	mu   sync.Mutex
	last time.Time
	all  []time.Duration
}

// begin forgets all before now.
func (p *pauses) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last, p.all = time.Now(), nil
}

func (p *pauses) seen() []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.all)
}

func (p *pauses) plan(op string, _ int) faulty.Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if op == faulty.List {
		p.all = append(p.all, time.Since(p.last))
		p.last = time.Now()
	}
	return faulty.Fault{}
}

// A watch that breaks, whichever of the two, is followed by a snapshot, which
// shows what was missed.
func TestAWatchThatBreaks(t *testing.T) {
	podFirst := func(r *rig) { r.pod("a", "10.1.5.2") }
	nodeFirst := func(r *rig) { r.put(kv.NodeKey("n"), &kv.Node{Name: "n"}) }
	for _, c := range []struct {
		name         string
		k            int
		before, last func(*rig)
	}{{"the cluster's", 1, podFirst, nodeFirst}, {"the node's", 2, nodeFirst, podFirst}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, faulty.On(faulty.Watch, c.k, faulty.Cut(1)))
				node := kubestate.Nodes + " " + kv.NodeKey("n")
				r.pod("gone meanwhile", "10.1.5.9")
				r.with(func(d *kubestate.Deps) { d.Timing.Spread = 4 * time.Second })
				r.run()
				defer r.end(t)
				time.Sleep(time.Minute)
				c.before(r)
				synctest.Wait()
				c.last(r)
				synctest.Wait()
				r.g.Expect(r.counts()).To(Equal([]int{1, 2}))
				r.g.Expect(r.Status().Connected).To(BeFalse())
				r.g.Expect(r.Status().Error).To(ContainSubstring("watch the store"))
				r.pod("b", "10.1.5.3")
				r.remove(podKey("gone meanwhile"))
				time.Sleep(2*time.Second - time.Millisecond)
				synctest.Wait()
				r.g.Expect(r.counts()).To(Equal([]int{1, 2}), "it does not hammer the store")
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				r.comes(map[string]string{podAt("a"): "pod a 10.1.5.2", podAt("b"): "pod b 10.1.5.3", node: "node n "})
				r.pod("c", "10.1.5.4")
				synctest.Wait()
				r.g.Expect(r.counts()).To(Equal([]int{2, 3}))
				r.g.Expect(r.Status()).To(Equal(kubestate.Status{Connected: true, From: kubestate.FromRemote, Revision: 6}))
			})
		})
	}
}

// A compacted watch counts as a broken one.
func TestAWatchThatIsCompacted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, faulty.On(faulty.Watch, 1, faulty.CutWith(0, kvdb.ErrCompacted)))
		r.run()
		defer r.end(t)
		r.pod("a", "10.1.5.2")
		time.Sleep(time.Second)
		synctest.Wait()
		r.comes(map[string]string{podAt("a"): "pod a 10.1.5.2"})
	})
}

// A loop that has no room for a while costs nothing, also where the store has
// compacted its next revision by then.
func TestASlowLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.store = faulty.New(mem.New(mem.History(3)))
		r.with(func(*kubestate.Deps) {})
		r.run()
		defer r.end(t)
		synctest.Wait()
		gate := make(chan struct{})
		r.loop.set(func(l *loop) { l.gate = gate })
		want := map[string]string{}
		for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			r.pod(name, "10.1.5.2")
			want[podAt(name)] = "pod " + name + " 10.1.5.2"
			synctest.Wait()
		}
		close(gate)
		time.Sleep(time.Minute)
		r.comes(want)
	})
}

// A store that fails, for some time, costs nothing but that time. The pauses
// double up to the limit, and are random.
func TestAStoreThatFailsAndRecovers(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name   string
		op     string
		random float64
		want   []time.Duration
	}{
		{"no List, in the middle", faulty.List, 0.5, []time.Duration{0, 750 * ms, 1500 * ms, 3000 * ms, 6000 * ms, 12000 * ms, 22500 * ms, 22500 * ms}},
		{"no List, at the earliest", faulty.List, 0, []time.Duration{0, 500 * ms, 1000 * ms, 2000 * ms, 4000 * ms, 8000 * ms, 15000 * ms, 15000 * ms}},
		{"no Watch", faulty.Watch, 0.5, []time.Duration{0, 750 * ms, 1500 * ms, 3000 * ms, 6000 * ms, 12000 * ms, 22500 * ms, 22500 * ms}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &pauses{last: time.Now()}
				r := newRig(t, p.plan, faulty.Always(c.op, faulty.Fail()))
				r.with(func(d *kubestate.Deps) { d.Random = func() float64 { return c.random }; d.Timing.Spread = time.Hour })
				r.pod("a", "10.1.5.2")
				r.run()
				defer r.end(t)
				time.Sleep(85 * time.Second)
				synctest.Wait()
				r.g.Expect(p.seen()[:len(c.want)]).To(Equal(c.want))
				r.g.Expect(r.counts()).To(Equal([]int{0, 0}))
				r.g.Expect(r.Status().Error).To(ContainSubstring(faulty.ErrInjected.Error()))
				r.store.Reset(p.plan)
				time.Sleep(30 * time.Second)
				synctest.Wait()
				r.comes(map[string]string{podAt("a"): "pod a 10.1.5.2"})
			})
		})
	}
}

// Connections that never last are failures: their pauses grow, too.
func TestAConnectionThatDoesNotLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pauses{last: time.Now()}
		r := newRig(t, p.plan, faulty.Always(faulty.Watch, faulty.Cut(0)))
		r.run()
		defer r.end(t)
		time.Sleep(time.Hour)
		synctest.Wait()
		r.g.Expect(len(p.seen())).To(BeNumerically("<", 200))
		r.g.Expect(p.seen()[len(p.seen())-1]).To(Equal(22500 * time.Millisecond))
		r.store.Reset(p.plan)
		time.Sleep(time.Minute)
		p.begin()
		r.store.Reset(p.plan, faulty.On(faulty.List, 1, faulty.Fail()))
		r.g.Expect(r.Resync(context.Background())).To(MatchError(faulty.ErrInjected))
		time.Sleep(time.Second)
		synctest.Wait()
		r.g.Expect(p.seen()).To(HaveLen(2))
		r.g.Expect(p.seen()[1]).To(Equal(750*time.Millisecond), "one that lasted makes up for all failures before it")
	})
}

// When a connection ends that has worked, those of all nodes may have: the more
// nodes there are, the further they spread.
func TestTheSpreadGrowsWithTheNodes(t *testing.T) {
	for _, c := range []struct {
		name   string
		nodes  uint32
		spread time.Duration
		random float64
		want   time.Duration
	}{
		{"none is asked for", 100, 0, 0.999, 0},
		{"a few nodes", 10, 3 * time.Second, 0.5, 1500 * time.Millisecond},
		{"the first of them", 10, 3 * time.Second, 0, 0},
		{"many nodes", 5000, 3 * time.Second, 0.5, 5 * time.Second},
		{"the last of them", 5000, 3 * time.Second, 0.9, 9 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &pauses{}
				r := newRig(t)
				for id := range c.nodes {
					r.put(kv.NodeRecordKey(id+1), &kv.NodeRecord{Id: id + 1})
				}
				r.with(func(d *kubestate.Deps) {
					d.Timing.Spread, d.Random = c.spread, func() float64 { return c.random }
				})
				r.store.Reset(faulty.On(faulty.Watch, 2, faulty.Cut(1)))
				r.run()
				defer r.end(t)
				time.Sleep(time.Minute)
				r.store.Reset(p.plan)
				p.begin()
				r.pod("a", "10.1.5.2")
				time.Sleep(20 * time.Second)
				synctest.Wait()
				r.g.Expect(p.seen()).To(Equal([]time.Duration{c.want}))
			})
		})
	}
}

// A demand while the store is away is answered at once, with its error; and the
// next one with that of the attempt that it causes.
func TestDemandsWhileTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, faulty.Always(faulty.List, faulty.Fail()))
		r.run()
		defer r.end(t)
		time.Sleep(time.Minute)
		synctest.Wait()
		began, before := time.Now(), r.store.Count()
		r.g.Expect(r.Resync(context.Background())).To(MatchError(faulty.ErrInjected))
		r.store.Reset(faulty.Always(faulty.Watch, faulty.FailWith(kvdb.ErrClosed)))
		r.g.Expect(r.Resync(context.Background())).To(MatchError(kvdb.ErrClosed))
		r.g.Expect(r.Dispatch(context.Background())).To(Succeed(), "it is taken")
		synctest.Wait()
		r.g.Expect(time.Since(began)).To(BeZero())
		r.g.Expect(before).To(BeNumerically(">", 0))
		r.g.Expect(r.counts()).To(Equal([]int{0, 0}))
		r.store.Reset()
		r.g.Expect(r.Resync(context.Background())).To(Succeed())
		r.g.Expect(time.Since(began)).To(BeZero(), "it does not wait for the end of the pause")
		r.g.Expect(r.counts()).To(Equal([]int{1, 0}))
	})
}

// A store that fails while a resync is asked for: the caller hears of it.
func TestResyncOfAFailingStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.store.Reset(faulty.Always(faulty.List, faulty.Fail()))
		r.g.Expect(r.Resync(context.Background())).To(MatchError(faulty.ErrInjected))
		r.store.Reset()
		r.g.Expect(r.Resync(context.Background())).To(Succeed())
	})
}

// A store that hangs does not answer. A caller can stop waiting.
func TestResyncEndsWithItsCaller(t *testing.T) {
	for _, op := range []string{faulty.List, faulty.Watch} {
		t.Run(op, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, faulty.Always(op, faulty.Delay(time.Hour)))
				r.run()
				defer r.end(t)
				ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
				defer cancel()
				began := time.Now()
				r.g.Expect(r.Resync(ctx)).To(MatchError(context.DeadlineExceeded))
				r.g.Expect(time.Since(began)).To(Equal(5 * time.Second))
				r.g.Expect(r.Dispatch(ctx)).To(MatchError(context.DeadlineExceeded))
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // also where it is the loop that takes its time
		r := newRig(t)
		r.run()
		defer r.end(t)
		synctest.Wait()
		gate := make(chan struct{})
		r.loop.set(func(l *loop) { l.gate = gate })
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		r.g.Expect(r.Resync(ctx)).To(MatchError(context.DeadlineExceeded))
		close(gate)
		r.g.Expect(r.Resync(context.Background())).To(Succeed())
	})
}

// outcome is an error, or none.
type outcome struct{ error }

// The ID is claimed or confirmed before each snapshot, and nothing is read where
// that fails.
func TestTheClaimComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var claims atomic.Int32
		var problem atomic.Value // of outcome
		r := newRig(t)
		r.with(func(d *kubestate.Deps) {
			d.Claim = func(context.Context) error {
				claims.Add(1)
				return problem.Load().(outcome).error
			}
			d.Ready = func() bool { return false } // a newcomer
		})
		noLeader := errors.New("the store has no leader")
		problem.Store(outcome{noLeader})
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.g.Expect(r.Resync(context.Background())).To(MatchError(noLeader))
		r.g.Expect(claims.Load()).To(BeNumerically("==", 2))
		r.g.Expect(r.store.Count()).To(BeZero())
		problem.Store(outcome{})
		time.Sleep(2 * time.Second)
		synctest.Wait()
		r.g.Expect(r.counts()).To(Equal([]int{1, 0}))
		r.g.Expect(claims.Load()).To(BeNumerically("==", 3))
		r.g.Expect(r.Resync(context.Background())).To(Succeed())
		r.g.Expect(claims.Load()).To(BeNumerically("==", 4))
	})
}

// A node that can have no ID at all has nothing to follow: the agent ends.
func TestAClaimThatFailsForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		begin := make(chan struct{})
		r.with(func(d *kubestate.Deps) {
			d.Claim = func(context.Context) error {
				<-begin
				return controller.NewFatalError(errors.New("another node has its name"))
			}
		})
		r.run()
		synctest.Wait()
		close(begin)
		synctest.Wait()
		r.g.Expect(<-r.ended).To(MatchError(controller.ErrFatal))
		r.g.Expect(r.Resync(context.Background())).To(MatchError(controller.ErrClosedController))
		r.stop()
		r.g.Expect(<-r.ended).To(Succeed())
		r.g.Expect(r.store.Close()).To(Succeed())
	})
}

// probed is a store that can be asked whether it is there.
type probed struct {
	*faulty.Store
	asked  atomic.Int32
	answer atomic.Value // of outcome
}

func (p *probed) Probe(ctx context.Context) error {
	p.asked.Add(1)
	now, _ := p.answer.Load().(outcome)
	if errors.Is(now.error, context.DeadlineExceeded) {
		<-ctx.Done()
	}
	return now.error
}

// A store that does not answer a probe is reported at once, and after
// three of them taken for gone, also where its watches say nothing. One that was
// busy for a moment is not read again.
func TestProbes(t *testing.T) {
	for _, c := range []struct {
		name    string
		problem error
		noticed time.Duration
		gone    time.Duration
	}{{"says no", errors.New("no leader"), 3 * time.Second, 9 * time.Second}, {"says nothing", context.DeadlineExceeded, 6 * time.Second, 12 * time.Second}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				store := &probed{Store: r.store}
				r.with(func(d *kubestate.Deps) {
					d.Store, d.Timing.Probe, d.Timing.Spread = store, 3*time.Second, 3*time.Second
				})
				r.run()
				defer r.end(t)
				time.Sleep(30*time.Second + time.Millisecond)
				r.g.Expect(store.asked.Load()).To(BeNumerically("==", 10))
				r.g.Expect(r.Status().Connected).To(BeTrue())
				store.answer.Store(outcome{c.problem})
				away := And(HaveField("Connected", false), HaveField("Error", And(ContainSubstring("probe the store"), ContainSubstring(c.problem.Error()))))
				time.Sleep(c.noticed + 10*time.Millisecond)
				synctest.Wait()
				r.g.Expect(r.Status()).To(away)
				store.answer.Store(outcome{})
				time.Sleep(10 * time.Second)
				synctest.Wait()
				r.g.Expect(r.Status()).To(And(HaveField("Connected", true), HaveField("Error", "")))
				r.g.Expect(r.counts()).To(Equal([]int{1, 0}), "it was busy, and nothing else")

				asked := store.asked.Load()
				store.answer.Store(outcome{c.problem})
				time.Sleep(c.gone + 10*time.Millisecond)
				synctest.Wait()
				r.g.Expect(r.Status()).To(away)
				r.g.Expect(store.asked.Load() - asked).To(BeNumerically("==", 3))
				store.answer.Store(outcome{})
				time.Sleep(10 * time.Second)
				synctest.Wait()
				r.g.Expect(r.Status().Connected).To(BeTrue())
				r.g.Expect(r.counts()).To(Equal([]int{2, 0}))
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // a store that cannot be asked
		r := newRig(t)
		r.with(func(d *kubestate.Deps) { d.Timing.Probe = 3 * time.Second })
		r.run()
		defer r.end(t)
		time.Sleep(time.Minute)
		r.g.Expect(r.store.Count()).To(Equal(3))
	})
}

// The revision never goes back while the store does not, although there are two watches.
func TestTheStatusDoesNotGoBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		r := newRig(t)
		slow := &slowWatch{Store: r.store, prefix: kv.ClusterPrefix, hold: hold}
		r.with(func(d *kubestate.Deps) { d.Store = slow })
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.put(kv.NodeKey("n"), &kv.Node{Name: "n"})
		r.pod("a", "10.1.5.2")
		synctest.Wait()
		r.g.Expect(r.Status().Revision).To(BeNumerically("==", 2))
		close(hold)
		synctest.Wait()
		r.comes(map[string]string{podAt("a"): "pod a 10.1.5.2", kubestate.Nodes + " " + kv.NodeKey("n"): "node n "})
		r.g.Expect(r.Status().Revision).To(BeNumerically("==", 2))
	})
}

// slowWatch is a store whose watch of a prefix is held up.
type slowWatch struct {
	kvdb.Store
	prefix string
	hold   chan struct{}
}

func (s *slowWatch) Watch(ctx context.Context, prefix string, rev int64) (kvdb.Watcher, error) {
	w, err := s.Store.Watch(ctx, prefix, rev)
	if err != nil || prefix != s.prefix {
		return w, err
	}
	return &heldWatch{Watcher: w, hold: s.hold}, nil
}

type heldWatch struct {
	kvdb.Watcher
	hold chan struct{}
}

// Events is called again before each batch.
func (w *heldWatch) Events() <-chan []kvdb.Event {
	select {
	case <-w.hold:
		return w.Watcher.Events()
	default:
		return nil
	}
}
