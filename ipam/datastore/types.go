// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"errors"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// Texts of errors. They are compared as texts; see Error.
const (
	// DuplicatedENIError is said where an interface is added that is there.
	DuplicatedENIError = "data store: duplicate ENI"
	// IPAlreadyInStoreError is said where an address is added that is there, of whichever interface.
	IPAlreadyInStoreError = "datastore: IP already in data store"
	// UnknownIPError is said where an address is to be removed that is not there.
	UnknownIPError = "datastore: unknown IP"
	// IPInUseError is said where an address is to be removed that a pod has.
	IPInUseError = "datastore: IP is used and can not be deleted"
	// ENIInUseError is said where an interface is to be removed that pods have addresses of.
	ENIInUseError = "datastore: ENI is used and can not be deleted"
	// UnknownENIError is said of an interface that is not there.
	UnknownENIError = "datastore: unknown ENI"
)

// Placeholders for what a container runtime could not say when its sandboxes
// were copied into a checkpoint. No runtime is read here, but such entries are
// found in checkpoints, and are unassigned by their container ID.
const (
	BackfillNetworkIface = "unknown"
	BackfillNetworkName  = "_migrated-from-cri"
)

// CheckpointFormatVersion is the version of the checkpoints read and written.
const CheckpointFormatVersion = "vpc-cni-ipam/1"

// CheckpointMigrationPhase is how far the move from the container runtime to
// checkpoints has come. In phase 1, entries that were copied from the runtime
// may be met; from phase 2 on they are not looked for. Checkpoints are read and
// written in every phase, since no runtime is.
const CheckpointMigrationPhase = 1

var (
	// ErrUnknownPod is returned for a key that has no address. It is never wrapped.
	ErrUnknownPod = errors.New("datastore: unknown pod")
	// ErrNoAvailableIP is wrapped where no address is left that could be assigned.
	ErrNoAvailableIP = errors.New("datastore: no available IP addresses")
	// ErrNotAttached is wrapped where a key has an address of an interface that is not attached.
	ErrNotAttached = errors.New("datastore: its interface is not attached")
)

// Error is one of the published errors. Its text is the published one, to the
// letter, because that is what callers compare.
type Error struct {
	Code string // the published text
	ENI  string
	IP   string
	Why  string
}

// Error is the published text.
func (e *Error) Error() string { return e.Code }

// Is is true for the same text.
func (e *Error) Is(target error) bool { return target.Error() == e.Code }

// Detail says what it is about, for people.
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

// IPAMKey is who holds an address: one attachment of one container to one network.
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

// String is "network/container/interface".
func (k IPAMKey) String() string {
	return k.NetworkName + "/" + k.ContainerID + "/" + k.IfName
}

// IPAMMetadata says for which pod an address is held. It is no part of the key.
type IPAMMetadata struct {
	K8SPodNamespace string `json:"k8sPodNamespace,omitempty"`
	K8SPodName      string `json:"k8sPodName,omitempty"`
	// InterfacesCount is kept of what was restored, and not otherwise: no lease
	// has room for it.
	InterfacesCount int `json:"interfacesCount,omitempty"`
}

// AddressInfo is an address of an interface, as it was when it was looked at.
type AddressInfo struct {
	IPAMKey        IPAMKey // of whom it is; zero: of nobody
	Address        string
	UnassignedTime time.Time    // since when it cools; zero where it does not
	Metadata       IPAMMetadata `json:"-"`
}

// Assigned is true where the address is a pod's.
func (addr AddressInfo) Assigned() bool { return !addr.IPAMKey.IsZero() }

// PodIPInfo is the address of a pod and the interface that it is of.
type PodIPInfo struct {
	IPAMKey      IPAMKey
	IP           string
	DeviceNumber int // -1 where the interface is not attached
}

// ENI is a network interface, as it was when it was looked at.
type ENI struct {
	ID           string
	IsPrimary    bool
	IsTrunk      bool
	DeviceNumber int // 0 is the primary interface
	// IPv4Addresses are the single addresses, and those of the prefixes that
	// are assigned or cooling.
	IPv4Addresses map[string]*AddressInfo
	IPv6Addresses map[string]*AddressInfo `json:",omitempty"`
	// Prefixes are the prefixes that were attached, of both families.
	Prefixes []string `json:",omitempty"`
}

// AssignedIPv4Addresses counts the addresses that pods have.
func (e *ENI) AssignedIPv4Addresses() int { return assigned(e.IPv4Addresses) }

// AssignedIPv6Addresses counts those of IPv6.
func (e *ENI) AssignedIPv6Addresses() int { return assigned(e.IPv6Addresses) }

func assigned(all map[string]*AddressInfo) (n int) {
	for _, a := range all {
		if a.Assigned() {
			n++
		}
	}
	return n
}

// ENIPool is interfaces by their ID.
type ENIPool map[string]*ENI

// AssignedIPv4Addresses counts the addresses that pods have.
func (p *ENIPool) AssignedIPv4Addresses() (n int) {
	for _, e := range *p {
		n += e.AssignedIPv4Addresses()
	}
	return n
}

// FindAddressForSandbox is the interface and the address of a key, or nil and nil.
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

// ENIInfos is all interfaces, for people to look at.
type ENIInfos struct {
	TotalIPs    int // addresses of all interfaces
	AssignedIPs int // of these, those that pods have
	ENIs        map[string]ENI
}
