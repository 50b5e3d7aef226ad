// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package watchlog

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/cadastre/cadastre/kvdb"
)

// watcher is a cursor on a log.
type watcher struct {
	log    *Log
	prefix string
	events chan []kvdb.Event
	stop   context.CancelFunc
	ended  chan struct{}

	mu  sync.Mutex
	err error
}

// Watch opens a watch of the keys that begin with prefix, from revision from
// on; 0 means from the next one.
func (l *Log) Watch(ctx context.Context, prefix string, from int64) (kvdb.Watcher, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from == 0 {
		from = l.last + 1
	}
	switch {
	case l.closed:
		return nil, fmt.Errorf("watch %q: %w", prefix, kvdb.ErrClosed)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("watch %q: %w", prefix, context.Cause(ctx))
	case from < l.oldest:
		return nil, fmt.Errorf("watch %q from revision %d, the oldest kept is %d: %w",
			prefix, from, l.oldest, kvdb.ErrCompacted)
	}
	ctx, stop := context.WithCancel(ctx)
	w := &watcher{
		log:    l,
		prefix: prefix,
		events: make(chan []kvdb.Event),
		stop:   stop,
		ended:  make(chan struct{}),
	}
	l.watchers.Go(func() { w.run(ctx, from) })
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

// run delivers until the watch ends. Err must be set before the channel is
// closed, for a reader asks for it then.
func (w *watcher) run(ctx context.Context, next int64) {
	defer close(w.ended)
	defer w.stop()
	err := w.follow(ctx, next)
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
	close(w.events)
}

// follow answers why the watch ended; nil if it was told to.
func (w *watcher) follow(ctx context.Context, next int64) error {
	for {
		events, grown, err := w.log.read(next)
		if err != nil {
			return fmt.Errorf("watch %q at revision %d: %w", w.prefix, next, err)
		}
		var deliver chan []kvdb.Event
		if grown == nil {
			next++
			if events = w.matching(events); len(events) == 0 {
				continue
			}
			deliver = w.events
		}
		select {
		case deliver <- events:
		case <-grown:
		case <-w.log.done:
			return fmt.Errorf("watch %q: %w", w.prefix, kvdb.ErrClosed)
		case <-ctx.Done():
			return nil
		}
	}
}

// matching answers a copy, since the receiver may do with it as it likes.
func (w *watcher) matching(events []kvdb.Event) []kvdb.Event {
	var out []kvdb.Event
	for _, e := range events {
		if strings.HasPrefix(e.Key, w.prefix) {
			out = append(out, e)
		}
	}
	return out
}
