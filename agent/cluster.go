// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// busy is whether addresses that follow from the node ID are in use.
func (a *assembly) busy() bool {
	for _, b := range a.ledger.Stats() {
		if b.Held+b.Cooling+b.Quarantined > 0 {
			return true
		}
	}
	return false
}

// cluster is how this node stands to the cluster, for the metrics.
func (a *assembly) cluster() restapi.Cluster {
	waiting := len(a.claimer.Waiting())
	return restapi.Cluster{
		KVDBConnected: a.source.Status().Connected, NodeIDConflict: a.idClaimer.Problem() != "", PoolProblems: len(a.ipam.Problems()),
		ClaimsHeld: len(a.claimer.All()) - waiting, ClaimsWaiting: waiting, ConfigDiffers: a.ipam.ConfigDiffers() != "",
	}
}

// dispatchTimeout is how long a request for a resync may wait to be taken.
const dispatchTimeout = 5 * time.Second

func (a *assembly) dispatch() error {
	ctx, cancel := context.WithTimeout(context.Background(), dispatchTimeout)
	defer cancel()
	err := a.source.Dispatch(ctx)
	if errors.Is(err, controller.ErrClosedController) {
		return &localapi.StatusError{Status: http.StatusServiceUnavailable, Err: err}
	}
	if err != nil {
		return &localapi.StatusError{Status: http.StatusConflict, Err: err}
	}
	return nil
}

// nodes are the nodes of the cluster as the store has them.
func (a *assembly) nodes(ctx context.Context) ([]localapi.Node, error) {
	registered, unreadable, err := nodesync.ListAll(ctx, a.store)
	if err != nil {
		return nil, err
	}
	all := []localapi.Node{}
	for _, r := range registered {
		n := localapi.Node{
			ID: r.Id, Name: r.Name, Instance: r.Instance, Generation: r.Generation, Addresses: append([]string{}, r.IpAddresses...), PodCIDRs: []string{},
			Released: r.Released != 0, Self: r.Instance == a.instance, Pools: []localapi.PoolUse{},
		}
		for _, p := range a.ipam.BlocksOf(&nodesync.Node{ID: r.Id, Name: r.Name}) {
			n.PodCIDRs = append(n.PodCIDRs, p.String())
		}
		if r.Beat != nil {
			seen := time.Unix(0, r.Beat.At).UTC()
			n.LastSeen = &seen
			for _, u := range r.Beat.Pools {
				n.Pools = append(n.Pools, localapi.PoolUse{Pool: u.Pool, Generation: u.Generation, Open: u.Open, Leases: u.Leases})
			}
		}
		all = append(all, n)
	}
	for _, u := range unreadable {
		all = append(all, localapi.Node{ID: u.ID, Addresses: []string{}, PodCIDRs: []string{}, Pools: []localapi.PoolUse{}, Problem: u.Err.Error()})
	}
	slices.SortFunc(all, func(x, y localapi.Node) int { return cmp.Compare(x.ID, y.ID) })
	return all, nil
}

func (a *assembly) releaseNode(ctx context.Context, name string, force bool) (reply localapi.NodeReleaseReply, err error) {
	if name == a.node.Name {
		return reply, &localapi.StatusError{Status: http.StatusConflict, Err: fmt.Errorf("%s is this node, and its agent runs: stop it, and ask the agent of another node", name)}
	}
	ids := a.conf.Cadastre.NodeIDs
	reply.ID, err = nodesync.Release(ctx, a.store, nodesync.Gone{Name: name, Force: force, Fresh: ids.Fresh, Expire: ids.Expire, Claims: a.register()}, a.clock.now())
	switch {
	case errors.Is(err, nodesync.ErrNoNode):
		return reply, &localapi.StatusError{Status: http.StatusNotFound, Err: err}
	case errors.Is(err, nodesync.ErrFresh):
		return reply, &localapi.StatusError{Status: http.StatusConflict, Err: err}
	case errors.Is(err, apistore.ErrPolicy):
		return reply, &localapi.StatusError{Status: http.StatusForbidden, Err: fmt.Errorf("%w; an agent may not release another node: run "+
			`"kubectl -n cadastre-system exec deployment/cadastre-operator -- /cadastre-operator node release %s", or "cadastre-operator node release" with --kubeconfig`, err, name)}
	case err != nil:
		return reply, err
	}
	nodes, err := nodesync.List(ctx, a.store)
	if err != nil {
		return reply, err
	}
	for _, n := range nodes {
		if n.Id == reply.ID && n.Released != 0 && !n.Clean && n.Beat != nil {
			until := time.Unix(0, n.Beat.At).Add(ids.Expire).UTC()
			reply.Until = &until
		}
	}
	return reply, nil
}

// pools are the pools of the cluster, and this node's blocks of them.
func (a *assembly) pools(context.Context) ([]localapi.Pool, error) {
	stats := a.ledger.Stats()
	problems := map[string]string{}
	for _, p := range a.ipam.Problems() {
		problems[p.Object] = p.Text
	}
	all := []localapi.Pool{}
	for _, p := range a.ipam.Pools() {
		out := localapi.Pool{
			Name: p.Name, Network: p.Network, State: p.State.String(), Generation: p.Generation, Origin: p.Origin,
			Problem: problems["pool/"+p.Name], Ranges: []localapi.PoolRange{}, Blocks: []localapi.Block{},
		}
		if out.Problem == "" {
			out.Problem = problems["network/"+p.Network]
		}
		for _, r := range p.Ranges {
			out.Ranges = append(out.Ranges, localapi.PoolRange{CIDR: r.CIDR.String(), OneNodePrefixLen: uint32(r.OneNode)})
			for _, b := range stats {
				if b.Pool == p.Network && r.CIDR.Overlaps(b.Block) {
					out.Blocks = append(out.Blocks, toBlock(b))
				}
			}
		}
		all = append(all, out)
	}
	return append(all, withoutPool(a.ipam.Pools(), a.ipam.Problems())...), nil
}

// withoutPool are the objects that could not become pools, and why.
func withoutPool(pools []poolplan.Pool, problems []ipam.Problem) (all []localapi.Pool) {
	known := map[string]bool{}
	for _, p := range pools {
		known["pool/"+p.Name], known["network/"+p.Network] = true, true
	}
	for _, p := range problems {
		if !known[p.Object] {
			_, name, _ := strings.Cut(p.Object, "/")
			all = append(all, localapi.Pool{Name: name, Network: name, State: "refused", Origin: p.Object, Problem: p.Text, Ranges: []localapi.PoolRange{}, Blocks: []localapi.Block{}})
		}
	}
	return all
}

// apply changes the pools of the cluster.
func (a *assembly) apply(ctx context.Context, file []byte, dryRun bool) (localapi.ApplyResult, error) {
	plan, err := ipam.Apply(ctx, a.store, ipam.Reserved(a.contivconf), file, dryRun)
	var bad poolplan.Problems
	if errors.As(err, &bad) {
		return toApplyResult(poolplan.Plan{Problems: bad}), &localapi.StatusError{Status: http.StatusBadRequest, Err: err}
	}
	result := toApplyResult(plan)
	result.Text += a.unused(plan)
	return result, err
}

// unused returns a note about changes of the pod network's pools if this node has
// its blocks from elsewhere.
func (a *assembly) unused(plan poolplan.Plan) string {
	mode := a.conf.Cadastre.PodBlocks
	if mode == contivconf.PodBlocksNodeID || plan.Err() != nil || !slices.ContainsFunc(plan.Changes, func(c poolplan.Change) bool { return c.To.Network == ipam.PodPool }) {
		return ""
	}
	return fmt.Sprintf("\nThis node takes no blocks of the pools of network %s: its podBlocks is %s.\n", ipam.PodPool, mode)
}

func toApplyResult(plan poolplan.Plan) localapi.ApplyResult {
	var text strings.Builder
	_ = plan.Text(&text)
	r := localapi.ApplyResult{
		Text: text.String(), Changes: len(plan.Changes), Refused: plan.Err() != nil,
		Problems: []localapi.Problem{}, Blocks: []localapi.Blocker{}, Moves: []localapi.Move{},
	}
	for _, p := range plan.Problems {
		r.Problems = append(r.Problems, localapi.Problem{Field: p.Field, Value: p.Value, Problem: p.Text})
	}
	for _, b := range plan.Blocks {
		r.Blocks = append(r.Blocks, localapi.Blocker{Pool: b.Pool, Node: b.NodeName, Leases: b.Leases, Reason: b.String()})
	}
	for _, m := range plan.Moves {
		r.Moves = append(r.Moves, localapi.Move{Pool: m.Pool, Node: m.NodeName, From: joined(m.Drains), To: joined(prefixesOf(m.Opens, m.Keeps))})
	}
	return r
}

func prefixesOf(lists ...[]poolplan.Block) (all []netip.Prefix) {
	for _, list := range lists {
		for _, b := range list {
			all = append(all, b.Prefix)
		}
	}
	return all
}

// contivIPAM is what Contiv-VPP's REST says of a node's addresses.
func (a *assembly) contivIPAM() (localapi.ContivIPAM, error) {
	nodes := a.ipam.Nodes()
	if len(nodes) == 0 {
		return localapi.ContivIPAM{}, errors.New("no resync yet: the node's networks are not known")
	}
	c := a.contivconf.GetIPAMConfig()
	out := localapi.ContivIPAM{NodeID: a.idClaimer.ID(), NodeName: a.node.Name, NodeIP: nodes[0].NodeIP.Addr(), PodSubnetThisNode: nodes[0].PodSubnet, VPPHostNetwork: nodes[0].HostSubnet}
	if len(nodes) > 1 {
		for _, n := range nodes {
			out.NodeIPs, out.PodSubnetsThisNode, out.VPPHostNetworks = append(out.NodeIPs, n.NodeIP.Addr()), append(out.PodSubnetsThisNode, n.PodSubnet), append(out.VPPHostNetworks, n.HostSubnet)
		}
	}
	first := c.Cluster.Families[0]
	out.Config = localapi.ContivIPAMConfig{
		UseExternalIPAM: c.UseExternalIPAM, ContivCIDR: joined(c.ContivCIDR), NodeInterconnectDHCP: c.NodeInterconnectDHCP,
		ServiceCIDR:          ofFamilies(c.Cluster, func(f addrplan.Family) netip.Prefix { return f.Service }),
		NodeInterconnectCIDR: ofFamilies(c.Cluster, func(f addrplan.Family) netip.Prefix { return f.Nodes }),
		PodSubnetCIDR:        ofFamilies(c.Cluster, func(f addrplan.Family) netip.Prefix { return f.Pods }),
		VPPHostSubnetCIDR:    ofFamilies(c.Cluster, func(f addrplan.Family) netip.Prefix { return f.Hosts }),
		VxlanCIDR:            ofFamilies(c.Cluster, func(f addrplan.Family) netip.Prefix { return f.Vxlan }),

		PodSubnetOneNodePrefixLen: uint8(first.PodsOneNode), VPPHostSubnetOneNodePrefixLen: uint8(first.HostsOneNode),
	}
	if first.Gateway.IsValid() {
		out.Config.DefaultGateway = first.Gateway.String()
	}
	if len(c.Cluster.Families) > 1 {
		out.Config.PodSubnetOneNodePrefixLenIPv6, out.Config.VPPHostSubnetOneNodePrefixLenIPv6 = uint8(c.Cluster.Families[1].PodsOneNode), uint8(c.Cluster.Families[1].HostsOneNode)
	}
	return out, nil
}

func ofFamilies(c addrplan.Cluster, network func(addrplan.Family) netip.Prefix) string {
	var all []netip.Prefix
	for _, f := range c.Families {
		all = append(all, network(f))
	}
	return joined(all)
}

func joined(all []netip.Prefix) string {
	var texts []string
	for _, p := range all {
		if p.IsValid() {
			texts = append(texts, p.String())
		}
	}
	return strings.Join(texts, ",")
}
