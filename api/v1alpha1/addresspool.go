// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// AddressPool is prefixes of which the operator cuts blocks for nodes, where no
// cloud gives them addresses. People write it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=cadastre
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="CIDRs",type=string,JSONPath=`.spec.cidrs[*].cidr`
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Error",type=string,JSONPath=`.status.error`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AddressPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec AddressPoolSpec `json:"spec"`
	// +optional
	Status AddressPoolStatus `json:"status,omitempty"`
}

// AddressPoolSpec holds the addresses of a pool.
type AddressPoolSpec struct {
	// CIDRs may be added; one that is taken away gives no more blocks.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=cidr
	CIDRs []AddressPoolCIDR `json:"cidrs"`
}

// AddressPoolCIDR is a prefix, and the length of the blocks that are cut of it.
//
// +kubebuilder:validation:XValidation:rule="!isCIDR(self.cidr) || cidr(self.cidr).prefixLength() <= self.blockPrefixLen",message="blockPrefixLen must not be less than the length of cidr"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self.cidr) || cidr(self.cidr).ip().family() == 6 || self.blockPrefixLen <= 32",message="blockPrefixLen of an IPv4 CIDR must be at most 32"
type AddressPoolCIDR struct {
	// +kubebuilder:validation:MaxLength=49
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self).masked() == cidr(self)",message="cidr must be one like 10.1.0.0/16, without host bits"
	CIDR string `json:"cidr"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	BlockPrefixLen int `json:"blockPrefixLen"`
}

// AddressPoolStatus holds the use of a pool.
type AddressPoolStatus struct {
	// Free is the number of addresses left, of IPv4 if there is any.
	//
	// +optional
	Free int64 `json:"free"`
	// Error is the reason why the pool, or a part of it, is not used.
	//
	// +optional
	Error string `json:"error,omitempty"`
}

// AddressPoolList holds the answer to a list.
//
// +kubebuilder:object:root=true
type AddressPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []AddressPool `json:"items"`
}
