// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"errors"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// Texts of errors, which callers compare; see Error.
const (
	// DuplicatedENIError is the error for adding an attached interface.
	DuplicatedENIError = "data store: duplicate ENI"
	// IPAlreadyInStoreError is the error for adding an address that an interface has.
	IPAlreadyInStoreError = "datastore: IP already in data store"
	// UnknownIPError is the error for removing an unknown address.
	UnknownIPError = "datastore: unknown IP"
	// IPInUseError is the error for removing the address of a pod.
	IPInUseError = "datastore: IP is used and can not be deleted"
	// ENIInUseError is the error for removing an interface with addresses of pods.
	ENIInUseError = "datastore: ENI is used and can not be deleted"
	// UnknownENIError is the error for an interface that is not attached.
	UnknownENIError = "datastore: unknown ENI"
)

// Placeholders in the keys of entries that the published program has copied from a
// container runtime. This package reads no runtime, but releases such entries by
// their container ID.
const (
	BackfillNetworkIface = "unknown"
	BackfillNetworkName  = "_migrated-from-cri"
)

// CheckpointFormatVersion is the version of the checkpoints read and written.
const CheckpointFormatVersion = "vpc-cni-ipam/1"

// CheckpointMigrationPhase is the phase of the published migration from the
// container runtime to checkpoints. In phase 1 a checkpoint may have entries that
// were copied from the runtime; from phase 2 on a release does not look for them.
// Checkpoints are read and written in every phase.
const CheckpointMigrationPhase = 1

var (
	// ErrUnknownPod is the error for a key without an address. It is never wrapped.
	ErrUnknownPod = errors.New("datastore: unknown pod")
	// ErrNoAvailableIP is wrapped if no address is free.
	ErrNoAvailableIP = errors.New("datastore: no available IP addresses")
	// ErrNotAttached is wrapped if the interface of a key's address is not attached.
	ErrNotAttached = errors.New("datastore: its interface is not attached")
)

// Error is a published error. Error returns exactly the published text, since
// callers compare it.
type Error struct {
	Code string // the published text
	ENI  string
	IP   string
	Why  string
}

// Error returns the published text.
func (e *Error) Error() string { return e.Code }

// Is reports whether target has the same text.
func (e *Error) Is(target error) bool { return target.Error() == e.Code }

// Detail returns the text with the interface, the address and the reason.
func (e *Error) Detail() string {
	s := fmt.Sprintf("%s: interface %q", e.Code, e.ENI)
	if e.IP != "" {
		s += ", address " + e.IP
	}
	if e.Why != "" {
		s += ": " + e.Why
	}
	return s
}

// IPAMKey identifies the owner of an address: one attachment of a container to a
// network.
type IPAMKey struct {
	NetworkName string `json:"networkName"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
}

// ipamKey converts the key of a lease.
func ipamKey(k ledger.Key) IPAMKey {
	return IPAMKey{NetworkName: k.Network, ContainerID: k.ContainerID, IfName: k.IfName}
}

// IsZero reports whether k is the zero key, which holds no address.
func (k IPAMKey) IsZero() bool { return k == IPAMKey{} }

// String returns "network/container/interface".
func (k IPAMKey) String() string {
	return k.NetworkName + "/" + k.ContainerID + "/" + k.IfName
}

// IPAMMetadata names the pod of an address. It is not part of the key.
type IPAMMetadata struct {
	K8SPodNamespace string `json:"k8sPodNamespace,omitempty"`
	K8SPodName      string `json:"k8sPodName,omitempty"`
	// InterfacesCount is kept in restored entries only: a lease does not have it.
	InterfacesCount int `json:"interfacesCount,omitempty"`
}

// AddressInfo is a copy of an address of an interface.
type AddressInfo struct {
	IPAMKey        IPAMKey // of the owner; zero: none
	Address        string
	UnassignedTime time.Time    // the beginning of the cool-down; zero: none
	Metadata       IPAMMetadata `json:"-"`
}

// Assigned reports whether a pod has the address.
func (addr AddressInfo) Assigned() bool { return !addr.IPAMKey.IsZero() }

// PodIPInfo is the address of a pod with its interface.
type PodIPInfo struct {
	IPAMKey      IPAMKey
	IP           string
	DeviceNumber int // -1 if the interface is not attached
}

// ENI is a copy of a network interface.
type ENI struct {
	ID           string
	IsPrimary    bool
	IsTrunk      bool
	DeviceNumber int // 0 is the primary interface
	// IPv4Addresses holds the single addresses, and the assigned and cooling ones of
	// prefixes.
	IPv4Addresses map[string]*AddressInfo
	IPv6Addresses map[string]*AddressInfo `json:",omitempty"`
	// Prefixes holds the prefixes of both families.
	Prefixes []string `json:",omitempty"`
}

// AssignedIPv4Addresses returns the number of IPv4 addresses of pods.
func (e *ENI) AssignedIPv4Addresses() int { return assigned(e.IPv4Addresses) }

// AssignedIPv6Addresses returns the number of IPv6 addresses of pods.
func (e *ENI) AssignedIPv6Addresses() int { return assigned(e.IPv6Addresses) }

func assigned(all map[string]*AddressInfo) (n int) {
	for _, a := range all {
		if a.Assigned() {
			n++
		}
	}
	return n
}

// ENIPool holds interfaces by their ID.
type ENIPool map[string]*ENI

// AssignedIPv4Addresses returns the number of IPv4 addresses of pods.
func (p *ENIPool) AssignedIPv4Addresses() (n int) {
	for _, e := range *p {
		n += e.AssignedIPv4Addresses()
	}
	return n
}

// FindAddressForSandbox returns the interface and the address of a key, or nil and
// nil.
func (p *ENIPool) FindAddressForSandbox(ipamKey IPAMKey) (*ENI, *AddressInfo) {
	if ipamKey.IsZero() {
		return nil, nil
	}
	for _, e := range *p {
		for _, all := range []map[string]*AddressInfo{e.IPv4Addresses, e.IPv6Addresses} {
			for _, a := range all {
				if a.IPAMKey == ipamKey {
					return e, a
				}
			}
		}
	}
	return nil, nil
}

// ENIInfos holds all interfaces with their counts, for introspection.
type ENIInfos struct {
	TotalIPs    int // addresses of all interfaces
	AssignedIPs int // of these, those that pods have
	ENIs        map[string]ENI
}
