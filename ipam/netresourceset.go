// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/ledger"
)

// NetResourceSet is what this package needs of the object of that name: what a
// node was given, and what was agreed about giving it back.
type NetResourceSet struct {
	Name string

	// PodCIDRs are the CIDRs of a cluster pool, the first one first to be used up.
	PodCIDRs []string
	// AllocationThreshold is how many free addresses are too few; 0: 8.
	AllocationThreshold int
	// ReleaseThreshold is how many free addresses must stay elsewhere for a CIDR
	// to be released; 0: 16.
	ReleaseThreshold int

	// Pool are single addresses.
	Pool map[string]PoolIP
	// MinAllocate and PreAllocate say how many of them it takes to start.
	MinAllocate, PreAllocate int

	// VPCCIDRs are the CIDRs of the cloud network, the primary one first.
	VPCCIDRs []string

	// Status is what was reported last, and the other side's part of the handshake.
	Status Status
}

// PoolIP is what is known of an address of a NetResourceSet.
type PoolIP struct {
	Interface string       // "": not known
	MAC       string       // of the interface
	Subnet    netip.Prefix // the zero Prefix: not known
	Gateway   netip.Addr   // the zero Addr: the first address of the subnet
}

// State of a CIDR in Status.PodCIDRs.
const (
	InUse    = "in-use"
	Depleted = "depleted"
	Released = "released"
)

// State of an address in Status.ReleaseIPs: the whole handshake in which an
// address goes back to whoever gave it.
const (
	MarkedForRelease = string(handshake.Marked)       // said by the giver
	ReadyForRelease  = string(handshake.Ready)        // said here: it is not in use, and will not be
	DoNotRelease     = string(handshake.DoNotRelease) // said here: it is in use, or not ours
	ReleasedIP       = string(handshake.Released)     // said by the giver
)

// Status is what is reported upstream. It is a value: changing it changes nothing.
type Status struct {
	// Used is who holds which of the single addresses.
	Used map[string]Use
	// PodCIDRs is the state of each CIDR.
	PodCIDRs map[string]string
	// ReleaseIPs is the state of each address that goes back.
	ReleaseIPs map[string]string
}

// Use is who holds an address.
type Use struct {
	Owner     string
	Interface string
}

// families are the sets of families that a call may ask for, made once.
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
