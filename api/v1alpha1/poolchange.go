// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PoolChange is written with every change of the pools, so that two changes at
// a time follow each other. There is one, with the name PoolChangeName.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Writes",type=integer,JSONPath=`.spec.writes`
type PoolChange struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PoolChangeSpec `json:"spec"`
}

// PoolChangeName is that of the one PoolChange.
const PoolChangeName = "pools"

// PoolChangeSpec counts.
type PoolChangeSpec struct {
	// Writes is raised with every write.
	Writes int64 `json:"writes"`
}

// PoolChangeList holds the answer to a list.
//
// +kubebuilder:object:root=true
type PoolChangeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PoolChange `json:"items"`
}
