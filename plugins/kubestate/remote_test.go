// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kubestate_test

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/mem"
)

// errAway is the error of a remote that is away.
var errAway = errors.New("the store is away")

// remote is a store elsewhere. It can be away, it can break its watches, and it
// can come back as another one.
type remote struct {
	mu   sync.Mutex
	at   kvdb.Store
	away bool
	cut  chan struct{} // closed when the watches break
	txns int           // that were tried
}

func newRemote(at kvdb.Store) *remote { return &remote{at: at, cut: make(chan struct{})} }

func (r *remote) reach() (kvdb.Store, <-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		return nil, nil, errAway
	}
	return r.at, r.cut, nil
}

// breaks ends all watches.
func (r *remote) breaks() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.cut)
	r.cut = make(chan struct{})
}

// goes is away until comes.
func (r *remote) goes() {
	r.mu.Lock()
	r.away = true
	r.mu.Unlock()
	r.breaks()
}

// comes is there again, as at.
func (r *remote) comes(at kvdb.Store) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at, r.away = at, false
}

// tried returns the number of transactions since the last call.
func (r *remote) tried() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, r.txns = r.txns, 0
	return n
}

func (r *remote) Get(ctx context.Context, key string) (kvdb.KeyValue, bool, error) {
	at, _, err := r.reach()
	if err != nil {
		return kvdb.KeyValue{}, false, err
	}
	return at.Get(ctx, key)
}

func (r *remote) List(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
	at, _, err := r.reach()
	if err != nil {
		return nil, 0, err
	}
	return at.List(ctx, prefixes...)
}

func (r *remote) Txn(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
	at, _, err := r.reach()
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	r.txns++
	r.mu.Unlock()
	return at.Txn(ctx, conds, ops)
}

func (r *remote) Close() error { return r.at.Close() }

func (r *remote) Watch(ctx context.Context, prefix string, rev int64) (kvdb.Watcher, error) {
	at, cut, err := r.reach()
	if err != nil {
		return nil, err
	}
	inner, err := at.Watch(ctx, prefix, rev)
	if err != nil {
		return nil, err
	}
	w := &cutWatch{inner: inner, events: make(chan []kvdb.Event), closed: make(chan struct{}), ended: make(chan struct{})}
	go w.run(cut)
	return w, nil
}

// cutWatch passes on what a watch delivers, until it is cut.
type cutWatch struct {
	inner  kvdb.Watcher
	events chan []kvdb.Event
	closed chan struct{}
	ended  chan struct{}
	err    error
}

func (w *cutWatch) run(cut <-chan struct{}) {
	defer close(w.ended)
	defer close(w.events)
	defer w.inner.Close()
	for {
		select {
		case batch, open := <-w.inner.Events():
			if !open {
				w.err = w.inner.Err()
				return
			}
			select {
			case w.events <- batch:
				continue
			case <-cut:
			case <-w.closed:
				return
			}
		case <-cut:
		case <-w.closed:
			return
		}
		w.err = errAway
		return
	}
}

func (w *cutWatch) Events() <-chan []kvdb.Event { return w.events }
func (w *cutWatch) Err() error                  { return w.err }
func (w *cutWatch) Close()                      { close(w.closed); <-w.ended }

// copyOf is a store of its own with what another one has.
func copyOf(from kvdb.Store) (*mem.Store, error) {
	kvs, _, err := from.List(context.Background(), "")
	if err != nil {
		return nil, err
	}
	to := mem.New()
	for _, x := range kvs {
		if _, err := to.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(x.Key, x.Value)}); err != nil {
			return nil, err
		}
	}
	return to, nil
}

// stateIn returns the state that a loop should have of values: that of this node and what all
// nodes share, as far as it can be read.
func stateIn(kvs []kvdb.KeyValue) map[string]string {
	state := map[string]string{}
	for _, x := range kvs {
		resource, ok := kv.ResourceOf(x.Key)
		at, m := resource.Name+" "+x.Key, proto.Message(nil)
		if ok {
			m = resource.New()
		} else if sinkKey, ok := kv.External(x.Key); ok {
			at, m = "external "+sinkKey, kv.SinkMessage(sinkKey)
		}
		if m != nil && proto.Unmarshal(x.Value, m) == nil {
			state[at] = describe(m)
		}
	}
	return state
}

// memMirror is a Mirror in memory, which fails on request.
type memMirror struct {
	mu       sync.Mutex
	kvs      map[string][]byte
	revision int64
	problem  error
	writes   int
	applied  [][]kvdb.Event
}

func (m *memMirror) fails(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problem = err
}

func (m *memMirror) Load(context.Context) ([]kvdb.KeyValue, int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []kvdb.KeyValue
	for key, value := range m.kvs {
		all = append(all, kvdb.KeyValue{Key: key, Value: value})
	}
	return all, m.revision, m.problem
}

func (m *memMirror) Replace(ctx context.Context, kvs []kvdb.KeyValue, revision int64) error {
	return m.write(ctx, revision, func() {
		m.kvs = map[string][]byte{}
		for _, x := range kvs {
			m.kvs[x.Key] = x.Value
		}
	})
}

func (m *memMirror) Apply(ctx context.Context, events []kvdb.Event, revision int64) error {
	return m.write(ctx, revision, func() {
		m.applied = append(m.applied, events)
		for _, ev := range events {
			m.kvs[ev.Key] = ev.Value
			if ev.Deleted {
				delete(m.kvs, ev.Key)
			}
		}
	})
}

func (m *memMirror) write(ctx context.Context, revision int64, do func()) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.problem != nil || ctx.Err() != nil {
		return errors.Join(m.problem, ctx.Err())
	}
	m.writes++
	m.revision = revision
	do()
	return nil
}

func (m *memMirror) written() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes
}

// state returns the state of a loop that starts from the mirror.
func (m *memMirror) state() map[string]string {
	kvs, _, _ := m.Load(context.Background())
	return stateIn(kvs)
}
