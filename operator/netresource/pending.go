// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

// AwaitsAddress is whether a pod is on a node and has no address yet, but will
// ask for one: not those of the host's network, nor those that have ended.
func AwaitsAddress(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && !p.Spec.HostNetwork && p.DeletionTimestamp == nil &&
		(p.Status.Phase == corev1.PodPending || p.Status.Phase == "") && p.Status.PodIP == "" && len(p.Status.PodIPs) == 0
}

// Orphans finds NetResourceSets whose node is gone. Use it from one goroutine.
type Orphans struct{ seen map[string]bool }

// Pass looks once, and returns those that were orphans in the last pass too: they
// can be deleted. What an owner reference ties to its node is left to Kubernetes.
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
