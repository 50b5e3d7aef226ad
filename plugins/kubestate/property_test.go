// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// script is a random sequence of what can happen to a Source.
type script struct {
	*rig
	t        *testing.T
	rnd      *rand.Rand
	inner    kvdb.Store // of the rig's store: all are written here, past all faults
	far      *remote
	mirror   *memMirror
	repairs  *repairs
	restarts bool // and a mirror that fails
	log      []string
}

func newScript(t *testing.T, seed uint64, restarts bool) *script {
	s := &script{
		rig: newRig(t), t: t, rnd: rand.New(rand.NewPCG(seed, 2)), mirror: &memMirror{}, repairs: &repairs{wanted: []string{"default"}},
		restarts: restarts,
	}
	s.install(mem.New())
	s.far = newRemote(s.store)
	s.make()
	return s
}

// make is a new Source and a new loop, as a new process has them.
func (s *script) make() {
	s.loop = &loop{}
	random := rand.New(rand.NewPCG(s.rnd.Uint64(), 6))
	s.with(func(d *kubestate.Deps) {
		d.Store, d.Mirror, d.Repair, d.Random = s.far, s.mirror, s.repairs.repair, random.Float64
		d.Timing = kubestate.Timing{DelayLocal: 3 * time.Second, Spread: 2 * time.Second}
	})
	s.run()
}

func (s *script) install(inner kvdb.Store) { s.inner, s.store = inner, faulty.New(inner) }

func (s *script) say(format string, args ...any) { s.log = append(s.log, fmt.Sprintf(format, args...)) }

// key is one of few, some of which no loop hears of.
func (s *script) key() string {
	n := s.rnd.IntN(3)
	return []string{
		podKey(fmt.Sprint("p", n)), podKey(fmt.Sprint("p", n)), kv.NodeRecordKey(uint32(n + 1)), kv.NodeKey(fmt.Sprint("n", n)), kv.PoolKey(fmt.Sprint("pool", n)),
		kv.CustomNetworkKey(fmt.Sprint("net", n)), kv.NodeConfigKey(thisNode), kv.ExternalKey(thisNode, fmt.Sprintf("route/10.%d.0.0/16", n)),
		kv.PodKey("node-b", kv.PodID{Name: "x"}), kv.ClusterPrefix + "other",
	}[s.rnd.IntN(10)]
}

func (s *script) op() kvdb.Op {
	key := s.key()
	n := uint32(s.rnd.IntN(9) + 1)
	switch s.rnd.IntN(6) {
	case 0, 1:
		return kvdb.Delete(key)
	case 2:
		return kvdb.Put(key, []byte{0xff, byte(n)})
	}
	var m proto.Message = &kv.NodeRoute{Dst: "dst", NodeId: n}
	switch r, _ := kv.ResourceOf(key); r.Name {
	case kubestate.Pods:
		m = &kv.Pod{Name: fmt.Sprint("p", n)}
	case kubestate.NodeRecords:
		m = &kv.NodeRecord{Id: kv.NodeRecordID(key), Name: fmt.Sprint("n", n)}
	case kubestate.Nodes:
		m = &kv.Node{Name: fmt.Sprint("n", n)}
	case kubestate.Pools:
		m = &kv.Pool{Name: key[len(kv.PoolPrefix):], Generation: uint64(n)}
	case kubestate.CustomNetworks:
		m = &kv.CustomNetwork{Name: fmt.Sprint("net", n)}
	case kubestate.NodeConfigs:
		m = &kv.NodeConfig{MainIp: fmt.Sprint(n)}
	}
	return kvdb.Put(key, marshal(s.g, m))
}

// write makes one transaction of another node.
func (s *script) write() {
	var ops []kvdb.Op
	seen := map[string]bool{}
	for range s.rnd.IntN(3) + 1 {
		if op := s.op(); !seen[op.Key] {
			seen[op.Key] = true
			ops = append(ops, op)
			s.say("write %s deleted=%v", op.Key, op.Delete)
		}
	}
	_, err := s.inner.Txn(context.Background(), nil, ops)
	s.g.Expect(err).NotTo(HaveOccurred())
}

// plan lets one of the next operations fail, or every third watch break.
func (s *script) plan() {
	k := s.rnd.IntN(4) + 1
	op := []string{faulty.List, faulty.Txn, faulty.Watch}[s.rnd.IntN(3)]
	fault := []faulty.Fault{faulty.Fail(), faulty.Tear(), faulty.Delay(time.Second), faulty.Cut(s.rnd.IntN(3)), faulty.FailWith(kvdb.ErrConditions)}[s.rnd.IntN(5)]
	s.say("fault of %s %d", op, k)
	s.store.Reset(faulty.On(op, k, fault))
}

// other is a store that comes back in place of the one that went: itself, an
// older or an empty one.
func (s *script) other(older kvdb.Store) {
	switch s.rnd.IntN(4) {
	case 0:
		s.say("it is empty")
		s.install(mem.New())
	case 1:
		s.say("it is older")
		s.install(older)
	}
	s.far.comes(s.store)
}

func (s *script) step(backup *kvdb.Store) {
	switch s.rnd.IntN(16) {
	default:
		s.write()
	case 8:
		s.plan()
	case 9:
		s.say("watches break")
		s.far.breaks()
	case 10:
		s.say("the store goes")
		s.far.goes()
		time.Sleep(time.Duration(s.rnd.IntN(10000)) * time.Millisecond)
		s.other(*backup)
		s.backup(backup)
	case 11:
		s.backup(backup)
	case 12:
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(s.rnd.IntN(1000))*time.Millisecond)
		s.say("resync: %v", s.Resync(ctx))
		cancel()
	case 13:
		time.Sleep(time.Duration(s.rnd.IntN(3000)) * time.Millisecond)
	case 14:
		if s.restarts {
			s.restart()
		}
	case 15:
		if s.restarts {
			s.say("the mirror fails")
			s.mirror.fails(errors.New("no space"))
			time.Sleep(time.Duration(s.rnd.IntN(1500)) * time.Millisecond)
			s.write()
			s.mirror.fails(nil)
		}
	}
	if s.rnd.IntN(3) == 0 {
		synctest.Wait()
	}
}

func (s *script) restart() {
	s.say("restart")
	s.halt(s.t)
	s.check("before a restart")
	if away := s.rnd.IntN(2) == 0; away {
		s.far.goes()
		s.make()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		byMirror, _, _, _ := s.loop.seen()
		if s.mirror.revision != 0 {
			s.g.Expect(byMirror).To(Equal(s.mirror.state()), "%v", s.log)
		}
		s.far.comes(s.store)
		return
	}
	s.make()
}

func (s *script) backup(into *kvdb.Store) {
	older, err := copyOf(s.inner)
	s.g.Expect(err).NotTo(HaveOccurred())
	*into = older
}

func (s *script) check(when string) {
	_, _, _, faults := s.loop.seen()
	s.g.Expect(faults).To(BeEmpty(), "%s: %v", when, s.log)
}

// After any faults the loop has the state of the store, and so has the mirror a second
// later. No event on the way was wrong, and no pool that the loop has followed is lost.
func TestTheLoopEndsWhereTheStoreIs(t *testing.T) {
	for seed := range uint64(150) {
		for _, restarts := range []bool{false, true} {
			t.Run(fmt.Sprint(seed, " restarts ", restarts), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newScript(t, seed, restarts)
					defer func() { s.end(t) }()
					var backup kvdb.Store = mem.New()
					for range 60 {
						s.step(&backup)
					}
					s.store.Reset()
					s.far.breaks()
					time.Sleep(time.Minute)
					for range 5 {
						s.write()
					}
					time.Sleep(time.Second)
					synctest.Wait()
					s.check("at the end")
					want := s.inStore()
					state, _, _, _ := s.loop.seen()
					s.g.Expect(state).To(Equal(want), "%v", s.log)
					s.g.Expect(s.mirror.state()).To(Equal(want), "%v", s.log)
					s.g.Expect(s.Status().Connected).To(BeTrue())
					if restarts {
						return // what was deleted just before one may be lost
					}
					for name, generation := range s.loop.most {
						m := &kv.Pool{}
						x, _, err := s.store.Get(context.Background(), kv.PoolKey(name))
						s.g.Expect(err).NotTo(HaveOccurred())
						s.g.Expect(proto.Unmarshal(x.Value, m)).To(Succeed())
						s.g.Expect(m.Generation).To(BeNumerically(">=", generation), "%s: %v", name, s.log)
					}
				})
			})
		}
	}
}
