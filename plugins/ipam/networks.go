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
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// register is what the cluster says of its pools and custom networks. It
// belongs to the loop. A pool never disappears from it: it is removed by its
// state, and what is merely not there was lost.
type register struct {
	pools    map[string]poolplan.Pool
	networks map[string]*kv.CustomNetwork // by key
	bad      map[string]string            // what cannot be used, by key, and why
	set      *kv.NetResourceSet           // of this node; nil: there is none
	local    bool                         // all of it is from the mirror
	seen     int64                        // revision of the store that set is as of
}

func newRegister() register {
	return register{pools: map[string]poolplan.Pool{}, networks: map[string]*kv.CustomNetwork{}, bad: map[string]string{}}
}

// resync takes the cluster's state; pools that it lacks are kept.
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

// poolAt is the pool that is stored at key.
func poolAt(key string, m *kv.Pool) (poolplan.Pool, error) {
	p, err := poolplan.FromMessage(m)
	return p, checkNames(key, kv.PoolKey(p.Name), p, err)
}

// poolOf is the pool that the custom network at key begins with.
func poolOf(key string, m *kv.CustomNetwork) (poolplan.Pool, error) {
	p, err := poolplan.FromNetwork(m)
	return p, checkNames(key, kv.CustomNetworkKey(p.Name), p, err)
}

// checkNames keeps an object from being taken for another one.
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

// all are the pools by name.
func (r *register) all() (pools []poolplan.Pool) {
	for _, name := range slices.Sorted(maps.Keys(r.pools)) {
		pools = append(pools, r.pools[name])
	}
	return pools
}

// problems are what is wrong with single objects, in order.
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

// refusal says why a custom network has no pool, or not the one that it says.
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
		return fmt.Errorf("it says %s, and its pool is %s, which never changes: add a pool to the network and drain this one (cadastre apply)", p, have)
	case have.State == poolplan.Removed:
		return fmt.Errorf("its pool was removed, and none comes back: choose another name")
	}
	return nil
}

// Problem is what is wrong with one object of the cluster's state. It harms
// nothing else.
type Problem struct {
	Object string // "pool/blue", "network/blue"
	Text   string
}

// network is what this node has of one pod network.
type network struct{ open, draining []netip.Prefix }

// networksOf are the blocks of node id by network, from the pools.
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

// PodNetworkChange says that the blocks of this or other nodes have changed
// while the node ID and everything else stayed.
type PodNetworkChange struct{ Description string }

// GetName is "Pod Network Change".
func (ev *PodNetworkChange) GetName() string { return "Pod Network Change" }

func (ev *PodNetworkChange) String() string { return ev.GetName() + "\n* " + ev.Description }

// Method is Update.
func (ev *PodNetworkChange) Method() controller.EventMethodType { return controller.Update }

// TransactionType is BestEffort.
func (ev *PodNetworkChange) TransactionType() controller.UpdateTransactionType {
	return controller.BestEffort
}

// Direction is Forward.
func (ev *PodNetworkChange) Direction() controller.UpdateDirectionType { return controller.Forward }

// IsBlocking is false.
func (ev *PodNetworkChange) IsBlocking() bool { return false }

// Done does nothing.
func (ev *PodNetworkChange) Done(error) {}

// isNetworkChange is whether event changes pools or custom networks.
func isNetworkChange(event controller.Event) bool {
	change, ok := event.(*controller.KubeStateChange)
	return ok && (change.Resource == kubestate.Pools || change.Resource == kubestate.CustomNetworks)
}

// updateNetworks follows a change of a pool: blocks open and drain, and nothing
// else is touched.
func (i *IPAM) updateNetworks(ev *controller.KubeStateChange, txn controller.UpdateOperations) (string, error) {
	i.register.change(ev)
	return i.updateBlocks(ev.Key, txn)
}

// updateBlocks opens and drains what the change of key leads to.
func (i *IPAM) updateBlocks(key string, txn controller.UpdateOperations) (string, error) {
	was := i.state.Load()
	next := *was
	next.families, next.nodes = i.ContivConf.Cluster().Families, slices.Clone(was.nodes)
	if err := i.deriveNetworks(&next); err != nil {
		return "", err
	}
	if err := i.grant(&next); err != nil {
		return "", err
	}
	i.state.Store(&next)
	i.publish(&next)
	text := changes(was.networks, next.networks)
	if text == "" && slices.EqualFunc(was.pools, next.pools, poolplan.Pool.Equal) {
		return "", nil
	}
	return text, txn.FollowUp(&PodNetworkChange{Description: key + " " + text})
}

// changes says what opens and what drains.
func changes(was, now map[string]network) string {
	said := append(onlyIn(now, was, "opens"), onlyIn(was, now, "drains")...)
	return strings.Join(said, ", ")
}

// onlyIn says of each block that is open in a and not in b that it does what.
func onlyIn(a, b map[string]network, what string) (said []string) {
	for _, name := range slices.Sorted(maps.Keys(a)) {
		other := map[netip.Prefix]bool{}
		for _, p := range b[name].open {
			other[p] = true
		}
		for _, p := range a[name].open {
			if !other[p] {
				said = append(said, name+": "+p.String()+" "+what)
			}
		}
	}
	return said
}

// deriveNetworks fills in what follows from pools and custom networks; where
// blocks are computed from the node ID, also the pod network of the cluster.
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
	if !byID {
		return nil
	}
	i.noteDifference(s)
	if open, draining, errs := poolplan.Blocks(s.pools, PodPool, s.nodeID); len(open)+len(draining) == 0 && len(errs) > 0 {
		return errors.Join(errs...) // the node ID fits no pool of the cluster
	}
	return s.setPrimary(s.networks[PodPool].open)
}

// setPrimary makes the first open block of each family the node's pod subnet.
func (s *state) setPrimary(open []netip.Prefix) error {
	s.pending = ""
	for f := range s.families {
		is4 := s.families[f].Hosts.Addr().Is4()
		var pods netip.Prefix
		if k := slices.IndexFunc(open, func(p netip.Prefix) bool { return p.Addr().Is4() == is4 }); k >= 0 {
			pods = open[k]
		} else {
			s.pending = fmt.Sprintf("no pool of network %s has a block of the family of %s for node ID %d", PodPool, s.families[f].Hosts, s.nodeID)
			for _, p := range s.problems {
				s.pending += "; " + p.Text
			}
		}
		for _, p := range s.pools {
			for _, r := range p.Ranges {
				if pods.IsValid() && p.Network == PodPool && p.State == poolplan.Active && r.CIDR.Overlaps(pods) {
					s.families[f].Pods, s.families[f].PodsOneNode = r.CIDR, r.OneNode
				}
			}
		}
		n, err := s.families[f].NodeWith(s.nodeID, pods)
		if err != nil {
			return err
		}
		s.nodes[f] = n
	}
	return nil
}

// publish tells the cluster what this node has. Nodes whose configuration already
// gives them blocks in another way have to know it too, also of blocks that follow
// from the node ID (Implied).
func (i *IPAM) publish(s *state) {
	i.NodeSync.PublishPools()
	i.NodeSync.PublishPodCIDRs(slices.DeleteFunc(i.routed(s), netip.Prefix.IsSingleIP)) // single addresses are routed by the node that gives them
}

func (i *IPAM) reserved() []poolplan.Reserved { return Reserved(i.ContivConf) }

// Reserved are the networks of the configuration that no pool may overlap.
func Reserved(conf contivconf.API) (all []poolplan.Reserved) {
	for _, f := range conf.Cluster().Families {
		if conf.PodBlocks() != contivconf.PodBlocksNodeID { // otherwise it is a pool
			all = append(all, poolplan.Reserved{Name: "podSubnetCIDR", Net: f.Pods})
		}
		for _, x := range []poolplan.Reserved{{Name: "vppHostSubnetCIDR", Net: f.Hosts}, {Name: "nodeInterconnectCIDR", Net: f.Nodes}, {Name: "vxlanCIDR", Net: f.Vxlan}, {Name: "serviceCIDR", Net: f.Service}} {
			if x.Net.IsValid() && !f.Pods.Overlaps(x.Net) { // which the configuration may allow
				all = append(all, x)
			}
		}
	}
	static := conf.StaticAddresses()
	for _, field := range slices.Sorted(maps.Keys(static)) {
		all = append(all, poolplan.Reserved{Name: field, Net: netip.PrefixFrom(static[field], static[field].BitLen())})
	}
	return all
}

// BlocksOf are all pod subnets of another node: those that it lends from, and
// those that drain.
func (i *IPAM) BlocksOf(n *nodesync.Node) (all []netip.Prefix) {
	s := i.state.Load()
	if n == nil || n.ID == 0 {
		return nil
	}
	if s.external != nil {
		all = append(all, sortedPrefixes(s.holders.without(n))...)
	}
	networks, _ := networksOf(s.pools, n.ID)
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		all = append(append(all, networks[name].open...), networks[name].draining...)
	}
	return all
}

// HasNetwork is whether name is a pod network.
func (i *IPAM) HasNetwork(name string) bool {
	_, ok := i.state.Load().networks[name]
	return ok
}

// Pools are those of all pod networks.
func (i *IPAM) Pools() []poolplan.Pool { return slices.Clone(i.state.Load().pools) }

// Problems are what is wrong with single pools and custom networks.
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

// PoolUses is what this node has of each pool, as the ledger has it now. Any
// goroutine may ask.
func (i *IPAM) PoolUses() (uses []*kv.PoolUse) {
	pools := i.state.Load().known
	stats := i.Ledger.Stats() // after the pools: what is said of a generation must not be older than it
	for _, p := range pools {
		use := &kv.PoolUse{Pool: p.Name, Generation: p.Generation}
		for _, b := range stats {
			if b.Pool != p.Network || !slices.ContainsFunc(p.Ranges, func(r poolplan.Range) bool { return r.CIDR.Overlaps(b.Block) }) {
				continue
			}
			use.Open = use.Open || b.State == ledger.Active
			use.Leases += uint64(b.Held + b.Cooling + b.Quarantined)
		}
		uses = append(uses, use)
	}
	return uses
}
