// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/cadastre/cadastre/operator/netresource/objects"
)

// PodCount counts the pods that wait for an address, by node. It reads only pending pods
// from the API server, and keeps only their names and nodes. Use NewPodCount.
type PodCount struct {
	informer cache.SharedIndexInformer

	mu     sync.Mutex
	nodes  map[string]int
	waitOn map[string]string // the node of each pod that waits
}

// NewPodCount returns a PodCount that counts nothing before Follow.
func NewPodCount(client kubernetes.Interface) *PodCount {
	informer := v1.NewFilteredPodInformer(
		client,
		metav1.NamespaceAll,
		0,
		cache.Indexers{},
		func(o *metav1.ListOptions) {
			o.FieldSelector = "status.phase=" + string(corev1.PodPending) + ",spec.nodeName!="
		},
	)
	_ = informer.SetTransform(reducePod) // it fails only for an informer that runs
	return &PodCount{informer: informer, nodes: map[string]int{}, waitOn: map[string]string{}}
}

// reducePod keeps the names of a pod, and the node of one that waits.
func reducePod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	small := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       p.Namespace,
			Name:            p.Name,
			UID:             p.UID,
			ResourceVersion: p.ResourceVersion,
		},
	}
	if AwaitsAddress(p) {
		small.Spec.NodeName = p.Spec.NodeName
	}
	return small, nil
}

// Of returns how many pods of a node wait.
func (c *PodCount) Of(nodeName string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[nodeName]
}

// Follow counts until then has returned, which it calls when all existing pods have been
// counted. It calls changed for every node with a new count.
func (c *PodCount) Follow(ctx context.Context, changed func(nodeName string), then func(context.Context) error) error {
	set := func(o any, there bool) {
		if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = gone.Obj
		}
		if p, ok := o.(*corev1.Pod); ok {
			for _, node := range c.set(p, there) {
				changed(node)
			}
		}
	}
	return objects.Follow(ctx, c.informer, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { set(o, true) },
		UpdateFunc: func(_, o any) { set(o, true) },
		DeleteFunc: func(o any) { set(o, false) },
	}, then)
}

// set counts the newest version of a pod, and returns the nodes whose count has changed.
func (c *PodCount) set(p *corev1.Pod, there bool) (changed []string) {
	key, now := p.Namespace+"/"+p.Name, ""
	if there && AwaitsAddress(p) {
		now = p.Spec.NodeName
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.waitOn[key]
	if was == now {
		return nil
	}
	delete(c.waitOn, key)
	if was != "" {
		if c.nodes[was]--; c.nodes[was] == 0 {
			delete(c.nodes, was)
		}
		changed = append(changed, was)
	}
	if now != "" {
		c.waitOn[key] = now
		c.nodes[now]++
		changed = append(changed, now)
	}
	return changed
}

// AwaitsAddress reports whether a pod is on a node and waits for its address. Pods of the
// host's network and pods that have ended do not.
func AwaitsAddress(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && !p.Spec.HostNetwork && p.DeletionTimestamp == nil &&
		(p.Status.Phase == corev1.PodPending || p.Status.Phase == "") && p.Status.PodIP == "" && len(p.Status.PodIPs) == 0
}
