// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"fmt"
	"net/netip"
	"time"
)

// ClusterView holds the pods of this node and all nodes, in the Kubernetes state that
// the agent follows.
type ClusterView struct {
	Taken    time.Time
	Revision int64 // of the store
	Pods     []ClusterPod
	Nodes    []ClusterNode
}

// ClusterPod holds a pod that is assigned to this node.
type ClusterPod struct {
	Namespace, Name, UID string
	HostNet              bool
	Finished             bool // its containers have ended for good
	Addrs                []netip.Addr
}

// ClusterNode holds a Node object.
type ClusterNode struct {
	Name  string
	Addrs []netip.Addr
	Pods  []netip.Prefix // its podCIDRs
}

// Report describes the view.
func (v *ClusterView) Report() Report {
	source := fmt.Sprintf("state of revision %d", v.Revision)
	return Report{Name: Cluster, Read: v.Taken, Source: source, Objects: len(v.Pods)}
}

// Pod returns the pod with a name, nil if the cluster has none on this node.
func (v *ClusterView) Pod(namespace, name string) *ClusterPod {
	for i := range v.Pods {
		if v.Pods[i].Namespace == namespace && v.Pods[i].Name == name {
			return &v.Pods[i]
		}
	}
	return nil
}

// ParseAddrs returns the addresses of texts. It leaves out a text that is none.
func ParseAddrs(texts []string) (all []netip.Addr) {
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a.Unmap())
		}
	}
	return all
}

// ParsePrefixes returns the prefixes of texts, masked. It leaves out a text that is none.
func ParsePrefixes(texts []string) (all []netip.Prefix) {
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}
