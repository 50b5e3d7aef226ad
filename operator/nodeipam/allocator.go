// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/runner"
)

var (
	// ErrQuarantined is wrapped if a node's podCIDRs are wrong. The allocator does
	// nothing for the node before its object or the cloud changes.
	ErrQuarantined = errors.New("node is quarantined")
	// ErrMode is returned for a node in a state that its mode does not support.
	ErrMode = errors.New("invalid mode")
)

// Allocator implements all types. Use NewAllocator.
type Allocator struct {
	deps        Deps
	settings    Settings
	api         nodeAPI
	lister      corelisters.NodeLister // none before Run
	mode        mode
	assigned    *assignments
	gate        *runner.Gate
	claims      *claimReader
	reports     *reports
	metrics     *metrics
	log         *slog.Logger
	term        string
	withdrawals atomic.Uint64 // numbers them within a term
	names       nameLocks
	queue       *runner.Queue // names of nodes
	policies    requeuePolicies
	busy        atomic.Bool          // a run has begun and has not ended
	running     atomic.Bool          // it assigns CIDRs
	warned      map[netip.Prefix]int // of the audit: how full a range was

	loading sync.Mutex // held while the blocks of all nodes are read
	loaded  bool
}

var _ CIDRAllocator = (*Allocator)(nil)

// mode selects the behaviour of a type.
type mode interface {
	// reconcile brings a node to the state that the mode wants. An error is retried.
	reconcile(ctx context.Context, node *v1.Node) error
	// allocates reports whether the mode chooses the blocks.
	allocates() bool
	// pins is true where a node may get, by other ways than its podCIDRs, what
	// it was once offered.
	pins() bool
	// requeuePolicy returns a new policy for one node.
	requeuePolicy() requeuePolicy
}

// NewAllocator makes an Allocator of the type that the settings name.
func NewAllocator(deps Deps, settings Settings) (*Allocator, error) {
	deps, settings = deps.withDefaults(), settings.withDefaults()
	a := &Allocator{
		warned:   map[netip.Prefix]int{},
		deps:     deps,
		settings: settings,
		log:      deps.Log,
		term:     deps.Instance,
		queue: runner.NewQueue(
			0,
			nil,
			nil,
		),
		api:    apiServer{deps.Client, settings.CallTimeout},
		gate:   gateOf(deps.Fence, settings.CallTimeout),
		claims: newClaimReader(deps.Claims, settings.CallTimeout),
	}
	var set *blocks.Set
	var err error
	switch settings.Type {
	case RangeAllocatorType:
		a.mode = &rangeMode{a}
		set, err = settings.newSet()
	case IPAMFromClusterAllocatorType:
		a.mode = &clusterMode{cloudBase{a}}
		set, err = settings.newSet()
	case IPAMFromCloudAllocatorType:
		a.mode = &fromCloudMode{cloudBase{a}}
		set, err = everything(settings.Policy)
	case CloudAllocatorType:
		a.mode = &cloudMode{cloudBase{a}}
		set, err = everything(settings.Policy)
	default:
		return nil, fmt.Errorf("make a CIDR allocator: invalid type %q", settings.Type)
	}
	if err == nil && settings.Type != RangeAllocatorType && deps.Cloud == nil {
		err = errors.New("it needs a cloud")
	}
	if err == nil && a.mode.allocates() && len(settings.Ranges) == 0 {
		err = errors.New("it needs a cluster CIDR")
	}
	if err == nil && a.mode.allocates() {
		err = settings.checkLimits()
	}
	if err != nil {
		return nil, fmt.Errorf("make a CIDR allocator of type %s: %w", settings.Type, err)
	}
	// A process may make several Allocators in one term: no two write the same.
	a.term += " " + strconv.FormatUint(uint64(deps.Random()*(1<<53)), 36)
	if deps.Fence != nil {
		a.term = deps.Fence.Term() + " " + a.term
	}
	if deps.Nodes != nil {
		// A factory starts the informers that were asked for before its Start,
		// and callers of the published API start it before they call Run.
		deps.Nodes.Informer()
	}
	a.assigned = newAssignments(set, deps.Now)
	a.reports = newReports(a.api, deps)
	a.metrics = newMetrics(a.assigned, a.reports, a.running.Load)
	return a, nil
}

// everything returns a Set for modes that choose no blocks: every CIDR is in one of
// two ranges, so that two nodes with one CIDR are noticed.
func everything(policy blocks.Policy) (*blocks.Set, error) {
	set := blocks.New(policy)
	for i, r := range []blocks.Range{
		{Prefix: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Bits: 24},
		{Prefix: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Bits: 64},
	} {
		r.Pool = i
		if err := errors.Join(set.AddRange(r), set.DrainRange(r.Prefix)); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// AllocateOrOccupyCIDR implements CIDRAllocator: it records the CIDRs of a node
// that has some, and else gives it some, and returns when its Node object has
// them. It may be repeated.
func (a *Allocator) AllocateOrOccupyCIDR(node *v1.Node) error {
	if node == nil {
		return nil
	}
	ctx := context.Background()
	if err := a.load(ctx); err != nil {
		return err
	}
	defer a.names.lock(node.Name)()
	if err := a.mode.reconcile(ctx, node); err != nil {
		return fmt.Errorf("allocate or occupy the CIDRs of node %q: %w", node.Name, err)
	}
	return nil
}

// ReleaseCIDR implements CIDRAllocator: it frees the CIDRs of a node that is
// gone. It returns an error, and frees nothing, while the API server still has that Node
// object. A node without CIDRs is not an error.
func (a *Allocator) ReleaseCIDR(node *v1.Node) error {
	if node == nil {
		return nil
	}
	ctx := context.Background()
	if err := a.load(ctx); err != nil {
		return err
	}
	defer a.names.lock(node.Name)()
	gone, err := a.releaseIfGone(ctx, ownerOf(node))
	if err != nil {
		return err
	}
	if !gone {
		return fmt.Errorf("release the CIDRs of node %q: the API server still has it", node.Name)
	}
	return nil
}

// releaseIfGone releases what o has, if the API server has no such object any more. A
// cache is not asked: it may lag, and may even be set back by a relist.
func (a *Allocator) releaseIfGone(ctx context.Context, o blocks.Owner) (gone bool, err error) {
	live, err := a.live(ctx, o)
	if err != nil {
		return false, fmt.Errorf("release the CIDRs of node %q: look whether it is gone: %w", o.Name, err)
	}
	if live != nil {
		return false, nil
	}
	a.release(o)
	return true, nil
}

// release frees what o, which is gone, has had.
func (a *Allocator) release(o blocks.Owner) {
	blocks, shared := a.assigned.release(o)
	a.reports.gone(o)
	if len(blocks) > 0 {
		a.log.Info("node is gone; its CIDRs are released", "node", o.Name, "cidrs", blocks)
	}
	for _, c := range shared { // they may be alone with it now
		a.enqueue(c.Holder.Name)
	}
	a.wake()
}

// wake looks again at all nodes for which nothing was left.
func (a *Allocator) wake() {
	for _, name := range a.reports.waitingNodes() {
		a.enqueue(name)
	}
}

// AddRange adds a range while the allocator runs.
func (a *Allocator) AddRange(r blocks.Range) error {
	return a.change(func(s *blocks.Set) error { return s.AddRange(r) })
}

// DrainRange stops giving blocks of a range; nodes keep those that they have.
func (a *Allocator) DrainRange(p netip.Prefix) error {
	return a.change(func(s *blocks.Set) error { return s.DrainRange(p) })
}

// ResumeRange is the reverse of DrainRange.
func (a *Allocator) ResumeRange(p netip.Prefix) error {
	return a.change(func(s *blocks.Set) error { return s.ResumeRange(p) })
}

// RemoveRange removes a range of which no node has anything and nothing cools.
func (a *Allocator) RemoveRange(p netip.Prefix) error {
	return a.change(func(s *blocks.Set) error {
		s.Stat(a.deps.Now()) // what has cooled is free
		return s.RemoveRange(p)
	})
}

// ResizeRange changes the size of the blocks that new nodes get of a range.
func (a *Allocator) ResizeRange(p netip.Prefix, bits int) error {
	return a.change(func(s *blocks.Set) error { return s.Resize(p, bits) })
}

func (a *Allocator) change(f func(*blocks.Set) error) error {
	if err := a.assigned.change(f); err != nil {
		return fmt.Errorf("change the cluster's ranges: %w", err)
	}
	a.logCapacity()
	a.wake()
	for _, p := range a.reports.list() {
		a.enqueue(p.Node)
	}
	return nil
}

// Status holds the state of an Allocator.
type Status struct {
	Leading  bool
	Book     blocks.Stat
	Waiting  []string // nodes for which no block is free
	Problems []Problem
}

// Status returns the state of the Allocator.
func (a *Allocator) Status() Status {
	return Status{a.running.Load(), a.assigned.stat(), a.reports.waitingNodes(), a.reports.list()}
}

// Metrics are upstream's and our own, to be registered once.
func (a *Allocator) Metrics() prometheus.Collector { return a.metrics }
