// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/faulty"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

// past is a store that can be wiped, and restored as it was. Its counter goes on
// even then ("etcdutl snapshot restore --bump-revision"): where it does not, a
// condition may hold by chance, and no reader can tell. It has no watches.
type past struct {
	mu      sync.Mutex
	kvs     map[string]kvdb.KeyValue
	rev     int64
	written func(before, now map[string]kvdb.KeyValue) // after each transaction, not at the same time
}

type copyOf map[string]kvdb.KeyValue

func newPast() *past {
	return &past{kvs: map[string]kvdb.KeyValue{}, written: func(_, _ map[string]kvdb.KeyValue) {}}
}

func (p *past) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x, found := p.kvs[key]
	return x, found, ctx.Err()
}

func (p *past) List(ctx context.Context, prefixes ...string) (all []kvdb.KeyValue, rev int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(p.kvs)) {
		if slices.ContainsFunc(prefixes, func(x string) bool { return strings.HasPrefix(key, x) }) {
			all = append(all, p.kvs[key])
		}
	}
	return all, p.rev, ctx.Err()
}

func (p *past) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	for _, c := range conds {
		if p.kvs[c.Key].ModRevision != c.ModRevision {
			return 0, kvdb.ErrConditions
		}
	}
	before := maps.Clone(p.kvs)
	p.rev++
	for _, op := range ops {
		delete(p.kvs, op.Key)
		if !op.Delete {
			p.kvs[op.Key] = kvdb.KeyValue{Key: op.Key, Value: op.Value, ModRevision: p.rev}
		}
	}
	p.written(before, p.kvs)
	return p.rev, nil
}

func (p *past) Watch(context.Context, string, int64) (kvdb.Watcher, error) {
	return nil, errors.New("the past has no watches")
}

func (p *past) Close() error { return nil }

func (p *past) copied() copyOf {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.kvs)
}

func (p *past) restore(c copyOf) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kvs = map[string]kvdb.KeyValue{}
	maps.Copy(p.kvs, c)
}

// The test's store answers as a real one does.
func TestThePast(t *testing.T) {
	g := NewWithT(t)
	rnd := rand.New(rand.NewPCG(1, 1))
	p, m := newPast(), mem.New()
	defer m.Close()
	keys := []string{"a/1", "a/2", "b/1"}
	for range 500 {
		key := keys[rnd.IntN(3)]
		x, found, err := p.Get(t.Context(), key)
		y, foundToo, errToo := m.Get(t.Context(), key)
		g.Expect([]any{x, found, err}).To(Equal([]any{y, foundToo, errToo}))
		op := kvdb.Put(key, []byte{byte(rnd.IntN(100))})
		if rnd.IntN(4) == 0 && found {
			op = kvdb.Delete(key)
		}
		conds := []kvdb.Cond{{Key: keys[rnd.IntN(3)], ModRevision: x.ModRevision}}
		rev, err := p.Txn(t.Context(), conds, []kvdb.Op{op})
		revToo, errToo := m.Txn(t.Context(), conds, []kvdb.Op{op})
		g.Expect(errors.Is(err, kvdb.ErrConditions)).To(Equal(errors.Is(errToo, kvdb.ErrConditions)))
		g.Expect(rev).To(Equal(revToo))
		all, rev, err := p.List(t.Context(), "a/")
		allToo, revToo, errToo := m.List(t.Context(), "a/")
		g.Expect([]any{all, rev, err}).To(Equal([]any{allToo, revToo, errToo}))
	}
}

// weather represents the state of a link to the store.
type weather int

const (
	fine    weather = iota
	rough           // some requests fail, are torn, slow, or done long after they were given up
	down            // all fail
	silence         // none is answered, and each is given up in the end
)

// link is one agent's way to the store.
type link struct {
	*faulty.Store
	w    *sync.WaitGroup // of what is done late
	mu   sync.Mutex
	rnd  *rand.Rand
	now  weather
	dead bool // the process is: nothing of it gets to the store any more

	timely bool // what is slow or late is so by less than a second
}

// newLink makes a link to store; late counts what is still under way in it.
func newLink(store kvdb.Store, seed uint64, late *sync.WaitGroup) *link {
	l := &link{rnd: rand.New(rand.NewPCG(seed, 7)), w: late}
	l.Store = faulty.New(&tardy{store, l}, l.plan)
	return l
}

func (l *link) set(w weather) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = w
}

func (l *link) weather() weather {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

func (l *link) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
}

func (l *link) plan(string, int) faulty.Fault {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.dead || l.now == down:
		return faulty.Fail()
	case l.now == silence:
		return faulty.Hold(make(chan struct{}))
	case l.now == fine:
		return faulty.Fault{}
	}
	longest := answer
	if l.timely {
		longest = time.Second
	}
	switch l.rnd.IntN(12) {
	case 0:
		return faulty.Fail()
	case 1:
		return faulty.Tear()
	case 2:
		return faulty.Delay(time.Duration(l.rnd.Int64N(int64(longest))))
	}
	return faulty.Fault{}
}

// late is by how much the next transaction is late, 0 for not at all.
func (l *link) late() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now != rough || l.rnd.IntN(10) != 0 {
		return 0
	}
	longest := 3 * time.Minute
	if l.timely {
		longest = time.Second
	}
	return time.Duration(l.rnd.Int64N(int64(longest)))
}

func (l *link) isDead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dead
}

// answer bounds the wait for an answer, as real stores do.
const answer = 30 * time.Second

func (l *link) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	return l.Store.Get(ctx, key)
}

func (l *link) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	return l.Store.List(ctx, prefixes...)
}

func (l *link) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	return l.Store.Txn(ctx, conds, ops)
}

// tardy does some transactions after their callers were told that they failed.
type tardy struct {
	kvdb.Store
	link *link
}

func (s *tardy) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	d := s.link.late()
	if d == 0 {
		return s.Store.Txn(ctx, conds, ops)
	}
	s.link.w.Go(func() {
		<-time.After(d)
		if !s.link.isDead() {
			_, _ = s.Store.Txn(context.WithoutCancel(ctx), conds, ops)
		}
	})
	return 0, context.DeadlineExceeded
}

// slowly takes a moment for each request, so that others come in between.
type slowly struct{ *link }

func (s slowly) moment() {
	s.mu.Lock()
	d := time.Duration(s.rnd.Int64N(int64(200 * time.Millisecond)))
	s.mu.Unlock()
	<-time.After(d)
}

func (s slowly) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	s.moment()
	return s.link.Get(ctx, key)
}

func (s slowly) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	s.moment()
	return s.link.List(ctx, prefixes...)
}

func (s slowly) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	s.moment()
	return s.link.Txn(ctx, conds, ops)
}
