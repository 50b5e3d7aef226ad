// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipamapi is the contract between Docker's engine and an IPAM driver,
// as libnetwork published it, and a Driver that implements it on the ledger.
//
// # Ownership
//
// The ledger holds the addresses and the prefixes, and decides which of them are
// free. A pool of the Driver is a block of the ledger, or a part of a block. The lease
// of a container is a lease like that of a pod, with the purpose docker. Its key
// consists of the pool's ID, the endpoint's name and its MAC. A gateway is an infra
// lease.
//
// The Driver holds what only the engine means: the ID of a pool, the number of
// requests for it, its group, and the gateways that several networks share. It
// stores them in Records.
//
// Another component owns the ledger's pools, in the agent its event loop: the
// Driver changes them through a PoolOpener. Any goroutine may call a Driver.
// Calls for addresses do not wait for calls for pools; calls that change pools
// wait for each other.
//
// # Pools
//
// The ID of a pool says everything that is needed to open the pool again if the records
// are lost. Before the Driver allocates an address of a pool that is not on record, it reads
// the engine's networks and restores what they have. It restores gateways and auxiliary
// addresses first. Until this is done, it allocates nothing there. A gateway that the engine
// does not name is a guess: a request for it as the gateway of another pool takes it over.
// Pools of one address space and prefix share one block, whatever part of it (a sub-pool) each
// of them allocates from. A request for an existing pool returns the same ID and adds one to
// its requests. A release takes one off, and the last release ends the pool with all its
// leases. Each request without a prefix returns another pool. A pool overlaps no other pool of
// its space and none of the host's networks, unless it is requested with OverlapOption. If a
// pool with a GroupOption is full, the other pools of its group serve its requests, because an
// engine never tries the next pool of a remote driver.
//
// An engine may lose a network, or repeat a request. Observe compares the requests
// with the engine's networks; requests that two observations cannot attribute are given
// up after a time in which they can be kept. In the global space a repeated request for
// a named pool is the same request.
//
// With Config.FromPods pools are parts of the node's own pod block, and their
// addresses are leases of the pod network's pool.
//
// # Addresses
//
// A request for any address returns the lowest one by default. An endpoint can repeat it with
// its name and its MAC: it gets the same address until that is released. Without the one or
// the other each request returns another address, since several containers may have one
// name, or one MAC. The endpoint (by its name or its MAC) can also repeat a request
// for a named address; for every other endpoint the address is in use. The engine
// repeats requests without naming the endpoint: the Driver answers such a
// repetition once for each lease that is older than the Driver. A release frees only
// an address that was requested through the same pool, and may be repeated.
//
// # Failures
//
// A call returns after its changes are durable. A call that fails has changed
// nothing; the next commit writes over what a failed commit may have left in the
// records. The Driver opens a pool in the ledger before it writes the record, and
// closes a pool that it could not record. After a crash a pool exists or not, with
// all its leases or with none. Errors wrap the well-known errors of the contract;
// their classes are methods, as in libnetwork: InvalidParameter, Forbidden,
// Unavailable, NotFound.
package ipamapi

import (
	"net"
	"net/netip"
)

const (
	// PluginEndpointType is the type of IPAM drivers in the plugin system.
	PluginEndpointType = "IpamDriver"
	// RequestAddressType is the option of RequestAddress that names the purpose of the address.
	RequestAddressType = "RequestAddressType"
)

const (
	// Prefix is the prefix of libnetwork's own labels.
	Prefix = "com.docker.network"
	// AllocSerialPrefix is the option of RequestAddress that, if "true", asks for
	// the address after the last one that was allocated instead of the lowest one.
	AllocSerialPrefix = Prefix + ".ipam.serial"
)

// Options of RequestAddress and their values.
const (
	// Gateway is the value of RequestAddressType for the gateway of a pool.
	Gateway = Prefix + ".gateway"
	// EndpointName is the option that holds the name of the endpoint.
	EndpointName = Prefix + ".endpoint.name"
	// EndpointMAC is the option that holds the MAC address of the endpoint.
	EndpointMAC = Prefix + ".endpoint.macaddress"
)

// Options of RequestPool that the Driver knows ("docker network create --ipam-opt").
const (
	// GroupOption names a group of pools: when one is full, the others serve its requests.
	GroupOption = "cadastre.group"
	// OverlapOption, if "true", lets a pool overlap other pools, the node's
	// subnets and the host's routes.
	OverlapOption = "cadastre.allow-overlap"
)

// Capability tells the engine which calls and arguments a driver needs.
type Capability struct {
	// RequiresMACAddress asks for the endpoint's MAC with every request for an address.
	RequiresMACAddress bool
	// RequiresRequestReplay asks for the pools and addresses of all local networks
	// to be requested again when the engine starts.
	RequiresRequestReplay bool
}

// Registerer is the engine's registry of drivers.
type Registerer interface {
	// RegisterIpamDriver registers a driver without capabilities.
	RegisterIpamDriver(name string, driver Ipam) error
	// RegisterIpamDriverWithCapabilities registers a driver with its capabilities.
	RegisterIpamDriverWithCapabilities(name string, driver Ipam, capability *Capability) error
}

// PoolRequest holds the arguments of RequestPool.
type PoolRequest struct {
	// AddressSpace is one of GetDefaultAddressSpaces.
	AddressSpace string
	// Pool is a prefix. If it is empty or has an unspecified address (0.0.0.0/24),
	// the driver chooses the prefix; the length is then its size.
	Pool string
	// SubPool is the part of Pool from which requests for any address are served.
	SubPool string
	// Options are options of the driver; it ignores unknown ones.
	Options map[string]string
	// V6 selects IPv6 for a pool that the driver chooses.
	V6 bool
}

// AllocatedPool holds the result of RequestPool.
type AllocatedPool struct {
	// PoolID names the pool in all other calls.
	PoolID string
	// Pool is the whole prefix, even if addresses come from a sub-pool.
	Pool netip.Prefix
	// Meta holds the addresses that were reserved along with the pool, by label.
	Meta map[string]string
}

// Ipam is the interface that the engine calls.
type Ipam interface {
	// GetDefaultAddressSpaces returns the names of the local and the global address space.
	GetDefaultAddressSpaces() (string, string, error)
	// RequestPool returns a certain pool, or any.
	RequestPool(req PoolRequest) (AllocatedPool, error)
	// ReleasePool releases a pool.
	ReleasePool(poolID string) error
	// RequestAddress returns a certain address of a pool, or (nil) any, with the
	// length of the pool's prefix.
	RequestAddress(string, net.IP, map[string]string) (*net.IPNet, map[string]string, error)
	// ReleaseAddress releases an address of a pool.
	ReleaseAddress(string, net.IP) error
	// IsBuiltIn reports whether the driver is part of the engine.
	IsBuiltIn() bool
}
