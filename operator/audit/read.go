// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/operator/runner"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// reading holds what one comparison compares.
type reading struct {
	state    findings.ClusterState
	compared []string // the objects, such as "12 Nodes"
	leftOut  []string // what is not compared, with the reason
}

// silence is the time without a beat after which an agent counts as silent, if its beat
// does not say how long it may allocate without the store.
const silence = 10 * time.Minute

// maxNodeReads limits the Nodes that one comparison asks the API server for.
const maxNodeReads = 500

// read reads the stores.
func (a *Auditor) read(ctx context.Context) (r reading, err error) {
	kvs, err := a.list(ctx)
	if err != nil {
		return r, err
	}
	r.takeStore(kvs, a.deps.Now())
	for _, n := range a.nodes.all() {
		r.takeNode(n)
	}
	r.count(len(r.state.Nodes), "Node", "Nodes")
	r.takeSets(a.sets)
	if r.state.Services = a.deps.Services; len(r.state.Services) == 0 {
		r.leftOut = append(r.leftOut, "the service network: --service-cluster-ip-range is not given")
	}
	if err := a.countPolicies(ctx, &r); err != nil {
		return r, err
	}
	return r, a.confirmAbsence(ctx, &r)
}

// countPolicies counts the NetworkPolicies if no program enforces them. The API server
// sends one of them and the number of the others.
func (a *Auditor) countPolicies(ctx context.Context, r *reading) error {
	if !a.deps.Policies {
		return nil
	}
	list, err := runner.Within(ctx, a.deps.Timeout, func(ctx context.Context) (*networkingv1.NetworkPolicyList, error) {
		return a.deps.Client.NetworkingV1().NetworkPolicies(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	})
	if err != nil {
		return fmt.Errorf("list the NetworkPolicies: %w", err)
	}
	r.state.Unenforced = int64(len(list.Items))
	if list.RemainingItemCount != nil {
		r.state.Unenforced += *list.RemainingItemCount
	}
	r.count(int(r.state.Unenforced), "NetworkPolicy", "NetworkPolicies")
	return nil
}

// list returns the values of the store that are compared.
func (a *Auditor) list(ctx context.Context) ([]kvdb.KeyValue, error) {
	type answer struct {
		kvs []kvdb.KeyValue
		rev int64
	}
	got, err := runner.Within(ctx, a.deps.Timeout, func(ctx context.Context) (x answer, err error) {
		x.kvs, x.rev, err = a.deps.Store.List(
			ctx,
			kv.NodeRecordPrefix,
			kv.BeatPrefix,
			kv.PrefixClaimPrefix,
			kv.PoolPrefix,
		)
		return x, err
	})
	if err != nil {
		return nil, fmt.Errorf("list the cluster store: %w", err)
	}
	a.follow(ctx, got.rev)
	return got.kvs, nil
}

// confirmAbsence asks the API server for the Nodes that the informer does not have and
// that objects name: its watch may be late.
func (a *Auditor) confirmAbsence(ctx context.Context, r *reading) error {
	known, missing := map[string]bool{}, map[string]bool{}
	for _, n := range r.state.Nodes {
		known[n.Name] = true
	}
	note := func(name string) {
		if name != "" && !known[name] {
			missing[name] = true
		}
	}
	for _, id := range r.state.IDs {
		note(id.Node)
	}
	for _, c := range r.state.Claims {
		note(c.Node)
	}
	for _, s := range r.state.Sets {
		note(s.Node)
	}
	if len(missing) > maxNodeReads {
		r.leftOut = append(
			r.leftOut,
			fmt.Sprintf(
				"whether Nodes are gone: objects name %d nodes that the API server does not have",
				len(missing),
			),
		)
		return nil
	}
	r.state.Kubernetes = true
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		if problems := content.IsPathSegmentName(name); len(problems) > 0 {
			continue // the API server can have no Node of this name, and the client asks for none
		}
		n, err := runner.Within(ctx, a.deps.Timeout, func(ctx context.Context) (*kv.Node, error) {
			return a.nodes.get(ctx, name)
		})
		if err != nil {
			return err
		}
		if n != nil {
			r.takeNode(n)
		}
	}
	return nil
}

// takeStore takes the values of the cluster store.
func (r *reading) takeStore(kvs []kvdb.KeyValue, now time.Time) {
	beats, unread := map[uint32]*kv.NodeBeat{}, []error(nil)
	for _, x := range kvs {
		b := &kv.NodeBeat{}
		if strings.HasPrefix(x.Key, kv.BeatPrefix) && proto.Unmarshal(x.Value, b) == nil {
			beats[b.Id] = b
		}
	}
	for _, x := range kvs {
		var err error
		switch {
		case strings.HasPrefix(x.Key, kv.NodeRecordPrefix):
			err = r.takeRecord(x, beats, now)
		case strings.HasPrefix(x.Key, kv.PrefixClaimPrefix):
			err = r.takeClaim(x, beats, now)
		case strings.HasPrefix(x.Key, kv.PoolPrefix):
			err = r.takePool(x)
		}
		if err != nil {
			unread = append(unread, fmt.Errorf("%s: its value cannot be read: %w", x.Key, err))
		}
	}
	r.leaveOut(unread)
	r.count(len(r.state.IDs), "node ID", "node IDs")
	r.count(len(r.state.Claims), "claim", "claims")
	r.count(len(r.state.Pools), "pool", "pools")
	r.count(len(r.state.Docker), "subnet of Docker", "subnets of Docker")
}

// takeRecord takes a node ID that is held.
func (r *reading) takeRecord(x kvdb.KeyValue, beats map[uint32]*kv.NodeBeat, now time.Time) error {
	n := &kv.NodeRecord{}
	if err := proto.Unmarshal(x.Value, n); err != nil {
		return err
	}
	if n.Released != 0 || n.SupersededBy != 0 {
		return nil
	}
	beat := beats[n.Id]
	if beat.GetInstance() != n.Instance {
		beat = nil
	}
	id := findings.ClusterID{
		ID:     n.Id,
		Node:   n.Name,
		Silent: silent(beat, now),
		Blocks: witness.ParsePrefixes(n.PodCidrs),
	}
	for _, text := range n.IpAddresses {
		if p, err := netip.ParsePrefix(text); err == nil {
			id.Addrs = append(id.Addrs, p.Addr())
		}
	}
	r.state.IDs = append(r.state.IDs, id)
	if id.Silent {
		return nil
	}
	for _, p := range witness.ParsePrefixes(beat.DockerSubnets) {
		r.state.Docker = append(r.state.Docker, findings.ClusterDocker{Node: n.Name, Prefix: p})
	}
	if beat.DockerSubnetsMore > 0 {
		r.leftOut = append(r.leftOut, fmt.Sprintf("%d subnets of Docker on node %s: a node names at most %d",
			beat.DockerSubnetsMore, n.Name, kv.MaxDockerSubnets))
	}
	return nil
}

// silent reports whether the agent of a beat has not been there for as long as it may
// allocate without the store.
func silent(beat *kv.NodeBeat, now time.Time) bool {
	return beat == nil || now.Sub(time.Unix(0, beat.At)) >= cmp.Or(time.Duration(beat.Expire), silence)
}

// takeClaim takes a claim that has not ended.
func (r *reading) takeClaim(x kvdb.KeyValue, beats map[uint32]*kv.NodeBeat, now time.Time) error {
	c := &kv.PrefixClaim{}
	if err := proto.Unmarshal(x.Value, c); err != nil {
		return err
	}
	p, err := netip.ParsePrefix(c.Prefix)
	if err != nil {
		return fmt.Errorf("prefix %q: want a prefix, such as 10.1.77.0/24", c.Prefix)
	}
	if c.Ends != 0 && !now.Before(time.Unix(0, c.Ends)) {
		return nil
	}
	beat := beats[c.NodeId]
	if beat.GetInstance() != c.Instance {
		beat = nil
	}
	r.state.Claims = append(r.state.Claims, findings.ClusterClaim{
		Node:    c.Node,
		Network: c.Network,
		Prefix:  p.Masked(),
		Held:    c.Held,
		Silent:  silent(beat, now),
	})
	return nil
}

// takePool takes a pool that has not been removed.
func (r *reading) takePool(x kvdb.KeyValue) error {
	p := &kv.Pool{}
	if err := proto.Unmarshal(x.Value, p); err != nil {
		return err
	}
	if p.Removed {
		return nil
	}
	pool := findings.ClusterPool{Name: p.Name}
	for _, part := range p.Ranges {
		prefix, err := netip.ParsePrefix(part.Cidr)
		if err != nil {
			return fmt.Errorf("cidr %q: want a prefix, such as 10.1.0.0/16", part.Cidr)
		}
		pool.Ranges = append(pool.Ranges, prefix.Masked())
	}
	r.state.Pools = append(r.state.Pools, pool)
	return nil
}

func (r *reading) takeNode(n *kv.Node) {
	r.state.Nodes = append(r.state.Nodes, findings.ClusterNode{
		Name:  n.Name,
		Addrs: witness.ParseAddrs(n.Addresses),
		Pods:  witness.ParsePrefixes(n.PodCidrs),
	})
}

// takeSets takes the NetResourceSets and the AddressPools.
func (r *reading) takeSets(s *sets) {
	if s == nil {
		r.leftOut = append(r.leftOut, "NetResourceSets and AddressPools: --netresource-provider is not given")
		return
	}
	pools, unread := decoded[v1alpha1.AddressPool](s.pools)
	sets, unread2 := decoded[v1alpha1.NetResourceSet](s.sets)
	r.leaveOut(slices.Concat(unread, unread2))
	for _, p := range pools {
		pool := findings.ClusterPool{Name: p.Name}
		for _, c := range p.Spec.CIDRs {
			pool.Ranges = append(pool.Ranges, witness.ParsePrefixes([]string{c.CIDR})...)
		}
		r.state.AddressPools = append(r.state.AddressPools, pool)
	}
	for _, x := range sets {
		set := findings.ClusterSet{Node: x.Name}
		for _, text := range slices.Sorted(maps.Keys(x.Spec.IPAM.Pool)) {
			if p, ok := block(text); ok {
				set.Blocks = append(set.Blocks, findings.ClusterBlock{Prefix: p, Pool: poolOf(x.Spec.IPAM.Pool[text])})
			}
		}
		for _, text := range x.Spec.IPAM.PodCIDRs {
			if p, ok := block(string(text)); ok {
				set.Blocks = append(set.Blocks, findings.ClusterBlock{Prefix: p})
			}
		}
		r.state.Sets = append(r.state.Sets, set)
	}
	r.state.SetsKnown = len(unread2) == 0
	r.count(len(sets), "NetResourceSet", "NetResourceSets")
	r.count(len(pools), "AddressPool", "AddressPools")
}

// maxLeftOut limits the objects that a report names one by one because they cannot be read.
const maxLeftOut = 10

// leaveOut notes the objects that cannot be read.
func (r *reading) leaveOut(unread []error) {
	for _, err := range unread[:min(len(unread), maxLeftOut)] {
		r.leftOut = append(r.leftOut, err.Error())
	}
	if more := len(unread) - maxLeftOut; more > 0 {
		r.leftOut = append(r.leftOut, fmt.Sprintf("%d further values that cannot be read", more))
	}
}

// block returns a block, or an address as a block.
func block(text string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Masked(), true
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, a.BitLen()), true
}

// count notes the number of objects that are compared, if there are any.
func (r *reading) count(n int, one, many string) {
	switch n {
	case 0:
	case 1:
		r.compared = append(r.compared, "1 "+one)
	default:
		r.compared = append(r.compared, fmt.Sprintf("%d %s", n, many))
	}
}

// poolOf returns the AddressPool of a block, "" if the block is not of one: the subnet of a
// cloud's interface is the cloud's.
func poolOf(ip v1alpha1.AllocationIP) string {
	if ip.Resource != "" {
		return ""
	}
	return ip.SubnetID
}
