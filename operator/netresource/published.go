// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

// Names of the published calls in errors and metrics.
const (
	opCreate            = "CreateNetResource"
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

// ErrUnderWay is returned instead of a call of a published provider for a node while an
// earlier one, whose deadline is over, has not returned.
var ErrUnderWay = errors.New("netresource: an earlier call has not returned")

// OverdueObserver is implemented by a MetricsAPI that shows how many calls of each operation
// of a published provider are past their deadline and have not returned.
type OverdueObserver interface {
	SetOverdueCalls(operation string, calls int)
}

// published is a Provider over a published one, whose calls may ignore their contexts or have
// none. Each call has its own goroutine. One that goes on after its deadline is left: nothing
// more is called for its node before it has returned, and then the provider is read.
type published struct {
	impl     AllocationImplementation
	manager  *NetResourceSetManager
	observer OverdueObserver // may be nil

	mu      sync.Mutex
	running map[string]*running // by node; by operation for calls that are for all nodes
	overdue map[string]int      // calls that were left, by operation
}

// running is a call that has not returned. published.mu guards name and left.
type running struct {
	p        *published
	key      string // in published.running
	name     string // of the operation
	since    time.Time
	returned chan struct{}
	left     bool     // nobody waits for it
	gone     []string // addresses that it has released
}

func newPublished(m *NetResourceSetManager) *published {
	observer, _ := m.config.Metrics.(OverdueObserver)
	return &published{
		impl: m.config.Instances, manager: m, observer: observer,
		running: map[string]*running{}, overdue: map[string]int{},
	}
}

// run makes calls for a key, one after the other. The error is ErrUnknownOutcome if they go on
// although ctx has ended.
func run[T any](ctx context.Context, p *published, key string, do func(*running) (T, error)) (answer T, err error) {
	x, err := p.begin(key)
	if err != nil {
		return answer, err
	}
	var value T
	var failed error
	go func() {
		done := false
		defer close(x.returned)
		defer func() {
			if !done {
				failed = fmt.Errorf("call %s: %w: it has ended its goroutine", x, ErrPanicked)
			}
			p.end(x)
		}()
		value, failed = guarded(p.manager.config.Log, x, func() (T, error) { return do(x) })
		done = true
	}()
	select {
	case <-x.returned:
		return value, failed
	case <-ctx.Done(): // it may heed it
	}
	enough := time.NewTimer(p.manager.short())
	defer enough.Stop()
	select {
	case <-x.returned:
	case <-enough.C:
		if p.leave(x) {
			return answer, fmt.Errorf("call %s: %w", x, ErrUnknownOutcome)
		}
		<-x.returned
	}
	return value, failed
}

func (p *published) begin(key string) (*running, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if before := p.running[key]; before != nil {
		return nil, fmt.Errorf("%w: call %s, since %s", ErrUnderWay, before.text(), before.since.Format(time.RFC3339))
	}
	x := &running{p: p, key: key, name: key, since: p.manager.config.Now(), returned: make(chan struct{})}
	p.running[key] = x
	return x, nil
}

// begins names the next call, unless nobody waits for it any more.
func (x *running) begins(ctx context.Context, name string) error {
	x.p.mu.Lock()
	defer x.p.mu.Unlock()
	if x.left {
		return ErrUnknownOutcome
	}
	x.name = name
	return ctx.Err()
}

// String returns the name of the call and that of its node.
func (x *running) String() string {
	x.p.mu.Lock()
	defer x.p.mu.Unlock()
	return x.text()
}

func (x *running) text() string {
	if x.key == x.name {
		return x.name
	}
	return x.name + " for node " + x.key
}

// leave stops waiting for a call, and reports whether it has not returned.
func (p *published) leave(x *running) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[x.key] != x {
		return false
	}
	x.left = true
	p.count(x.name, 1)
	p.manager.config.Log.Warn(
		"a call of the provider is past its deadline: other nodes go on, and its outcome is read back",
		"call",
		x.text(),
	)
	return true
}

// end is called when a call has returned. What one that was left has done is read back before
// another one can begin.
func (p *published) end(x *running) {
	p.mu.Lock()
	if !x.left {
		delete(p.running, x.key)
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	p.manager.readBack(x.key, x.gone)
	p.mu.Lock()
	delete(p.running, x.key)
	p.count(x.name, -1)
	p.mu.Unlock()
	p.manager.resync.Add(resyncKey, "late", 0)
}

func (p *published) count(name string, by int) {
	p.overdue[name] += by
	if p.observer != nil {
		p.observer.SetOverdueCalls(name, p.overdue[name])
	}
}

// close waits for the calls that run, a sixth of CallTimeout at most. The error names those that have not returned.
func (p *published) close() error {
	p.mu.Lock()
	all := maps.Clone(p.running)
	p.mu.Unlock()
	enough := time.NewTimer(p.manager.config.CallTimeout / 6)
	defer enough.Stop()
	for key, x := range all {
		select {
		case <-x.returned:
			delete(all, key)
		case <-enough.C:
			enough.Reset(0)
		}
	}
	if len(all) == 0 {
		return nil
	}
	var names []string
	for _, x := range all {
		names = append(names, x.String())
	}
	slices.Sort(names)
	return fmt.Errorf("close the manager of NetResourceSets: %d calls of the provider do not return: %s",
		len(all), strings.Join(names, ", "))
}

// Traits implements Provider: a published provider promises nothing.
func (p *published) Traits() Traits { return Traits{} }

// Read implements Provider.
func (p *published) Read(ctx context.Context) (time.Time, error) {
	return run(ctx, p, opRead, func(*running) (time.Time, error) {
		began := p.impl.Resync(ctx)
		if began.IsZero() {
			return began, errors.New("call Resync: it returned the zero time")
		}
		return began, nil
	})
}

// Quotas implements Provider.
func (p *published) Quotas(ctx context.Context) (v1alpha1.PoolQuotaMap, error) {
	return run(ctx, p, opQuota, func(*running) (v1alpha1.PoolQuotaMap, error) { return p.impl.GetPoolQuota(), nil })
}

// Forget implements Provider. A published provider is not told.
func (p *published) Forget(context.Context, string) error { return nil }

// runFor makes calls for the node of a NetResourceSet.
func runFor[T any](
	ctx context.Context,
	p *published,
	set *v1alpha1.NetResourceSet,
	name string,
	do func(*running, *NetResource, NetResourceOperations) (T, error),
) (T, error) {
	return run(ctx, p, set.Name, func(x *running) (none T, err error) {
		n := p.manager.Get(set.Name)
		if n == nil {
			return none, fmt.Errorf("call %s for node %s: its NetResourceSet is gone", name, set.Name)
		}
		ops := n.Ops()
		if ops == nil {
			return none, fmt.Errorf("call %s for node %s: the provider does not serve it yet", name, set.Name)
		}
		if err := x.begins(ctx, name); err != nil {
			return none, err
		}
		return do(x, n, ops)
	})
}

// State implements Provider.
func (p *published) State(ctx context.Context, set *v1alpha1.NetResourceSet) (State, error) {
	return run(ctx, p, set.Name, func(x *running) (s State, err error) {
		n := p.manager.Get(set.Name)
		if n == nil {
			return s, fmt.Errorf("read node %s: its NetResourceSet is gone", set.Name)
		}
		ops := n.Ops()
		if ops == nil {
			if err := x.begins(ctx, opCreate); err != nil {
				return s, err
			}
			if ops = p.impl.CreateNetResource(set.DeepCopy(), n); ops == nil {
				return s, ErrRefused
			}
			n.servedBy(ops)
		}
		if n.told != set {
			if err := x.begins(ctx, opUpdated); err != nil {
				return s, err
			}
			ops.UpdatedNode(set.DeepCopy())
			n.told = set
		}
		if err := x.begins(ctx, opNode); err != nil {
			return s, err
		}
		if s.Available, err = ops.ResyncInterfacesAndIPs(ctx, n.log); err != nil {
			return s, err
		}
		s.Most, s.Least = ops.GetMaximumAllocatableIPv4(), ops.GetMinimumAllocatableIPv4()
		s.Burst, s.Prefixes = ops.GetMaximumBurstableAllocatableIPv4(), ops.IsPrefixDelegated()
		if s.Prefixes {
			s.Used = ops.GetUsedIPWithPrefixes()
		}
		if s.Available == nil { // as published providers say that there is nothing
			s.Available = v1alpha1.AllocationMap{}
			if len(n.Pool())+len(set.Spec.IPAM.Pool) > 0 {
				return s, fmt.Errorf(
					"call %s: neither a map nor an error: want an empty map for a node that has nothing",
					x,
				)
			}
		}
		return s, nil
	})
}

// Describe implements Provider.
func (p *published) Describe(ctx context.Context, set *v1alpha1.NetResourceSet) error {
	_, err := runFor(
		ctx,
		p,
		set,
		opPopulate,
		func(_ *running, _ *NetResource, ops NetResourceOperations) (none struct{}, _ error) {
			ops.PopulateStatusFields(set)
			return none, nil
		},
	)
	return err
}

// Allocate implements Provider: on an existing interface or, if none has room or that fails, on
// a new one.
func (p *published) Allocate(ctx context.Context, set *v1alpha1.NetResourceSet, wanted int) (Allocation, error) {
	return runFor(
		ctx,
		p,
		set,
		opPrepareAllocation,
		func(x *running, n *NetResource, ops NetResourceOperations) (got Allocation, err error) {
			a, err := ops.PrepareIPAllocation(n.log)
			if err == nil && a == nil {
				err = errors.New("neither an action nor an error: want one of them")
			}
			if err != nil {
				return got, fmt.Errorf("call %s: %w", x, err)
			}
			got.Interface, got.Pool, got.Interfaces = a.InterfaceID, a.PoolID, a.AvailableInterfaces
			if room := max(a.AvailableForAllocationIPv4, a.AvailableForAllocationIPv6); room > 0 {
				err = got.fill(ctx, x, ops, a, min(room, wanted))
				if err == nil || errors.Is(err, ErrThrottled) || ctx.Err() != nil {
					return got, err
				}
			}
			if a.AvailableInterfaces == 0 {
				return got, err
			}
			if err != nil {
				n.log.Warn("creating another interface, because the first allocation has failed", "error", err)
				if err2 := p.manager.checkFence(ctx); err2 != nil {
					return got, errors.Join(err, err2)
				}
			}
			if err2 := got.extend(ctx, x, ops, a, wanted, n.log); err2 != nil {
				return got, errors.Join(err, err2)
			}
			return got, nil
		},
	)
}

// fill allocates addresses on the interface of an action.
func (got *Allocation) fill(
	ctx context.Context,
	x *running,
	ops NetResourceOperations,
	a *AllocationAction,
	most int,
) error {
	if err := x.begins(ctx, opAllocate); err != nil {
		return err
	}
	a.MaxIPsToAllocate = most
	// Published providers take what is available, and do not look at the maximum.
	a.AvailableForAllocationIPv4 = min(a.AvailableForAllocationIPv4, most)
	a.AvailableForAllocationIPv6 = min(a.AvailableForAllocationIPv6, most)
	got.Failed = "ip assignment failed"
	if err := ops.AllocateIPs(ctx, a); err != nil {
		return fmt.Errorf("allocate %d addresses of pool %q on interface %q: %w", most, a.PoolID, a.InterfaceID, err)
	}
	got.Failed, got.Addresses = "", most
	return nil
}

// extend creates an interface with addresses.
func (got *Allocation) extend(
	ctx context.Context,
	x *running,
	ops NetResourceOperations,
	a *AllocationAction,
	wanted int,
	log *slog.Logger,
) error {
	if err := x.begins(ctx, opInterface); err != nil {
		return err
	}
	a.MaxIPsToAllocate = wanted
	got.Failed = "interface creation failed"
	addresses, phrase, err := ops.CreateInterface(ctx, a, log)
	if err != nil {
		got.Failed = cmp.Or(phrase, got.Failed)
		return fmt.Errorf("create an interface with %d addresses: %w", wanted, err)
	}
	got.Failed, got.Addresses = "", addresses
	return nil
}

// Spare implements Provider.
func (p *published) Spare(ctx context.Context, set *v1alpha1.NetResourceSet, excess int) ([]string, error) {
	return runFor(
		ctx,
		p,
		set,
		opPrepareRelease,
		func(_ *running, n *NetResource, ops NetResourceOperations) ([]string, error) {
			a := ops.PrepareIPRelease(excess, n.log)
			if a == nil {
				return nil, nil
			}
			return a.IPsToRelease, nil
		},
	)
}

// Release implements Provider.
func (p *published) Release(ctx context.Context, set *v1alpha1.NetResourceSet, a *ReleaseAction) error {
	_, err := runFor(
		ctx,
		p,
		set,
		opRelease,
		func(x *running, _ *NetResource, ops NetResourceOperations) (none struct{}, err error) {
			if err = ops.ReleaseIPs(ctx, a); err == nil {
				x.gone = a.IPsToRelease
			}
			return none, err
		},
	)
	return err
}
