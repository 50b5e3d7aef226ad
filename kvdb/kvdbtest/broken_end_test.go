// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest_test

import (
	"context"
	"sync"

	"github.com/cadastre/cadastre/kvdb"
)

// failing is a watcher that says it ended for a reason.
type failing struct {
	kvdb.Watcher
	err error
}

func (f failing) Err() error { return f.err }

// deaf is a watcher that cannot be closed.
type deaf struct{ kvdb.Watcher }

func (deaf) Close() {}

// wrongEnds are stores that do not end what has to end.
func wrongEnds() map[string]func(kvdb.Store) kvdb.Store {
	return map[string]func(kvdb.Store) kvdb.Store{
		"does not close":   func(s kvdb.Store) kvdb.Store { return &broken{Store: s, close: func() error { return nil }} },
		"closes only once": closesOnce,
		"ignores contexts": ignoresContexts,
		"cannot end a watch": watches(func(s kvdb.Store, ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
			w, err := s.Watch(ctx, prefix, from)
			return deaf{w}, err
		}),
		"blames its ends on something": watches(func(s kvdb.Store, ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
			w, err := s.Watch(ctx, prefix, from)
			return failing{w, context.Canceled}, err
		}),
		"waits for slow watches": waitsForReaders,
	}
}

func closesOnce(s kvdb.Store) kvdb.Store {
	var once sync.Once
	return &broken{Store: s, close: func() error {
		err := kvdb.ErrClosed
		once.Do(func() { err = s.Close() })
		return err
	}}
}

func ignoresContexts(s kvdb.Store) kvdb.Store {
	free := context.WithoutCancel
	return &broken{
		Store: s,
		get:   func(ctx context.Context, key string) (kvdb.KeyValue, bool, error) { return s.Get(free(ctx), key) },
		list: func(ctx context.Context, prefixes ...string) ([]kvdb.KeyValue, int64, error) {
			return s.List(free(ctx), prefixes...)
		},
		txn: func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
			return s.Txn(free(ctx), conds, ops)
		},
		watch: func(ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
			return s.Watch(free(ctx), prefix, from)
		},
	}
}

// waitsForReaders does not write while more than a few batches of some watch
// are unread.
func waitsForReaders(s kvdb.Store) kvdb.Store {
	const few = 3
	var mu sync.Mutex
	var gates []chan struct{}
	return &broken{
		Store: s,
		watch: func(ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
			w, err := s.Watch(ctx, prefix, from)
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			gate := make(chan struct{}, few)
			gates = append(gates, gate)
			return relay(w, func(n int, batch []kvdb.Event) [][]kvdb.Event {
				if n > 0 { // so the one before has been read
					select {
					case <-gate:
					default: // it was written before the watch began
					}
				}
				return [][]kvdb.Event{batch}
			}), nil
		},
		txn: func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
			mu.Lock()
			defer mu.Unlock()
			for _, gate := range gates {
				select {
				case gate <- struct{}{}:
				case <-ctx.Done():
					return 0, context.Cause(ctx)
				}
			}
			return s.Txn(ctx, conds, ops)
		},
	}
}
