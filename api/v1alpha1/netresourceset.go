// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/cadastre/cadastre/api/handshake"
)

// NetResourceSet is the addresses of the node of its name. The operator writes
// the spec's pool and keeps it at the watermarks; the agent writes what it uses,
// and answers when addresses are asked back (package handshake). Nothing is
// asked of the node but what stands here.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=cadastre,shortName=nrs
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.status.addresses.used`
// +kubebuilder:printcolumn:name="Available",type=integer,JSONPath=`.status.addresses.available`
// +kubebuilder:printcolumn:name="Capacity",type=integer,JSONPath=`.status.addresses.capacity`
// +kubebuilder:printcolumn:name="Error",type=string,JSONPath=`.status.ipam.operatorStatus.error`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NetResourceSet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NetResourceSetSpec `json:"spec"`
	// +optional
	Status NetResourceSetStatus `json:"status,omitempty"`
}

// NetResourceSetSpec describes the node and holds its addresses.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.instanceID) || size(oldSelf.instanceID) == 0 || (has(self.instanceID) && self.instanceID == oldSelf.instanceID)",message="instanceID never changes: delete the NetResourceSet of a machine that is gone"
type NetResourceSetSpec struct {
	// InstanceID is the provider's name of the machine.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
	// Addresses are those of the node itself.
	//
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Addresses []NetResourceAddress `json:"addresses,omitempty"`
	// +optional
	IPAM IPAMSpec `json:"ipam,omitempty"`
}

// NetResourceAddress is an address of the node.
type NetResourceAddress struct {
	// Type is as that of a Node's address, InternalIP for one.
	//
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Type string `json:"type,omitempty"`
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="ip must be an IP address like 192.168.16.1"
	IP string `json:"ip"`
}

// IPAMSpec is the watermarks of the node's pool, and the pool.
//
// +kubebuilder:validation:XValidation:rule="!has(self.maxAllocate) || self.maxAllocate == 0 || !has(self.minAllocate) || self.minAllocate <= self.maxAllocate",message="minAllocate must not be more than maxAllocate"
type IPAMSpec struct {
	// Pool holds the addresses that the node may allocate, and blocks of them as CIDRs. It
	// is written by the operator; an agent that makes the object writes what its
	// pods have addresses of.
	//
	// +kubebuilder:validation:XValidation:rule="self.all(k, isIP(k) || isCIDR(k))",message="the keys of pool are IP addresses, or CIDRs like 10.1.4.0/28"
	// +optional
	Pool AllocationMap `json:"pool,omitempty"`
	// PodCIDRs are the blocks of a node that gets whole CIDRs.
	//
	// +kubebuilder:validation:MaxItems=64
	// +listType=set
	// +optional
	PodCIDRs []PodCIDR `json:"podCIDRs,omitempty"`
	// MinAllocate is the least number of addresses of the node.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	// +optional
	MinAllocate int `json:"minAllocate,omitempty"`
	// MaxAllocate is the largest number of addresses; 0: as many as its instance can have.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	// +optional
	MaxAllocate int `json:"maxAllocate,omitempty"`
	// PreAllocate is the number that is free at all times; 0: the provider's minimum,
	// less: none.
	//
	// +kubebuilder:validation:Minimum=-1
	// +kubebuilder:validation:Maximum=65536
	// +optional
	PreAllocate int `json:"preAllocate,omitempty"`
	// MaxAboveWatermark is the number of further addresses taken at once, and kept.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	// +optional
	MaxAboveWatermark int `json:"maxAboveWatermark,omitempty"`
	// PodCIDRAllocationThreshold is below how many free addresses another CIDR is
	// asked for; 0: 8.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	// +optional
	PodCIDRAllocationThreshold int `json:"podCIDRAllocationThreshold,omitempty"`
	// PodCIDRReleaseThreshold is the number that stays free when a block is given back; 0: 16.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65536
	// +optional
	PodCIDRReleaseThreshold int `json:"podCIDRReleaseThreshold,omitempty"`
}

// PodCIDR is a block.
//
// +kubebuilder:validation:MaxLength=49
// +kubebuilder:validation:XValidation:rule="isCIDR(self)",message="a pod CIDR is an address with a length, like 10.1.4.0/24"
type PodCIDR string

// AllocationMap is addresses, or blocks as CIDRs, and what each is.
//
// +kubebuilder:validation:MaxProperties=16384
type AllocationMap map[string]AllocationIP

// AllocationIP is an address, or a block, of a node.
type AllocationIP struct {
	// Owner is the user of the address.
	//
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Owner string `json:"owner,omitempty"`
	// Resource is the interface, or whatever the provider has it on.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Resource string `json:"resource,omitempty"`
	// SubnetID is the provider's subnet, or the pool.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	SubnetID string `json:"subnetID,omitempty"`
	// IsPrimary is set for an interface's own address, which is never given back.
	//
	// +optional
	IsPrimary bool `json:"isPrimary,omitempty"`
}

// NetResourceSetStatus holds the use of the node's addresses.
type NetResourceSetStatus struct {
	// +optional
	IPAM IPAMStatus `json:"ipam,omitempty"`
	// Addresses are counted by the operator, to be shown.
	//
	// +optional
	Addresses AddressCounts `json:"addresses,omitempty"`
	// Interfaces are those of the machine, by the name that Resource of an address has.
	// The operator writes an interface before the first of its addresses is in the pool.
	//
	// +kubebuilder:validation:MaxProperties=64
	// +optional
	Interfaces map[string]NetResourceInterface `json:"interfaces,omitempty"`
}

// NetResourceInterface is a network interface that the provider has attached to the machine.
type NetResourceInterface struct {
	// MAC is its MAC address, by which the node finds the link.
	//
	// +kubebuilder:validation:MaxLength=63
	// +optional
	MAC string `json:"mac,omitempty"`
	// Ranges are those of its subnets, one of each family at most.
	//
	// +kubebuilder:validation:MaxItems=2
	// +optional
	Ranges []SubnetRange `json:"ranges,omitempty"`
	// VPCCIDRs are the ranges of the whole cloud network.
	//
	// +kubebuilder:validation:MaxItems=32
	// +optional
	VPCCIDRs []PodCIDR `json:"vpcCIDRs,omitempty"`
	// Device is its number; 0 is the machine's first interface.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=255
	// +optional
	Device int `json:"device,omitempty"`
}

// SubnetRange is the part of a provider's subnet in one family.
type SubnetRange struct {
	CIDR PodCIDR `json:"cidr"`
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="size(self) == 0 || isIP(self)",message="gateway must be an IP address like 10.0.0.1"
	// +optional
	Gateway string `json:"gateway,omitempty"`
}

// AddressCounts holds the numbers that "kubectl get" shows.
type AddressCounts struct {
	// Used is the number that cannot be allocated: leased, or cooling.
	//
	// +optional
	Used int `json:"used"`
	// Available is the number that the node has.
	//
	// +optional
	Available int `json:"available"`
	// Capacity is the number that it could have.
	//
	// +optional
	Capacity int `json:"capacity"`
}

// IPAMStatus is written by both: Used and PodCIDRs by the agent, ReleaseIPs by
// both as package handshake has it, the rest by the operator.
type IPAMStatus struct {
	// Used are the addresses that cannot be allocated, cooling ones among them.
	//
	// +optional
	Used AllocationMap `json:"used,omitempty"`
	// PodCIDRs holds the agent's use of its blocks.
	//
	// +optional
	PodCIDRs PodCIDRMap `json:"podCIDRs,omitempty"`
	// +optional
	OperatorStatus OperatorStatus `json:"operatorStatus,omitempty"`
	// ReleaseIPs are the addresses and blocks that are on their way back.
	//
	// +kubebuilder:validation:MaxProperties=4096
	// +optional
	ReleaseIPs map[string]handshake.State `json:"releaseIPs,omitempty"`
	// +kubebuilder:validation:MaxItems=256
	// +optional
	AvailableSubnetIDs []string `json:"availableSubnetIDs,omitempty"`
}

// PodCIDRMap is blocks and how they are used.
//
// +kubebuilder:validation:MaxProperties=128
type PodCIDRMap map[string]PodCIDRMapEntry

// PodCIDRMapEntry holds the use of a block.
type PodCIDRMapEntry struct {
	Status PodCIDRStatus `json:"status"`
}

// PodCIDRStatus is the agent's state of a block.
//
// +kubebuilder:validation:Enum=released;depleted;in-use
type PodCIDRStatus string

// What an agent says of a block: it is given back, another one is wanted, or neither.
const (
	PodCIDRReleased PodCIDRStatus = "released"
	PodCIDRDepleted PodCIDRStatus = "depleted"
	PodCIDRInUse    PodCIDRStatus = "in-use"
)

// OperatorStatus holds the operator's errors.
type OperatorStatus struct {
	// +optional
	Error string `json:"error,omitempty"`
}

// NetResourceSetList holds the answer to a list.
//
// +kubebuilder:object:root=true
type NetResourceSetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NetResourceSet `json:"items"`
}

// NetResourceSetLister reads NetResourceSets from a cache. What it returns is
// not to be changed.
//
// +kubebuilder:object:generate=false
type NetResourceSetLister interface {
	List(selector labels.Selector) ([]*NetResourceSet, error)
	Get(name string) (*NetResourceSet, error)
}
