// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/kv"
)

// CustomNetwork is a pod network beside the default one. It gives the pool of
// its name its first value; what that pool has already is not changed by it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=cadastre
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnetCIDR`
// +kubebuilder:printcolumn:name="One node",type=integer,JSONPath=`.spec.subnetOneNodePrefixLen`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CustomNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CustomNetworkSpec `json:"spec"`
}

// CustomNetworkSpec is the pool that a network begins with.
type CustomNetworkSpec struct {
	// SubnetCIDR is a CIDR, or one of each family with a comma between.
	//
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="self.split(',').size() <= 2 && self.split(',').all(x, isCIDR(x.trim()))",message="subnetCIDR must be a CIDR like 10.5.0.0/16, or one of each family with a comma between"
	SubnetCIDR string `json:"subnetCIDR"`
	// SubnetOneNodePrefixLen is the length of the part that one node gets.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	SubnetOneNodePrefixLen uint32 `json:"subnetOneNodePrefixLen"`
	// SubnetOneNodePrefixLenIPv6 is that of the IPv6 CIDR where there are two.
	//
	// +kubebuilder:validation:Maximum=128
	// +optional
	SubnetOneNodePrefixLenIPv6 uint32 `json:"subnetOneNodePrefixLenIPv6,omitempty"`
}

// CustomNetworkList holds the answer to a list.
//
// +kubebuilder:object:root=true
type CustomNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CustomNetwork `json:"items"`
}

// ToKV is the network in the words of package kv.
func (n *CustomNetwork) ToKV() *kv.CustomNetwork {
	return &kv.CustomNetwork{
		Name:                       n.Name,
		Uid:                        string(n.UID),
		SubnetCidr:                 n.Spec.SubnetCIDR,
		SubnetOneNodePrefixLen:     n.Spec.SubnetOneNodePrefixLen,
		SubnetOneNodePrefixLenIpv6: n.Spec.SubnetOneNodePrefixLenIPv6,
	}
}
