// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// NetResourceSet holds the part of the object of that name that this package uses:
// the resources of a node, and the state of their release.
type NetResourceSet struct {
	Name string

	// PodCIDRs holds the CIDRs of a cluster pool. The first one is used up first.
	PodCIDRs []string
	// AllocationThreshold is the number of free addresses below which the node needs
	// another CIDR; 0: 8.
	AllocationThreshold int
	// ReleaseThreshold is the number of free addresses in other CIDRs from which a
	// CIDR can be released; 0: 16.
	ReleaseThreshold int

	// Pool holds single addresses, and blocks of them as CIDRs.
	Pool map[string]PoolIP
	// MinAllocate and PreAllocate are the numbers of them that a start requires: the
	// first that is not 0.
	MinAllocate, PreAllocate int

	// VPCCIDRs holds the CIDRs of the cloud network, the primary one first.
	VPCCIDRs []string

	// Status holds the last report, and the operator's part of the handshake.
	Status Status
}

// PoolIP describes an address, or a block of addresses, of a NetResourceSet.
type PoolIP struct {
	Interface string       // the provider's ID; "": not known
	MAC       string       // of the interface
	Subnet    netip.Prefix // the zero Prefix: not known
	Gateway   netip.Addr   // the zero Addr: the first address of the subnet
}

// State of a CIDR in Status.PodCIDRs.
const (
	InUse    = nodeset.InUse
	Depleted = nodeset.Depleted
	Released = nodeset.Released
)

// State of an address in Status.ReleaseIPs: the handshake in which the operator
// releases an address.
const (
	MarkedForRelease = string(handshake.Marked)       // set by the operator
	ReadyForRelease  = string(handshake.Ready)        // set here: it is not in use, and is not allocated
	DoNotRelease     = string(handshake.DoNotRelease) // set here: it is in use, or not in the pool
	ReleasedIP       = string(handshake.Released)     // set by the operator
)

// Status holds the state that is reported upstream. It is a copy.
type Status struct {
	// Used holds the use of single addresses.
	Used map[string]Use
	// PodCIDRs holds the state of each CIDR.
	PodCIDRs map[string]string
	// ReleaseIPs holds the state of each address that the operator releases.
	ReleaseIPs map[string]string
}

// Use describes the use of an address.
type Use struct {
	Owner     string
	Interface string
}

// families holds the sets of families that a call may name, allocated once.
type families struct {
	one  [2][]ledger.Family
	both []ledger.Family
}

func makeFamilies() families {
	return families{
		one:  [2][]ledger.Family{{ledger.IPv4}, {ledger.IPv6}},
		both: []ledger.Family{ledger.IPv4, ledger.IPv6},
	}
}
