// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

// Provider is a source of addresses. Every call has a context with a deadline, and returns
// soon after it has ended. A call that returns an error may have been done. For the nodes of
// one name the manager makes one call at a time, and none with a NetResourceSet after its
// Forget. A NetResourceSet is the newest version that the manager has, and is only read.
type Provider interface {
	// Traits returns what the provider promises: always the same.
	Traits() Traits
	// Read reads the state of the provider, and returns the time at which it began.
	Read(ctx context.Context) (began time.Time, err error)
	// Quotas returns the free addresses of all pools.
	Quotas(ctx context.Context) (v1alpha1.PoolQuotaMap, error)
	// State returns the node's addresses as the last Read found them and as the node's calls
	// have changed them since. It is the first call for a NetResourceSet.
	State(ctx context.Context, set *v1alpha1.NetResourceSet) (State, error)
	// Describe sets the provider's fields of the status of a copy.
	Describe(ctx context.Context, set *v1alpha1.NetResourceSet) error
	// Allocate takes addresses for the node, at most as many as are wanted.
	Allocate(ctx context.Context, set *v1alpha1.NetResourceSet, wanted int) (Allocation, error)
	// Spare chooses addresses to release: the same each time while nothing changes, and more
	// of them for a larger excess. The result holds keys of the pool.
	Spare(ctx context.Context, set *v1alpha1.NetResourceSet, excess int) ([]string, error)
	// Release releases addresses. It succeeds for those that are not there.
	Release(ctx context.Context, set *v1alpha1.NetResourceSet, a *ReleaseAction) error
	// Forget is called when the NetResourceSet of a node was deleted.
	Forget(ctx context.Context, node string) error
}

// Traits are promises of a Provider that save work.
type Traits struct {
	// TracksChanges: State shows the whole effect of each call that has succeeded, without
	// a reading. The manager then reads only periodically, and after calls that have failed.
	TracksChanges bool
	// ReadsIntents: the provider learns only from the NetResourceSets what is taken. Before
	// its first Read has returned, it takes announced keys for those of the node. The manager
	// announces new keys of a pool in IntentAnnotation before it writes them.
	ReadsIntents bool
}

// State is the provider's state of a node.
type State struct {
	// Available are the node's addresses: an empty map if there are none.
	Available v1alpha1.AllocationMap
	Most      int // limit of the machine; 0: no limit
	Least     int // free addresses to keep if the NetResourceSet has no preAllocate
	// Burst is the number of addresses that one allocation always takes, and that are then
	// kept; 0: any number.
	Burst    int
	Prefixes bool // the node gets prefixes
	Used     int  // if it gets prefixes: all addresses of those of which one is used
	// CountsIPv4: the node's IPv4 addresses are counted even if it has none. If a call for two
	// families may be half done, the manager would otherwise take the first half for the whole.
	CountsIPv4 bool
}

// Allocation is the outcome of Provider.Allocate.
type Allocation struct {
	Addresses int // that the node was given; none without an error: it can have no more
	Interface string
	Pool      v1alpha1.PoolID
	// Interfaces is the number of interfaces that could still be created before.
	Interfaces int
	// Failed says with an error, for metrics, what has failed at the source of the addresses.
	// "": nothing was asked of it, and the node has what it had.
	Failed string
}
