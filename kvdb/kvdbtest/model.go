// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/kvdb"
)

// modelSteps and modelSeeds are the size of the random check: a few hundred
// transactions, the same ones every time.
const (
	modelSteps = 150
	modelSeeds = 4
)

// model is a store as naive as can be, to compare with.
type model struct {
	kvs     map[string]kvdb.KeyValue
	batches [][]kvdb.Event
}

func newModel() *model { return &model{kvs: map[string]kvdb.KeyValue{}} }

func (m *model) holds(conds []kvdb.Cond) bool {
	for _, c := range conds {
		if m.kvs[c.Key].ModRevision != c.ModRevision {
			return false
		}
	}
	return true
}

// changes tells whether ops have any effect.
func (m *model) changes(ops []kvdb.Op) bool {
	return slices.ContainsFunc(ops, func(op kvdb.Op) bool { return !op.Delete || m.kvs[op.Key].ModRevision != 0 })
}

func (m *model) apply(rev int64, ops []kvdb.Op) {
	var batch []kvdb.Event
	for _, op := range ops {
		kv := kvdb.KeyValue{Key: op.Key, ModRevision: rev}
		if _, found := m.kvs[op.Key]; op.Delete && !found {
			continue
		}
		if op.Delete {
			delete(m.kvs, op.Key)
		} else {
			kv.Value = op.Value
			m.kvs[op.Key] = kv
		}
		batch = append(batch, kvdb.Event{KeyValue: kv, Deleted: op.Delete})
	}
	slices.SortFunc(batch, func(a, b kvdb.Event) int { return strings.Compare(a.Key, b.Key) })
	if len(batch) > 0 {
		m.batches = append(m.batches, batch)
	}
}

func (m *model) list(prefixes ...string) []string {
	out := []string{}
	for _, key := range slices.Sorted(maps.Keys(m.kvs)) {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			out = append(out, stored(key, string(m.kvs[key].Value), m.kvs[key].ModRevision))
		}
	}
	return out
}

// since answers what a watch from revision rev would deliver.
func (m *model) since(rev int64, prefix string) [][]string {
	out := [][]string{}
	for _, batch := range m.batches {
		var match []kvdb.Event
		for _, e := range batch {
			if e.ModRevision >= rev && strings.HasPrefix(e.Key, prefix) {
				match = append(match, e)
			}
		}
		if len(match) > 0 {
			out = append(out, describe(match))
		}
	}
	return out
}

func modelChecks() []Check {
	var checks []Check
	for seed := range uint64(modelSeeds) {
		checks = append(checks, Check{fmt.Sprintf("agree with a model, seed %d", seed), func(x *suite) {
			r := &ramble{suite: x, rand: rand.New(rand.NewPCG(seed, seed)), model: newModel()}
			r.run()
		}})
	}
	return checks
}

// ramble is a random walk of a store and a model together.
type ramble struct {
	*suite
	rand  *rand.Rand
	model *model
	rev   int64
	step  int
}

func (r *ramble) run() {
	_, r.rev = r.list("")
	start := r.rev + 1
	prefixes := []string{"", "a", "a/", "\xff"}
	watched := slices.Clone(prefixes)
	var watchers []kvdb.Watcher
	for _, prefix := range prefixes {
		watchers = append(watchers, r.watch(prefix, start))
	}
	for r.step = range modelSteps {
		switch r.rand.IntN(10) {
		case 0, 1:
			r.get(r.key())
		case 2, 3:
			r.rand.Shuffle(len(prefixes), func(i, j int) { prefixes[i], prefixes[j] = prefixes[j], prefixes[i] })
			r.compare(prefixes[:1+r.rand.IntN(len(prefixes))]...)
		default:
			r.transact()
		}
	}
	r.compare("")
	for i, w := range watchers {
		for _, want := range r.model.since(start, watched[i]) {
			r.expectNext(w, want...)
		}
		w.Close()
	}
}

func (r *ramble) key() string {
	keys := []string{"a", "a/", "a/b", "a0", "b", "c\xff", "c\xff1", "\xff", "\xff\xff"}
	return keys[r.rand.IntN(len(keys))]
}

func (r *ramble) get(key string) {
	kv, found, err := r.store.Get(r.ctx, key)
	r.Expect(err).NotTo(HaveOccurred())
	want, stored := r.model.kvs[key]
	r.Expect(found).To(Equal(stored), "step %d: %q", r.step, key)
	r.Expect(kv.ModRevision).To(Equal(want.ModRevision), "step %d: %q", r.step, key)
	r.Expect(string(kv.Value)).To(Equal(string(want.Value)), "step %d: %q", r.step, key)
}

func (r *ramble) compare(prefixes ...string) {
	kvs, rev, err := r.store.List(r.ctx, prefixes...)
	r.Expect(err).NotTo(HaveOccurred(), "step %d: %q", r.step, prefixes)
	got := []string{}
	for _, kv := range kvs {
		got = append(got, stored(kv.Key, string(kv.Value), kv.ModRevision))
	}
	r.Expect(got).To(Equal(r.model.list(prefixes...)), "step %d: %q", r.step, prefixes)
	r.Expect(rev).To(BeNumerically(">=", r.rev), "step %d", r.step)
}

func (r *ramble) transact() {
	var conds []kvdb.Cond
	for range r.rand.IntN(3) {
		c := kvdb.Cond{Key: r.key()}
		c.ModRevision = r.model.kvs[c.Key].ModRevision
		if r.rand.IntN(8) == 0 {
			c.ModRevision = r.rand.Int64N(r.rev + 2)
		}
		conds = append(conds, c)
	}
	ops := map[string]kvdb.Op{}
	for range r.rand.IntN(5) {
		key := r.key()
		ops[key] = kvdb.Op{Key: key, Delete: r.rand.IntN(3) == 0, Value: fmt.Append(nil, r.step)}
	}
	var list []kvdb.Op
	for _, key := range slices.Sorted(maps.Keys(ops)) {
		list = append(list, ops[key])
	}
	r.rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	rev, err := r.store.Txn(r.ctx, conds, list)
	if !r.model.holds(conds) {
		r.Expect(err).To(MatchError(kvdb.ErrConditions), "step %d", r.step)
		return
	}
	r.Expect(err).NotTo(HaveOccurred(), "step %d", r.step)
	if r.model.changes(list) {
		r.Expect(rev).To(BeNumerically(">", r.rev), "step %d", r.step)
	} else {
		r.Expect(rev).To(BeNumerically(">=", r.rev), "step %d", r.step)
	}
	r.rev = rev
	r.model.apply(rev, list)
}
