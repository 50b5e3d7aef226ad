// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Family names an address family.
type Family string

// Families.
const (
	IPv6 Family = "ipv6"
	IPv4 Family = "ipv4"
)

// DeriveFamily returns the family of ip. An IPv4 address may have 4 or 16 bytes.
func DeriveFamily(ip net.IP) Family {
	if ip.To4() == nil {
		return IPv6
	}
	return IPv4
}

// AllocationResult describes an allocated address.
type AllocationResult struct {
	// IP is the address.
	IP net.IP
	// CIDRs holds the networks that the address reaches directly: its subnet, and the CIDRs of
	// the cloud network.
	CIDRs []string
	// PrimaryMAC is the MAC address of the interface of the address.
	PrimaryMAC string
	// GatewayIP is the gateway for the address.
	GatewayIP string
	// ExpirationUUID is the UUID for StopExpirationTimer; "" if no timer runs.
	ExpirationUUID string
	// InterfaceNumber names the interface of the address.
	InterfaceNumber string
}

// ErrIPNotAvailableInPool is the error for an address outside of the pool.
type ErrIPNotAvailableInPool struct{ ip net.IP }

// NewIPNotAvailableInPoolError returns the error for ip.
func NewIPNotAvailableInPoolError(ip net.IP) error {
	return &ErrIPNotAvailableInPool{append(net.IP(nil), ip...)}
}

// Error returns a text with the address.
func (e *ErrIPNotAvailableInPool) Error() string {
	if e == nil {
		return "no IP"
	}
	return fmt.Sprintf("IP %s is not available in the pool", e.ip)
}

// Is reports whether target is the same error for the same address.
func (e *ErrIPNotAvailableInPool) Is(target error) bool {
	t, ok := target.(*ErrIPNotAvailableInPool)
	return ok && t != nil && e != nil && t.ip.Equal(e.ip)
}

// Allocator allocates the addresses of one family.
type Allocator interface {
	// Allocate allocates a named address.
	Allocate(ip net.IP, owner string) (*AllocationResult, error)
	// AllocateWithoutSyncUpstream is Allocate without a report upstream.
	AllocateWithoutSyncUpstream(ip net.IP, owner string) (*AllocationResult, error)
	// Release releases an address. A free address is not an error.
	Release(ip net.IP) error
	// AllocateNext allocates any address.
	AllocateNext(owner string) (*AllocationResult, error)
	// AllocateNextWithoutSyncUpstream is AllocateNext without a report upstream.
	AllocateNextWithoutSyncUpstream(owner string) (*AllocationResult, error)
	// Dump returns the owner of each address, and the state in one line.
	Dump() (map[string]string, string)
	// RestoreFinished marks the addresses of running pods as restored.
	RestoreFinished()
}

// StatusObject describes its state.
type StatusObject interface {
	// DebugStatus returns the state as text for people.
	DebugStatus() string
}

// RestoreTrigger receives the end of a restore.
type RestoreTrigger interface {
	// RestoreFinished starts the reports upstream.
	RestoreFinished()
}

// IPAMAllocator holds the methods of an IPAM that CNI plugins use.
//
//nolint:revive // a published name
type IPAMAllocator interface {
	StatusObject
	RestoreTrigger
	// AllocateIPString allocates a named address.
	AllocateIPString(ipAddr, owner string) error
	// AllocateIPWithoutSyncUpstream allocates a named address without a report upstream.
	AllocateIPWithoutSyncUpstream(ip net.IP, owner string) (result *AllocationResult, err error)
	// ReleaseIPString releases an address, or all addresses of an owner.
	ReleaseIPString(releaseArg string) (err error)
	// AllocateNextWithExpiration allocates addresses that are released unless a timer is stopped.
	AllocateNextWithExpiration(
		family, owner string,
		timeout time.Duration,
	) (ipv4Result, ipv6Result *AllocationResult, err error)
	// AllocateNext allocates an address of each family, or of the named one.
	AllocateNext(family, owner string) (ipv4Result, ipv6Result *AllocationResult, err error)
	// AllocateNextFamilyWithoutSyncUpstream allocates an address without a report upstream.
	AllocateNextFamilyWithoutSyncUpstream(family Family, owner string) (result *AllocationResult, err error)
	// Dump returns the owner of each address, and the state in one line.
	Dump() (allocv4 map[string]string, allocv6 map[string]string, status string)
}

// CNIIPAMServer serves a node's CNI IPAM plugin.
type CNIIPAMServer interface {
	StatusObject
	RestoreTrigger
	// DEL releases the addresses of a container.
	DEL(owner, containerID string) (err error)
	// ADD allocates an address of each family, or of the named one, for a container.
	ADD(family, owner, containerID, netns string) (ipv4Result, ipv6Result *AllocationResult, err error)
	// Dump returns the owner of each address, and the state in one line.
	Dump() (allocv4 map[string]string, allocv6 map[string]string, status string)
}

// Configuration provides the program's configuration.
type Configuration interface {
	// IPv4Enabled reports whether IPv4 addresses are allocated.
	IPv4Enabled() bool
	// IPv6Enabled reports whether IPv6 addresses are allocated.
	IPv6Enabled() bool
	// IPAMMode returns the published name of a Mode.
	IPAMMode() string
	// HealthCheckingEnabled is not used by this package.
	HealthCheckingEnabled() bool
	// UnreachableRoutesEnabled is not used by this package.
	UnreachableRoutesEnabled() bool
	// SetIPv4NativeRoutingCIDR receives the first VPC CIDR, if there is one.
	SetIPv4NativeRoutingCIDR(cidr *CIDR)
	// GetIPv4NativeRoutingCIDR is not used by this package.
	GetIPv4NativeRoutingCIDR() *CIDR
	// GetCCEEndpointGC is not used by this package.
	GetCCEEndpointGC() time.Duration
	// GetFixedIPTimeout is not used by this package.
	GetFixedIPTimeout() time.Duration
}

// Owner receives the changes of an IPAM.
type Owner interface {
	// UpdateNetResourceSetResource creates the node's NetResourceSet and waits until it exists.
	// NewIPAM calls it.
	UpdateNetResourceSetResource()
	// LocalAllocCIDRsUpdated receives the CIDRs that pods have addresses of.
	LocalAllocCIDRsUpdated(ipv4AllocCIDRs, ipv6AllocCIDRs []*CIDR)
	// ResourceType returns the name of the resource, for K8sEventRegister.
	ResourceType() string
}

// K8sEventRegister delivers NetResourceSets and counts their events.
type K8sEventRegister interface {
	// K8sEventReceived counts an event.
	K8sEventReceived(apiGroupResourceName string, scope string, action string, valid, equal bool)
	// K8sEventProcessed counts a processed event.
	K8sEventProcessed(scope string, action string, status bool)
	// RegisterNetResourceSetSubscriber subscribes s to all NetResourceSets.
	RegisterNetResourceSetSubscriber(s NetResourceSetSubscriber)
}

// NetResourceSetSubscriber receives the NetResourceSets of all nodes.
type NetResourceSetSubscriber interface {
	// OnAddNetResourceSet receives a new or existing one.
	OnAddNetResourceSet(set *NetResourceSet) error
	// OnUpdateNetResourceSet receives a changed one.
	OnUpdateNetResourceSet(old, set *NetResourceSet) error
	// OnDeleteNetResourceSet receives a deleted one.
	OnDeleteNetResourceSet(set *NetResourceSet) error
}

// MtuConfiguration provides the MTU. This package configures no interface and does
// not use it.
type MtuConfiguration interface {
	// GetDeviceMTU returns the MTU of the node's devices.
	GetDeviceMTU() int
}

// NodeAddressing provides the allocation CIDRs of a node.
type NodeAddressing interface {
	// IPv6 returns the IPv6 family.
	IPv6() NodeAddressingFamily
	// IPv4 returns the IPv4 family.
	IPv4() NodeAddressingFamily
}

// NodeAddressingFamily provides one family of a node.
type NodeAddressingFamily interface {
	// AllocationCIDR returns the CIDR of the pods' addresses; nil: none.
	AllocationCIDR() *CIDR
}

// CIDR represents a network.
type CIDR struct{ *net.IPNet }

// NewCIDR converts p. It returns nil if p is not valid.
func NewCIDR(p netip.Prefix) *CIDR {
	if !p.IsValid() {
		return nil
	}
	p = p.Masked()
	return &CIDR{&net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
}

// Prefix converts c. It returns the zero Prefix if c is nil or not valid.
func (c *CIDR) Prefix() netip.Prefix {
	if c == nil || c.IPNet == nil {
		return netip.Prefix{}
	}
	a, ok := netip.AddrFromSlice(c.IP)
	ones, size := c.Mask.Size()
	if !ok || size == 0 {
		return netip.Prefix{}
	}
	if a.Is4In6() && size == 32 {
		a = a.Unmap()
	}
	p, err := a.Prefix(ones)
	if err != nil {
		return netip.Prefix{}
	}
	return p
}

func toCIDRs(prefixes []netip.Prefix) (all []*CIDR) {
	for _, p := range prefixes {
		all = append(all, NewCIDR(p))
	}
	return all
}
