// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource/objects"
)

// nodes follows the Nodes.
type nodes struct {
	client   kubernetes.Interface
	informer cache.SharedIndexInformer
	changed  func()
}

// node is the reduced form of a Node that the cache keeps.
type node struct {
	metav1.ObjectMeta // name, UID and version only
	*kv.Node
}

func newNodes(client kubernetes.Interface, changed func()) *nodes {
	return &nodes{client, coreinformers.NewNodeInformer(client, 0, cache.Indexers{}), changed}
}

// follow runs the informer while work works.
func (n *nodes) follow(ctx context.Context, work func(context.Context) error) error {
	if err := n.informer.SetTransform(reduce); err != nil {
		return fmt.Errorf("follow the Nodes: %w", err)
	}
	return objects.Follow(ctx, n.informer, cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { n.changed() },
		UpdateFunc: func(was, is any) {
			before, _ := was.(*node)
			now, _ := is.(*node)
			if before == nil || now == nil || !proto.Equal(before.Node, now.Node) {
				n.changed()
			}
		},
		DeleteFunc: func(any) { n.changed() },
	}, work)
}

// reduce implements cache.TransformFunc. An informer may also call it with its own
// result.
func reduce(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	reduced := &node{Node: v1alpha1.NodeToKV(n)}
	reduced.ObjectMeta.Name, reduced.UID, reduced.ResourceVersion = n.Name, n.UID, n.ResourceVersion
	return reduced, nil
}

// all returns the Nodes.
func (n *nodes) all() (all []*kv.Node) {
	for _, obj := range n.informer.GetStore().List() {
		if x, ok := obj.(*node); ok {
			all = append(all, x.Node)
		}
	}
	return all
}

// get asks the API server for a Node, nil if there is none.
func (n *nodes) get(ctx context.Context, name string) (*kv.Node, error) {
	x, err := n.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read Node %q to see if it is gone: %w", name, err)
	}
	return v1alpha1.NodeToKV(x), nil
}

// sets follows the NetResourceSets and the AddressPools.
type sets struct {
	sets, pools cache.SharedIndexInformer
	changed     func()
}

func newSets(client dynamic.Interface, changed func()) *sets {
	return &sets{
		sets:    objects.InformerOf(client, v1alpha1.Resource(v1alpha1.NetResourceSets)),
		pools:   objects.InformerOf(client, v1alpha1.Resource(v1alpha1.AddressPools)),
		changed: changed,
	}
}

// follow runs the informers while work works.
func (s *sets) follow(ctx context.Context, work func(context.Context) error) error {
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { s.changed() },
		UpdateFunc: func(was, is any) {
			if generation(was) != generation(is) { // the status changes often
				s.changed()
			}
		},
		DeleteFunc: func(any) { s.changed() },
	}
	return objects.Follow(ctx, s.pools, handler, func(ctx context.Context) error {
		return objects.Follow(ctx, s.sets, handler, work)
	})
}

func generation(o any) int64 {
	if m, ok := o.(metav1.Object); ok {
		return m.GetGeneration()
	}
	return 0
}

// decoded returns the objects of an informer in the order of their names, and the errors of
// those that cannot be read.
func decoded[T any](informer cache.SharedIndexInformer) (all []*T, unread []error) {
	keys := informer.GetStore().ListKeys()
	slices.Sort(keys)
	for _, key := range keys {
		obj, found, err := informer.GetStore().GetByKey(key)
		if err != nil || !found { // it was deleted in the meantime
			continue
		}
		typed, err := objects.Decode[T](obj)
		if err != nil {
			unread = append(unread, err)
			continue
		}
		all = append(all, typed)
	}
	return all, unread
}
