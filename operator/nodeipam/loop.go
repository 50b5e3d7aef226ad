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

	"github.com/cadastre/cadastre/internal/backoff"
	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/runner"
)

// Run implements CIDRAllocator: it assigns CIDRs to nodes until stopCh is closed,
// and returns when everything that it started has ended. A second run beside it is refused:
// it returns at once, and logs why.
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
		a.log.Error("a run of the CIDR allocator has ended", "error", err)
	}
	cancel()
	stop.Wait()
}

// RunContext assigns CIDRs to nodes until ctx ends. If another process leads, it
// returns an error that wraps ErrDeposed. It fails at once while another run goes on.
func (a *Allocator) RunContext(ctx context.Context) error {
	return a.run(ctx, a.deps.Nodes, a.start)
}

// run calls start, which loads what nodes have, and then processes the queue.
func (a *Allocator) run(ctx context.Context, nodes informers.NodeInformer, start func(context.Context) error) error {
	if nodes == nil {
		return errors.New("run the CIDR allocator: it has no informer of nodes")
	}
	if !a.busy.CompareAndSwap(false, true) {
		return errors.New("run the CIDR allocator: an earlier run has not ended: want one run at a time")
	}
	defer a.busy.Store(false)
	defer a.events()()
	if err := start(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	a.lister = nodes.Lister()
	defer a.running.Store(false)
	a.running.Store(true)
	handlers, err := nodes.Informer().AddEventHandler(a.handlers())
	if err != nil {
		return fmt.Errorf("watch the nodes: %w", err)
	}
	var group sync.WaitGroup
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if cache.WaitForCacheSync(ctx.Done(), handlers.HasSynced) {
		group.Go(func() {
			a.queue.Run(ctx, a.settings.Workers, func(ctx context.Context, name string) {
				if err := a.process(ctx, name); errors.Is(err, ErrDeposed) {
					cancel(err)
				}
			})
		})
		group.Go(func() { a.audits(ctx) })
	}
	<-ctx.Done()
	group.Wait()
	err = nodes.Informer().RemoveEventHandler(handlers)
	if cause := context.Cause(ctx); errors.Is(cause, ErrDeposed) {
		err = errors.Join(cause, err)
	}
	return err
}

// start reads all nodes, and tries again until that succeeds.
func (a *Allocator) start(ctx context.Context) error {
	policy := backoff.Policy{First: a.settings.FirstRetry, Limit: 10 * time.Second}
	for failures := 1; ; failures++ {
		a.loading.Lock()
		err := a.reload(ctx)
		a.loading.Unlock()
		if err == nil || errors.Is(err, ErrDeposed) {
			return err
		}
		a.log.Error("node CIDRs cannot be assigned yet", "error", err)
		if runner.Wait(ctx, policy.After(failures)) != nil {
			return nil //nolint:nilerr // the context has ended
		}
	}
}

// events starts a recorder, unless the caller has one, and returns the function
// that stops it.
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

// handlers returns the handlers that queue nodes with a relevant change. The
// kubelet writes to every node all the time.
func (a *Allocator) handlers() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if node, ok := obj.(*v1.Node); ok {
				a.enqueue(node.Name)
			}
		},
		UpdateFunc: func(was, is any) {
			old, ok1 := was.(*v1.Node)
			node, ok2 := is.(*v1.Node)
			if ok1 && ok2 && relevant(old, node) {
				a.enqueue(node.Name)
			}
		},
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				a.enqueue(tombstone.Key)
			} else if node, ok := obj.(*v1.Node); ok {
				a.enqueue(node.Name)
			}
		},
	}
}

// relevant reports whether a change of a node can change what is assigned to it,
// or what is reported about it.
func relevant(old, node *v1.Node) bool {
	return old.UID != node.UID || !slices.Equal(podCIDRTexts(old), podCIDRTexts(node)) ||
		(old.DeletionTimestamp == nil) != (node.DeletionTimestamp == nil) || old.Spec.ProviderID != node.Spec.ProviderID ||
		!hasPodCIDRs(node) &&
			(!maps.Equal(old.Labels, node.Labels) || !maps.Equal(foreignAnnotations(old), foreignAnnotations(node))) ||
		networkStatus(old) != networkStatus(node)
}

// foreignAnnotations returns the annotations that the operator does not write.
func foreignAnnotations(node *v1.Node) map[string]string {
	if _, ok := node.Annotations[IntentAnnotation]; !ok {
		return node.Annotations
	}
	rest := maps.Clone(node.Annotations)
	delete(rest, IntentAnnotation)
	return rest
}

// enqueue queues a node to be processed now.
func (a *Allocator) enqueue(name string) { a.queue.Add(name, "", 0) }

// process synchronizes one node, and queues it again as its policy says.
func (a *Allocator) process(ctx context.Context, name string) error {
	err := a.sync(ctx, name)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the context has ended
	}
	a.metrics.synced(err)
	if err == nil && len(a.assigned.owners(name)) == 0 && !a.cached(name) {
		a.policies.forget(name)
		return nil
	}
	wait, again := a.policies.of(name, a.mode.requeuePolicy).after(err)
	var full *blocks.Exhausted
	switch {
	case errors.Is(err, ErrQuarantined), errors.Is(err, ErrMode): // it is reported to the node
		a.log.Debug("the node is left as it is", "node", name, "error", err)
	case errors.As(err, &full):
		a.log.Debug("the node has to wait for a free CIDR", "node", name, "error", err)
		if !full.Next.IsZero() {
			wait = min(wait, max(0, full.Next.Sub(a.deps.Now())))
		}
	case err != nil:
		a.log.Warn("the node could not be synchronized", "node", name, "error", err, "in", wait)
	}
	if again {
		a.queue.Add(name, "", wait)
	}
	return err
}

func (a *Allocator) cached(name string) bool {
	_, err := a.lister.Get(name)
	return err == nil
}

// sync synchronizes all Node objects that have or had one name.
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
	for _, o := range a.assigned.owners(name) {
		if node == nil || ownerOf(node) != o {
			gone, e := a.releaseIfGone(ctx, o)
			err = errors.Join(err, e)
			stale = stale || e == nil && !gone
		}
	}
	switch {
	case stale: // the cache is older than what this process knows
		return err
	case node == nil:
		a.reports.vanished(name)
		return err
	}
	return errors.Join(err, a.mode.reconcile(ctx, node))
}
