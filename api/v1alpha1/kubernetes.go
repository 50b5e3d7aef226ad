// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/api/kv"
)

// NodeToKV returns a Node as a message of package kv. Its addresses are those that
// are not names; a node of an old API server has only the first of its podCIDRs.
func NodeToKV(n *corev1.Node) *kv.Node {
	m := &kv.Node{
		Name:          n.Name,
		Uid:           string(n.UID),
		ProviderId:    n.Spec.ProviderID,
		Unschedulable: n.Spec.Unschedulable,
		PodCidrs:      append([]string(nil), n.Spec.PodCIDRs...),
	}
	if len(m.PodCidrs) == 0 && n.Spec.PodCIDR != "" {
		m.PodCidrs = []string{n.Spec.PodCIDR}
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			m.Addresses = append(m.Addresses, a.Address)
		}
	}
	return m
}

// PodToKV returns a Pod as a message of package kv. A pod without a node is not needed by
// any reader: see its Node.
func PodToKV(p *corev1.Pod) *kv.Pod {
	m := &kv.Pod{
		Namespace: p.Namespace, Name: p.Name, Uid: string(p.UID), Node: p.Spec.NodeName,
		Phase: string(p.Status.Phase), HostNetwork: p.Spec.HostNetwork,
	}
	for _, ip := range p.Status.PodIPs {
		m.IpAddresses = append(m.IpAddresses, ip.IP)
	}
	if len(m.IpAddresses) == 0 && p.Status.PodIP != "" {
		m.IpAddresses = []string{p.Status.PodIP}
	}
	return m
}
