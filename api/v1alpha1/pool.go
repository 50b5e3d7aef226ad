// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/kv"
)

// Pool is a part of a pod network: the blocks of all nodes are cut from its
// ranges by node ID. It is written by agents and "cadastre apply", which looks
// first whether a change is safe; kubectl does not.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=cadastre
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.spec.network`
// +kubebuilder:printcolumn:name="Ranges",type=string,JSONPath=`.spec.ranges[*].cidr`
// +kubebuilder:printcolumn:name="Draining",type=boolean,JSONPath=`.spec.draining`
// +kubebuilder:printcolumn:name="Generation",type=integer,JSONPath=`.spec.generation`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Pool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PoolSpec `json:"spec"`
}

// PoolSpec is kv.Pool. Ranges never change.
type PoolSpec struct {
	Network string `json:"network"`
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the ranges of a pool never change: apply a new pool, and drain this one"
	Ranges []PoolRange `json:"ranges"`
	// +optional
	Draining bool `json:"draining,omitempty"`
	// +optional
	Removed    bool  `json:"removed,omitempty"`
	Generation int64 `json:"generation"`
	// +optional
	Origin string `json:"origin,omitempty"`
}

// PoolRange is a CIDR, and the length of the part that one node gets of it.
type PoolRange struct {
	// +kubebuilder:validation:MaxLength=49
	CIDR             string `json:"cidr"`
	OneNodePrefixLen uint32 `json:"oneNodePrefixLen"`
}

// PoolList holds the answer to a list.
//
// +kubebuilder:object:root=true
type PoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Pool `json:"items"`
}

// ToKV is the pool in the words of package kv.
func (p *Pool) ToKV() *kv.Pool {
	m := &kv.Pool{
		Name: p.Name, Network: p.Spec.Network, Draining: p.Spec.Draining, Removed: p.Spec.Removed,
		Generation: uint64(p.Spec.Generation), Origin: p.Spec.Origin,
	}
	for _, r := range p.Spec.Ranges {
		m.Ranges = append(m.Ranges, &kv.PoolRange{Cidr: r.CIDR, OneNodePrefixLen: r.OneNodePrefixLen})
	}
	return m
}

// PoolFrom is the object of a pool.
func PoolFrom(m *kv.Pool) *Pool {
	p := &Pool{
		Spec: PoolSpec{
			Network:    m.Network,
			Ranges:     []PoolRange{},
			Draining:   m.Draining,
			Removed:    m.Removed,
			Generation: int64(m.Generation),
			Origin:     m.Origin,
		},
	}
	p.Name = m.Name
	for _, r := range m.Ranges {
		p.Spec.Ranges = append(p.Spec.Ranges, PoolRange{CIDR: r.Cidr, OneNodePrefixLen: r.OneNodePrefixLen})
	}
	return p
}
