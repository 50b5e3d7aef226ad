// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package cloud is the contract of a cloud whose machines have network interfaces, and
// whose interfaces have addresses and prefixes for pods. A provider implements Cloud. The
// operator (operator/netresource/cloudpool) and the agent with "podBlocks: interfaces"
// decide with it what a machine needs.
//
// # Concurrency
//
// Any goroutine may call any method. A provider sends all of its requests through one
// budget.
//
// # Failure
//
// A call that returns an error may have been done, wholly or in part: the caller reads the
// machine and decides again. A reading may be older than a change by some seconds; the
// caller keeps its own changes in mind for that time. Absence in one reading proves nothing.
package cloud

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

var (
	// ErrNoInstance is wrapped if the cloud has no such machine.
	ErrNoInstance = errors.New("the cloud has no such machine")
	// ErrThrottled is wrapped if the cloud limits the rate of requests.
	ErrThrottled = errors.New("the cloud limits the rate of requests")
	// ErrFull is wrapped if an interface, a machine, a subnet or a quota has no room left:
	// the same call will fail until something is released.
	ErrFull = errors.New("the cloud has no room left")
)

// Cloud is one cloud with the credentials of its user.
type Cloud interface {
	// Name returns the name of the cloud, such as openstack, for messages and metrics.
	Name() string
	// Read returns all machines and subnets that the provider's configuration selects. The
	// caller may change what it returns.
	Read(ctx context.Context) (*Snapshot, error)
	// ReadInstance returns one machine, and the subnets that it needs. Agents call it.
	ReadInstance(ctx context.Context, instance string) (*Snapshot, error)
	// Assign adds up to Count addresses or prefixes to an interface and returns those
	// that it has added, which may be fewer. It returns an error if it has added none.
	Assign(ctx context.Context, instance, iface string, want Want) ([]Block, error)
	// Unassign removes addresses and prefixes from an interface. One that is not there
	// is no error. It refuses an interface's own address.
	Unassign(ctx context.Context, instance, iface string, blocks []netip.Prefix) error
	// CreateInterface creates an interface with its own address and up to Count addresses
	// or prefixes more, and attaches it to the machine. If it fails half-way it deletes
	// what it has created; what remains of a lost reply is for DeleteOrphans.
	CreateInterface(ctx context.Context, instance string, want NewInterface) (*Interface, error)
	// DeleteInterface detaches and deletes an interface that CreateInterface has
	// created. One that is not there is no error. It refuses any other interface.
	DeleteInterface(ctx context.Context, instance, iface string) error
	// DeleteOrphans deletes interfaces, and reservations of prefixes, that this package's
	// calls have created, that no machine has, and that are older than age. An empty
	// instance means those of all machines. It returns their IDs.
	DeleteOrphans(ctx context.Context, instance string, age time.Duration) ([]string, error)
}

// Self is implemented by a Cloud that knows, on a machine of the cloud, which one it is.
type Self interface {
	// Self returns the ID of the machine that the process runs on.
	Self(ctx context.Context) (string, error)
}

// Want is a request for addresses or prefixes.
type Want struct {
	Count    int
	IPv6     bool
	Prefixes bool   // prefixes (of Limits.PrefixBits) instead of addresses
	Subnet   string // to take them from; "": one that the interface has
}

// NewInterface is a request for an interface.
type NewInterface struct {
	Subnet string
	Want       // Count may be 0; Want.Subnet is ignored
	Device int // the lowest free device number
}

// Snapshot is the state of the cloud at one time.
type Snapshot struct {
	Instances map[string]*Instance // by ID
	Subnets   map[string]*Subnet   // by ID
}

// Instance is a machine.
type Instance struct {
	ID         string
	Type       string // such as m5.large; "": the cloud has none
	Zone       string
	Limits     Limits
	Interfaces []*Interface // by device number
}

// Limits are those of a machine of one type.
type Limits struct {
	Interfaces int // attached to the machine
	// Addresses of one interface without its own ones, by family (0 is IPv4, 1 is IPv6);
	// a prefix counts as one. 0: the interface can have none.
	Addresses [2]int
	// PrefixBits is the length of a prefix, by family; 0: there are no prefixes.
	PrefixBits [2]int
}

// Interface is a network interface of a machine.
type Interface struct {
	ID      string
	Device  int // 0 is the machine's first interface
	MAC     string
	Subnet  string // of its own first address
	Trunk   bool   // carries the interfaces of pods that have their own; gives pods none
	EFA     bool   // an Elastic Fabric Adapter; never deleted
	Exclude bool   // the configuration excludes it: it gets no more addresses
	Owned   bool   // CreateInterface has created it
	Created time.Time
	Blocks  []Block
}

// Block is an address or a prefix of an interface.
type Block struct {
	Prefix  netip.Prefix // an address is a /32 or /128
	Subnet  string
	Primary bool // the interface's own address, which no pod gets
}

// Subnet is a range of addresses of the cloud.
type Subnet struct {
	ID     string
	Zone   string
	Ranges []Range        // one of each family at most
	VPC    []netip.Prefix // ranges of the whole cloud network, which are reached without the gateway's translation
	Free   int            // free IPv4 addresses, or those of the only family; -1: not known
	Usable bool           // the configuration selects it for new interfaces
	Tags   map[string]string
}

// Range is the part of a subnet in one family.
type Range struct {
	CIDR    netip.Prefix
	Gateway netip.Addr // the zero Addr: none
}
