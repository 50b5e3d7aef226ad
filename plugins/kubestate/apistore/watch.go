// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/cadastre/cadastre/kvdb"
)

// watcher merges the watches of the kinds of one prefix.
type watcher struct {
	store  *Store
	prefix string
	events chan []kvdb.Event
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	ended  chan struct{}

	mu  sync.Mutex
	err error
}

var _ kvdb.Watcher = (*watcher)(nil)

// Watch implements kvdb.Store; see the package for what is different.
func (s *Store) Watch(ctx context.Context, prefix string, fromRev int64) (kvdb.Watcher, error) {
	w, err := s.watch(ctx, prefix, fromRev)
	if err != nil {
		return nil, fmt.Errorf("watch %q from revision %d: %w", prefix, fromRev, err)
	}
	return w, nil
}

func (s *Store) watch(ctx context.Context, prefix string, fromRev int64) (*watcher, error) {
	if fromRev == 0 {
		rev, err := s.now(ctx)
		if err != nil {
			return nil, err
		}
		fromRev = rev + 1
	}
	w := &watcher{store: s, prefix: prefix, events: make(chan []kvdb.Event), ended: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(ctx)
	if err := s.enter(w); err != nil {
		w.cancel()
		return nil, err
	}
	kinds := s.reader.scope(prefix)
	var streams []*stream
	for _, k := range kinds {
		st, err := w.open(k, max(1, fromRev-1)) // revision 0 would list the present objects
		if err != nil {
			for _, open := range streams {
				open.stop()
			}
			w.leave()
			return nil, err
		}
		streams = append(streams, st)
	}
	for i, k := range kinds {
		w.work.Add(1)
		go w.follow(k, streams[i])
	}
	go w.wait()
	return w, nil
}

// enter registers w, so that Close ends it and waits for leave.
func (s *Store) enter(w *watcher) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return kvdb.ErrClosed
	}
	s.work.Add(1)
	s.watches[w] = true
	return nil
}

func (w *watcher) leave() {
	w.cancel()
	w.store.mu.Lock()
	delete(w.store.watches, w)
	w.store.mu.Unlock()
	w.store.work.Done()
}

// Events implements kvdb.Watcher.
func (w *watcher) Events() <-chan []kvdb.Event { return w.events }

// Err implements kvdb.Watcher.
func (w *watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Close implements kvdb.Watcher.
func (w *watcher) Close() {
	w.cancel()
	<-w.ended
}

// end ends the watcher. The first reason counts, and none after Close.
func (w *watcher) end(err error) {
	w.mu.Lock()
	if w.err == nil && w.ctx.Err() == nil {
		w.err = err
	}
	w.mu.Unlock()
	w.cancel()
}

// wait ends the goroutines of the watcher when its context or its Store ends.
func (w *watcher) wait() {
	select {
	case <-w.ctx.Done():
	case <-w.store.ctx.Done():
		w.end(kvdb.ErrClosed)
	}
	w.work.Wait()
	close(w.events)
	w.leave()
	close(w.ended)
}

// A watch of the API server ends after watchFor, and the next one continues it. Between
// them the watcher reads the revision of the API server.
const (
	watchFor = 8 * time.Minute
	pause    = time.Second // between two watches
)

// stream holds one watch of the API server.
type stream struct {
	watch.Interface
	cancel context.CancelFunc
	at     int64 // the last revision that it has delivered
}

func (s *stream) stop() {
	s.cancel()
	s.Stop()
}

// open begins a watch of one kind after a revision. A timeout ends it if the API server
// does not.
func (w *watcher) open(k kind, at int64) (*stream, error) {
	s := w.store
	ctx, cancel := context.WithTimeout(w.ctx, watchFor+s.timeout)
	unclosed := context.AfterFunc(s.ctx, cancel)
	opening, opened := context.WithTimeout(ctx, s.timeout)
	defer opened()
	inTime := context.AfterFunc(opening, cancel)
	seconds := int64(watchFor / time.Second)
	inner, err := s.client.Resource(k.resource).Watch(ctx, metav1.ListOptions{
		FieldSelector:       k.selector,
		ResourceVersion:     strconv.FormatInt(at, 10),
		AllowWatchBookmarks: true,
		TimeoutSeconds:      &seconds,
	})
	if !inTime() && w.ctx.Err() == nil && s.ctx.Err() == nil {
		if err == nil {
			inner.Stop()
		}
		err = fmt.Errorf("no answer within %s: %w", s.timeout, context.DeadlineExceeded)
	}
	if err == nil {
		return &stream{inner, func() { unclosed(); cancel() }, at}, nil
	}
	unclosed()
	cancel()
	if s.ctx.Err() != nil {
		return nil, fmt.Errorf("%w: %w", kvdb.ErrClosed, err)
	}
	return nil, ofWatch(known(k, err))
}

// ofWatch returns kvdb.ErrCompacted for an expired revision.
func ofWatch(err error) error {
	if expired(err) {
		return fmt.Errorf("%w: %w", kvdb.ErrCompacted, err)
	}
	return err
}

// follow delivers the changes of one kind. API servers end every watch after some
// minutes; follow then continues with another one.
func (w *watcher) follow(k kind, st *stream) {
	defer w.work.Done()
	failures := 0
	for {
		from := st.at
		err := w.drain(k, st)
		st.stop()
		if failures++; err == nil || st.at != from {
			failures = 0
		}
		if expired(err) || failures > 1 {
			w.end(ofWatch(known(k, err)))
			return
		}
		if !w.rest(pause) {
			return
		}
		rev, err := w.store.now(w.ctx)
		if err == nil && rev < st.at {
			err = fmt.Errorf("%w: resourceVersion %d was seen before, now it is %d", ErrOlder, st.at, rev)
		}
		if err == nil {
			st, err = w.open(k, st.at)
		}
		if err != nil {
			w.end(err)
			return
		}
	}
}

// rest waits and reports whether the watcher still runs.
func (w *watcher) rest(d time.Duration) bool {
	ctx, cancel := context.WithTimeout(w.ctx, d)
	defer cancel()
	<-ctx.Done()
	return w.ctx.Err() == nil
}

// drain delivers the events of a stream until it ends.
func (w *watcher) drain(k kind, st *stream) error {
	for {
		var ev watch.Event
		var open bool
		select {
		case <-w.ctx.Done():
			return nil
		case ev, open = <-st.ResultChan():
		}
		if !open {
			return nil
		}
		if ev.Type == watch.Error {
			return apierrors.FromObject(ev.Object)
		}
		u, ok := ev.Object.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("an event has a %T", ev.Object)
		}
		rev, err := revision(u.GetResourceVersion())
		if err != nil {
			return err
		}
		if ev.Type != watch.Bookmark && rev > st.at {
			if err := w.deliver(k, u, ev.Type == watch.Deleted); err != nil {
				return err
			}
		}
		st.at = max(st.at, rev)
		w.store.note(rev)
	}
}

// errStopped ends a stream whose watcher has ended.
var errStopped = errors.New("the watch is closed")

func (w *watcher) deliver(k kind, u *unstructured.Unstructured, deleted bool) error {
	if k.exact != "" && u.GetName() != k.exact || !strings.HasPrefix(k.key(u), w.prefix) {
		return nil
	}
	x, err := w.store.keyValue(k, u)
	if err != nil {
		return err
	}
	if deleted {
		x.Value = nil
	}
	select {
	case w.events <- []kvdb.Event{{KeyValue: x, Deleted: deleted}}:
		return nil
	case <-w.ctx.Done():
		return errStopped
	}
}
