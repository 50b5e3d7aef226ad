// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kv

import "strconv"

// Prefixes of the cluster store, one a kind of message.
const (
	NodeRecordPrefix = "nodes/"
	NodePrefix       = "k8s/node/"
	PodPrefix        = "k8s/pod/"
)

// PodID names a pod.
type PodID struct {
	Name      string
	Namespace string
}

// String is "namespace/name", or "" where there is no name.
func (id PodID) String() string {
	if id.Name == "" {
		return ""
	}
	return id.Namespace + "/" + id.Name
}

// PodKey is where a Pod is stored.
func PodKey(id PodID) string { return PodPrefix + id.Namespace + "/" + id.Name }

// NodeKey is where a Node is stored.
func NodeKey(name string) string { return NodePrefix + name }

// NodeRecordKey is where a NodeRecord is stored.
func NodeRecordKey(id uint32) string { return NodeRecordPrefix + strconv.FormatUint(uint64(id), 10) }
