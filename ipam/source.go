// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// SourceDeps holds the dependencies and parameters of a Source.
type SourceDeps struct {
	Store kvdb.Store // required: of the cluster; plugins/kubestate/apistore opens that of an API server
	Node  string     // required: the name of the node, and of its NetResourceSet
	// InstanceID is the provider's name of the machine, for a new NetResourceSet; "": the
	// last element of Node.spec.providerID.
	InstanceID string
	Marks      *kv.NetResourceMarks               // of a new NetResourceSet; nil: the operator's defaults
	Ledger     *ledger.Ledger                     // to allocate from; nil: one in memory
	Metrics    *Metrics                           // of the IPAM; nil: none
	CIDRs      func(ipv4CIDRs, ipv6CIDRs []*CIDR) // receives the CIDRs that pods have addresses of; may be nil
	Log        *slog.Logger                       // nil: none
	Now        func() time.Time                   // nil: time.Now
	Every      time.Duration                      // least time between two reports of mere use; 0: a second
	// NoWait is set if the program calls Ready itself, before it restores addresses. Otherwise
	// NewIPAM does not return before the node has addresses.
	NoWait bool
}

const waitReport = 5 * time.Second // period in which a start that waits tells the reason

// Source connects an IPAM with the NetResourceSet of its node: it is the Owner and the
// K8sEventRegister of NewIPAM. It creates the NetResourceSet of an existing Node, and passes
// its versions to the subscribers. As soon as RestoreFinished was called, it writes the use
// of the addresses and the node's part of their release.
//
// Its goroutines start with the subscription of the IPAM and end with its context, or with
// Close, which waits for them. A node whose NetResourceSet is deleted allocates nothing
// until there is another one.
type Source struct {
	deps SourceDeps
	ctx  context.Context
	stop context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	closed bool
	exists chan struct{} // closed when a NetResourceSet was received
}

var (
	_ Owner            = (*Source)(nil)
	_ K8sEventRegister = (*Source)(nil)
	_ LedgerOwner      = (*Source)(nil)
	_ MetricsOwner     = (*Source)(nil)
)

// NewSource returns a Source. It sends no request yet. The Store stays the caller's, who
// closes it after the Source.
func NewSource(ctx context.Context, deps SourceDeps) (*Source, error) {
	switch {
	case deps.Store == nil:
		return nil, errors.New("make a source of NetResourceSets: a store is needed: SourceDeps.Store")
	case deps.Node == "":
		return nil, errors.New("make a source of NetResourceSets: the name of the node is needed: SourceDeps.Node")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	s := &Source{deps: deps, exists: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(ctx)
	return s, nil
}

// Close ends the Source and waits for its goroutines.
func (s *Source) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
	return nil
}

// Ledger returns the ledger that the IPAM allocates from; nil: one in memory.
func (s *Source) Ledger() *ledger.Ledger { return s.deps.Ledger }

// Metrics returns the metrics of the IPAM, or nil.
func (s *Source) Metrics() *Metrics { return s.deps.Metrics }

// ResourceType returns the name of the resource.
func (s *Source) ResourceType() string { return "NetResourceSet" }

// LocalAllocCIDRsUpdated passes the CIDRs to SourceDeps.CIDRs.
func (s *Source) LocalAllocCIDRsUpdated(ipv4AllocCIDRs, ipv6AllocCIDRs []*CIDR) {
	if s.deps.CIDRs != nil {
		s.deps.CIDRs(ipv4AllocCIDRs, ipv6AllocCIDRs)
	}
}

// UpdateNetResourceSetResource waits until the node has a NetResourceSet, or until the
// Source ends. The Source of a subscribed IPAM creates it.
func (s *Source) UpdateNetResourceSetResource() {
	select {
	case <-s.exists:
	case <-s.ctx.Done():
	}
}

// await waits until an IPAM is Ready, or until the Source ends. With the blocks of an earlier
// process it does not wait: a restart needs no remote system.
func (s *Source) await(m *IPAM) {
	for !s.deps.NoWait && len(m.stats()) == 0 {
		ctx, cancel := context.WithTimeout(s.ctx, waitReport)
		err := m.Ready(ctx)
		cancel()
		if err == nil || s.ctx.Err() != nil {
			return
		}
		s.deps.Log.Info("the start waits for addresses of this node", "node", s.deps.Node, "reason", err)
	}
}

// K8sEventReceived counts an event.
func (s *Source) K8sEventReceived(_, scope, action string, valid, equal bool) {
	s.deps.Metrics.received(scope, action, valid, equal)
}

// K8sEventProcessed counts a processed event.
func (s *Source) K8sEventProcessed(scope, action string, status bool) {
	s.deps.Metrics.processed(scope, action, status)
}

// RegisterNetResourceSetSubscriber passes each version of the node's NetResourceSet to sub,
// and reports the use of its addresses if sub is an IPAM's. It does nothing after Close.
func (s *Source) RegisterNetResourceSetSubscriber(sub NetResourceSetSubscriber) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	f := &following{source: s, to: sub}
	if own, ok := sub.(subscriber); ok {
		f.ipam = own.m
		if f.ipam.deps.Name != s.deps.Node {
			s.deps.Log.Error("the IPAM has another node's name: it receives nothing",
				"ipam", f.ipam.deps.Name, "source", s.deps.Node)
		}
		reporter := nodeset.NewReporter(nodeset.ReporterDeps{
			Log:       s.deps.Log,
			Node:      s.deps.Node,
			Allocator: f,
			Store:     s.deps.Store,
			Now:       s.deps.Now,
			Every:     s.deps.Every,
		})
		s.work.Go(func() { _ = reporter.Run(s.ctx) }) // ends only with its context
	}
	s.work.Go(func() {
		nodeset.Follow(s.ctx, nodeset.FollowDeps{
			Log:   s.deps.Log,
			Store: s.deps.Store,
			Node:  s.deps.Node,
		}, f.apply)
	})
}

// following passes the versions to one subscriber. It is the nodeset.Allocator of an IPAM.
type following struct {
	source *Source
	to     NetResourceSetSubscriber
	ipam   *IPAM           // nil: to is not an IPAM's
	last   *NetResourceSet // of Follow's goroutine; nil: none

	mu      sync.Mutex
	granted *nodeset.Granted // nil: no version was applied yet
}

var _ nodeset.Allocator = (*following)(nil)

// apply passes a version. Without a set nothing may be allocated: its addresses may be
// another node's soon. A version that differs only by the node's own report is not passed
// to an IPAM.
func (f *following) apply(ctx context.Context, v nodeset.Version) error {
	if f.ipam != nil && f.last != nil && v.Set != nil && f.grantsTheSame(v.Set) {
		f.note(nodeset.Granted{Set: v.Set, Revision: v.Revision})
		return nil
	}
	var set *NetResourceSet
	var err error
	switch last := f.last; {
	case v.Set == nil && last != nil:
		err = f.to.OnDeleteNetResourceSet(last)
	case v.Set == nil && f.ipam != nil: // with the blocks of an earlier process
		err = f.ipam.Update(ctx, &NetResourceSet{Name: f.source.deps.Node})
	case v.Set == nil:
	default:
		set = setOf(v.Set)
		set.Name = f.source.deps.Node
		if last == nil {
			err = f.to.OnAddNetResourceSet(set)
		} else {
			err = f.to.OnUpdateNetResourceSet(last, set)
		}
	}
	if err != nil {
		return err
	}
	f.last = set
	f.note(nodeset.Granted{Set: v.Set, Revision: v.Revision})
	return nil
}

// grantsTheSame reports whether set differs from the version before only by the report.
func (f *following) grantsTheSame(set *kv.NetResourceSet) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return nodeset.SameGrants(f.granted.Set, set) && proto.Equal(f.granted.Set.Marks, set.Marks)
}

// note records a version that was applied.
func (f *following) note(g nodeset.Granted) {
	f.mu.Lock()
	f.granted = &g
	f.mu.Unlock()
	if g.Set != nil {
		f.source.found()
	}
	if f.ipam != nil {
		f.ipam.poke()
	}
}

// found notes that a NetResourceSet exists.
func (s *Source) found() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.exists:
	default:
		close(s.exists)
	}
}

// Granted returns the version that the IPAM has applied.
func (f *following) Granted() (nodeset.Granted, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.granted == nil || f.granted.Set != nil && !f.ipam.isRestored() {
		return nodeset.Granted{}, false
	}
	return *f.granted, true
}

// Changed receives after each change of the IPAM.
func (f *following) Changed() <-chan struct{} { return f.ipam.changed }

// First returns the NetResourceSet to create, with the addresses or CIDRs that are in use.
func (f *following) First(node *kv.Node) *kv.NetResourceSet {
	d, m := f.source.deps, f.ipam
	set := nodeset.First(node, d.InstanceID, d.Marks, m.deps.Ledger, m.pool.Name)
	if m.mode != ClusterPool {
		return set
	}
	set.Pool = nil
	for _, b := range m.stats() {
		if b.Held+b.Cooling+b.Quarantined > 0 {
			set.PodCidrs = append(set.PodCidrs, b.Block.String())
		}
	}
	return set
}

// Report returns set with the state of the IPAM.
func (f *following) Report(
	ctx context.Context,
	_ nodeset.Granted,
	set *kv.NetResourceSet,
) (*kv.NetResourceSet, error) {
	f.ipam.change.Lock()
	defer f.ipam.change.Unlock()
	return f.ipam.report(ctx, set)
}
