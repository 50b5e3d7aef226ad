// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

// Names of the provider's operations in errors and metrics.
const (
	opCreate            = "CreateNetResource"
	opForget            = "Forget"
	opQuota             = "GetPoolQuota"
	opRead              = "Resync"
	opUpdated           = "UpdatedNode"
	opPopulate          = "PopulateStatusFields"
	opNode              = "ResyncInterfacesAndIPs"
	opPrepareAllocation = "PrepareIPAllocation"
	opAllocate          = "AllocateIPs"
	opInterface         = "CreateInterface"
	opPrepareRelease    = "PrepareIPRelease"
	opRelease           = "ReleaseIPs"
)

// limits holds the results of the provider's getters for a node. They are called
// together with another operation, because a getter may hang as well.
type limits struct {
	most, least, burst int
	prefixes           bool
	v4                 bool // IPv4 addresses are counted even if there are none
	used               int  // with all addresses of used prefixes
}

func limitsOf(ops NetResourceOperations) limits {
	l := limits{
		most:     ops.GetMaximumAllocatableIPv4(),
		least:    ops.GetMinimumAllocatableIPv4(),
		burst:    ops.GetMaximumBurstableAllocatableIPv4(),
		prefixes: ops.IsPrefixDelegated(),
	}
	if c, ok := ops.(IPv4Counter); ok {
		l.v4 = c.CountsIPv4()
	}
	if l.prefixes {
		l.used = ops.GetUsedIPWithPrefixes()
	}
	return l
}

// view holds the provider's state of a node.
type view struct {
	available v1alpha1.AllocationMap
	limits    limits
}

// allocationCall is a call that allocates addresses, from before it is sent until its
// outcome is known.
type allocationCall struct {
	what operation
	had  int // addresses before it
}

// nodeCall is a call of the provider for one node.
type nodeCall[T any] struct {
	name string
	do   func(context.Context, NetResourceOperations) (T, error)
	keys []string       // addresses that it releases
	late func(T, error) // nil: the node is maintained again
	wait time.Duration
}

func (c nodeCall[T]) run(ctx context.Context, n *NetResource) (T, error) {
	n.mu.Lock()
	ops, err := n.ops, n.opsError
	n.mu.Unlock()
	if ops == nil {
		var none T
		return none, fmt.Errorf("call %s for node %s, which the provider does not serve yet: %w", c.name, n.name, err)
	}
	if c.late == nil {
		c.late = func(T, error) { n.manager.maintain.Add(n.name, "late", 0) }
	}
	return request[T]{
		operation: operation{c.name, n.name}, keys: c.keys, late: c.late, wait: c.wait,
		do: func(ctx context.Context) (T, error) { return c.do(ctx, ops) },
	}.run(ctx, n.manager.calls)
}

// notifyProvider passes the newest version of the NetResourceSet to the provider. If
// the call returns late, the version that is the newest then follows.
func (n *NetResource) notifyProvider(wait time.Duration) {
	l, err := nodeCall[limits]{
		name: opUpdated, wait: wait,
		do: func(_ context.Context, ops NetResourceOperations) (limits, error) {
			n.tell(ops)
			return limitsOf(ops), nil
		},
		late: func(limits, error) {
			if n.manager.Get(n.name) == n {
				n.updated()
			}
		},
	}.run(context.Background(), n)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.updateError = ""; err != nil {
		n.updateError = err.Error()
		return
	}
	n.limits = l
}

// tell passes the newest version of the NetResourceSet to the provider.
func (n *NetResource) tell(ops NetResourceOperations) {
	newest := n.ResourceCopy()
	ops.UpdatedNode(newest)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = newest.UID
}

// isTold reports whether the provider knows a version of the present NetResourceSet.
func (n *NetResource) isTold() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.told == n.resource.UID
}

// read returns the provider's state of the node.
func (n *NetResource) read(ctx context.Context, wait time.Duration) (view, error) {
	return nodeCall[view]{
		name: opNode, wait: wait,
		do: func(ctx context.Context, ops NetResourceOperations) (v view, err error) {
			if !n.isTold() { // otherwise it answers for the machine of an earlier one
				n.tell(ops)
			}
			if v.available, err = ops.ResyncInterfacesAndIPs(ctx, n.log); err == nil {
				v.limits = limitsOf(ops)
			}
			return v, err
		},
	}.run(ctx, n)
}

// populated returns a copy of r with the provider's fields of the status.
func (n *NetResource) populated(ctx context.Context, r *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	return nodeCall[*v1alpha1.NetResourceSet]{
		name: opPopulate,
		do: func(_ context.Context, ops NetResourceOperations) (*v1alpha1.NetResourceSet, error) {
			own := r.DeepCopy() // a call that hangs may still write to it
			ops.PopulateStatusFields(own)
			return own, nil
		},
	}.run(ctx, n)
}

// prepareAllocation returns the provider's plan for more addresses.
func (n *NetResource) prepareAllocation(ctx context.Context) (*AllocationAction, error) {
	a, err := nodeCall[*AllocationAction]{
		name: opPrepareAllocation,
		do: func(_ context.Context, ops NetResourceOperations) (*AllocationAction, error) {
			return ops.PrepareIPAllocation(n.log)
		},
	}.run(ctx, n)
	if err == nil && a == nil {
		err = fmt.Errorf(
			"call %s for node %s: neither an action nor an error: want one of them",
			opPrepareAllocation,
			n.name,
		)
	}
	return a, err
}

// prepareRelease returns the provider's choice of addresses to release.
func (n *NetResource) prepareRelease(ctx context.Context, excess int) (*ReleaseAction, error) {
	return nodeCall[*ReleaseAction]{
		name: opPrepareRelease,
		do: func(_ context.Context, ops NetResourceOperations) (*ReleaseAction, error) {
			return ops.PrepareIPRelease(excess, n.log), nil
		},
	}.run(ctx, n)
}

// allocated holds the result of CreateInterface.
type allocated struct {
	addresses int
	phrase    string
}

// allocateMore makes a call that allocates addresses. No other one follows before its
// outcome is known.
func (n *NetResource) allocateMore(
	ctx context.Context,
	name string,
	do func(context.Context, NetResourceOperations) (allocated, error),
) (allocated, error) {
	n.mu.Lock()
	t := &allocationCall{operation{name, n.name}, addressesOf(n.available)}
	n.unresolved = t
	n.mu.Unlock()
	m, err := nodeCall[allocated]{
		name: name, do: do,
		late: func(allocated, error) {
			n.readBack()
			n.resolved(t)
		},
	}.run(ctx, n)
	if !errors.Is(err, ErrUnknownOutcome) { // if it is ErrUnderWay, there was no call
		n.resolved(t)
	}
	return m, err
}

// resolved records that the outcome of a call is known, unless a later call is
// unresolved.
func (n *NetResource) resolved(t *allocationCall) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unresolved == t {
		n.unresolved = nil
	}
}

// readBack is called when a call that changes the provider has returned late. The
// provider is read before the next decision, also for another node that has got this
// name in the meantime.
func (n *NetResource) readBack() {
	m := n.manager
	if now := m.Get(n.name); now != nil {
		now.mu.Lock()
		now.waitsFor = m.config.Now()
		now.mu.Unlock()
	}
	m.resync.Add(resyncKey, "late", 0)
}

// resolve ends an unresolved call if a later reading of the provider shows its
// addresses. A reading without them proves nothing: they may still come. The caller
// holds mu.
func (n *NetResource) resolve() {
	if n.unresolved == nil || !n.waitsFor.IsZero() || addressesOf(n.available) <= n.unresolved.had {
		return
	}
	n.manager.calls.resolve(n.unresolved.what)
	n.unresolved = nil
}

// checkUnresolved returns an error while the outcome of an allocation is not known.
func (n *NetResource) checkUnresolved() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unresolved == nil {
		return nil
	}
	return fmt.Errorf(
		"call %s: %w, and the provider does not show its outcome: nothing more is allocated until it does",
		n.unresolved.what,
		ErrUnderWay,
	)
}

// releaseIPs makes the call that releases addresses.
func (n *NetResource) releaseIPs(ctx context.Context, a *ReleaseAction) error {
	gone := func() {
		node := n.manager.Get(n.name) // another one if n was deleted in the meantime
		if node == nil {
			return
		}
		now := n.manager.config.Now()
		node.mu.Lock()
		defer node.mu.Unlock()
		for _, key := range a.IPsToRelease {
			node.release.gone[key] = now
		}
	}
	_, err := nodeCall[struct{}]{
		name: opRelease, keys: a.IPsToRelease,
		do: func(ctx context.Context, ops NetResourceOperations) (struct{}, error) {
			return struct{}{}, ops.ReleaseIPs(ctx, a)
		},
		late: func(_ struct{}, err error) {
			if err == nil {
				gone()
			}
			n.readBack()
		},
	}.run(ctx, n)
	if err == nil {
		gone()
	}
	return err
}

// addressesOf counts the addresses of both families.
func addressesOf(all v1alpha1.AllocationMap) int {
	s := tally(all, nil)
	return s.v4 + s.v6
}
