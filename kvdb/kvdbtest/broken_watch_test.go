// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kvdbtest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/cadastre/cadastre/kvdb"
)

// watches is a store whose watches are opened in another way.
func watches(open func(s kvdb.Store, ctx context.Context, prefix string, from int64) (kvdb.Watcher, error)) func(kvdb.Store) kvdb.Store {
	return func(s kvdb.Store) kvdb.Store {
		return &broken{Store: s, watch: func(ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
			return open(s, ctx, prefix, from)
		}}
	}
}

// delivers is a store whose watches turn the n-th batch (from 0) into others.
func delivers(change func(n int, batch []kvdb.Event) [][]kvdb.Event) func(kvdb.Store) kvdb.Store {
	return watches(func(s kvdb.Store, ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
		w, err := s.Watch(ctx, prefix, from)
		if err != nil {
			return nil, err
		}
		return relay(w, change), nil
	})
}

// relayed is a watcher between a good one and the reader.
type relayed struct {
	kvdb.Watcher
	events chan []kvdb.Event
	stop   chan struct{}
	once   sync.Once
	ended  sync.WaitGroup
}

func relay(w kvdb.Watcher, change func(n int, batch []kvdb.Event) [][]kvdb.Event) *relayed {
	r := &relayed{Watcher: w, events: make(chan []kvdb.Event), stop: make(chan struct{})}
	r.ended.Go(func() {
		defer close(r.events)
		n := 0
		for batch := range w.Events() {
			for _, out := range change(n, batch) {
				select {
				case r.events <- out:
				case <-r.stop:
				}
			}
			n++
		}
	})
	return r
}

func (r *relayed) Events() <-chan []kvdb.Event { return r.events }

func (r *relayed) Close() {
	r.once.Do(func() { close(r.stop) })
	r.Watcher.Close()
	r.ended.Wait()
}

// wrongBatches are stores that deliver something else than was applied.
func wrongBatches() map[string]func(kvdb.Store) kvdb.Store {
	same := func(batch []kvdb.Event) [][]kvdb.Event { return [][]kvdb.Event{batch} }
	return map[string]func(kvdb.Store) kvdb.Store{
		"drops every third batch": delivers(func(n int, batch []kvdb.Event) [][]kvdb.Event {
			if n%3 == 2 {
				return nil
			}
			return same(batch)
		}),
		"drops the first batch": delivers(func(n int, batch []kvdb.Event) [][]kvdb.Event {
			if n == 0 {
				return nil
			}
			return same(batch)
		}),
		"repeats a batch": delivers(func(n int, batch []kvdb.Event) [][]kvdb.Event { return [][]kvdb.Event{batch, batch}[:1+n%2] }),
		"splits a batch": delivers(func(_ int, batch []kvdb.Event) (out [][]kvdb.Event) {
			for _, e := range batch {
				out = append(out, []kvdb.Event{e})
			}
			return out
		}),
		"mixes up a batch": delivers(func(_ int, batch []kvdb.Event) [][]kvdb.Event {
			slices.Reverse(batch)
			return same(batch)
		}),
		"hides deletions": delivers(func(_ int, batch []kvdb.Event) [][]kvdb.Event {
			if batch = slices.DeleteFunc(batch, func(e kvdb.Event) bool { return e.Deleted }); len(batch) == 0 {
				return nil
			}
			return same(batch)
		}),
		"takes empty for deleted": delivers(func(_ int, batch []kvdb.Event) [][]kvdb.Event {
			for i, e := range batch {
				batch[i].Deleted = len(e.Value) == 0
			}
			return same(batch)
		}),
		"delivers what was not applied": unapplied,
	}
}

// wrongWatches are stores that watch something else than they are told.
func wrongWatches() map[string]func(kvdb.Store) kvdb.Store {
	return map[string]func(kvdb.Store) kvdb.Store{
		"delivers the world": watches(func(s kvdb.Store, ctx context.Context, _ string, from int64) (kvdb.Watcher, error) {
			return s.Watch(ctx, "", from)
		}),
		"watches folders": watches(func(s kvdb.Store, ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
			return s.Watch(ctx, strings.TrimSuffix(prefix, "/"), from)
		}),
		"watches after the revision": watches(func(s kvdb.Store, ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
			if from > 0 {
				from++
			}
			return s.Watch(ctx, prefix, from)
		}),
		"watches from now whatever it is told": watches(func(s kvdb.Store, ctx context.Context, prefix string, _ int64) (kvdb.Watcher, error) {
			return s.Watch(ctx, prefix, 0)
		}),
		"watches from the beginning": watches(func(s kvdb.Store, ctx context.Context, prefix string, _ int64) (kvdb.Watcher, error) {
			return s.Watch(ctx, prefix, 1)
		}),
	}
}

// unapplied applies what is refused, and takes it back.
func unapplied(s kvdb.Store) kvdb.Store {
	return &broken{Store: s, txn: func(ctx context.Context, conds []kvdb.Cond, ops []kvdb.Op) (int64, error) {
		rev, err := s.Txn(ctx, conds, ops)
		if errors.Is(err, kvdb.ErrConditions) {
			_, _ = s.Txn(ctx, nil, ops)
		}
		return rev, err
	}}
}
