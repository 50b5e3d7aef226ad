// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/cadastre/cadastre/ledger"
)

// source is what this node was given, in the modes where that changes. It is
// guarded by IPAM.change.
type source struct {
	set   *NetResourceSet // nil: none has come yet
	lists [2]cidrList     // cluster pool, by family
	given givenIPs        // single addresses

	granted map[netip.Addr]bool // of the single addresses, at last; nil: not known
}

// view is what allocations need of a source, as a value.
type view struct {
	set    *NetResourceSet
	within []netip.Prefix // the blocks in the order in which they are used up; nil: any
	given  givenIPs
	strict bool // addresses are of no use without what the NetResourceSet says of them
}

// adopt goes on with the blocks of an earlier process until a NetResourceSet
// comes.
func (m *IPAM) adopt(ctx context.Context) error {
	var active []netip.Prefix
	for _, s := range m.deps.Ledger.Stats() {
		if s.Pool != m.pool.Name {
			continue
		}
		list := &m.source.lists[s.Family]
		list.order = append(list.order, s.Block)
		if s.State == ledger.Active {
			active = append(active, s.Block)
			continue
		}
		if list.gone == nil {
			list.gone = map[netip.Prefix]bool{}
		}
		list.gone[s.Block] = true
	}
	m.show()
	return m.deps.Grants.Grant(ctx, m.pool, active)
}

// show has allocations see the source as it is.
func (m *IPAM) show() {
	v := &view{set: m.source.set, given: m.source.given, strict: m.named == vpcENI}
	if m.mode == ClusterPool && v.set != nil {
		v.within = slices.Concat(m.source.lists[ledger.IPv4].lends(), m.source.lists[ledger.IPv6].lends())
	}
	m.view.Store(v)
}

// Update makes what a NetResourceSet says true: what is new is lent, what is
// gone is lent no more, and who holds an address keeps it. Those of other nodes
// are none of its business. After an error everything is as it was.
func (m *IPAM) Update(ctx context.Context, set *NetResourceSet) error {
	switch {
	case m.broken != nil:
		return m.broken
	case m.mode != ClusterPool && m.mode != Given, set == nil, set.Name != m.deps.Name:
		return nil
	}
	cidrs, err := m.follow(ctx, set)
	if err != nil {
		return fmt.Errorf("follow NetResourceSet %q: %w", set.Name, err)
	}
	if m.mode == ClusterPool {
		m.tellOwner(cidrs)
	}
	if vpc := m.GetVpcCIDRs(); len(vpc) > 0 && vpc[0].Prefix().Addr().Is4() {
		m.deps.Config.SetIPv4NativeRoutingCIDR(vpc[0])
	}
	m.poke()
	return nil
}

// follow is Update, but for telling others.
func (m *IPAM) follow(ctx context.Context, set *NetResourceSet) (cidrs []netip.Prefix, err error) {
	m.change.Lock()
	defer m.change.Unlock()
	next := m.source
	next.set = set
	if m.mode == ClusterPool {
		err = m.updateCIDRs(ctx, &next)
	} else {
		err = m.updateGiven(ctx, &next)
	}
	if err != nil {
		return nil, err
	}
	next.granted = m.source.granted
	m.source = next
	m.show()
	close(m.updated)
	m.updated = make(chan struct{})
	return slices.Concat(next.lists[ledger.IPv4].order, next.lists[ledger.IPv6].order), nil
}

func (m *IPAM) updateCIDRs(ctx context.Context, next *source) error {
	used := m.usage()
	for f := range next.lists {
		next.lists[f] = next.lists[f].update(m.listing(ledger.Family(f), next.set), used)
	}
	return m.grantCIDRs(ctx, next.lists)
}

func (m *IPAM) grantCIDRs(ctx context.Context, lists [2]cidrList) error {
	return m.deps.Grants.Grant(ctx, m.pool, slices.Concat(lists[ledger.IPv4].lends(), lists[ledger.IPv6].lends()))
}

// listing is what a NetResourceSet says of a family. What is none, is there
// already, or overlaps another one is left out.
func (m *IPAM) listing(f ledger.Family, set *NetResourceSet) listing {
	l := listing{reported: map[netip.Prefix]bool{}, first: m.source.set == nil}
	for text, state := range set.Status.PodCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil && state == Released {
			l.reported[p.Masked()] = true
		}
	}
	if m.allocatorOf(f) == nil {
		return l
	}
	for _, text := range set.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		p = p.Masked()
		switch {
		case err != nil:
			m.log.Error("a pod CIDR of the NetResourceSet is none", "name", set.Name, "cidr", text, "error", err)
		case ledger.FamilyOf(p.Addr()) != f:
		case slices.ContainsFunc(l.cidrs, p.Overlaps):
			m.log.Error("a pod CIDR of the NetResourceSet overlaps an earlier one", "name", set.Name, "cidr", text)
		default:
			l.cidrs = append(l.cidrs, p)
		}
	}
	return l
}

// usage is how much of each block is in use.
func (m *IPAM) usage() map[netip.Prefix]usage {
	used := map[netip.Prefix]usage{}
	for _, s := range m.deps.Ledger.Stats() {
		if s.Pool == m.pool.Name {
			used[s.Block] = usage{uint64(s.Held + s.Quarantined + s.Cooling + s.Infra), s.Free}
		}
	}
	return used
}

// reviewCIDRs is the state of all CIDRs. Those that can be given back are lent
// no more, durably, before they are said to be released.
func (m *IPAM) reviewCIDRs(ctx context.Context) (map[string]string, error) {
	t := thresholds{uint64(defaultAllocationThreshold), uint64(defaultReleaseThreshold)}
	set := m.source.set
	if set == nil {
		return nil, nil
	}
	if set.AllocationThreshold > 0 {
		t.allocate = uint64(set.AllocationThreshold)
	}
	if set.ReleaseThreshold > 0 {
		t.release = uint64(set.ReleaseThreshold)
	}
	next, used, all := m.source.lists, m.usage(), map[string]string{}
	var spare []netip.Prefix
	for f := range next {
		states, more := next[f].review(t, used)
		for p, s := range states {
			all[p.String()] = s
		}
		next[f] = next[f].release(more)
		spare = append(spare, more...)
	}
	if len(spare) == 0 {
		return all, nil
	}
	if err := m.grantCIDRs(ctx, next); err != nil {
		return nil, err
	}
	used = m.usage() // somebody may have been lent an address in between
	if i := slices.IndexFunc(spare, func(p netip.Prefix) bool { return used[p].held > 0 }); i >= 0 {
		if err := m.grantCIDRs(ctx, m.source.lists); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s was to be released and is in use again", spare[i])
	}
	m.source.lists = next
	m.show()
	return all, nil
}

// subscriber follows the NetResourceSets of a K8sEventRegister.
type subscriber struct{ m *IPAM }

var _ NetResourceSetSubscriber = subscriber{}

// Arguments of K8sEventRegister, as the published package passes them.
const (
	apiGroup = "cadastre.dev/v1alpha1::NetResourceSet"
	scope    = "NetResourceSet"
	created  = "create"
	updated  = "update"
	deleted  = "delete"
)

// OnAddNetResourceSet follows this node's.
func (s subscriber) OnAddNetResourceSet(set *NetResourceSet) error {
	return s.follow(created, nil, set)
}

// OnUpdateNetResourceSet follows this node's.
func (s subscriber) OnUpdateNetResourceSet(old, set *NetResourceSet) error {
	return s.follow(updated, old, set)
}

// OnDeleteNetResourceSet changes nothing: what the node was given last stays.
func (s subscriber) OnDeleteNetResourceSet(set *NetResourceSet) error {
	if set != nil && set.Name == s.m.deps.Name {
		s.m.log.Warn("the NetResourceSet of this node is gone: it goes on with what it was given last", "name", s.m.deps.Name)
		s.m.deps.Events.K8sEventReceived(apiGroup, scope, deleted, true, false)
		s.m.deps.Events.K8sEventProcessed(scope, deleted, true)
	}
	return nil
}

// follow follows a version of this node's NetResourceSet. An event without one is
// counted as not valid, those of other nodes are not counted.
func (s subscriber) follow(action string, old, set *NetResourceSet) error {
	if set == nil {
		s.m.deps.Events.K8sEventReceived(apiGroup, scope, action, false, false)
		return nil
	}
	if set.Name != s.m.deps.Name {
		return nil
	}
	s.m.deps.Events.K8sEventReceived(apiGroup, scope, action, true, old != nil && reflect.DeepEqual(old, set))
	err := s.m.Update(context.Background(), set)
	s.m.deps.Events.K8sEventProcessed(scope, action, err == nil)
	return err
}

// free is how many addresses of a family can be lent.
func (m *IPAM) free(f ledger.Family) (n uint64) {
	for _, s := range m.deps.Ledger.Stats() {
		if s.Pool == m.pool.Name && s.Family == f {
			n = add(n, s.Free)
		}
	}
	return n
}

// Ready returns when there is something to lend: an address of each family, and
// of single addresses as many as the NetResourceSet wants at the start. When
// ctx ends before, the error says what is missing.
func (m *IPAM) Ready(ctx context.Context) error {
	if m.broken != nil {
		return m.broken
	}
	for {
		m.change.Lock()
		missing, later := m.missing(), m.updated
		m.change.Unlock()
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("IPAM is not ready: %s: %w", missing, context.Cause(ctx))
		case <-later:
		}
	}
}

func (m *IPAM) missing() string {
	if m.mode != ClusterPool && m.mode != Given {
		return ""
	}
	set := m.source.set
	if set == nil && (m.mode == ClusterPool || len(m.usage()) == 0) {
		return fmt.Sprintf("NetResourceSet %q has not come", m.deps.Name)
	}
	if m.mode == Given {
		want := 1
		if set != nil && set.MinAllocate > 0 {
			want = set.MinAllocate
		} else if set != nil && set.PreAllocate > 0 {
			want = set.PreAllocate
		}
		if have := len(m.source.given.lends); set != nil && have < want {
			return fmt.Sprintf("%d addresses can be lent, %d are wanted at the start", have, want)
		}
		return ""
	}
	for _, f := range m.families.both {
		if _, external := m.external(f); !external && m.allocatorOf(f) != nil && m.free(f) == 0 {
			return fmt.Sprintf("no pod CIDR has a free %s address", f)
		}
	}
	return ""
}

// GetVpcCIDRs are the CIDRs of the cloud network, the primary one first; nil
// where the addresses are not from a cloud.
func (m *IPAM) GetVpcCIDRs() (vpcCIDRs []*CIDR) {
	if m.broken != nil || m.mode != Given {
		return nil
	}
	set := m.view.Load().set
	if set == nil {
		return nil
	}
	for _, text := range set.VPCCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			vpcCIDRs = append(vpcCIDRs, NewCIDR(p))
		}
	}
	return vpcCIDRs
}

// tellOwner tells the owner what pods have addresses of.
func (m *IPAM) tellOwner(blocks []netip.Prefix) {
	if m.deps.Owner == nil {
		return
	}
	var byFamily [2][]netip.Prefix
	for _, p := range blocks {
		f := ledger.FamilyOf(p.Addr())
		byFamily[f] = append(byFamily[f], p)
	}
	m.deps.Owner.LocalAllocCIDRsUpdated(toCIDRs(byFamily[ledger.IPv4]), toCIDRs(byFamily[ledger.IPv6]))
}

// sortedKeys are the keys of a map of texts.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
