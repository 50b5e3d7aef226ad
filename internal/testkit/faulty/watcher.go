// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package faulty

import (
	"context"
	"fmt"
	"sync"

	"github.com/cadastre/cadastre/kvdb"
)

// watcher passes on the batches of another until it is cut.
type watcher struct {
	store  *Store
	inner  kvdb.Watcher
	events chan []kvdb.Event
	stop   context.CancelFunc
	ended  chan struct{}

	mu  sync.Mutex
	err error
}

// relay wraps a watcher that f will cut.
func (s *Store) relay(ctx context.Context, inner kvdb.Watcher, f Fault) (kvdb.Watcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		inner.Close()
		return nil, fmt.Errorf("watch: %w", kvdb.ErrClosed)
	}
	ctx, stop := context.WithCancel(ctx)
	w := &watcher{
		store:  s,
		inner:  inner,
		events: make(chan []kvdb.Event),
		stop:   stop,
		ended:  make(chan struct{}),
	}
	s.watchers.Go(func() { w.run(ctx, f) })
	return w, nil
}

func (w *watcher) Events() <-chan []kvdb.Event { return w.events }

func (w *watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *watcher) Close() {
	w.stop()
	<-w.ended
}

func (w *watcher) run(ctx context.Context, f Fault) {
	defer close(w.ended)
	defer w.stop()
	err := w.follow(ctx, f)
	w.inner.Close()
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
	close(w.events)
}

// follow answers why the watch ended; nil if it was told to.
func (w *watcher) follow(ctx context.Context, f Fault) error {
	for range f.batches {
		var batch []kvdb.Event
		var ok bool
		select {
		case batch, ok = <-w.inner.Events():
			if !ok {
				return w.inner.Err()
			}
		case <-ctx.Done():
			return nil
		}
		select {
		case w.events <- batch:
		case <-w.store.waiting():
			return fmt.Errorf("watch: %w", kvdb.ErrClosed)
		case <-ctx.Done():
			return nil
		}
	}
	return fmt.Errorf("watch is cut off after %d batches: %w", f.batches, f.err)
}
