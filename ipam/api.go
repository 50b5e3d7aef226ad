// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Family is the type of an address family.
type Family string

// Families.
const (
	IPv6 Family = "ipv6"
	IPv4 Family = "ipv4"
)

// DeriveFamily is the family of ip: an IPv4 address is one in either form.
func DeriveFamily(ip net.IP) Family {
	if ip.To4() == nil {
		return IPv6
	}
	return IPv4
}

// AllocationResult is what is known of an address that was allocated.
type AllocationResult struct {
	// IP is the address.
	IP net.IP
	// CIDRs are networks that the address reaches directly.
	CIDRs []string
	// PrimaryMAC is the MAC address of the interface that the address is of.
	PrimaryMAC string
	// GatewayIP is the gateway for the address.
	GatewayIP string
	// ExpirationUUID is what StopExpirationTimer wants; "" where no timer runs.
	ExpirationUUID string
	// InterfaceNumber names the interface that the address is of.
	InterfaceNumber string
}

// ErrIPNotAvailableInPool is returned for an address that is not of the pool.
type ErrIPNotAvailableInPool struct{ ip net.IP }

// NewIPNotAvailableInPoolError makes the error for ip.
func NewIPNotAvailableInPoolError(ip net.IP) error {
	return &ErrIPNotAvailableInPool{append(net.IP(nil), ip...)}
}

// Error names the address.
func (e *ErrIPNotAvailableInPool) Error() string {
	if e == nil {
		return "no IP"
	}
	return fmt.Sprintf("IP %s is not available in the pool", e.ip)
}

// Is is true where target is the same error for the same address.
func (e *ErrIPNotAvailableInPool) Is(target error) bool {
	t, ok := target.(*ErrIPNotAvailableInPool)
	return ok && t != nil && e != nil && t.ip.Equal(e.ip)
}

// Allocator is the addresses of one family.
type Allocator interface {
	// Allocate takes a certain address.
	Allocate(ip net.IP, owner string) (*AllocationResult, error)
	// AllocateWithoutSyncUpstream is Allocate without a report upstream.
	AllocateWithoutSyncUpstream(ip net.IP, owner string) (*AllocationResult, error)
	// Release gives an address back; one that is not held is released already.
	Release(ip net.IP) error
	// AllocateNext takes any address.
	AllocateNext(owner string) (*AllocationResult, error)
	// AllocateNextWithoutSyncUpstream is AllocateNext without a report upstream.
	AllocateNextWithoutSyncUpstream(owner string) (*AllocationResult, error)
	// Dump is who holds which address, and the state in one line.
	Dump() (map[string]string, string)
	// RestoreFinished says that what was in use before is allocated again.
	RestoreFinished()
}

// StatusObject says what it knows about itself.
type StatusObject interface {
	// DebugStatus is text for people.
	DebugStatus() string
}

// RestoreTrigger is told when what was in use before is allocated again.
type RestoreTrigger interface {
	// RestoreFinished opens the reports upstream.
	RestoreFinished()
}

// IPAMAllocator is what CNI plugins use of an IPAM.
type IPAMAllocator interface {
	StatusObject
	RestoreTrigger
	// AllocateIPString takes a certain address.
	AllocateIPString(ipAddr, owner string) error
	// AllocateIPWithoutSyncUpstream takes a certain address without a report upstream.
	AllocateIPWithoutSyncUpstream(ip net.IP, owner string) (result *AllocationResult, err error)
	// ReleaseIPString gives back an address, or all of an owner.
	ReleaseIPString(releaseArg string) (err error)
	// AllocateNextWithExpiration takes addresses that are given back unless a timer is stopped.
	AllocateNextWithExpiration(family, owner string, timeout time.Duration) (ipv4Result, ipv6Result *AllocationResult, err error)
	// AllocateNext takes an address of each family, or of the one named.
	AllocateNext(family, owner string) (ipv4Result, ipv6Result *AllocationResult, err error)
	// AllocateNextFamilyWithoutSyncUpstream takes an address without a report upstream.
	AllocateNextFamilyWithoutSyncUpstream(family Family, owner string) (result *AllocationResult, err error)
	// Dump is who holds which address.
	Dump() (allocv4 map[string]string, allocv6 map[string]string, status string)
}

// CNIIPAMServer is the node's side of a CNI IPAM plugin.
type CNIIPAMServer interface {
	StatusObject
	RestoreTrigger
	// DEL gives back what a container holds; of another container nothing.
	DEL(owner, containerID string) (err error)
	// ADD takes an address of each family, or of the one named, for a container.
	ADD(family, owner, containerID, netns string) (ipv4Result, ipv6Result *AllocationResult, err error)
	// Dump is who holds which address.
	Dump() (allocv4 map[string]string, allocv6 map[string]string, status string)
}

// Configuration is what an IPAM is told by the program's configuration.
type Configuration interface {
	// IPv4Enabled is true where IPv4 addresses are lent.
	IPv4Enabled() bool
	// IPv6Enabled is true where IPv6 addresses are lent.
	IPv6Enabled() bool
	// IPAMMode is where addresses come from, see Mode.
	IPAMMode() string
	// HealthCheckingEnabled is for others than this package.
	HealthCheckingEnabled() bool
	// UnreachableRoutesEnabled is for others than this package.
	UnreachableRoutesEnabled() bool
	// SetIPv4NativeRoutingCIDR is told the first VPC CIDR, if there is one.
	SetIPv4NativeRoutingCIDR(cidr *CIDR)
	// GetIPv4NativeRoutingCIDR is for others than this package.
	GetIPv4NativeRoutingCIDR() *CIDR
	// GetCCEEndpointGC is for others than this package.
	GetCCEEndpointGC() time.Duration
	// GetFixedIPTimeout is for others than this package.
	GetFixedIPTimeout() time.Duration
}

// Owner is told what changes in an IPAM.
type Owner interface {
	// UpdateNetResourceSetResource makes the node's NetResourceSet and returns when it is there.
	UpdateNetResourceSetResource()
	// LocalAllocCIDRsUpdated is told the CIDRs that pods have addresses of.
	LocalAllocCIDRsUpdated(ipv4AllocCIDRs, ipv6AllocCIDRs []*CIDR)
	// ResourceType is the name of the resource, for K8sEventRegister.
	ResourceType() string
}

// K8sEventRegister delivers NetResourceSets, and counts what was done with them.
type K8sEventRegister interface {
	// K8sEventReceived counts an event.
	K8sEventReceived(apiGroupResourceName string, scope string, action string, valid, equal bool)
	// K8sEventProcessed counts an event that was worked on.
	K8sEventProcessed(scope string, action string, status bool)
	// RegisterNetResourceSetSubscriber has s told of all NetResourceSets.
	RegisterNetResourceSetSubscriber(s NetResourceSetSubscriber)
}

// NetResourceSetSubscriber is told of NetResourceSets.
type NetResourceSetSubscriber interface {
	// OnAddNetResourceSet is told of one that is there.
	OnAddNetResourceSet(set *NetResourceSet) error
	// OnUpdateNetResourceSet is told of one that has changed.
	OnUpdateNetResourceSet(old, set *NetResourceSet) error
	// OnDeleteNetResourceSet is told of one that is gone.
	OnDeleteNetResourceSet(set *NetResourceSet) error
}

// MtuConfiguration is for whoever configures interfaces; this package does not.
type MtuConfiguration interface {
	// GetDeviceMTU is the MTU of the node's devices.
	GetDeviceMTU() int
}

// NodeAddressing is what an IPAM is told of its node.
type NodeAddressing interface {
	// IPv6 is the node's IPv6 side.
	IPv6() NodeAddressingFamily
	// IPv4 is the node's IPv4 side.
	IPv4() NodeAddressingFamily
}

// NodeAddressingFamily is one family of a node.
type NodeAddressingFamily interface {
	// AllocationCIDR is where pods have their addresses from; nil: nowhere.
	AllocationCIDR() *CIDR
}

// CIDR is a network.
type CIDR struct{ *net.IPNet }

// NewCIDR makes a CIDR of p, or nil where p is none.
func NewCIDR(p netip.Prefix) *CIDR {
	if !p.IsValid() {
		return nil
	}
	p = p.Masked()
	return &CIDR{&net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
}

// Prefix is the same as a netip.Prefix; the zero Prefix where c is none.
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
