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
	// ErrInstanceNotFound is returned by providers for a machine that does not exist.
	ErrInstanceNotFound = errors.New("netresource: the provider has no such instance")
	// ErrThrottled is returned by providers for a call above their rate limit.
	ErrThrottled = errors.New("netresource: the provider limits the rate of calls")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("netresource: the manager is closed")
)

// AllocationImplementation is a published provider of addresses. The manager calls it through
// a Provider of its own.
type AllocationImplementation interface {
	// CreateNetResource returns the operations for one node; nil refuses the node. It
	// is called again after it has panicked, and for the next version of a node that it has
	// refused.
	CreateNetResource(obj *v1alpha1.NetResourceSet, node *NetResource) NetResourceOperations
	// GetPoolQuota returns the free addresses of all pools.
	GetPoolQuota() v1alpha1.PoolQuotaMap
	// Resync reads the state of the provider. It returns the time at which it
	// began, and the zero time if it could not.
	Resync(ctx context.Context) time.Time
}

// NetResourceOperations is a published provider for one node. Calls of one node do not
// overlap. A call that returns an error may have been done, and ReleaseIPs of what is not
// there succeeds. A call that takes longer than Config.CallTimeout counts as one that may have
// been done; the next one comes when it has returned.
type NetResourceOperations interface {
	// UpdatedNode receives every version of the NetResourceSet.
	UpdatedNode(obj *v1alpha1.NetResourceSet)
	// PopulateStatusFields sets the provider's fields of the status.
	PopulateStatusFields(resource *v1alpha1.NetResourceSet)
	// CreateInterface creates an interface with up to MaxIPsToAllocate addresses. It
	// returns their number, and a phrase for metrics.
	CreateInterface(ctx context.Context, allocation *AllocationAction, scopedLog *slog.Logger) (int, string, error)
	// ResyncInterfacesAndIPs returns the node's addresses, as the last Resync read
	// them and as the node's own calls have changed them since.
	ResyncInterfacesAndIPs(ctx context.Context, scopedLog *slog.Logger) (v1alpha1.AllocationMap, error)
	// PrepareIPAllocation returns the interface or pool for more addresses.
	PrepareIPAllocation(scopedLog *slog.Logger) (*AllocationAction, error)
	// AllocateIPs allocates up to MaxIPsToAllocate addresses.
	AllocateIPs(ctx context.Context, allocation *AllocationAction) error
	// PrepareIPRelease chooses the addresses to release: the same each time while
	// nothing changes, and more of them for a larger excess.
	PrepareIPRelease(excessIPs int, scopedLog *slog.Logger) *ReleaseAction
	// ReleaseIPs releases them.
	ReleaseIPs(ctx context.Context, release *ReleaseAction) error
	// GetMaximumAllocatableIPv4 returns the limit of the instance; 0: no limit.
	GetMaximumAllocatableIPv4() int
	// GetMinimumAllocatableIPv4 returns the free addresses to keep if the
	// NetResourceSet has no preAllocate.
	GetMinimumAllocatableIPv4() int
	// IsPrefixDelegated reports whether the node gets prefixes.
	IsPrefixDelegated() bool
	// GetUsedIPWithPrefixes counts all addresses of a prefix one of which is used.
	GetUsedIPWithPrefixes() int
	// GetMaximumBurstableAllocatableIPv4 returns the number of addresses that one
	// allocation always takes, and that are then kept; 0: any number.
	GetMaximumBurstableAllocatableIPv4() int
}

// AllocationAction describes one allocation of addresses.
type AllocationAction struct {
	// InterfaceID is the interface that gets them; "": none is needed, or a new one.
	InterfaceID string
	// Interface is the same interface.
	Interface v1alpha1.InterfaceRevision
	// PoolID is the pool that they come from.
	PoolID v1alpha1.PoolID
	// AvailableForAllocationIPv4 and AvailableForAllocationIPv6 limit the
	// allocation; they may be less than is needed.
	AvailableForAllocationIPv4 int
	AvailableForAllocationIPv6 int
	// MaxIPsToAllocate is set by the manager: the number of addresses to allocate.
	MaxIPsToAllocate int
	// AvailableInterfaces is the number of interfaces that can be created.
	AvailableInterfaces int
}

// ReleaseAction describes one release of addresses.
type ReleaseAction struct {
	// InterfaceID is the interface that has them; "": it does not matter.
	InterfaceID string
	// PoolID is the pool that they return to.
	PoolID v1alpha1.PoolID
	// IPsToRelease are keys of the pool: addresses, or blocks as CIDRs.
	IPsToRelease []string
}

// Statistics counts the addresses of a node.
type Statistics struct {
	// UsedIPs counts addresses in use.
	UsedIPs int
	// AvailableIPs counts all addresses of the node, used ones included.
	AvailableIPs int
	// NeededIPs is the deficit below the watermarks.
	NeededIPs int
	// ExcessIPs counts addresses that could be released.
	ExcessIPs int
	// RemainingInterfaces counts interfaces that can still be created or filled.
	RemainingInterfaces int
}

// NetResourceSetGetterUpdater reads and writes NetResourceSets of the API server. Get is not from a cache. Update
// and UpdateStatus write what differs if newResource has the newest
// resourceVersion, and fail with a conflict if not.
type NetResourceSetGetterUpdater interface {
	Create(node *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error)
	Update(origResource, newResource *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error)
	UpdateStatus(origResource, newResource *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error)
	Get(name string) (*v1alpha1.NetResourceSet, error)
	Lister() v1alpha1.NetResourceSetLister
}
