// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/api/watermark"
)

// NetResource holds one node. Its rounds follow each other: only the goroutine that has
// the turn calls operations that change the provider. mu guards the fields below it, and
// is not held during a call of the provider or the API server.
type NetResource struct {
	name    string
	manager *NetResourceSetManager
	log     *slog.Logger
	turn    chan struct{}            // of all nodes of the name: one that is deleted passes it on
	seen    time.Time                // when the manager first received its NetResourceSet
	told    *v1alpha1.NetResourceSet // the version that ops know; only a call of published uses it

	mu               sync.Mutex
	ops              NetResourceOperations    // of a published provider; nil: not made yet
	resource         *v1alpha1.NetResourceSet // the newest version that was seen
	state            State                    // as the provider has last reported it
	level            watermark.Level
	stats            Statistics
	known            bool      // available was read from a provider that can be read
	removed          bool      // the NetResourceSet is gone
	stopped          time.Time // when the provider did not find the instance; zero: it runs
	waitsFor         time.Time // no decision before a reading of the provider that began later; zero: decide
	failures         int       // rounds without success
	unwritten        int       // writes of the NetResourceSet without success
	retryAt          time.Time // not before then, after a failure
	lastError        string
	full             string // message of a node that can have no more
	capacityReported time.Time
	release          releases
}

func newNetResource(m *NetResourceSetManager, resource *v1alpha1.NetResourceSet, turn chan struct{}) *NetResource {
	n := &NetResource{
		name:     resource.Name,
		manager:  m,
		log:      m.config.Log.With("node", resource.Name),
		turn:     turn,
		seen:     m.config.Now(),
		resource: resource.DeepCopy(),
		release: releases{
			gone: map[string]time.Time{},
			want: map[string]handshake.Want{},
		},
	}
	n.release.doubt(resource.Status.IPAM.ReleaseIPs)
	return n
}

// acquireTurn waits until no other round of the node runs; releaseTurn lets the next
// one run.
func (n *NetResource) acquireTurn(ctx context.Context) error {
	select {
	case n.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *NetResource) releaseTurn() { <-n.turn }

func (n *NetResource) remove() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.removed = true
}

func (n *NetResource) isRemoved() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.removed
}

// newest returns the newest version of the NetResourceSet, which is only read.
func (n *NetResource) newest() *v1alpha1.NetResourceSet {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.resource
}

// UpdatedResource receives every version of the NetResourceSet. It reports whether a round
// was queued. It counts the node's deficit after the first version, unless the provider
// cannot be read or hangs.
func (n *NetResource) UpdatedResource(resource *v1alpha1.NetResourceSet) bool {
	n.accept(resource)
	return n.updated()
}

// updated counts with the newest version, unless a round runs, which does so too. It queues a
// round if one is due.
func (n *NetResource) updated() bool {
	first := !n.Known()
	select {
	case n.turn <- struct{}{}:
		ctx, cancel := context.WithTimeout(n.manager.open, n.manager.short())
		n.recalculate(ctx)
		cancel()
		n.releaseTurn()
	default:
	}
	if first {
		n.readIfNew()
		n.manager.maintain.Add(n.name, "new", 0)
		return true
	}
	if n.recount() {
		n.manager.maintain.Add(n.name, "update", 0)
		return true
	}
	n.manager.sync.Add(n.name, "update", 0)
	return false
}

// readIfNew queues a reading of the provider if it does not know the machine of a node that
// is younger than the last reading. One reading serves all nodes that come together.
func (n *NetResource) readIfNew() {
	m := n.manager
	n.mu.Lock()
	unknown := !n.stopped.IsZero()
	n.mu.Unlock()
	m.mu.Lock()
	late := m.ready && !m.begun.After(n.seen)
	m.mu.Unlock()
	if unknown && late {
		m.resync.Add(resyncKey, "new machine", 0)
	}
}

// Known reports whether the node's addresses were read from the provider. Before that,
// Stats and GetNeededAddresses mean nothing.
func (n *NetResource) Known() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known
}

// counted counts again if the node's addresses are known, and reports whether they are.
func (n *NetResource) counted() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.known {
		n.count()
	}
	return n.known
}

// recount counts again, and reports whether a round is due.
func (n *NetResource) recount() bool { return n.counted() && n.due() }

// accept keeps a version unless it has a newer one. If the NetResourceSet was made again,
// it may be that of another machine: the addresses of the first one are forgotten.
func (n *NetResource) accept(resource *v1alpha1.NetResourceSet) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.resource.UID != resource.UID {
		n.release.reset()
		n.release.doubt(resource.Status.IPAM.ReleaseIPs)
		n.known, n.state.Available, n.level, n.stopped = false, nil, watermark.Level{}, time.Time{}
		n.stats.NeededIPs, n.stats.ExcessIPs = 0, 0
		n.resource = resource.DeepCopy()
		return
	}
	n.keep(resource)
}

// learn keeps a version that the API server has answered, and reports whether it is one of
// the present NetResourceSet. One that was made again comes with its event.
func (n *NetResource) learn(resource *v1alpha1.NetResourceSet) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.resource.UID != resource.UID {
		return false
	}
	n.keep(resource)
	return true
}

// keep keeps a version of the same NetResourceSet unless it has a newer one. The caller
// holds mu.
func (n *NetResource) keep(resource *v1alpha1.NetResourceSet) {
	if isOlder(resource.ResourceVersion, n.resource.ResourceVersion) {
		return
	}
	n.release.seen(resource.Status.IPAM.ReleaseIPs)
	n.resource = resource.DeepCopy()
}

// isOlder reports whether a is a version before b; false if they cannot be compared.
func isOlder(a, b string) bool {
	x, err1 := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	return err1 == nil && err2 == nil && x < y
}

// Ops returns the operations of a published provider for the node, nil if there are none.
func (n *NetResource) Ops() NetResourceOperations {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ops
}

// servedBy records the operations for the node.
func (n *NetResource) servedBy(ops NetResourceOperations) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ops = ops
}

// InstanceID returns the provider's name of the machine.
func (n *NetResource) InstanceID() (id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.resource.Spec.InstanceID
}

// IsPrefixDelegationEnabled reports whether the node gets prefixes.
func (n *NetResource) IsPrefixDelegationEnabled() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.manager.config.PrefixDelegation && n.state.Prefixes
}

// IsRunning reports false for a minute after the provider did not find the instance, and
// after the NetResourceSet is gone.
func (n *NetResource) IsRunning() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.removed && (n.stopped.IsZero() || n.manager.config.Now().Sub(n.stopped) > time.Minute)
}

// SetRunning records that the instance exists.
func (n *NetResource) SetRunning() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped = time.Time{}
}

// Pool returns the addresses that the node may allocate from.
func (n *NetResource) Pool() (pool v1alpha1.AllocationMap) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.pool())
}

// pool returns a map that is only read: it is replaced as a whole, too.
func (n *NetResource) pool() v1alpha1.AllocationMap {
	if len(n.release.gone) == 0 {
		return n.state.Available
	}
	pool := maps.Clone(n.state.Available)
	for key := range n.release.gone {
		delete(pool, key)
	}
	return pool
}

// ResourceCopy returns a copy of the newest version of the NetResourceSet.
func (n *NetResource) ResourceCopy() *v1alpha1.NetResourceSet {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.resource.DeepCopy()
}

// Stats returns the node's counts.
func (n *NetResource) Stats() Statistics {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stats
}

// GetNeededAddresses returns the node's deficit; it is negative for an excess.
func (n *NetResource) GetNeededAddresses() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.stats.NeededIPs > 0:
		return n.stats.NeededIPs
	case n.manager.config.ReleaseExcess:
		return -n.stats.ExcessIPs
	}
	return 0
}

// due reports whether a round has something to decide.
func (n *NetResource) due() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.removed || !n.known || !n.waitsFor.IsZero() {
		return false
	}
	return n.stats.NeededIPs > 0 || n.manager.config.ReleaseExcess && n.stats.ExcessIPs > 0 ||
		len(n.resource.Status.IPAM.ReleaseIPs) > 0
}

// recalculate reads the node's addresses from the provider, and counts. The caller has the
// turn.
func (n *NetResource) recalculate(ctx context.Context) {
	readable, set := n.manager.InstancesAPIIsReady(), n.newest()
	state, err := nodeCall(ctx, n, "State", func(ctx context.Context) (State, error) {
		return n.manager.provider.State(ctx, set)
	})
	if errors.Is(err, ErrRefused) {
		n.manager.refuse(n)
	}
	now := n.manager.config.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.resource.UID != set.UID { // it was made again meanwhile
		return
	}
	if err == nil && state.Available == nil {
		err = fmt.Errorf(
			"call State for node %s: neither addresses nor an error: want an empty map for a node that has nothing",
			n.name,
		)
	}
	if err != nil {
		n.known, n.level = false, watermark.Level{}
		n.stats.NeededIPs, n.stats.ExcessIPs = 0, 0
		n.lastError = fmt.Errorf("the addresses of the node are not known: %w", err).Error()
		if errors.Is(err, ErrInstanceNotFound) && readable && n.stopped.IsZero() {
			n.stopped = now
		}
		return
	}
	n.state, n.stopped = state, time.Time{}
	if !n.known && readable {
		n.known, n.lastError = true, ""
	}
	n.count()
}

// count sets level and stats. The caller holds mu.
func (n *NetResource) count() {
	entries := n.resource.Status.IPAM.ReleaseIPs
	sum := tally(n.pool(), nil)
	v6 := sum.v4 == 0 && sum.v6 > 0 && !n.state.CountsIPv4
	n.release.v6 = v6
	var back v1alpha1.AllocationMap
	for key, state := range entries {
		if ip, ok := n.state.Available[key]; ok && handshake.GivingBack(state) {
			if back == nil {
				back = v1alpha1.AllocationMap{}
			}
			back[key] = ip
		}
	}
	used := tally(n.resource.Status.IPAM.Used, nil)
	n.level = watermark.Level{
		Total: sum.of(v6), GivingBack: tally(back, n.release.gone).of(v6), Used: used.of(v6),
	}
	marks, kept := n.marks(), n.level
	if n.state.Prefixes { // a prefix goes back only as a whole
		kept.Used = max(kept.Used, n.state.Used)
	}
	n.stats.UsedIPs, n.stats.AvailableIPs = n.level.Used, n.level.Total-n.level.GivingBack
	n.stats.NeededIPs, n.stats.ExcessIPs = marks.Needed(n.level), n.manager.config.excess(marks, kept)
	if burst := n.state.Burst; burst > 0 {
		n.stats.ExcessIPs = 0
		if n.stats.NeededIPs > 0 {
			n.stats.NeededIPs = burst
		}
	}
}

// marks returns the watermarks of the node. The caller holds mu.
func (n *NetResource) marks() watermark.Marks {
	s := n.resource.Spec.IPAM
	m := watermark.Marks{
		Pre:     s.PreAllocate,
		Min:     s.MinAllocate,
		Max:     s.MaxAllocate,
		Above:   s.MaxAboveWatermark,
		Pending: n.manager.config.Pending(n.name),
	}
	if m.Pre == 0 {
		m.Pre = n.state.Least
	}
	if most := n.state.Most; most > 0 && (m.Max == 0 || m.Max > most) {
		m.Max = most
	}
	return m
}

// sums counts the addresses of a map by family. A key that is not an address counts as
// IPv4.
type sums struct{ v4, v6 int }

func (s sums) of(v6 bool) int {
	if v6 {
		return s.v6
	}
	return s.v4
}

func tally(all v1alpha1.AllocationMap, without map[string]time.Time) (s sums) {
	for key := range all {
		if _, ok := without[key]; ok {
			continue
		}
		if size, v6 := sizeOf(key); v6 {
			s.v6 += size
		} else {
			s.v4 += size
		}
	}
	return s
}

// sizeOf returns the number of addresses of a key of a pool: 1 if it is not an address.
func sizeOf(key string) (size int, v6 bool) {
	p, err := handshake.ParseKey(key)
	if err != nil {
		return 1, false
	}
	return 1 << min(p.Addr().BitLen()-p.Bits(), 20), p.Addr().Is6()
}
