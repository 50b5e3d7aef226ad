// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/cadastre/cadastre/operator/runner"
)

// instanceIDs writes the instance ID of each NetResourceSet that has none: the last part of
// the Node's providerID, such as i-0a1b of aws:///eu-west-1a/i-0a1b. It is written once, and
// the API server refuses a later change of it.
type instanceIDs struct {
	sweeper Sweeper
	nodes   cache.Store
	queue   *runner.Queue
	warned  sync.Map // UIDs of Nodes whose machine is another one
}

const instanceIDRetry = time.Second // after a write that has failed

func newInstanceIDs(s Sweeper, nodes cache.Store) *instanceIDs {
	return &instanceIDs{
		sweeper: s,
		nodes:   nodes,
		queue:   runner.NewQueue(10*time.Millisecond, nil, time.Now),
	}
}

// handler queues the Node, or the NetResourceSet, of each change.
func (i *instanceIDs) handler() cache.ResourceEventHandlerFuncs {
	queue := func(o any) {
		if name, err := cache.MetaNamespaceKeyFunc(o); err == nil {
			i.queue.Add(name, "changed", 0)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: queue, UpdateFunc: func(_, o any) { queue(o) }}
}

// run writes IDs until ctx ends.
func (i *instanceIDs) run(ctx context.Context) {
	i.queue.Run(ctx, 1, func(ctx context.Context, name string) {
		if err := i.write(ctx, name); err != nil && ctx.Err() == nil {
			i.sweeper.Log.Warn("write the instance ID of a NetResourceSet, trying again",
				"node", name, "in", instanceIDRetry, "error", err)
			i.queue.Add(name, "retry", instanceIDRetry)
		}
	})
}

// write writes the ID of one NetResourceSet if it has none.
func (i *instanceIDs) write(ctx context.Context, name string) error {
	o, known, _ := i.nodes.GetByKey(name)
	node, ok := o.(*corev1.Node)
	if !known || !ok {
		return nil
	}
	id := node.Spec.ProviderID[strings.LastIndex(node.Spec.ProviderID, "/")+1:]
	set, err := i.sweeper.Client.Lister().Get(name)
	switch {
	case apierrors.IsNotFound(err) || err == nil && id == "":
		return nil
	case err != nil:
		return fmt.Errorf("read NetResourceSet %s: %w", name, err)
	case set.Spec.InstanceID != "":
		i.warn(node, set.Spec.InstanceID, id)
		return nil
	}
	if i.sweeper.Fence != nil {
		if err := i.sweeper.Fence(ctx); err != nil {
			return fmt.Errorf("write the instance ID %q of NetResourceSet %s: %w", id, name, err)
		}
	}
	next := set.DeepCopy()
	next.Spec.InstanceID = id
	_, err = i.sweeper.Client.Update(set, next)
	switch {
	case err == nil || apierrors.IsNotFound(err):
		return nil
	case apierrors.IsInvalid(err):
		i.sweeper.Log.Error("the API server refuses the instance ID of a NetResourceSet, from its Node's providerID",
			"node", name, "instanceID", id, "providerID", node.Spec.ProviderID, "error", err)
		return nil
	}
	return fmt.Errorf("write the instance ID %q of NetResourceSet %s: %w", id, name, err)
}

// warn logs once that a Node is another machine than the one of its NetResourceSet.
func (i *instanceIDs) warn(node *corev1.Node, has, id string) {
	if id == "" || has == id {
		return
	}
	if _, warned := i.warned.LoadOrStore(node.UID, nil); warned {
		return
	}
	i.sweeper.Log.Warn("the Node is on another machine than its NetResourceSet: delete the NetResourceSet "+
		"if the machine was replaced, and the agent makes a new one",
		"node", node.Name, "instanceID", has, "providerID", node.Spec.ProviderID)
}
