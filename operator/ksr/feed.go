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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/cadastre/cadastre/operator/runner"
)

// byKey names the index of caches by the key in the store.
const byKey = "kvdb"

// feed follows the objects of one kind.
type feed struct {
	kind kind
	r    *Reflector

	mu      sync.Mutex
	state   kindState
	err     error         // why the kind is not synced, or the last error of the API server
	objects cache.Indexer // nil until all have been read once; it stays when the kind disappears
}

func (f *feed) current() (kindState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.err
}

// known returns the objects, nil if they have not all been read.
func (f *feed) known() cache.Indexer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.objects
}

// set changes the state of the kind, and logs the change once.
func (f *feed) set(state kindState, err error) {
	f.mu.Lock()
	differs := f.state != state || fmt.Sprint(f.err) != fmt.Sprint(err)
	affectsStore := f.state != state || (f.err == nil) != (err == nil)
	f.state, f.err = state, err
	f.mu.Unlock()
	if !differs {
		return
	}
	switch {
	case state == stateMissing:
		f.r.log.Info("a kind of object is not reflected, looking for it again",
			"resource", f.kind.gvr.String(), "every", f.r.settings.lookAgain, "reason", err)
	case err != nil:
		f.r.log.Warn("objects of the API server cannot be read, trying again",
			"resource", f.kind.gvr.String(), "error", err)
	}
	if !affectsStore {
		return
	}
	select {
	case f.r.changed <- struct{}{}:
	default:
	}
}

// run follows the objects until ctx ends, whenever the API server has the kind.
func (f *feed) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		err := f.probe(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case missing(err):
			failures = 0
			f.set(stateMissing, err)
			_ = runner.Wait(ctx, f.r.settings.lookAgain)
		case err != nil:
			failures++
			f.set(stateWaiting, err)
			_ = runner.Wait(ctx, f.r.backoff.After(failures))
		default:
			failures = 0
			f.follow(ctx)
		}
	}
}

// probe returns nil if the API server has the kind.
func (f *feed) probe(ctx context.Context) error {
	if !f.kind.custom {
		return nil
	}
	_, err := runner.Within(
		ctx,
		f.r.settings.callTimeout,
		func(ctx context.Context) (*unstructured.UnstructuredList, error) {
			return f.r.deps.Dynamic.Resource(f.kind.gvr).List(ctx, metav1.ListOptions{Limit: 1})
		},
	)
	return err
}

// missing reports whether the API server does not have the kind, or forbids it.
func missing(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsForbidden(err) }

// follow runs one informer until ctx ends, or the API server loses the kind.
func (f *feed) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informer := f.kind.informer()
	err := errors.Join(
		informer.SetTransform(f.kind.reduce),
		informer.AddIndexers(cache.Indexers{byKey: keyOf}),
		informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
			if f.kind.custom && missing(err) {
				cancel() // the next probe reports it
				return
			}
			f.failed(informer, err)
		}),
	)
	if err == nil {
		_, err = informer.AddEventHandler(f.handlers())
	}
	if err != nil { // an informer that runs already returns one
		f.set(stateWaiting, err)
		_ = runner.Wait(ctx, f.r.settings.retryLimit)
		return
	}
	var group sync.WaitGroup
	group.Go(func() { informer.RunWithContext(ctx) })
	select {
	case <-informer.HasSyncedChecker().Done():
		f.mu.Lock()
		f.objects = informer.GetIndexer()
		f.mu.Unlock()
		f.set(stateSynced, nil)
	case <-ctx.Done():
	}
	group.Wait()
}

// failed records why objects cannot be read. Those that were read stay known.
func (f *feed) failed(informer cache.SharedIndexInformer, err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) {
		return // watches end regularly, and the informer begins the next one
	}
	f.r.metrics.errors.WithLabelValues("watch").Inc()
	if !informer.HasSynced() {
		f.set(stateWaiting, err)
		return
	}
	f.r.log.Warn("a watch of the API server failed, beginning again", "resource", f.kind.gvr.String(), "error", err)
}

// handlers returns the handlers that queue the keys of changed objects.
func (f *feed) handlers() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(is any) {
			if o, ok := is.(*object); ok {
				f.r.enqueue(o.key)
			}
		},
		UpdateFunc: func(was, is any) {
			old, ok1 := was.(*object)
			o, ok2 := is.(*object)
			if ok1 && ok2 && !same(old, o) {
				f.r.enqueue(old.key, o.key)
			}
		},
		DeleteFunc: func(was any) {
			if tombstone, ok := was.(cache.DeletedFinalStateUnknown); ok {
				was = tombstone.Obj
			}
			if o, ok := was.(*object); ok {
				f.r.enqueue(o.key)
			}
		},
	}
}

// same reports whether two versions are stored alike. The kubelet writes to pods
// and nodes all the time.
func same(old, o *object) bool {
	return old.key == o.key && bytes.Equal(old.value, o.value) && fmt.Sprint(old.err) == fmt.Sprint(o.err)
}

// keyOf implements cache.IndexFunc for byKey.
func keyOf(obj any) ([]string, error) {
	if o, ok := obj.(*object); ok && o.key != "" {
		return []string{o.key}, nil
	}
	return nil, nil
}
