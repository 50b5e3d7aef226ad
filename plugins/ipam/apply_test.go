// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// clusterStore is a store in which pools are applied.
type clusterStore struct {
	*faulty.Store
	g        Gomega
	inner    *mem.Store
	reserved []poolplan.Reserved
}

// newStore is a store with these pools.
func newStore(t *testing.T, pools ...*kv.Pool) *clusterStore {
	t.Helper()
	s := &clusterStore{g: NewWithT(t), inner: mem.New()}
	s.Store = faulty.New(s.inner)
	t.Cleanup(func() { _ = s.Close() })
	cfg, _, err := contivconf.Parse([]byte(defaults))
	s.g.Expect(err).NotTo(HaveOccurred())
	s.reserved = ipam.Reserved(contivconf.NewPlugin(cfg))
	for _, m := range pools {
		s.put(kv.PoolKey(m.Name), m)
	}
	return s
}

func (s *clusterStore) put(key string, m proto.Message) {
	value, err := proto.Marshal(m)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.raw(key, value)
}

func (s *clusterStore) raw(key string, value []byte) {
	_, err := s.inner.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, value)})
	s.g.Expect(err).NotTo(HaveOccurred())
}

// node is a node of the cluster, and what it says of its pools: "default 2 open 5".
func (s *clusterStore) node(id uint32, uses ...string) {
	record := &kv.NodeRecord{Id: id, Name: fmt.Sprint("node-", id), Instance: fmt.Sprint("instance-", id), Generation: 1}
	s.put(kv.NodeRecordKey(id), record)
	beat := &kv.NodeBeat{Id: id, Instance: record.Instance, Generation: 1}
	for _, use := range uses {
		u := &kv.PoolUse{}
		state := ""
		_, err := fmt.Sscan(use, &u.Pool, &u.Generation, &state, &u.Leases)
		s.g.Expect(err).NotTo(HaveOccurred())
		u.Open = state == "open"
		beat.Pools = append(beat.Pools, u)
	}
	s.put(kv.BeatKey(id), beat)
}

// all is all that is stored, and the revision.
func (s *clusterStore) all() ([]kvdb.KeyValue, int64) {
	kvs, rev, err := s.inner.List(context.Background(), "")
	s.g.Expect(err).NotTo(HaveOccurred())
	return kvs, rev
}

// pools are those that are stored, a line each.
func (s *clusterStore) pools() (all []string) {
	kvs, _ := s.all()
	for _, x := range kvs {
		if r, _ := kv.ResourceOf(x.Key); r.Name != kv.PoolResource {
			continue
		}
		m := &kv.Pool{}
		if proto.Unmarshal(x.Value, m) != nil {
			all = append(all, x.Key+" cannot be read")
			continue
		}
		all = append(all, describe(m))
	}
	return all
}

func (s *clusterStore) apply(file string) (poolplan.Plan, error) {
	return ipam.Apply(context.Background(), s.Store, s.reserved, []byte(file), false)
}

// does applies a file that is accepted.
func (s *clusterStore) does(file string) poolplan.Plan {
	plan, err := s.apply(file)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(plan.Err()).NotTo(HaveOccurred())
	return plan
}

const (
	grow  = "pools: [{name: default, state: draining}, {name: pods-2, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 23}]}]"
	clear = "pools: [{name: default, state: removed}]"
)

// added is a file that adds a pool.
func added(name, cidr string) string {
	return fmt.Sprintf("pools: [{name: %s, ranges: [{cidr: %s, oneNodePrefixLen: 24}]}]", name, cidr)
}

func TestApply(t *testing.T) {
	s := newStore(t, firstPool())
	s.node(5, "default 1 open 7")
	before, rev := s.all()
	dry, err := ipam.Apply(context.Background(), s.Store, s.reserved, []byte(grow), true)
	s.g.Expect(err).NotTo(HaveOccurred())
	after, now := s.all()
	s.g.Expect(after).To(Equal(before), "a dry run changes nothing")
	s.g.Expect(now).To(Equal(rev))
	plan := s.does(grow)
	s.g.Expect(plan).To(Equal(dry), "and says what would be done")
	s.g.Expect(plan.Changes).To(HaveLen(2))
	s.g.Expect(plan.Moves).To(HaveLen(1))
	s.g.Expect(plan.Moves[0].Leases).To(Equal(uint64(7)))
	s.g.Expect(s.pools()).To(Equal([]string{"default of default 2 10.1.0.0/16/24 draining from contiv.conf", "pods-2 of default 1 10.2.0.0/16/23 from apply"}))
	_, rev = s.all()
	s.g.Expect(s.does(grow).Changes).To(BeEmpty(), "applied twice")
	_, now = s.all()
	s.g.Expect(now).To(Equal(rev))
	s.does("pools: [{name: default}]")
	s.g.Expect(s.pools()[0]).To(Equal("default of default 3 10.1.0.0/16/24 from contiv.conf"))
}

// A refused plan changes nothing and is not an error. Only a file that cannot be
// read is one.
func TestApplyRefuses(t *testing.T) {
	for _, c := range []struct{ name, file, want string }{
		{"an overlap", added("x", "10.1.0.0/17"), "overlaps pool default"},
		{"an overlap with the services", added("x", "10.100.0.0/16"), "overlaps serviceCIDR"},
		{"another range", added("default", "10.9.0.0/16"), "does not change"},
		{"no pool left", "pools: [{name: default, state: draining}]", "leaves network default without an active pool"},
		{"a removal at once", clear, "cannot follow active"},
		{"the node's own link", "pools: [{name: x, network: vpphost, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]", `pools[0].network: "vpphost" is each node's own link`},
		{"too small for the nodes", "pools: [{name: x, ranges: [{cidr: 10.2.0.0/23, oneNodePrefixLen: 24}]}]", "has no block for node 5"},
		{"one of two", "pools: [{name: a, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}, {name: b, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 24}]}]", "overlaps pool a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, firstPool())
			s.node(5, "default 1 open 7")
			before, _ := s.all()
			plan, err := s.apply(c.file)
			s.g.Expect(err).NotTo(HaveOccurred())
			s.g.Expect(plan.Err()).To(MatchError(ContainSubstring(c.want)))
			after, _ := s.all()
			s.g.Expect(after).To(Equal(before))
		})
	}
	s := newStore(t, firstPool())
	_, err := s.apply("pools: 7")
	var problems poolplan.Problems
	s.g.Expect(errors.As(err, &problems)).To(BeTrue(), "%v", err)
	s.g.Expect(s.Count()).To(BeZero())
}

// A pool is removed only when every node has reported, for its last generation, that it
// uses nothing of it. A node without a report blocks the removal.
func TestRemovalNeedsAllNodes(t *testing.T) {
	nothing := func(s *clusterStore, ids ...uint32) {
		for _, id := range ids {
			s.node(id, "default 2 closed 0", "pods-2 1 open 0")
		}
	}
	for _, c := range []struct {
		name string
		do   func(s *clusterStore)
		want string // "": it is removed
	}{
		{"all have reported", func(s *clusterStore) { nothing(s, 5, 6, 7) }, ""},
		{"one has a lease", func(s *clusterStore) { nothing(s, 5, 7); s.node(6, "default 2 closed 1") }, "node 6 (node-6) has 1 lease"},
		{"one has it open", func(s *clusterStore) { nothing(s, 5, 7); s.node(6, "default 2 open 0") }, "node 6 (node-6) has its block open"},
		{"one has not followed", func(s *clusterStore) { nothing(s, 5, 7); s.node(6, "default 1 closed 0") }, "node 6 (node-6) has not answered yet"},
		{"one has not reported it", func(s *clusterStore) { nothing(s, 5, 7); s.node(6) }, "node 6 (node-6) has not answered yet"},
		{"one has never been there", func(s *clusterStore) {
			nothing(s, 5, 7)
			s.put(kv.NodeRecordKey(6), &kv.NodeRecord{Id: 6, Name: "node-6", Instance: "instance-6", Generation: 1})
		}, "node 6 (node-6) has not answered yet"},
		{"the report is of an earlier holder of the ID", func(s *clusterStore) {
			nothing(s, 5, 6, 7)
			s.put(kv.NodeRecordKey(6), &kv.NodeRecord{Id: 6, Name: "node-6", Instance: "another", Generation: 2})
		}, "node 6 (node-6) has not answered yet"},
		{"one is gone", func(s *clusterStore) {
			nothing(s, 5, 7)
			s.put(kv.NodeRecordKey(6), &kv.NodeRecord{Id: 6, Name: "node-6", Instance: "instance-6", Generation: 1, Released: 1})
		}, ""},
		{"one knows more than the store", func(s *clusterStore) { nothing(s, 5, 7); s.node(6, "default 4 closed 0") }, "has followed generation 4, and 2 is stored"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, firstPool())
			for id := range uint32(3) {
				s.node(5+id, "default 1 open 3")
			}
			s.does(grow)
			plan, err := s.apply(clear)
			s.g.Expect(err).NotTo(HaveOccurred())
			s.g.Expect(plan.Err()).To(MatchError(poolplan.ErrBlocked))
			s.g.Expect(plan.Blocks).To(HaveLen(3))
			c.do(s)
			plan, err = s.apply(clear)
			s.g.Expect(err).NotTo(HaveOccurred())
			if c.want != "" {
				s.g.Expect(plan.Err()).To(MatchError(ContainSubstring(c.want)))
				s.g.Expect(s.pools()[0]).To(HavePrefix("default of default 2 "))
				return
			}
			s.g.Expect(plan.Err()).NotTo(HaveOccurred())
			s.g.Expect(s.pools()[0]).To(Equal("default of default 3 10.1.0.0/16/24 removed from contiv.conf"))
			s.does(added("pods-3", "10.1.0.0/16")) // its addresses are free
		})
	}
}

// Invalid pool objects do not stop a change, and valid ones may replace them.
func TestApplyBesideBadObjects(t *testing.T) {
	s := newStore(t, firstPool(), aPool("bad", 0, "10.2.0.0/16 24"))
	s.raw(kv.PoolKey("garbage"), []byte{0xff})
	s.put(kv.PoolKey("evil"), removed(aPool("default", 99, "10.1.0.0/16 24")))
	s.does(grow)
	s.does(added("garbage", "10.3.0.0/16"))
	s.does(added("bad", "10.4.0.0/16"))
	s.g.Expect(s.pools()).To(Equal([]string{
		"bad of default 1 10.4.0.0/16/24 from apply", "default of default 2 10.1.0.0/16/24 draining from contiv.conf",
		"default of default 99 10.1.0.0/16/24 removed from apply", "garbage of default 1 10.3.0.0/16/24 from apply", "pods-2 of default 1 10.2.0.0/16/23 from apply",
	}))
}

// Stores that fail, and conflicting writes.
func TestApplyAndTheStore(t *testing.T) {
	for _, c := range []struct {
		name  string
		plan  faulty.Plan
		want  string // of the error
		wrote bool
	}{
		{"the pools cannot be read", faulty.At(1, faulty.Fail()), "list the pools", false},
		{"the nodes cannot be read", faulty.At(2, faulty.Fail()), "list the nodes", false},
		{"nothing can be written", faulty.Always(faulty.Txn, faulty.Fail()), "apply pools", false},
		{"the outcome is lost", faulty.Always(faulty.Txn, faulty.Tear()), "apply pools", true},
		{"all writes conflict", faulty.Always(faulty.Txn, faulty.FailWith(kvdb.ErrConditions)), "gave up after 20 conflicting writes", false},
		{"one write conflicts", faulty.On(faulty.Txn, 1, faulty.FailWith(kvdb.ErrConditions)), "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, firstPool())
			s.Reset(c.plan)
			_, err := s.apply(grow)
			if c.want == "" {
				s.g.Expect(err).NotTo(HaveOccurred())
			} else {
				s.g.Expect(err).To(MatchError(ContainSubstring(c.want)))
			}
			s.g.Expect(len(s.pools()) == 2).To(Equal(c.wrote))
		})
	}
	s := newStore(t, firstPool())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := ipam.Apply(ctx, s.Store, nil, []byte(grow), false)
	s.g.Expect(err).To(MatchError(context.Canceled))
}

// More pools than a transaction has conditions.
func TestApplyWithManyPools(t *testing.T) {
	s := newStore(t, firstPool())
	for i := range 150 {
		s.put(kv.PoolKey(fmt.Sprint("p", i)), in("blue", aPool(fmt.Sprint("p", i), 1, fmt.Sprintf("10.200.%d.0/24 29", i))))
	}
	s.does(grow)
	s.does("pools: [{name: p7, state: draining}]")
	s.g.Expect(s.pools()).To(ContainElement("p7 of blue 2 10.200.7.0/24/29 draining from apply"))
}

// interrupted is a store in which something happens before the first transaction.
type interrupted struct {
	kvdb.Store
	first func()
}

func (s *interrupted) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	if f := s.first; f != nil {
		s.first = nil
		f()
	}
	return s.Store.Txn(ctx, conds, ops)
}

// A plan is valid as long as it can be written: after any change of the pools between
// reading and writing it is made again.
func TestPoolsThatChangeUnderAnApply(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(s *clusterStore)
		file   string
		want   string
	}{
		{"an apply adds what overlaps", func(s *clusterStore) { s.does(added("a", "10.2.0.0/17")) }, added("b", "10.2.0.0/16"), "overlaps pool a"},
		{"a custom network gets what overlaps", func(s *clusterStore) {
			state := stored(firstPool(), aNetwork("blue", "10.2.0.0/16", 24))
			for _, w := range repairOf(s.g, defaults)(nil, state, nil) {
				s.put(w.Key, w.Message)
			}
		}, added("b", "10.2.0.0/16"), "overlaps pool blue"},
		{"the last other pool drains", func(s *clusterStore) {
			s.does("pools: [{name: pods-9, state: draining}]")
		}, "pools: [{name: default, state: draining}]", "leaves network default without an active pool"},
		{"the pool itself changes", func(s *clusterStore) {
			s.put(kv.PoolKey("default"), removed(aPool("default", 7, "10.1.0.0/16 24")))
		}, "pools: [{name: default, state: draining}]", "was removed"},
		{"another writer adds the name", func(s *clusterStore) { s.put(kv.PoolKey("b"), aPool("b", 5, "10.77.0.0/16 24")) }, added("b", "10.2.0.0/16"), "does not change"},
		{"something else changes", func(s *clusterStore) { s.put(kv.NodeKey("n"), &kv.Node{}) }, added("b", "10.2.0.0/16"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, firstPool(), aPool("pods-9", 1, "10.19.0.0/16 24"))
			store := &interrupted{Store: s.Store, first: func() { c.change(s) }}
			plan, err := ipam.Apply(context.Background(), store, s.reserved, []byte(c.file), false)
			s.g.Expect(err).NotTo(HaveOccurred())
			if c.want == "" {
				s.g.Expect(plan.Err()).NotTo(HaveOccurred())
				return
			}
			s.g.Expect(plan.Err()).To(MatchError(ContainSubstring(c.want)))
		})
	}
}

// Many apply at the same time. Of those whose pools overlap one is served, of
// the other ones all; and never do all pools of a network drain.
func TestConcurrentAppliers(t *testing.T) {
	const appliers = 12
	s := newStore(t, firstPool(), aPool("spare", 1, "10.19.0.0/16 24"))
	var mu sync.Mutex
	var served []string
	each := func(do func(i int) string) {
		served = nil
		var wg sync.WaitGroup
		for i := range appliers {
			wg.Go(func() {
				for { // as a caller does after conflicting writes
					plan, err := s.apply(do(i))
					if err != nil && strings.Contains(err.Error(), "conflicting writes") {
						continue
					}
					mu.Lock()
					defer mu.Unlock()
					s.g.Expect(err).NotTo(HaveOccurred())
					if plan.Err() == nil && len(plan.Changes) > 0 {
						served = append(served, fmt.Sprint(i))
					}
					return
				}
			})
		}
		wg.Wait()
	}
	each(func(i int) string { return added(fmt.Sprint("same-", i), "10.2.0.0/16") })
	s.g.Expect(served).To(HaveLen(1))
	each(func(i int) string { return added(fmt.Sprint("own-", i), fmt.Sprintf("10.%d.0.0/16", 40+i)) })
	s.g.Expect(served).To(HaveLen(appliers))
	for _, p := range s.pools() { // all drain but the first two
		if name, _, _ := strings.Cut(p, " "); name != "default" && name != "spare" {
			s.does("pools: [{name: " + name + ", state: draining}]")
		}
	}
	each(func(i int) string {
		return "pools: [{name: " + []string{"default", "spare"}[i%2] + ", state: draining}]"
	})
	active := slices.DeleteFunc(s.pools(), func(p string) bool { return strings.Contains(p, "draining") })
	s.g.Expect(active).NotTo(BeEmpty())
}

// PoolUses reports the state of the ledger.
func TestPoolUses(t *testing.T) {
	n := running(t, defaults, 5)
	uses := func() (all []string) {
		for _, u := range n.PoolUses() {
			all = append(all, fmt.Sprintf("%s %d open=%v %d", u.Pool, u.Generation, u.Open, u.Leases))
		}
		slices.Sort(all)
		return all
	}
	n.g.Expect(uses()).To(Equal([]string{"default 1 open=true 0"}), "its own addresses are not leases")
	n.g.Expect(n.PoolUses()[0].Blocks[0].Reserved).To(Equal(uint64(4)), "first, gateway, NAT loopback, last")
	n.add("p1")
	n.add("p2")
	n.pools(firstPool(), aPool("pods-2", 1, "10.2.0.0/16 24"), bluePool(1), in("blue", aPool("blue-2", 7, "10.6.0.0/16 24")))
	n.mustOf("blue", "b1")
	n.mustOf("blue", "b2")
	_, err := n.update(&podmanager.DeletePod{Key: ledger.Key{Network: "blue", ContainerID: "b2", IfName: "eth0"}})
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(uses()[0]).To(Equal("blue 1 open=true 2"), "one cools")
	n.clock.now = n.clock.now.Add(time.Hour)
	n.g.Expect(uses()).To(Equal([]string{"blue 1 open=true 1", "blue-2 7 open=true 0", "default 1 open=true 2", "pods-2 1 open=true 0"}))
	n.pools(draining(aPool("default", 2, "10.1.0.0/16 24")))
	n.g.Expect(uses()[2]).To(Equal("default 2 open=false 2"))
	n.del("p1")
	n.g.Expect(uses()[2]).To(Equal("default 2 open=false 1"))
	n.reports("stranger", nil, "10.1.5.77")
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(uses()[2]).To(Equal("default 2 open=false 2"), "one is in quarantine")
	n.del("p2")
	_, err = n.Ledger.Release(t.Context(), ledger.Selector{Pool: ipam.PodPool, Addr: mustAddr("10.1.5.77"), Quarantined: true})
	n.g.Expect(err).NotTo(HaveOccurred())
	n.clock.now = n.clock.now.Add(time.Hour)
	n.g.Expect(uses()[2]).To(Equal("default 2 open=false 0"))
	n.pools(removed(aPool("default", 3, "10.1.0.0/16 24")))
	n.g.Expect(uses()[2]).To(Equal("default 3 open=false 0"))
}
