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

// Operations of the provider, as errors and metrics name them.
const (
	opCreate    = "CreateNetResource"
	opForget    = "Forget"
	opQuota     = "GetPoolQuota"
	opRead      = "Resync"
	opUpdated   = "UpdatedNode"
	opPopulate  = "PopulateStatusFields"
	opNode      = "ResyncInterfacesAndIPs"
	opPlanTake  = "PrepareIPAllocation"
	opTake      = "AllocateIPs"
	opInterface = "CreateInterface"
	opPlanGive  = "PrepareIPRelease"
	opGive      = "ReleaseIPs"
)

// limits holds what the getters of the provider say of a node. They are asked
// together with another call, since a getter may hang as well.
type limits struct {
	most, least, burst int
	prefixes           bool
	used               int // with all addresses of used prefixes
}

func limitsOf(ops NetResourceOperations) limits {
	l := limits{
		most: ops.GetMaximumAllocatableIPv4(), least: ops.GetMinimumAllocatableIPv4(), burst: ops.GetMaximumBurstableAllocatableIPv4(),
		prefixes: ops.IsPrefixDelegated(),
	}
	if l.prefixes {
		l.used = ops.GetUsedIPWithPrefixes()
	}
	return l
}

// view holds what the provider says of a node.
type view struct {
	available v1alpha1.AllocationMap
	limits    limits
}

// taken is a call that takes addresses, from before it is made until its outcome
// is known.
type taken struct {
	what operation
	had  int // addresses before it
}

// nodeCall is a call of the provider for one node.
type nodeCall[T any] struct {
	name string
	do   func(context.Context, NetResourceOperations) (T, error)
	keys []string       // what it gives back
	late func(T, error) // nil: the node is looked at again
	wait time.Duration
}

func (c nodeCall[T]) ask(ctx context.Context, n *NetResource) (T, error) {
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
	}.ask(ctx, n.manager.calls)
}

// tell has the provider know the newest version of the NetResourceSet. If a call
// returns late, the version that is the newest then is told.
func (n *NetResource) tell(wait time.Duration) {
	l, err := nodeCall[limits]{
		name: opUpdated, wait: wait,
		do: func(_ context.Context, ops NetResourceOperations) (limits, error) {
			ops.UpdatedNode(n.ResourceCopy())
			return limitsOf(ops), nil
		},
		late: func(limits, error) {
			if n.manager.Get(n.name) == n {
				n.updated()
			}
		},
	}.ask(context.Background(), n)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.updateError = ""; err != nil {
		n.updateError = err.Error()
		return
	}
	n.limits = l
}

// read asks the provider's view what the node has.
func (n *NetResource) read(ctx context.Context, wait time.Duration) (view, error) {
	return nodeCall[view]{
		name: opNode, wait: wait,
		do: func(ctx context.Context, ops NetResourceOperations) (v view, err error) {
			if v.available, err = ops.ResyncInterfacesAndIPs(ctx, n.log); err == nil {
				v.limits = limitsOf(ops)
			}
			return v, err
		},
	}.ask(ctx, n)
}

// populated returns a copy of r with what of the status is the provider's.
func (n *NetResource) populated(ctx context.Context, r *v1alpha1.NetResourceSet) (*v1alpha1.NetResourceSet, error) {
	return nodeCall[*v1alpha1.NetResourceSet]{
		name: opPopulate,
		do: func(_ context.Context, ops NetResourceOperations) (*v1alpha1.NetResourceSet, error) {
			own := r.DeepCopy() // a call that hangs may still write to it
			ops.PopulateStatusFields(own)
			return own, nil
		},
	}.ask(ctx, n)
}

// whereToTake asks where addresses can come from.
func (n *NetResource) whereToTake(ctx context.Context) (*AllocationAction, error) {
	a, err := nodeCall[*AllocationAction]{
		name: opPlanTake,
		do: func(_ context.Context, ops NetResourceOperations) (*AllocationAction, error) {
			return ops.PrepareIPAllocation(n.log)
		},
	}.ask(ctx, n)
	if err == nil && a == nil {
		err = fmt.Errorf("call %s for node %s: neither an action nor an error: want one of them", opPlanTake, n.name)
	}
	return a, err
}

// whatToGive asks what the node can best do without.
func (n *NetResource) whatToGive(ctx context.Context, excess int) (*ReleaseAction, error) {
	return nodeCall[*ReleaseAction]{
		name: opPlanGive,
		do: func(_ context.Context, ops NetResourceOperations) (*ReleaseAction, error) {
			return ops.PrepareIPRelease(excess, n.log), nil
		},
	}.ask(ctx, n)
}

// made holds the result of CreateInterface.
type made struct {
	addresses int
	phrase    string
}

// takeMore makes a call that takes addresses. As long as its outcome is not known, no
// other one is made.
func (n *NetResource) takeMore(ctx context.Context, name string, do func(context.Context, NetResourceOperations) (made, error)) (made, error) {
	n.mu.Lock()
	t := &taken{operation{name, n.name}, addressesOf(n.available)}
	n.unresolved = t
	n.mu.Unlock()
	m, err := nodeCall[made]{
		name: name, do: do,
		late: func(made, error) {
			n.readBack()
			n.isKnown(t)
		},
	}.ask(ctx, n)
	if !errors.Is(err, ErrUnknownOutcome) { // if it is ErrUnderWay, there was no call
		n.isKnown(t)
	}
	return m, err
}

// isKnown ends the doubt about a call. There may be one about a later call.
func (n *NetResource) isKnown(t *taken) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unresolved == t {
		n.unresolved = nil
	}
}

// readBack is called when a call that changes something at the provider has
// returned late. What it has done is read before anything is decided, also for a
// node that has got the name of this one in the meantime.
func (n *NetResource) readBack() {
	m := n.manager
	if now := m.Get(n.name); now != nil {
		now.mu.Lock()
		now.waitsFor = m.config.Now()
		now.mu.Unlock()
	}
	m.resync.Add(resyncKey, "late", 0)
}

// resolve looks whether a reading of the provider from after a call that has not
// returned shows what it has done. That there is nothing new says nothing: it may
// still come. mu is held.
func (n *NetResource) resolve() {
	if n.unresolved == nil || !n.waitsFor.IsZero() || addressesOf(n.available) <= n.unresolved.had {
		return
	}
	n.manager.calls.resolve(n.unresolved.what)
	n.unresolved = nil
}

// inDoubt returns an error while the outcome of a call that takes addresses is not known.
func (n *NetResource) inDoubt() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unresolved == nil {
		return nil
	}
	return fmt.Errorf("call %s: %w, and the provider does not show what it has done: no more addresses are taken until then", n.unresolved.what, ErrUnderWay)
}

// giveUp makes the call that gives addresses back.
func (n *NetResource) giveUp(ctx context.Context, a *ReleaseAction) error {
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
		name: opGive, keys: a.IPsToRelease,
		do: func(ctx context.Context, ops NetResourceOperations) (struct{}, error) {
			return struct{}{}, ops.ReleaseIPs(ctx, a)
		},
		late: func(_ struct{}, err error) {
			if err == nil {
				gone()
			}
			n.readBack()
		},
	}.ask(ctx, n)
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
