// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipamapi is the contract between Docker's engine and an IPAM driver,
// as libnetwork published it, and a Driver that keeps it on the ledger.
//
// # Who owns what
//
// The addresses are the ledger's: a container's lease is a lease like a pod's,
// with the purpose docker, its key made of the pool's ID, the endpoint's name
// and its MAC; a gateway is a lease for infra. What else there is to know of a
// pool (how often it was requested, what more than one network uses) is the
// Driver's, and is in Records. The ledger's pools have another owner, in the
// agent its event loop: the Driver changes them through a PoolOpener. Any
// goroutine may call a Driver. Addresses do not wait for pools; changes of
// pools wait for each other.
//
// # Pools
//
// A pool is named by an ID that says everything needed to serve it, so an ID
// that the engine has kept is served also when the records are lost. Pools of
// one address space and prefix share one book of addresses, whatever part of
// it (a sub-pool) each lends from. A request for a pool that is there already
// gives the same ID and counts; a release takes one off, and the last one gives
// up the pool with all its addresses. Requests without a prefix always get
// another pool. No pool overlaps another one of its space, nor the host's
// networks, unless it is requested with OverlapOption. The ledger gets a pool
// with the first request for an address of it. Pools that are requested
// with the same GroupOption stand in for each other when one is full, because
// an engine never tries the next pool of a remote driver.
//
// With Config.FromPods pools are parts of the node's own pod block, and their
// addresses are leases of the pod network's pool.
//
// # Addresses
//
// A request for any address is never repeated: each gets another one, the
// lowest by default. A request for a named address can be repeated by the same
// endpoint (by its name or its MAC); for others the address is in use. The
// engine replays without saying for whom: this is believed once for each lease
// that is older than the Driver. A release frees only what was taken through
// the same pool, and may be repeated.
//
// # Failures
//
// Nothing is answered before it is durable. A call that fails has changed
// nothing; what a failed commit may have left in the records is written over by
// the next one. After a crash a pool is there or not, with all its leases or
// with none. Errors wrap the well-known ones, whose classes are methods, as
// libnetwork's are: InvalidParameter, Forbidden, Unavailable, NotFound.
//
// Example: a network with its gateway, and a container.
//
//	d, err := ipamapi.New(ctx, ipamapi.Deps{Ledger: l, Records: records, Config: ipamapi.Config{HostID: machineID}})
//	p, err := d.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault"}) // LocalDefault/172.17.0.0/16
//	gw, _, err := d.RequestAddress(p.PoolID, nil, map[string]string{ipamapi.RequestAddressType: ipamapi.Gateway})
//	ip, _, err := d.RequestAddress(p.PoolID, nil, map[string]string{ipamapi.EndpointName: "web"}) // 172.17.0.2/16
package ipamapi

import (
	"net"
	"net/netip"
)

const (
	// PluginEndpointType is the type under which the plugin system knows IPAM drivers.
	PluginEndpointType = "IpamDriver"
	// RequestAddressType is the option of RequestAddress that says what the address is for.
	RequestAddressType = "RequestAddressType"
)

const (
	// Prefix is how the labels begin that libnetwork keeps for itself.
	Prefix = "com.docker.network"
	// AllocSerialPrefix is the option of RequestAddress that, if "true", asks for
	// the address after the last one that was lent instead of the lowest one.
	AllocSerialPrefix = Prefix + ".ipam.serial"
)

// Labels that the engine uses in options of RequestAddress.
const (
	// Gateway is the value of RequestAddressType for the gateway of a pool.
	Gateway = Prefix + ".gateway"
	// EndpointName is the name of the endpoint that the address is for.
	EndpointName = Prefix + ".endpoint.name"
	// EndpointMAC is its MAC address.
	EndpointMAC = Prefix + ".endpoint.macaddress"
)

// Options of RequestPool that the Driver knows ("docker network create --ipam-opt").
const (
	// GroupOption names a group of pools that stand in for each other.
	GroupOption = "cadastre.group"
	// OverlapOption, if "true", lets a pool overlap other pools, the node's
	// subnets and the host's routes.
	OverlapOption = "cadastre.allow-overlap"
)

// Capability is what a driver wants of the engine.
type Capability struct {
	// RequiresMACAddress asks for the endpoint's MAC with every request for an address.
	RequiresMACAddress bool
	// RequiresRequestReplay asks for the pools and addresses of all local networks
	// to be requested again when the engine starts.
	RequiresRequestReplay bool
}

// Registerer is the engine's side: where drivers are made known.
type Registerer interface {
	// RegisterIpamDriver makes a driver known that wants nothing special.
	RegisterIpamDriver(name string, driver Ipam) error
	// RegisterIpamDriverWithCapabilities makes a driver known with what it wants.
	RegisterIpamDriverWithCapabilities(name string, driver Ipam, capability *Capability) error
}

// PoolRequest is what RequestPool is asked for.
type PoolRequest struct {
	// AddressSpace is one of GetDefaultAddressSpaces.
	AddressSpace string
	// Pool is a prefix. Without one, or with an unspecified address (0.0.0.0/24),
	// the driver chooses; the length then says the size.
	Pool string
	// SubPool is the part of Pool that requests for any address are served from.
	SubPool string
	// Options are the driver's; the unknown ones are ignored.
	Options map[string]string
	// V6 is the family of a pool that the driver chooses.
	V6 bool
}

// AllocatedPool is the answer of RequestPool.
type AllocatedPool struct {
	// PoolID is what the pool is called in all other calls.
	PoolID string
	// Pool is the whole prefix, also where addresses come from a sub-pool.
	Pool netip.Prefix
	// Meta has addresses that were reserved along with the pool, by label.
	Meta map[string]string
}

// Ipam is what the engine calls.
type Ipam interface {
	// GetDefaultAddressSpaces returns the names of the local and the global address space.
	GetDefaultAddressSpaces() (string, string, error)
	// RequestPool gives a pool, a certain one or any.
	RequestPool(req PoolRequest) (AllocatedPool, error)
	// ReleasePool gives up a pool.
	ReleasePool(poolID string) error
	// RequestAddress gives an address of a pool, a certain one or (nil) any, with
	// the length of the pool's prefix.
	RequestAddress(string, net.IP, map[string]string) (*net.IPNet, map[string]string, error)
	// ReleaseAddress gives up an address of a pool.
	ReleaseAddress(string, net.IP) error
	// IsBuiltIn is true for the drivers that are part of the engine.
	IsBuiltIn() bool
}
