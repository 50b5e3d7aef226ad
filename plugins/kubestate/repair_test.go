// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"fmt"
	"maps"
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

// repairs is a Repair that writes lost pools again, and those in wanted.
type repairs struct {
	mu      sync.Mutex
	wanted  []string // pools
	deleted []string // all keys that the Source saw being deleted
	calls   int
}

func (k *repairs) repair(known, found controller.KubeStateData, deleted []string) (all []kubestate.Write) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	k.deleted = append(k.deleted, deleted...)
	lacking := map[string]*kv.Pool{}
	for _, name := range k.wanted {
		lacking[kv.PoolKey(name)] = &kv.Pool{Name: name, Generation: 1}
	}
	for key, m := range known[kubestate.Pools] {
		lacking[key] = m.(*kv.Pool)
	}
	for _, key := range slices.Sorted(maps.Keys(lacking)) {
		if have, _ := found[kubestate.Pools][key].(*kv.Pool); have.GetGeneration() < lacking[key].Generation {
			all = append(all, kubestate.Write{Key: key, Message: lacking[key]})
		}
	}
	return all
}

func (k *repairs) seenDeleted() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.deleted)
}

// repairing returns a rig that repairs the store.
func repairing(t *testing.T, wanted ...string) (*rig, *repairs) {
	k := &repairs{wanted: wanted}
	return newRig(t).with(func(d *kubestate.Deps) { d.Repair = k.repair }), k
}

// pool puts a pool of a generation; poolAt returns its name in the loop's state.
func (r *rig) pool(name string, generation uint64) {
	r.put(kv.PoolKey(name), &kv.Pool{Name: name, Generation: generation})
}

func poolAt(name string) string { return kubestate.Pools + " " + kv.PoolKey(name) }

func pools(generations map[string]int) map[string]string {
	want := map[string]string{}
	for name, n := range generations {
		want[poolAt(name)] = fmt.Sprint("pool ", name, " ", n, " false")
	}
	return want
}

// never finds fault with a snapshot that lacks a pool.
func never(lacks ...string) func(*controller.DBResync) string {
	return func(ev *controller.DBResync) string {
		for _, name := range lacks {
			if ev.KubeState[kubestate.Pools][kv.PoolKey(name)] == nil {
				return "a snapshot without pool " + name
			}
		}
		return ""
	}
}

// The Source writes what the store lacks before it pushes an event. If the store is in
// order it writes nothing.
func TestTheStoreIsRepairedBeforeTheFirstEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := repairing(t, "default", "blue")
		r.loop.check = never("default", "blue")
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.comes(pools(map[string]int{"default": 1, "blue": 1}))
		r.g.Expect(r.store.Count()).To(Equal(5), "List, Txn, List, two Watches")
		r.store.Reset()
		r.g.Expect(r.Resync(context.Background())).To(Succeed())
		r.g.Expect(r.store.Count()).To(Equal(3))
		r.g.Expect(r.counts()).To(Equal([]int{2, 0}))
	})
}

// Other nodes that repair at the same time are not an obstacle, even if they are faster
// very often. After a transaction with an unknown outcome the store is read again.
func TestARepairIsRepeatedAfterConflictingWrites(t *testing.T) {
	for _, c := range []struct {
		name  string
		times int
		fault faulty.Fault
		wait  time.Duration
		want  string // the reason why there is no snapshot
	}{
		{"they are faster once", 1, faulty.FailWith(kvdb.ErrConditions), 0, ""},
		{"they are faster ninety times", 90, faulty.FailWith(kvdb.ErrConditions), 0, ""},
		{"they are faster for long", 150, faulty.FailWith(kvdb.ErrConditions), 0, "gave up after 100 conflicting writes"},
		{"and then they are not", 150, faulty.FailWith(kvdb.ErrConditions), 2 * time.Second, ""},
		{"the outcome is lost", 1, faulty.Tear(), 0, "repair the store"},
		{"and is found", 1, faulty.Tear(), 2 * time.Second, ""},
		{"it fails", 1, faulty.Fail(), 2 * time.Second, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := repairing(t, "default")
				left := c.times
				r.store.Reset(func(op string, _ int) faulty.Fault {
					if op != faulty.Txn || left == 0 {
						return faulty.Fault{}
					}
					left--
					return c.fault
				})
				r.loop.check = never("default")
				r.run()
				defer r.end(t)
				time.Sleep(c.wait)
				synctest.Wait()
				if c.want != "" {
					r.g.Expect(r.counts()).To(Equal([]int{0, 0}))
					r.g.Expect(r.Status().Error).To(ContainSubstring(c.want))
					return
				}
				r.comes(pools(map[string]int{"default": 1}))
				r.g.Expect(r.counts()).To(Equal([]int{1, 0}))
			})
		})
	}
}

// Repair writes over an unreadable value only if a value is missing at its key.
func TestAnUnreadableValueIsRepairedLikeAnAbsentOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := repairing(t, "default")
		garbage := []byte{0xff, 0xff}
		r.putRaw(kv.PoolKey("default"), garbage)
		r.putRaw(kv.PoolKey("blue"), garbage)
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.comes(pools(map[string]int{"default": 1}))
		r.pool("red", 3)
		synctest.Wait()
		r.putRaw(kv.PoolKey("red"), garbage)
		synctest.Wait()
		r.comes(pools(map[string]int{"default": 1, "red": 3}))
		x, _, err := r.store.Get(context.Background(), kv.PoolKey("blue"))
		r.g.Expect(err).NotTo(HaveOccurred())
		r.g.Expect(x.Value).To(Equal(garbage))
	})
}

// A store that comes back empty or older, or in which pools are deleted, has its pools
// again before the loop receives the change. This node writes what it knew, also what it
// knew before it was started.
func TestAStoreThatLosesPools(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(*testing.T, *rig, *remote)
		live bool // it goes by changes
	}{
		{"it comes back empty", func(_ *testing.T, _ *rig, far *remote) { far.goes(); far.comes(mem.New()) }, false},
		{"it comes back older", func(_ *testing.T, r *rig, far *remote) {
			older := mem.New()
			_, err := older.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(kv.PoolKey("blue"), marshal(r.g, &kv.Pool{Name: "blue", Generation: 2}))})
			r.g.Expect(err).NotTo(HaveOccurred())
			far.goes()
			far.comes(older)
		}, false},
		{"it comes back empty while the agent is down", func(t *testing.T, r *rig, far *remote) {
			r.halt(t)
			far.comes(mem.New())
			r.loop.set(func(l *loop) { l.state, l.resyncs = nil, 0 })
			r.run()
		}, false},
		{"they are deleted one by one", func(_ *testing.T, r *rig, _ *remote) { r.remove(kv.PoolKey("blue")); r.remove(kv.PoolKey("default")) }, true},
		{"they are deleted at once", func(_ *testing.T, r *rig, _ *remote) {
			r.txn(kvdb.Delete(kv.PoolKey("blue")), kvdb.Delete(kv.PoolKey("default")))
		}, true},
		{"an older one is written", func(_ *testing.T, r *rig, _ *remote) { r.pool("blue", 1) }, true},
		{"they are deleted, and what is to be written fails", func(_ *testing.T, r *rig, _ *remote) {
			r.store.Reset(faulty.On(faulty.Txn, 2, faulty.Fail()))
			r.txn(kvdb.Delete(kv.PoolKey("blue")), kvdb.Delete(kv.PoolKey("default")))
		}, true},
		{"they are deleted, and the store goes away", func(_ *testing.T, r *rig, far *remote) {
			r.txn(kvdb.Delete(kv.PoolKey("blue")), kvdb.Delete(kv.PoolKey("default")))
			far.goes()
			synctest.Wait()
			far.comes(r.store)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, m := &repairs{}, &memMirror{}
				r := newRig(t)
				far := newRemote(r.store)
				deps := func(d *kubestate.Deps) { d.Repair, d.Mirror, d.Store = k.repair, m, far }
				r.pool("default", 1)
				r.pool("blue", 7)
				r.with(deps).run()
				defer func() { r.end(t) }()
				synctest.Wait()
				want := pools(map[string]int{"default": 1, "blue": 7})
				r.comes(want)
				if !c.live {
					r.loop.check = never("default", "blue")
				}
				r.with(deps) // for who runs it again
				c.lose(t, r, far)
				time.Sleep(10 * time.Second)
				synctest.Wait()
				r.comes(want)
				r.g.Expect(m.state()).To(Equal(want))
				kvs, _, err := far.List(context.Background(), kv.ClusterPrefix)
				r.g.Expect(err).NotTo(HaveOccurred())
				r.g.Expect(stateIn(kvs)).To(Equal(want))
			})
		})
	}
}

// More than fits a transaction is written in several.
func TestAStoreThatLosesManyPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := repairing(t)
		generations := map[string]int{}
		for i := range 250 {
			name := fmt.Sprint("p", i)
			r.pool(name, uint64(i+1))
			generations[name] = i + 1
		}
		far := newRemote(r.store)
		k := &repairs{}
		r.with(func(d *kubestate.Deps) { d.Repair, d.Store = k.repair, far }).run()
		defer r.end(t)
		synctest.Wait()
		r.loop.check = never(slices.Collect(maps.Keys(generations))...)
		far.goes()
		far.comes(mem.New())
		time.Sleep(10 * time.Second)
		r.comes(pools(generations))
		r.g.Expect(far.tried()).To(Equal(3))
	})
}

// intruder is a store in which something else is written just before the first transaction.
type intruder struct {
	kvdb.Store
	intrude func()
}

func (s *intruder) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	if f := s.intrude; f != nil {
		s.intrude = nil
		f()
	}
	return s.Store.Txn(ctx, conds, ops)
}

// Of two that were lost at once another node writes one: the other is not forgotten.
func TestAnotherNodeRepairsOneOfTwoPools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &repairs{}
		r := newRig(t)
		store := &intruder{Store: r.store}
		r.pool("a", 1)
		r.pool("b", 1)
		r.with(func(d *kubestate.Deps) { d.Repair, d.Store = k.repair, store }).run()
		defer r.end(t)
		synctest.Wait()
		store.intrude = func() { r.pool("a", 9) }
		r.txn(kvdb.Delete(kv.PoolKey("a")), kvdb.Delete(kv.PoolKey("b")))
		synctest.Wait()
		r.comes(pools(map[string]int{"a": 9, "b": 1}))
	})
}

// Repair receives the keys that were seen being deleted, not those that a snapshot only
// lacks. If a write failed it receives them once more.
func TestRepairReceivesTheDeletedKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &repairs{}
		r := newRig(t)
		far := newRemote(r.store)
		r.with(func(d *kubestate.Deps) { d.Repair, d.Store = k.repair, far })
		for _, name := range []string{"blue", "red", "green"} {
			r.put(kv.CustomNetworkKey(name), &kv.CustomNetwork{Name: name})
		}
		r.run()
		defer r.end(t)
		synctest.Wait()
		r.g.Expect(k.calls).To(Equal(1))
		r.pod("a", "10.1.5.2")
		r.put(kv.NodeKey("n"), &kv.Node{})
		synctest.Wait()
		r.g.Expect(k.calls).To(Equal(1), "it is called for pools and networks only")
		r.remove(kv.CustomNetworkKey("blue"))
		synctest.Wait()
		r.g.Expect(k.seenDeleted()).To(Equal([]string{kv.CustomNetworkKey("blue")}))
		far.goes()
		r.remove(kv.CustomNetworkKey("red"))
		far.comes(r.store)
		time.Sleep(10 * time.Second)
		r.g.Expect(r.counts()[0]).To(Equal(2))
		r.g.Expect(k.seenDeleted()).To(Equal([]string{kv.CustomNetworkKey("blue")}))

		k.wanted = []string{"p"} // something to write
		r.store.Reset(faulty.On(faulty.Txn, 2, faulty.Fail()))
		r.remove(kv.CustomNetworkKey("green"))
		time.Sleep(10 * time.Second)
		r.comes(map[string]string{podAt("a"): "pod a 10.1.5.2", kubestate.Nodes + " " + kv.NodeKey("n"): "node  ", poolAt("p"): "pool p 1 false"})
		r.g.Expect(k.seenDeleted()[1:]).To(Equal([]string{kv.CustomNetworkKey("green"), kv.CustomNetworkKey("green")}))
	})
}

// A node record that is there and cannot be read is not lost: it may be of a later
// generation than the one that this node knew.
func TestANodeRecordThatCannotBeReadIsNotWrittenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.put(kv.NodeRecordKey(5), &kv.NodeRecord{Id: 5, Name: "a"})
		r.put(kv.NodeRecordKey(6), &kv.NodeRecord{Id: 6, Name: "b"})
		r.with(func(d *kubestate.Deps) {
			d.Repair = func(known, found controller.KubeStateData, _ []string) (all []kubestate.Write) {
				for key, m := range known[kubestate.NodeRecords] {
					if found[kubestate.NodeRecords][key] == nil {
						all = append(all, kubestate.Write{Key: key, Message: m})
					}
				}
				return all
			}
		}).run()
		defer r.end(t)
		synctest.Wait()
		garbage := []byte{0xff, 0xff}
		r.putRaw(kv.NodeRecordKey(5), garbage)
		r.remove(kv.NodeRecordKey(6))
		synctest.Wait()
		r.comes(map[string]string{kubestate.NodeRecords + " " + kv.NodeRecordKey(6): "record 6 b"})
		x, _, err := r.store.Get(context.Background(), kv.NodeRecordKey(5))
		r.g.Expect(err).NotTo(HaveOccurred())
		r.g.Expect(x.Value).To(Equal(garbage))
	})
}

// A node record that is deleted comes back. Afterwards the earlier state is not
// compared any more.
func TestANodeRecordIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		r := newRig(t)
		r.put(kv.NodeRecordKey(5), &kv.NodeRecord{Id: 5, Name: "a"})
		r.with(func(d *kubestate.Deps) {
			d.Repair = func(known, found controller.KubeStateData, _ []string) (all []kubestate.Write) {
				asked.Add(1)
				for key, m := range known[kubestate.NodeRecords] {
					if found[kubestate.NodeRecords][key] == nil {
						all = append(all, kubestate.Write{Key: key, Message: m})
					}
				}
				return all
			}
		}).run()
		defer r.end(t)
		synctest.Wait()
		r.g.Expect(asked.Swap(0)).To(BeNumerically("==", 1))
		r.put(kv.NodeRecordKey(6), &kv.NodeRecord{Id: 6, Name: "b"})
		synctest.Wait()
		r.g.Expect(asked.Swap(0)).To(BeZero(), "it is not called for a record that comes or changes")
		for range 3 {
			r.remove(kv.NodeRecordKey(5))
			synctest.Wait()
			r.comes(map[string]string{kubestate.NodeRecords + " " + kv.NodeRecordKey(5): "record 5 a", kubestate.NodeRecords + " " + kv.NodeRecordKey(6): "record 6 b"})
			r.g.Expect(asked.Swap(0)).To(BeNumerically("==", 2))
		}
		r.pool("p", 1)
		synctest.Wait()
		r.g.Expect(asked.Load()).To(BeNumerically("==", 1))
	})
}
