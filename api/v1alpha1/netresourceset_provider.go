// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// PoolID is a provider's name of a pool: a subnet, or an AddressPool.
type PoolID string

// PoolQuota holds the free part of a pool.
//
// +kubebuilder:object:generate=false
type PoolQuota struct {
	AvailabilityZone string
	AvailableIPs     int
}

// PoolQuotaMap holds the free parts of all pools.
//
// +kubebuilder:object:generate=false
type PoolQuotaMap map[PoolID]PoolQuota

// AddressIterator is called for every address of an interface; an error ends it.
//
// +kubebuilder:object:generate=false
type AddressIterator func(instanceID, interfaceID, ip, poolID string) error

// Interface is an interface of a provider.
//
// +kubebuilder:object:generate=false
type Interface interface {
	// InterfaceID is the provider's name of it.
	InterfaceID() string
	// ForeachAddress calls fn for every address that is on it.
	ForeachAddress(instanceID string, fn AddressIterator) error
}

// InterfaceRevision is an interface as it was at one time.
//
// +kubebuilder:object:generate=false
type InterfaceRevision struct {
	Resource    Interface
	Fingerprint string
}
