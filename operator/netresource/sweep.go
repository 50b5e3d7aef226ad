// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource/objects"
	"github.com/cadastre/cadastre/operator/runner"
)

// Sweeper deletes NetResourceSets whose node is gone, which frees their addresses. A node
// is gone if two passes found no Node of that name and the API server itself answers a Get
// of it with NotFound. The Sweeper deletes only the version that it has read. It also writes
// the instance ID of a NetResourceSet that has none, from its Node. Client and Kube are needed.
type Sweeper struct {
	Client *Client // which runs
	Kube   kubernetes.Interface
	Fence  func(context.Context) error // as that of Config
	Every  time.Duration               // between two passes; 0: 5 minutes
	Log    *slog.Logger                // nil: slog's default
}

// Follow makes passes until then has returned, which it calls when it has read all Nodes.
func (s Sweeper) Follow(ctx context.Context, then func(context.Context) error) error {
	s.Every = cmp.Or(s.Every, 5*time.Minute)
	if s.Log == nil {
		s.Log = slog.Default()
	}
	nodes := v1.NewNodeInformer(s.Kube, 0, cache.Indexers{})
	_ = nodes.SetTransform(reduceNode) // it fails only for an informer that runs
	ids := newInstanceIDs(s, nodes.GetStore())
	changed, err := s.Client.informer.AddEventHandler(ids.handler())
	if err != nil {
		return fmt.Errorf("follow NetResourceSets without an instance ID: %w", err)
	}
	defer func() { _ = s.Client.informer.RemoveEventHandler(changed) }() // it was added above
	return objects.Follow(ctx, nodes, ids.handler(), func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		var work sync.WaitGroup
		defer work.Wait()
		defer cancel()
		work.Go(func() { ids.run(ctx) })
		work.Go(func() {
			for orphans := (&Orphans{}); runner.Wait(ctx, s.Every) == nil; {
				if err := s.pass(ctx, orphans, nodes.GetStore()); err != nil && ctx.Err() == nil {
					s.Log.Warn("not all NetResourceSets of nodes that are gone are deleted, trying again",
						"in", s.Every, "error", err)
				}
			}
		})
		return then(ctx)
	})
}

// reduceNode keeps the name of a Node, and that of its machine.
func reduceNode(o any) (any, error) {
	if n, ok := o.(*corev1.Node); ok {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
			Spec:       corev1.NodeSpec{ProviderID: n.Spec.ProviderID},
		}, nil
	}
	return o, nil
}

// removals limits the NetResourceSets that are deleted at the same time.
const removals = 16

// pass deletes the NetResourceSets that are orphans in this pass and in the last one. One
// that cannot be deleted delays no other one.
func (s Sweeper) pass(ctx context.Context, orphans *Orphans, nodes cache.Store) error {
	sets, err := s.Client.Lister().List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list NetResourceSets: %w", err)
	}
	there, byName := map[string]bool{}, map[string]*v1alpha1.NetResourceSet{}
	for _, name := range nodes.ListKeys() {
		there[name] = true
	}
	for _, n := range sets {
		byName[n.Name] = n
	}
	gone := orphans.Pass(sets, there)
	errs := make([]error, len(gone))
	var work sync.WaitGroup
	slots := make(chan struct{}, removals)
	for i, name := range gone {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			errs[i] = s.remove(ctx, byName[name])
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// remove deletes a NetResourceSet unless its Node exists.
func (s Sweeper) remove(ctx context.Context, n *v1alpha1.NetResourceSet) error {
	asking, cancel := context.WithTimeout(ctx, s.Client.timeout)
	defer cancel()
	_, err := s.Kube.CoreV1().Nodes().Get(asking, n.Name, metav1.GetOptions{})
	if err == nil {
		return nil
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read Node %q to see if it is gone: %w", n.Name, err)
	}
	if s.Fence != nil {
		if err := s.Fence(asking); err != nil {
			return fmt.Errorf("delete NetResourceSet %s: %w", n.Name, err)
		}
	}
	err = s.Client.objects.Delete(
		asking,
		n.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &n.UID, ResourceVersion: &n.ResourceVersion}},
	)
	switch {
	case err == nil:
		s.Log.Info("a NetResourceSet is deleted, because its node is gone", "node", n.Name, "uid", n.UID,
			"blocks", len(n.Spec.IPAM.Pool), "used", len(n.Status.IPAM.Used))
		return nil
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it was deleted or written: the next pass looks again
		return nil
	}
	return fmt.Errorf("delete NetResourceSet %s: %w", n.Name, err)
}

// Orphans finds NetResourceSets whose node is gone. It belongs to one goroutine.
type Orphans struct{ seen map[string]bool }

// Pass returns the names of orphans of this pass that were orphans in the last one too:
// they can be deleted. Kubernetes deletes those with an owner reference.
func (o *Orphans) Pass(sets []*v1alpha1.NetResourceSet, nodes map[string]bool) (gone []string) {
	now := map[string]bool{}
	for _, n := range sets {
		if len(n.OwnerReferences) > 0 || nodes[n.Name] {
			continue
		}
		if o.seen[n.Name] {
			gone = append(gone, n.Name)
		}
		now[n.Name] = true
	}
	o.seen = now
	return gone
}
