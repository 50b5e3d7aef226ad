// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// register holds the pools and custom networks of the cluster. It belongs to the loop. A
// pool never disappears from it: a pool is removed by its state, and a missing one was
// lost by the store.
type register struct {
	pools      map[string]poolplan.Pool
	networks   map[string]*kv.CustomNetwork // by key
	bad        map[string]string            // the reason why an object cannot be used, by key
	set        *kv.NetResourceSet           // of this node, nil for none
	interfaces *InterfaceState              // of this node; nil: not known yet
	local      bool                         // the state is that of the mirror
	seen       int64                        // revision of the store that set is of
}

func newRegister() register {
	return register{
		pools:    map[string]poolplan.Pool{},
		networks: map[string]*kv.CustomNetwork{},
		bad:      map[string]string{},
	}
}

// resync replaces the state. It keeps pools that the cluster's state lacks.
func (r *register) resync(data controller.KubeStateData) {
	r.networks, r.bad = map[string]*kv.CustomNetwork{}, map[string]string{}
	for _, resource := range []string{kubestate.Pools, kubestate.CustomNetworks} {
		for key, m := range data[resource] {
			r.note(key, m)
		}
	}
}

func (r *register) note(key string, m proto.Message) {
	delete(r.bad, key)
	switch m := m.(type) {
	case *kv.Pool:
		p, err := poolAt(key, m)
		if err != nil {
			r.bad[key] = err.Error()
			return
		}
		if err := poolplan.Conflict(r.pools[p.Name], p); err != nil {
			r.bad[key] = err.Error()
		}
		r.pools[p.Name], _ = poolplan.Merge(r.pools[p.Name], p)
	case *kv.CustomNetwork:
		r.networks[key] = m
	}
}

// change applies one change of the cluster's state.
func (r *register) change(ev *controller.KubeStateChange) {
	if ev.New != nil {
		r.note(ev.Key, ev.New)
		return
	}
	delete(r.networks, ev.Key)
	delete(r.bad, ev.Key)
}

var errOwnName = fmt.Errorf("network %q is this node's own link: choose another name", HostPool)

// poolAt returns the pool that is stored at key.
func poolAt(key string, m *kv.Pool) (poolplan.Pool, error) {
	p, err := poolplan.FromMessage(m)
	return p, checkNames(key, kv.PoolKey(p.Name), p, err)
}

// poolOf returns the first pool of the custom network at key.
func poolOf(key string, m *kv.CustomNetwork) (poolplan.Pool, error) {
	p, err := poolplan.FromNetwork(m)
	return p, checkNames(key, kv.CustomNetworkKey(p.Name), p, err)
}

// checkNames returns an error for an object that is not at the key of its name.
func checkNames(key, want string, p poolplan.Pool, err error) error {
	switch {
	case err != nil:
		return err
	case key != want:
		return fmt.Errorf("it is named %q, which belongs at %s", p.Name, strings.TrimPrefix(want, kv.ClusterPrefix))
	case p.Network == HostPool:
		return errOwnName
	}
	return nil
}

// all returns the pools, sorted by name.
func (r *register) all() (pools []poolplan.Pool) {
	for _, name := range slices.Sorted(maps.Keys(r.pools)) {
		pools = append(pools, r.pools[name])
	}
	return pools
}

// problems returns the problems of single objects, in order.
func (r *register) problems(reserved []poolplan.Reserved) (all []Problem) {
	for key, why := range r.bad {
		all = append(all, Problem{Object: strings.TrimPrefix(key, kv.ClusterPrefix), Text: why})
	}
	for key, m := range r.networks {
		if err := r.refusal(key, m, reserved); err != nil {
			all = append(all, Problem{Object: strings.TrimPrefix(key, kv.ClusterPrefix), Text: err.Error()})
		}
	}
	slices.SortFunc(all, func(a, b Problem) int { return strings.Compare(a.Object, b.Object) })
	return all
}

// refusal returns the reason why a custom network has no pool, or another one.
func (r *register) refusal(key string, m *kv.CustomNetwork, reserved []poolplan.Reserved) error {
	p, err := poolOf(key, m)
	if err != nil {
		return err
	}
	have, known := r.pools[p.Name]
	switch {
	case !known:
		return poolplan.Admit(p, r.all(), reserved)
	case have.Network != p.Network:
		return fmt.Errorf("its name is that of %s: choose another one", have)
	case !slices.Equal(p.Ranges, have.Ranges): // which never change
		return fmt.Errorf("it says %s, and its pool is %s, which never changes: "+
			"add a pool to the network and drain this one (cadastre apply)", p, have)
	case have.State == poolplan.Removed:
		return fmt.Errorf("its pool was removed, and a removed pool does not come back: choose another name")
	}
	return nil
}

// Problem describes an error in one object of the cluster's state. It affects no other
// object.
type Problem struct {
	Object string // "pool/blue", "network/blue"
	Text   string // the error
}

// network holds the blocks of this node in one pod network.
type network struct{ open, draining []netip.Prefix }

// networksOf returns the blocks of node id by network, from the pools.
func networksOf(pools []poolplan.Pool, id uint32) (map[string]network, []Problem) {
	all := map[string]network{}
	var problems []Problem
	for _, p := range pools {
		if _, done := all[p.Network]; done || p.State == poolplan.Removed {
			continue
		}
		open, draining, errs := poolplan.Blocks(pools, p.Network, id)
		all[p.Network] = network{open: prefixes(open), draining: prefixes(draining)}
		for _, err := range errs {
			problems = append(problems, Problem{Object: "network/" + p.Network, Text: err.Error()})
		}
	}
	return all, problems
}

func prefixes(blocks []poolplan.Block) []netip.Prefix {
	return each(blocks, func(b poolplan.Block) netip.Prefix { return b.Prefix })
}

// PodNetworkChange is the event of changed blocks of this node or of other nodes, with
// the same node ID.
type PodNetworkChange struct {
	Description string // the blocks that open and those that drain
}

// GetName returns "Pod Network Change".
func (ev *PodNetworkChange) GetName() string { return "Pod Network Change" }

func (ev *PodNetworkChange) String() string { return ev.GetName() + "\n* " + ev.Description }

// Method returns Update.
func (ev *PodNetworkChange) Method() controller.EventMethodType { return controller.Update }

// TransactionType returns BestEffort.
func (ev *PodNetworkChange) TransactionType() controller.UpdateTransactionType {
	return controller.BestEffort
}

// Direction returns Forward.
func (ev *PodNetworkChange) Direction() controller.UpdateDirectionType { return controller.Forward }

// IsBlocking returns false.
func (ev *PodNetworkChange) IsBlocking() bool { return false }

// Done does nothing.
func (ev *PodNetworkChange) Done(error) {}

// isNetworkChange reports whether event changes pools or custom networks.
func isNetworkChange(event controller.Event) bool {
	change, ok := event.(*controller.KubeStateChange)
	return ok && (change.Resource == kubestate.Pools || change.Resource == kubestate.CustomNetworks)
}

// updateNetworks follows a change of a pool: blocks open and drain, and nothing else
// changes.
func (i *IPAM) updateNetworks(ev *controller.KubeStateChange, txn controller.UpdateOperations) (string, error) {
	i.register.change(ev)
	return i.updateBlocks(ev.Key, txn)
}

// updateBlocks opens and drains blocks after the change of key.
func (i *IPAM) updateBlocks(key string, txn controller.UpdateOperations) (string, error) {
	next := *i.state.Load()
	next.families, next.nodes = i.ContivConf.Cluster().Families, slices.Clone(next.nodes)
	return i.openNow(&next, key, txn)
}

// openNow makes next the state of this node: it opens and drains blocks without a resync.
func (i *IPAM) openNow(next *state, cause string, txn controller.UpdateOperations) (string, error) {
	was := i.state.Load()
	if err := i.deriveNetworks(next); err != nil {
		return "", err
	}
	if err := i.grant(next); err != nil {
		return "", err
	}
	i.state.Store(next)
	i.publish(next)
	text := changes(was.networks, next.networks)
	same := slices.EqualFunc(was.pools, next.pools, poolplan.Pool.Equal) && was.uplinks.Equal(next.uplinks)
	if text == "" && same {
		return "", nil
	}
	return text, txn.FollowUp(&PodNetworkChange{Description: cause + " " + text})
}

// changes describes the blocks that open and those that drain.
func changes(was, now map[string]network) string {
	return strings.Join(append(onlyIn(now, was, "opens"), onlyIn(was, now, "drains")...), ", ")
}

// onlyIn describes each block that is open in a and not in b by a verb.
func onlyIn(a, b map[string]network, verb string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(a)) {
		other := map[netip.Prefix]bool{}
		for _, p := range b[name].open {
			other[p] = true
		}
		for _, p := range a[name].open {
			if !other[p] {
				all = append(all, name+": "+p.String()+" "+verb)
			}
		}
	}
	return all
}

// deriveNetworks sets the blocks that follow from pools and custom networks, and if
// blocks follow from the node ID also those of the pod network.
func (i *IPAM) deriveNetworks(s *state) error {
	s.pools = i.register.all()
	byID := i.ContivConf.PodBlocks() == contivconf.PodBlocksNodeID
	if byID && !slices.ContainsFunc(s.pools, func(p poolplan.Pool) bool { return p.Network == PodPool }) {
		s.pools = append(s.pools, poolplan.FromCluster(i.ContivConf.Cluster())) // until it is written
	}
	s.known = slices.Clone(s.pools)
	if !byID {
		s.pools = slices.DeleteFunc(s.pools, func(p poolplan.Pool) bool { return p.Network == PodPool })
	}
	var problems []Problem
	s.networks, problems = networksOf(s.pools, s.nodeID)
	s.problems = slices.Concat(i.register.problems(i.reserved()), problems, s.kept)
	if i.fromNetResources() {
		return i.deriveResources(s)
	}
	if i.fromInterfaces() {
		return i.deriveInterfaces(s)
	}
	if !byID {
		return nil
	}
	i.noteDifference(s)
	open, draining, errs := poolplan.Blocks(s.pools, PodPool, s.nodeID)
	if len(open)+len(draining) == 0 && len(errs) > 0 {
		return errors.Join(errs...) // the node ID does not fit a pool of the cluster
	}
	return s.setPrimary(s.networks[PodPool].open)
}

// setPrimary takes the first open block of each family as the node's pod subnet.
func (s *state) setPrimary(open []netip.Prefix) error {
	s.pending = ""
	for f := range s.families {
		family := &s.families[f]
		pods, has := ofFamily(open, family.Hosts)
		if !has {
			s.pending = fmt.Sprintf("no pool of network %s has a block of the family of %s for node ID %d",
				PodPool, family.Hosts, s.nodeID)
			s.explainPending()
			continue
		}
		for _, p := range s.pools {
			for _, r := range p.Ranges {
				if p.Network == PodPool && p.State == poolplan.Active && r.CIDR.Overlaps(pods) {
					family.Pods, family.PodsOneNode = r.CIDR, r.OneNode
				}
			}
		}
	}
	return s.setPods(open)
}

// explainPending adds the problems of single objects to the reason why there is no pod
// subnet.
func (s *state) explainPending() {
	for _, p := range s.problems {
		s.pending += "; " + p.Text
	}
}

// ofFamily returns the first prefix of the family of like.
func ofFamily(prefixes []netip.Prefix, like netip.Prefix) (p netip.Prefix, found bool) {
	k := slices.IndexFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is4() == like.Addr().Is4() })
	if k < 0 {
		return netip.Prefix{}, false
	}
	return prefixes[k], true
}

// publish publishes the blocks of this node, also those that follow from the node ID:
// nodes whose configuration derives blocks in another way need them too (Implied). The
// node that provides a single address routes it itself.
func (i *IPAM) publish(s *state) {
	publisher, ok := i.NodeSync.(nodesync.BlockPublisher)
	if !ok {
		return
	}
	publisher.PublishPools()
	if i.fromInterfaces() { // the cloud routes them
		return
	}
	publisher.PublishPodCIDRs(slices.DeleteFunc(i.routed(s), netip.Prefix.IsSingleIP))
}

func (i *IPAM) reserved() []poolplan.Reserved { return Reserved(i.ContivConf) }

// Reserved returns the networks of the configuration that no pool may overlap.
func Reserved(conf contivconf.API) (all []poolplan.Reserved) {
	for _, f := range conf.Cluster().Families {
		if conf.PodBlocks() != contivconf.PodBlocksNodeID { // otherwise it is a pool
			all = append(all, poolplan.Reserved{Name: "podSubnetCIDR", Net: f.Pods})
		}
		all = append(all, notForPods(f)...)
	}
	static := conf.StaticAddresses()
	for _, field := range slices.Sorted(maps.Keys(static)) {
		all = append(all, poolplan.Reserved{Name: field, Net: netip.PrefixFrom(static[field], static[field].BitLen())})
	}
	return all
}

// notForPods returns the networks of a family that pods cannot share, except those that
// overlap the pod network by configuration.
func notForPods(f addrplan.Family) (all []poolplan.Reserved) {
	for _, x := range []poolplan.Reserved{
		{Name: "vppHostSubnetCIDR", Net: f.Hosts},
		{Name: "nodeInterconnectCIDR", Net: f.Nodes},
		{Name: "vxlanCIDR", Net: f.Vxlan},
		{Name: "serviceCIDR", Net: f.Service},
	} {
		if x.Net.IsValid() && !f.Pods.Overlaps(x.Net) {
			all = append(all, x)
		}
	}
	return all
}

// BlocksOf returns all pod subnets of another node, active and draining.
func (i *IPAM) BlocksOf(n *nodesync.Node) (all []netip.Prefix) {
	s := i.state.Load()
	if n == nil || n.ID == 0 {
		return nil
	}
	if s.neighbours != nil {
		all = append(all, sortedPrefixes(s.neighbours.subnetsOf(n))...)
	}
	networks, _ := networksOf(s.pools, n.ID)
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		all = append(append(all, networks[name].open...), networks[name].draining...)
	}
	return all
}

// NodesWithin returns the names of the nodes whose pod subnets overlap one of prefixes: if
// another node's claims of these change, so may what BlocksOf returns. There are none if
// blocks do not depend on claims.
func (i *IPAM) NodesWithin(prefixes []netip.Prefix) []string {
	s := i.state.Load()
	if s.neighbours == nil || len(prefixes) == 0 {
		return nil
	}
	return s.neighbours.within(prefixes)
}

// HasNetwork reports whether name is a pod network.
func (i *IPAM) HasNetwork(name string) bool {
	_, ok := i.state.Load().networks[name]
	return ok
}

// Pools returns the pools of all pod networks.
func (i *IPAM) Pools() []poolplan.Pool { return slices.Clone(i.state.Load().pools) }

// OpenBlocks returns the blocks of this node by network, without those that drain; nil
// before the first resync.
func (i *IPAM) OpenBlocks() map[string][]netip.Prefix {
	s := i.state.Load()
	if s.networks == nil {
		return nil
	}
	all := make(map[string][]netip.Prefix, len(s.networks))
	for name, n := range s.networks {
		all[name] = slices.Clone(n.open)
	}
	return all
}

// Problems returns the problems of single pools and custom networks.
func (i *IPAM) Problems() []Problem { return i.state.Load().problems }

// Notes returns differences that do not keep the node from working: one of node
// ID and Node object.
func (i *IPAM) Notes() []string {
	s := i.state.Load()
	if s.mismatch == "" {
		return nil
	}
	return []string{s.mismatch}
}

// PoolUses returns this node's present use of each pool. Any goroutine may call it.
func (i *IPAM) PoolUses() (uses []*kv.PoolUse) {
	pools := i.state.Load().known
	stats := i.Ledger.Stats() // after the pools: the use of a generation must not be older than that
	for _, p := range pools {
		use := &kv.PoolUse{Pool: p.Name, Generation: p.Generation}
		for _, b := range stats {
			inPool := func(r poolplan.Range) bool { return r.CIDR.Overlaps(b.Block) }
			if b.Pool != p.Network || !slices.ContainsFunc(p.Ranges, inPool) {
				continue
			}
			use.Open = use.Open || b.State == ledger.Active
			leases := uint64(b.Held + b.Cooling + b.Quarantined)
			use.Leases += leases
			if len(use.Blocks) < kv.MaxBlockUses {
				draining := b.State == ledger.Draining
				use.Blocks = append(
					use.Blocks,
					&kv.BlockUse{
						Prefix:   b.Block.String(),
						Leases:   leases,
						Draining: draining,
						Reserved: b.Reserved + uint64(b.Infra),
					},
				)
			}
		}
		uses = append(uses, use)
	}
	return uses
}
