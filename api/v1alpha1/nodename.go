// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/kv"
)

// NodeName is which ID was last claimed under a node's name, which is its own.
// It makes claims of one name follow each other. It is written by agents.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="ID",type=integer,JSONPath=`.spec.id`
type NodeName struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeNameSpec `json:"spec"`
}

// NodeNameSpec is kv.NodeName.
type NodeNameSpec struct {
	// ID is from 1 to 4294967295.
	//
	// +kubebuilder:validation:Format=int64
	ID       uint32 `json:"id"`
	Instance string `json:"instance"`
	// Writes is raised with every write, so that none is taken for no change.
	Writes int64 `json:"writes"`
}

// NodeNameList holds the answer to a list.
//
// +kubebuilder:object:root=true
type NodeNameList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeName `json:"items"`
}

// ToKV is the same in the words of package kv.
func (n *NodeName) ToKV() *kv.NodeName { return &kv.NodeName{Id: n.Spec.ID, Instance: n.Spec.Instance} }

// NodeNameFrom is the object for the node of that name.
func NodeNameFrom(node string, m *kv.NodeName) *NodeName {
	n := &NodeName{Spec: NodeNameSpec{ID: m.Id, Instance: m.Instance}}
	n.Name = node
	return n
}
