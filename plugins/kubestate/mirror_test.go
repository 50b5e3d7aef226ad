// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// openFile opens the node's database.
func openFile(g Gomega, path string) *bolt.File {
	f, err := bolt.OpenFile(path, bolt.FileOptions{Holder: "a test", BootID: "boot 1"})
	g.Expect(err).NotTo(HaveOccurred())
	return f
}

// inStore returns the state that the loop should have of the store.
func (r *rig) inStore() map[string]string {
	kvs, _, err := r.store.List(context.Background(), kv.ClusterPrefix, kv.NodePrefix(thisNode))
	r.g.Expect(err).NotTo(HaveOccurred())
	return stateIn(kvs)
}

// fill puts one of each kind.
func (r *rig) fill() {
	r.pod("a", "10.1.5.2")
	r.put(kv.NodeRecordKey(5), &kv.NodeRecord{Id: 5, Name: thisNode})
	r.put(kv.NodeKey(thisNode), &kv.Node{Name: thisNode})
	r.put(kv.PoolKey("default"), &kv.Pool{Name: "default", Generation: 3})
	r.put(kv.CustomNetworkKey("blue"), &kv.CustomNetwork{Name: "blue"})
	r.put(kv.NodeConfigKey(thisNode), &kv.NodeConfig{NodeName: thisNode, MainIp: "192.168.16.5/24"})
	r.put(kv.ExternalKey(thisNode, "route/10.9.0.0/16"), &kv.NodeRoute{Dst: "10.9.0.0/16"})
	r.put(kv.PodKey("node-b", kv.PodID{Namespace: "ns", Name: "b"}), &kv.Pod{Name: "b"})
}

// An agent whose store is away starts from the mirror, at once or after the
// delay, with all that the store had. When the store is back its state replaces
// that of the mirror.
func TestStartFromTheMirror(t *testing.T) {
	for _, delay := range []time.Duration{0, 10 * time.Second} {
		t.Run(delay.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				path := filepath.Join(t.TempDir(), "cadastre.db")
				file := openFile(r.g, path)
				mirrored := func(d *kubestate.Deps) { d.Mirror, d.Timing.DelayLocal = file.Mirror(), delay }
				r.with(mirrored).fill()
				r.run()
				synctest.Wait()
				r.pod("late", "10.1.5.3")
				r.remove(podKey("a"))
				r.put(kv.PoolKey("default"), &kv.Pool{Name: "default", Generation: 4, Draining: true})
				time.Sleep(2 * time.Second)
				r.halt(t)
				want, _, _, _ := r.loop.seen()
				r.g.Expect(want).To(Equal(r.inStore()))

				r.g.Expect(file.Close()).To(Succeed())
				file = openFile(r.g, path)
				defer file.Close()
				r.store.Reset(faulty.Always(faulty.List, faulty.Fail()))
				r.loop = &loop{}
				r.with(mirrored).run()
				defer r.end(t)
				time.Sleep(delay - time.Millisecond)
				synctest.Wait()
				if delay > 0 {
					r.g.Expect(r.counts()).To(Equal([]int{0, 0}))
					r.g.Expect(r.Status().From).To(BeEmpty())
					time.Sleep(2 * time.Millisecond)
					synctest.Wait()
				}
				r.comes(want)
				r.g.Expect(r.loop.localResyncs()).To(Equal(1))
				r.g.Expect(r.Status()).To(And(
					HaveField("From", kubestate.FromMirror), HaveField("Connected", false), HaveField("Revision", BeNumerically(">", 0)), HaveField("Error", Not(BeEmpty()))))

				r.store.Reset()
				r.remove(podKey("late"))
				r.put(kv.NodeKey("node-c"), &kv.Node{Name: "node-c"})
				time.Sleep(time.Minute)
				r.comes(r.inStore())
				r.g.Expect(r.counts()).To(Equal([]int{2, 0}))
				r.g.Expect(r.Status()).To(And(HaveField("From", kubestate.FromRemote), HaveField("Connected", true)))
			})
		})
	}
}

// Many changes are mirrored in steps, each of whole transactions of the store. The mirror
// shares its file with the leases, and an ADD waits for a write that is under way.
func TestManyChangesAreMirroredInSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		mirror := &memMirror{kvs: map[string][]byte{}}
		r.with(func(d *kubestate.Deps) { d.Mirror = mirror }).run()
		defer r.end(t)
		synctest.Wait()
		const transactions, each = 400, 3
		for i := range transactions {
			var ops []kvdb.Op
			for k := range each {
				ops = append(ops, kvdb.Put(kv.NodeKey(fmt.Sprintf("node-%d-%d", i, k)), nil))
			}
			_, err := r.store.Txn(t.Context(), nil, ops)
			r.g.Expect(err).NotTo(HaveOccurred())
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		mirror.mu.Lock()
		defer mirror.mu.Unlock()
		all := 0
		for _, events := range mirror.applied {
			all += len(events)
			r.g.Expect(len(events)).To(And(BeNumerically("<=", 300), WithTransform(func(n int) int { return n % each }, BeZero())))
		}
		r.g.Expect(all).To(Equal(transactions * each))
		r.g.Expect(len(mirror.applied)).To(BeNumerically(">", 3))
		r.g.Expect(mirror.kvs).To(HaveLen(all))
	})
}

// If the mirror must not be used, the loop waits for the store.
func TestNoStartFromTheMirror(t *testing.T) {
	full := func() *memMirror {
		return &memMirror{revision: 7, kvs: map[string][]byte{kv.NodeKey("n"): nil}}
	}
	for _, c := range []struct {
		name   string
		deps   func(*kubestate.Deps)
		mirror *memMirror
		locals int
	}{
		{"it is used", func(d *kubestate.Deps) {}, full(), 1},
		{"there is none", func(d *kubestate.Deps) { d.Mirror = nil }, nil, 0},
		{"it is empty", func(d *kubestate.Deps) {}, &memMirror{}, 0},
		{"it cannot be read", func(d *kubestate.Deps) {}, &memMirror{revision: 7, problem: errors.New("damaged")}, 0},
		{"the node has no ID", func(d *kubestate.Deps) { d.Ready = func() bool { return false } }, full(), 0},
		{"the node has an ID", func(d *kubestate.Deps) { d.Ready = func() bool { return true } }, full(), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, faulty.Always(faulty.List, faulty.Fail()))
				r.with(func(d *kubestate.Deps) {
					d.Mirror, d.Timing.DelayLocal = c.mirror, 5*time.Second
					c.deps(d)
				}).run()
				defer r.end(t)
				time.Sleep(time.Minute)
				r.g.Expect(r.loop.localResyncs()).To(Equal(c.locals))
				r.store.Reset()
				time.Sleep(time.Minute)
				r.g.Expect(r.counts()).To(Equal([]int{c.locals + 1, 0}), "the store counts all the same")
				r.comes(map[string]string{})
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // a store that answers in time
		r := newRig(t, faulty.On(faulty.List, 1, faulty.Fail()))
		r.pod("a", "10.1.5.2")
		r.with(func(d *kubestate.Deps) { d.Mirror, d.Timing.DelayLocal = full(), 5*time.Second }).run()
		defer r.end(t)
		time.Sleep(time.Minute)
		r.g.Expect(r.loop.localResyncs() + r.loop.dropped).To(BeZero())
	})
	synctest.Test(t, func(t *testing.T) { // a loop that is closed
		r := newRig(t, faulty.Always(faulty.List, faulty.Fail()))
		r.loop.refuse = errors.New("closed")
		r.with(func(d *kubestate.Deps) { d.Mirror = full() }).run()
		defer r.end(t)
		synctest.Wait()
		r.g.Expect(r.Status().From).To(BeEmpty())
	})
}

// The loop never follows a pool or a network that the mirror does not have. All
// else is mirrored within a second, so that many changes are one write.
func TestTheMirrorComesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memMirror{}
		r := newRig(t)
		r.with(func(d *kubestate.Deps) { d.Mirror = m }).run()
		defer r.end(t)
		synctest.Wait()
		gate := make(chan struct{})
		r.loop.set(func(l *loop) { l.gate = gate })
		r.put(kv.PoolKey("p"), &kv.Pool{Name: "p", Generation: 1})
		synctest.Wait()
		r.g.Expect(m.state()).To(HaveKey(kubestate.Pools + " " + kv.PoolKey("p")))
		r.comes(map[string]string{})
		close(gate)
		r.loop.set(func(l *loop) { l.gate = nil })
		synctest.Wait()
		writes := m.written()
		for i := range 100 {
			r.pod(fmt.Sprint("p", i), "10.1.5.2")
			synctest.Wait()
		}
		r.g.Expect(m.written()).To(Equal(writes))
		time.Sleep(time.Second)
		synctest.Wait()
		r.g.Expect(m.state()).To(Equal(r.inStore()))
		r.g.Expect(m.written()).To(Equal(writes + 1))
		r.pod("q", "10.1.5.3")
		synctest.Wait()
		r.remove(kv.PoolKey("p"))
		synctest.Wait()
		r.g.Expect(m.state()).To(Equal(r.inStore()), "with the pods that wait")
		time.Sleep(time.Hour)
		r.g.Expect(m.written()).To(Equal(writes+2), "nothing is written for nothing")
	})
}

// The loop's state stays in the mirror when the store goes away right
// after it, or the agent ends.
func TestTheMirrorHasWhatCameLast(t *testing.T) {
	for _, name := range []string{"the store goes away", "the agent ends"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &memMirror{}
				r := newRig(t)
				far := newRemote(r.store)
				r.with(func(d *kubestate.Deps) { d.Mirror, d.Store = m, far }).run()
				synctest.Wait()
				r.pod("a", "10.1.5.2")
				synctest.Wait()
				r.comes(r.inStore())
				r.g.Expect(m.state()).To(BeEmpty())
				if name == "the agent ends" {
					r.end(t)
				} else {
					far.goes()
					defer r.end(t)
				}
				synctest.Wait()
				r.g.Expect(m.state()).To(HaveLen(1))
			})
		})
	}
}

// A mirror that cannot be written affects nothing else. It is complete again within a
// second of its recovery, for any changes meanwhile or at that moment.
func TestAMirrorThatFails(t *testing.T) {
	for _, c := range []struct {
		name         string
		before, then func(*rig)
	}{
		{"from the start", func(r *rig) {}, func(r *rig) {}},
		{"and a pod changes meanwhile", func(r *rig) { r.pod("b", "10.1.5.3") }, func(r *rig) {}},
		{"and all changes meanwhile", func(r *rig) {
			r.fill()
			r.remove(podKey("a"))
			r.remove(kv.PoolKey("default"))
		}, func(r *rig) {}},
		{"and a pool changes just then", func(r *rig) {}, func(r *rig) { r.put(kv.PoolKey("p"), &kv.Pool{Name: "p"}) }},
		{"and a pod changes just then", func(r *rig) { r.put(kv.PoolKey("p"), &kv.Pool{Name: "p"}) }, func(r *rig) { r.pod("b", "10.1.5.3") }},
		{"and something goes just then", func(r *rig) { r.put(kv.PoolKey("p"), &kv.Pool{Name: "p"}) }, func(r *rig) { r.remove(kv.PoolKey("p")) }},
		{"and something cannot be read", func(r *rig) { r.putRaw(kv.PoolKey("p"), []byte{0xff}) }, func(r *rig) { r.pod("b", "10.1.5.3") }},
	} {
		for _, when := range []string{"at the snapshot", "later"} {
			t.Run(c.name+", "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					full := errors.New("no space left on device")
					m := &memMirror{}
					r := newRig(t)
					r.pod("a", "10.1.5.2")
					if when == "at the snapshot" {
						m.fails(full)
					}
					r.with(func(d *kubestate.Deps) { d.Mirror = m }).run()
					defer r.end(t)
					synctest.Wait()
					m.fails(full)
					c.before(r)
					time.Sleep(5 * time.Second)
					synctest.Wait()
					r.comes(r.inStore())
					m.fails(nil)
					c.then(r)
					synctest.Wait()
					r.comes(r.inStore())
					time.Sleep(time.Second)
					synctest.Wait()
					r.g.Expect(m.state()).To(Equal(r.inStore()))
					r.g.Expect(r.counts()[0]).To(Equal(1))
				})
			})
		}
	}
}

// A damaged mirror counts as none, and is replaced.
func TestADamagedMirror(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		path := filepath.Join(t.TempDir(), "cadastre.db")
		file := openFile(r.g, path)
		r.with(func(d *kubestate.Deps) { d.Mirror = file.Mirror() }).fill()
		r.put(kv.NodeKey("damage"), &kv.Node{Name: "here is a name that can be found"})
		r.run()
		synctest.Wait()
		r.halt(t)
		r.g.Expect(file.Close()).To(Succeed())
		content, err := os.ReadFile(path)
		r.g.Expect(err).NotTo(HaveOccurred())
		for i := range content {
			if i+9 < len(content) && string(content[i:i+9]) == "can be fo" {
				content[i] ^= 1
			}
		}
		r.g.Expect(os.WriteFile(path, content, 0o600)).To(Succeed())
		file = openFile(r.g, path)
		defer file.Close()
		_, _, err = file.Mirror().Load(context.Background())
		r.g.Expect(err).To(MatchError(bolt.ErrDamaged))
		r.loop = &loop{}
		r.with(func(d *kubestate.Deps) { d.Mirror = file.Mirror() }).run()
		defer r.end(t)
		synctest.Wait()
		r.comes(r.inStore())
		kvs, _, err := file.Mirror().Load(context.Background())
		r.g.Expect(err).NotTo(HaveOccurred())
		r.g.Expect(stateIn(kvs)).To(Equal(r.inStore()))
	})
}

var _ kvdb.Store = (*remote)(nil)
