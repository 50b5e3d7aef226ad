// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// byKey is the index of caches by the key of the store.
const byKey = "kvdb"

// feed keeps the objects of one kind known.
type feed struct {
	kind kind
	r    *Reflector

	mu      sync.Mutex
	state   State
	err     error         // why the kind is not synced, or what the API server last said
	objects cache.Indexer // what is known; nil for nothing. It stays when the kind disappears
}

func (f *feed) look() (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.err
}

// known are the objects, nil where they have not all been read.
func (f *feed) known() cache.Indexer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects
}

// set changes how the kind stands and says so, once.
func (f *feed) set(state State, err error) {
	f.mu.Lock()
	news := f.state != state || fmt.Sprint(f.err) != fmt.Sprint(err)
	matters := f.state != state || (f.err == nil) != (err == nil)
	f.state, f.err = state, err
	f.mu.Unlock()
	if !news {
		return
	}
	switch {
	case state == Missing:
		f.r.log.Info("a kind of object is not reflected; it is looked for again", "resource", f.kind.gvr.String(), "every", f.r.settings.LookAgain, "reason", err)
	case err != nil:
		f.r.log.Warn("objects of the API server cannot be read, trying again", "resource", f.kind.gvr.String(), "error", err)
	}
	if !matters {
		return
	}
	select {
	case f.r.changed <- struct{}{}:
	default:
	}
}

// run keeps objects known until ctx ends, whenever the API server has the kind.
func (f *feed) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		err := f.find(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case missing(err):
			failures = 0
			f.set(Missing, err)
			sleep(ctx, f.r.settings.LookAgain)
		case err != nil:
			failures++
			f.set(Waiting, err)
			sleep(ctx, f.r.backoff(failures))
		default:
			failures = 0
			f.follow(ctx)
		}
	}
}

// find asks the API server whether it has the kind.
func (f *feed) find(ctx context.Context) error {
	if !f.kind.custom {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.r.settings.CallTimeout)
	defer cancel()
	_, err := f.r.deps.Dynamic.Resource(f.kind.gvr).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

// missing is true for the answer that the kind is not there, or not for us.
func missing(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) }

// follow runs one informer until ctx ends, or the kind is not there any more.
func (f *feed) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informer := f.kind.informer()
	err := errors.Join(
		informer.SetTransform(f.kind.reduce),
		informer.AddIndexers(cache.Indexers{byKey: keyOf}),
		informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			if f.kind.custom && missing(err) {
				cancel() // it is said when it is looked for again
				return
			}
			f.trouble(informer, err)
		}),
	)
	if err == nil {
		_, err = informer.AddEventHandler(f.handlers())
	}
	if err != nil { // of an informer that runs already, which this one does not
		f.set(Waiting, err)
		sleep(ctx, f.r.settings.RetryLimit)
		return
	}
	var group sync.WaitGroup
	group.Go(func() { informer.RunWithContext(ctx) })
	select {
	case <-informer.HasSyncedChecker().Done():
		f.mu.Lock()
		f.objects = informer.GetIndexer()
		f.mu.Unlock()
		f.set(Synced, nil)
	case <-ctx.Done():
	}
	group.Wait()
}

// trouble notes why objects cannot be read. What was known stays known.
func (f *feed) trouble(informer cache.SharedIndexInformer, err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return // a watch that ends, as they do; the next one is about to begin
	}
	f.r.metrics.errors.WithLabelValues("watch").Inc()
	if !informer.HasSynced() {
		f.set(Waiting, err)
		return
	}
	f.r.log.Warn("a watch of the API server has failed, and begins again", "resource", f.kind.gvr.String(), "error", err)
}

// handlers say which keys to look at.
func (f *feed) handlers() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(is any) {
			if o, ok := is.(*object); ok {
				f.r.queue.add(o.key)
			}
		},
		UpdateFunc: func(was, is any) {
			old, ok1 := was.(*object)
			o, ok2 := is.(*object)
			if ok1 && ok2 && !same(old, o) {
				f.r.queue.add(old.key, o.key)
			}
		},
		DeleteFunc: func(was any) {
			if unseen, ok := was.(cache.DeletedFinalStateUnknown); ok {
				was = unseen.Obj
			}
			if o, ok := was.(*object); ok {
				f.r.queue.add(o.key)
			}
		},
	}
}

// same is true where nothing that is stored has changed. The kubelet writes to
// pods and nodes all the time.
func same(old, o *object) bool {
	return old.key == o.key && bytes.Equal(old.value, o.value) && fmt.Sprint(old.err) == fmt.Sprint(o.err)
}

// keyOf is the index function of byKey.
func keyOf(obj any) ([]string, error) {
	if o, ok := obj.(*object); ok && o.key != "" {
		return []string{o.key}, nil
	}
	return nil, nil
}
