// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

var (
	// ErrNotReady is returned while the provider has not been read.
	ErrNotReady = errors.New("netresource: the provider cannot be read yet: nothing is changed until it can")
	// ErrInstanceNotFound is what providers return for a machine that is not there.
	ErrInstanceNotFound = errors.New("netresource: the provider has no such instance")
	// ErrThrottled is what providers return where they are asked too often.
	ErrThrottled = errors.New("netresource: the provider is asked too often")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("netresource: the manager is closed")
)

// AllocationImplementation is a provider. Beside what is said of a node, it
// knows nothing of the watermarks.
type AllocationImplementation interface {
	// CreateNetResource makes what serves one node; nil refuses the node. It is called
	// again after it has panicked or has refused the node, and must not call back.
	CreateNetResource(obj *v1alpha1.NetResourceSet, node *NetResource) NetResourceOperations
	// GetPoolQuota is what is left of all pools.
	GetPoolQuota() v1alpha1.PoolQuotaMap
	// Resync reads the provider. It returns when it has begun to, and the zero
	// time if it could not.
	Resync(ctx context.Context) time.Time
}

// Forgetter is a provider that wants to know which nodes are gone.
type Forgetter interface {
	// Forget is called when the NetResourceSet of a node was deleted.
	Forget(nodeName string)
}

// NetResourceOperations is a provider for one node. Calls of one node do not
// overlap, but for UpdatedNode and the getters. A call that returns an error may
// have been done, and ReleaseIPs of what is not there succeeds. A call that takes
// longer than Config.CallTimeout counts as one that may have been done; while it
// has not returned, other calls may come, but none of its kind.
type NetResourceOperations interface {
	// UpdatedNode is told every version of the NetResourceSet.
	UpdatedNode(obj *v1alpha1.NetResourceSet)
	// PopulateStatusFields sets what of the status is the provider's.
	PopulateStatusFields(resource *v1alpha1.NetResourceSet)
	// CreateInterface makes an interface with up to MaxIPsToAllocate addresses. It
	// returns how many those are, and a phrase for metrics.
	CreateInterface(ctx context.Context, allocation *AllocationAction, scopedLog *slog.Logger) (int, string, error)
	// ResyncInterfacesAndIPs is what the node has, as Resync has read it and the
	// node's own calls have changed it since.
	ResyncInterfacesAndIPs(ctx context.Context, scopedLog *slog.Logger) (v1alpha1.AllocationMap, error)
	// PrepareIPAllocation says where more addresses can come from.
	PrepareIPAllocation(scopedLog *slog.Logger) (*AllocationAction, error)
	// AllocateIPs takes up to MaxIPsToAllocate addresses.
	AllocateIPs(ctx context.Context, allocation *AllocationAction) error
	// PrepareIPRelease chooses what to give back: the same each time, as long as
	// nothing changes, and more of it for a larger excess.
	PrepareIPRelease(excessIPs int, scopedLog *slog.Logger) *ReleaseAction
	// ReleaseIPs gives it back.
	ReleaseIPs(ctx context.Context, release *ReleaseAction) error
	// GetMaximumAllocatableIPv4 is how many addresses the instance can have; 0:
	// there is no bound.
	GetMaximumAllocatableIPv4() int
	// GetMinimumAllocatableIPv4 is how many are to be free where the
	// NetResourceSet does not say.
	GetMinimumAllocatableIPv4() int
	// IsPrefixDelegated is whether the node gets prefixes.
	IsPrefixDelegated() bool
	// GetUsedIPWithPrefixes counts all addresses of a prefix one of which is used.
	GetUsedIPWithPrefixes() int
	// GetMaximumBurstableAllocatableIPv4 is how many addresses are always taken
	// at once, and then kept; 0: it is not so.
	GetMaximumBurstableAllocatableIPv4() int
}

// AllocationAction is where addresses of a node can come from.
type AllocationAction struct {
	// InterfaceID is the interface to take them on; "": none is needed, or a new one.
	InterfaceID string
	// Interface is the same interface.
	Interface v1alpha1.InterfaceRevision
	// PoolID is the pool to take them from.
	PoolID v1alpha1.PoolID
	// AvailableForAllocationIPv4 and its sibling are how many can be taken there,
	// which may be less than is needed.
	AvailableForAllocationIPv4 int
	AvailableForAllocationIPv6 int
	// MaxIPsToAllocate is set by the manager: how many to take.
	MaxIPsToAllocate int
	// AvailableInterfaces is how many interfaces can be made.
	AvailableInterfaces int
}

// ReleaseAction is what a node gives back.
type ReleaseAction struct {
	// InterfaceID is where it is; "": it does not matter.
	InterfaceID string
	// PoolID is where it goes.
	PoolID v1alpha1.PoolID
	// IPsToRelease are keys of the pool: addresses, or blocks as CIDRs.
	IPsToRelease []string
}

// Statistics is how a node stands.
type Statistics struct {
	// UsedIPs is how many addresses cannot be lent.
	UsedIPs int
	// AvailableIPs is how many the node has, used ones among them.
	AvailableIPs int
	// NeededIPs is how many it lacks.
	NeededIPs int
	// ExcessIPs is how many it could give back.
	ExcessIPs int
	// RemainingInterfaces is how many interfaces can still be made, or filled.
	RemainingInterfaces int
}

// NetResourceSetGetterUpdater is the API server. Get is not from a cache. Update
// and UpdateStatus write what differs if newResource has the newest
// resourceVersion, and fail with a conflict if not.
type NetResourceSetGetterUpdater interface {
	Create(node *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error)
	Update(origResource, newResource *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error)
	UpdateStatus(origResource, newResource *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error)
	Get(name string) (*v1alpha1.NetResourceSet, error)
	Lister() v1alpha1.NetResourceSetLister
}
