// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/cadastre/cadastre/kvdb"
)

// errToken is the reason for ErrCompacted here.
var errToken = errors.New("no List has ended there lately")

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

// Watch implements kvdb.Store; see the package for where it may begin.
func (s *Store) Watch(ctx context.Context, prefix string, fromRev int64) (kvdb.Watcher, error) {
	fail := func(err error) (kvdb.Watcher, error) {
		return nil, fmt.Errorf("watch %q from revision %d: %w", prefix, fromRev, err)
	}
	if err := s.ready(); err != nil {
		return fail(err)
	}
	if fromRev == 0 {
		_, rev, err := s.List(ctx, prefix)
		if err != nil {
			return fail(err)
		}
		fromRev = rev + 1
	}
	kinds := scope(prefix, s.node)
	at, ok := s.recall(fromRev-1, kinds)
	if !ok {
		return fail(fmt.Errorf("%w: %w", kvdb.ErrCompacted, errToken))
	}
	w := &watcher{store: s, prefix: prefix, events: make(chan []kvdb.Event), ended: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(ctx)
	var streams []watch.Interface
	for i, k := range kinds {
		stream, err := s.open(w.ctx, k, at[i])
		if err != nil {
			w.cancel()
			for _, open := range streams {
				open.Stop()
			}
			return fail(err)
		}
		streams = append(streams, stream)
	}
	if err := s.enter(w); err != nil {
		w.cancel()
		return fail(err)
	}
	for i, k := range kinds {
		w.work.Add(1)
		go w.follow(k, at[i], streams[i])
	}
	go w.wait()
	return w, nil
}

// recall is where the kinds' Lists of a token ended.
func (s *Store) recall(token int64, kinds []kind) (at []string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lists {
		if l.token != token {
			continue
		}
		for _, k := range kinds {
			if l.at[k.id()] == "" {
				return nil, false
			}
			at = append(at, l.at[k.id()])
		}
		return at, true
	}
	return nil, false
}

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

// open begins a watch of one kind behind a resourceVersion.
func (s *Store) open(ctx context.Context, k kind, version string) (watch.Interface, error) {
	w, err := s.client.Resource(k.resource).Watch(ctx, metav1.ListOptions{
		FieldSelector: k.selector, ResourceVersion: version, AllowWatchBookmarks: true,
	})
	switch {
	case err == nil:
		return w, nil
	case apierrors.IsGone(err) || apierrors.IsResourceExpired(err):
		return nil, fmt.Errorf("%w: %w", kvdb.ErrCompacted, err)
	case apierrors.IsNotFound(err):
		return nil, noDefinition(k, err)
	}
	return nil, fmt.Errorf("%s: %w", k.resource.GroupResource(), err)
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

// end ends the watcher; the first reason counts, and none after Close.
func (w *watcher) end(err error) {
	w.mu.Lock()
	if w.err == nil && w.ctx.Err() == nil {
		w.err = err
	}
	w.mu.Unlock()
	w.cancel()
}

// wait ends what the watcher has begun, when its context or its Store ends.
func (w *watcher) wait() {
	select {
	case <-w.ctx.Done():
	case <-w.store.ctx.Done():
		w.end(kvdb.ErrClosed)
	}
	w.work.Wait()
	close(w.events)
	w.store.mu.Lock()
	delete(w.store.watches, w)
	w.store.mu.Unlock()
	close(w.ended)
	w.store.work.Done()
}

// pause is between two watches that the API server has ended.
const pause = time.Second

// follow delivers the changes of one kind. API servers end every watch after
// some minutes; it then goes on with another one from where it was.
func (w *watcher) follow(k kind, version string, stream watch.Interface) {
	defer w.work.Done()
	for {
		began := time.Now()
		next, err := w.drain(k, version, stream)
		stream.Stop()
		if err != nil {
			w.end(fmt.Errorf("watch %s: %w", k.resource.GroupResource(), err))
			return
		}
		version = next
		wait := time.NewTimer(max(0, pause-time.Since(began)))
		select {
		case <-w.ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		if stream, err = w.store.open(w.ctx, k, version); err != nil {
			w.end(fmt.Errorf("watch: %w", err))
			return
		}
	}
}

// drain delivers what a stream has, and tells how far that was.
func (w *watcher) drain(k kind, version string, stream watch.Interface) (string, error) {
	for {
		var ev watch.Event
		var open bool
		select {
		case <-w.ctx.Done():
			return version, nil
		case ev, open = <-stream.ResultChan():
		}
		if !open {
			return version, nil
		}
		if ev.Type == watch.Error {
			err := apierrors.FromObject(ev.Object)
			if apierrors.IsGone(err) || apierrors.IsResourceExpired(err) {
				err = fmt.Errorf("%w: %w", kvdb.ErrCompacted, err)
			}
			return version, err
		}
		u, ok := ev.Object.(*unstructured.Unstructured)
		if !ok {
			return version, fmt.Errorf("an event has a %T", ev.Object)
		}
		version = u.GetResourceVersion()
		if ev.Type == watch.Bookmark {
			continue
		}
		if err := w.deliver(k, u, ev.Type == watch.Deleted); err != nil {
			return version, err
		}
	}
}

func (w *watcher) deliver(k kind, u *unstructured.Unstructured, deleted bool) error {
	if k.exact != "" && u.GetName() != k.exact || !strings.HasPrefix(k.key(u), w.prefix) {
		return nil
	}
	rev, err := revision(u.GetResourceVersion())
	if err != nil {
		return err
	}
	ev := kvdb.Event{KeyValue: kvdb.KeyValue{Key: k.key(u), ModRevision: rev}, Deleted: true}
	if !deleted {
		// What cannot be read is as good as gone: what it was before is not it.
		if x, ok := w.store.read(k, u); ok {
			ev = kvdb.Event{KeyValue: x}
		}
	}
	w.store.note(k.resource.String(), rev)
	select {
	case w.events <- []kvdb.Event{ev}:
	case <-w.ctx.Done():
	}
	return nil
}

// note notes how far a resource is by a watch, which may be behind a List.
func (s *Store) note(resource string, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.highest[resource] = max(s.highest[resource], rev)
}
