// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/cadastre/cadastre/operator/blocks"
)

// Run implements CIDRAllocator: it gives nodes their CIDRs until stopCh is
// closed, and returns when all that it has started has ended.
func (a *Allocator) Run(stopCh <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var stop sync.WaitGroup
	stop.Go(func() {
		select {
		case <-stopCh:
			cancel()
		case <-ctx.Done():
		}
	})
	if err := a.RunContext(ctx); err != nil {
		a.log.Error("node CIDRs are not given any more", "err", err)
	}
	cancel()
	stop.Wait()
}

// RunContext is Run until the context ends, or another process leads; that is
// an error, which wraps ErrDeposed.
func (a *Allocator) RunContext(ctx context.Context) error {
	return a.run(ctx, a.deps.Nodes, a.start)
}

// run calls start to make the book.
func (a *Allocator) run(ctx context.Context, nodes informers.NodeInformer, start func(context.Context) error) error {
	if nodes == nil {
		return errors.New("run the CIDR allocator: it has no informer of nodes")
	}
	defer a.events()()
	if err := start(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	a.lister = nodes.Lister()
	a.queue.open()
	work := a.queue.work
	defer a.running.Store(false)
	a.running.Store(true)
	handlers, err := nodes.Informer().AddEventHandler(a.handlers())
	if err != nil {
		a.queue.close()
		return fmt.Errorf("watch the nodes: %w", err)
	}
	var group sync.WaitGroup
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if cache.WaitForCacheSync(ctx.Done(), handlers.HasSynced) {
		for range a.settings.Workers {
			group.Go(func() { a.work(ctx, work, cancel) })
		}
		group.Go(func() { a.audits(ctx) })
	}
	<-ctx.Done()
	a.queue.close()
	group.Wait()
	err = nodes.Informer().RemoveEventHandler(handlers)
	if cause := context.Cause(ctx); errors.Is(cause, ErrDeposed) {
		err = errors.Join(cause, err)
	}
	return err
}

// start makes the book, and tries until that succeeds.
func (a *Allocator) start(ctx context.Context) error {
	wait := Timeout{MaxBackoff: 10 * time.Second, InitialRetry: a.settings.FirstRetry}
	for {
		a.loading.Lock()
		err := a.reload(ctx)
		a.loading.Unlock()
		if err == nil || errors.Is(err, ErrDeposed) {
			return err
		}
		a.log.Error("node CIDRs cannot be given yet", "err", err)
		wait.Update(false)
		if !sleep(ctx, wait.Next()) {
			return nil
		}
	}
}

// events makes a recorder, if none was given, and returns what ends it.
func (a *Allocator) events() func() {
	if a.deps.Events != nil || a.deps.Client == nil {
		return func() {}
	}
	b := record.NewBroadcaster()
	b.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: a.deps.Client.CoreV1().Events("")})
	a.reports.record(b.NewRecorder(scheme.Scheme, v1.EventSource{Component: "cidrAllocator"}))
	return func() {
		a.reports.record(nil)
		b.Shutdown()
	}
}

// handlers enqueue the names of nodes of which something has changed that
// matters here. The kubelet writes to every node all the time.
func (a *Allocator) handlers() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if node, ok := obj.(*v1.Node); ok {
				a.queue.add(node.Name)
			}
		},
		UpdateFunc: func(was, is any) {
			old, ok1 := was.(*v1.Node)
			node, ok2 := is.(*v1.Node)
			if ok1 && ok2 && matters(old, node) {
				a.queue.add(node.Name)
			}
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				a.queue.add(tombstone.Key)
			} else if node, ok := obj.(*v1.Node); ok {
				a.queue.add(node.Name)
			}
		},
	}
}

// matters is true where a node is to be looked at, because it is as it is now
// and not as it was.
func matters(old, node *v1.Node) bool {
	return old.UID != node.UID || !slices.Equal(podCIDRTexts(old), podCIDRTexts(node)) ||
		(old.DeletionTimestamp == nil) != (node.DeletionTimestamp == nil) || old.Spec.ProviderID != node.Spec.ProviderID ||
		!numbered(node) && (!maps.Equal(old.Labels, node.Labels) || !maps.Equal(foreignAnnotations(old), foreignAnnotations(node))) ||
		networkStatus(old) != networkStatus(node)
}

// foreignAnnotations returns the annotations that others write.
func foreignAnnotations(node *v1.Node) map[string]string {
	if _, ok := node.Annotations[IntentAnnotation]; !ok {
		return node.Annotations
	}
	rest := maps.Clone(node.Annotations)
	delete(rest, IntentAnnotation)
	return rest
}

// work looks at nodes until the queue is closed. It stops all when this process
// leads no more.
func (a *Allocator) work(ctx context.Context, work workqueue.TypedDelayingInterface[string], stop context.CancelCauseFunc) {
	for {
		name, over := work.Get()
		if over || ctx.Err() != nil {
			return
		}
		err := a.sync(ctx, name)
		if ctx.Err() != nil {
			return
		}
		a.metrics.synced(err)
		if errors.Is(err, ErrDeposed) {
			stop(err)
		}
		a.again(name, err)
		work.Done(name) // from now on another worker may have it
	}
}

// again sees to it that a node is looked at again.
func (a *Allocator) again(name string, err error) {
	if err == nil && len(a.book.owners(name)) == 0 && !a.cached(name) {
		a.queue.forget(name)
		return
	}
	wait, again := a.queue.paceOf(name, a.mode.pace).after(err)
	var full *blocks.Exhausted
	switch {
	case errors.Is(err, ErrQuarantined), errors.Is(err, ErrMode): // it was told
		a.log.Debug("node is left as it is", "node", name, "err", err)
	case errors.As(err, &full):
		a.log.Debug("node has to wait", "node", name, "err", err)
		if !full.Next.IsZero() {
			wait = min(wait, max(0, full.Next.Sub(a.deps.Now())))
		}
	case err != nil:
		a.log.Warn("node could not be brought up to date", "node", name, "err", err, "again", wait)
	}
	if again {
		a.queue.addAfter(name, wait)
	}
}

func (a *Allocator) cached(name string) bool {
	_, err := a.lister.Get(name)
	return err == nil
}

// sync brings everything of one name up to date.
func (a *Allocator) sync(ctx context.Context, name string) error {
	defer a.names.lock(name)()
	node, err := a.lister.Get(name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("look up node %q: %w", name, err)
	}
	if err != nil {
		node = nil
	}
	stale := false
	err = nil
	for _, o := range a.book.owners(name) {
		if node == nil || ownerOf(node) != o {
			gone, e := a.letGo(ctx, o)
			err = errors.Join(err, e)
			stale = stale || e == nil && !gone
		}
	}
	switch {
	case stale: // what the cache has is older than what is known
		return err
	case node == nil:
		a.reports.vanished(name)
		return err
	}
	return errors.Join(err, a.mode.settle(ctx, node))
}

// sleep is false when the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
