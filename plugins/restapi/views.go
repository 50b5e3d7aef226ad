// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

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

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// ClusterViews implements Cluster from the node's plugins and the cluster store.
type ClusterViews struct {
	NodeName   string
	Instance   string
	NodeID     NodeID
	Config     contivconf.Cadastre
	ContivConf *contivconf.ContivConf
	Networks   Networks
	Ledger     *ledger.Ledger
	Store      kvdb.Store
	Claims     *claims.Register // ended with the ID of a released node
	Now        func() time.Time
}

// Networks shows the networks of the nodes and the pools of the cluster.
type Networks interface {
	Nodes() []addrplan.Node // of this node, one for each family; empty before the first resync
	Pools() []poolplan.Pool
	Problems() []ipam.Problem
	BlocksOf(n *nodesync.Node) []netip.Prefix
	PoolUses() []*kv.PoolUse // of this node, now
}

// NodeID returns the ID of this node.
type NodeID interface {
	ID() uint32
}

// Nodes returns the nodes that the cluster store has, by ID.
func (v *ClusterViews) Nodes(ctx context.Context) ([]localapi.Node, error) {
	registered, unreadable, err := nodesync.ListAll(ctx, v.Store)
	if err != nil {
		return nil, err
	}
	all := []localapi.Node{}
	for _, r := range registered {
		n := localapi.Node{
			ID:         r.Id,
			Name:       r.Name,
			Instance:   r.Instance,
			Generation: r.Generation,
			Addresses:  append([]string{}, r.IpAddresses...),
			PodCIDRs:   []string{},
			Released:   r.Released != 0,
			Self:       r.Instance == v.Instance,
			Pools:      []localapi.PoolUse{},
		}
		for _, p := range v.Networks.BlocksOf(&nodesync.Node{ID: r.Id, Name: r.Name}) {
			n.PodCIDRs = append(n.PodCIDRs, p.String())
		}
		if r.Beat != nil {
			seen := time.Unix(0, r.Beat.At).UTC()
			n.LastSeen = &seen
			uses := r.Beat.Pools
			if n.Self { // its beat is as old as its interval
				uses = v.Networks.PoolUses()
			}
			for _, u := range uses {
				use := localapi.PoolUse{Pool: u.Pool, Generation: u.Generation, Open: u.Open, Leases: u.Leases}
				for _, b := range u.Blocks {
					x := localapi.BlockUse{
						Block:    b.Prefix,
						Leases:   b.Leases,
						Draining: b.Draining,
						Reserved: b.Reserved,
					}
					use.Blocks = append(use.Blocks, x)
				}
				n.Pools = append(n.Pools, use)
			}
		}
		all = append(all, n)
	}
	for _, u := range unreadable {
		all = append(
			all,
			localapi.Node{
				ID:        u.ID,
				Addresses: []string{},
				PodCIDRs:  []string{},
				Pools:     []localapi.PoolUse{},
				Problem:   u.Err.Error(),
			},
		)
	}
	slices.SortFunc(all, func(x, y localapi.Node) int { return cmp.Compare(x.ID, y.ID) })
	return all, nil
}

// ReleaseNode makes the ID of a node free that is gone.
func (v *ClusterViews) ReleaseNode(
	ctx context.Context,
	req localapi.NodeReleaseRequest,
) (reply localapi.NodeReleaseReply, err error) {
	if req.Name == v.NodeName {
		return reply, &localapi.StatusError{
			Status: http.StatusConflict,
			Err: fmt.Errorf(
				"%s is this node, whose agent runs: stop it, and ask the agent of another node",
				req.Name,
			),
		}
	}
	ids := v.Config.NodeIDs
	gone := nodesync.Gone{
		Name:   req.Name,
		Force:  req.Force,
		Fresh:  ids.Fresh,
		Expire: ids.Expire,
		Watch:  ids.Fresh / 2,
		Claims: v.Claims,
		DryRun: req.DryRun,
	}
	reply.ID, err = nodesync.Release(ctx, v.Store, gone, v.Now())
	switch {
	case errors.Is(err, nodesync.ErrNoNode):
		return reply, &localapi.StatusError{Status: http.StatusNotFound, Err: err}
	case errors.Is(err, nodesync.ErrFresh):
		return reply, &localapi.StatusError{Status: http.StatusConflict, Err: err}
	case err != nil || req.DryRun:
		return reply, err
	}
	nodes, err := nodesync.List(ctx, v.Store)
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

// Pools returns the pools of the cluster with this node's blocks.
func (v *ClusterViews) Pools(context.Context) ([]localapi.Pool, error) {
	stats := v.Ledger.Stats()
	problems := map[string]string{}
	for _, p := range v.Networks.Problems() {
		problems[p.Object] = p.Text
	}
	all := []localapi.Pool{}
	for _, p := range v.Networks.Pools() {
		out := localapi.Pool{
			Name:       p.Name,
			Network:    p.Network,
			State:      p.State.String(),
			Generation: p.Generation,
			Origin:     p.Origin,
			Problem:    cmp.Or(problems["pool/"+p.Name], problems["network/"+p.Network]),
			Ranges:     []localapi.PoolRange{},
			Blocks:     []localapi.Block{},
		}
		for _, r := range p.Ranges {
			out.Ranges = append(
				out.Ranges,
				localapi.PoolRange{CIDR: r.CIDR.String(), OneNodePrefixLen: uint32(r.OneNode)},
			)
			for _, b := range stats {
				if b.Pool == p.Network && r.CIDR.Overlaps(b.Block) {
					out.Blocks = append(out.Blocks, BlockOf(b))
				}
			}
		}
		all = append(all, out)
	}
	return append(all, withoutPool(v.Networks.Pools(), v.Networks.Problems())...), nil
}

// withoutPool returns the objects that could not become pools, with the reason.
func withoutPool(pools []poolplan.Pool, problems []ipam.Problem) (all []localapi.Pool) {
	known := map[string]bool{}
	for _, p := range pools {
		known["pool/"+p.Name], known["network/"+p.Network] = true, true
	}
	for _, p := range problems {
		if !known[p.Object] {
			_, name, _ := strings.Cut(p.Object, "/")
			all = append(all, localapi.Pool{
				Name:    name,
				Network: name,
				State:   "refused",
				Origin:  p.Object,
				Problem: p.Text,
				Ranges:  []localapi.PoolRange{},
				Blocks:  []localapi.Block{},
			})
		}
	}
	return all
}

// Apply changes the pools of the cluster to those of a file.
func (v *ClusterViews) Apply(ctx context.Context, file []byte, dryRun bool) (localapi.ApplyResult, error) {
	plan, err := ipam.Apply(ctx, v.Store, ipam.Reserved(v.ContivConf), file, dryRun)
	var bad poolplan.Problems
	if errors.As(err, &bad) {
		return applyResultOf(
				poolplan.Plan{Problems: bad},
			), &localapi.StatusError{
				Status: http.StatusBadRequest,
				Err:    err,
			}
	}
	result := applyResultOf(plan)
	result.Text += v.unused(plan)
	return result, err
}

// unused returns a note about changes of the pod network's pools if this node has
// its blocks from elsewhere.
func (v *ClusterViews) unused(plan poolplan.Plan) string {
	mode := v.Config.PodBlocks
	ofPods := func(c poolplan.Change) bool { return c.To.Network == ipam.PodPool }
	if mode == contivconf.PodBlocksNodeID || plan.Err() != nil || !slices.ContainsFunc(plan.Changes, ofPods) {
		return ""
	}
	return fmt.Sprintf(
		"\nThis node takes no blocks of the pools of network %s: its podBlocks is %s.\n",
		ipam.PodPool,
		mode,
	)
}

func applyResultOf(plan poolplan.Plan) localapi.ApplyResult {
	var text strings.Builder
	_ = plan.Text(&text)
	r := localapi.ApplyResult{
		Text:     text.String(),
		Changes:  len(plan.Changes),
		Refused:  plan.Err() != nil,
		Problems: []localapi.Problem{},
		Blocks:   []localapi.Blocker{},
		Moves:    []localapi.Move{},
	}
	for _, p := range plan.Problems {
		r.Problems = append(r.Problems, localapi.Problem{Field: p.Field, Value: p.Value, Problem: p.Text})
	}
	for _, b := range plan.Blocks {
		r.Blocks = append(
			r.Blocks,
			localapi.Blocker{Pool: b.Pool, Node: b.NodeName, Leases: b.Leases, Reason: b.String()},
		)
	}
	for _, m := range plan.Moves {
		r.Moves = append(
			r.Moves,
			localapi.Move{
				Pool: m.Pool,
				Node: m.NodeName,
				From: joined(m.Drains),
				To:   joined(prefixesOf(m.Opens, m.Keeps)),
			},
		)
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

// IPAM returns the node's networks in the form of Contiv-VPP's REST.
func (v *ClusterViews) IPAM() (localapi.ContivIPAM, error) {
	nodes := v.Networks.Nodes()
	if len(nodes) == 0 {
		return localapi.ContivIPAM{}, errors.New("no resync yet: the node's networks are not known")
	}
	c := v.ContivConf.GetIPAMConfig()
	out := localapi.ContivIPAM{
		NodeID:            v.NodeID.ID(),
		NodeName:          v.NodeName,
		NodeIP:            nodes[0].NodeIP.Addr(),
		PodSubnetThisNode: nodes[0].PodSubnet,
		VPPHostNetwork:    nodes[0].HostSubnet,
	}
	if len(nodes) > 1 {
		for _, n := range nodes {
			out.NodeIPs = append(out.NodeIPs, n.NodeIP.Addr())
			out.PodSubnetsThisNode = append(out.PodSubnetsThisNode, n.PodSubnet)
			out.VPPHostNetworks = append(out.VPPHostNetworks, n.HostSubnet)
		}
	}
	first := c.Cluster.Families[0]
	out.Config = localapi.ContivIPAMConfig{
		UseExternalIPAM:      c.UseExternalIPAM,
		ContivCIDR:           joined(c.ContivCIDR),
		NodeInterconnectDHCP: c.NodeInterconnectDHCP,
		ServiceCIDR:          ofFamilies(c.Cluster, func(f addrplan.Family) netip.Prefix { return f.Service }),
		NodeInterconnectCIDR: ofFamilies(c.Cluster, func(f addrplan.Family) netip.Prefix { return f.Nodes }),
		PodSubnetCIDR:        ofFamilies(c.Cluster, func(f addrplan.Family) netip.Prefix { return f.Pods }),
		VPPHostSubnetCIDR:    ofFamilies(c.Cluster, func(f addrplan.Family) netip.Prefix { return f.Hosts }),
		VxlanCIDR:            ofFamilies(c.Cluster, func(f addrplan.Family) netip.Prefix { return f.Vxlan }),

		PodSubnetOneNodePrefixLen:     uint8(first.PodsOneNode),
		VPPHostSubnetOneNodePrefixLen: uint8(first.HostsOneNode),
	}
	if first.Gateway.IsValid() {
		out.Config.DefaultGateway = first.Gateway.String()
	}
	if len(c.Cluster.Families) > 1 {
		second := c.Cluster.Families[1]
		out.Config.PodSubnetOneNodePrefixLenIPv6 = uint8(second.PodsOneNode)
		out.Config.VPPHostSubnetOneNodePrefixLenIPv6 = uint8(second.HostsOneNode)
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

// BlockOf returns the counts of a block as the API shows them.
func BlockOf(b ledger.BlockStat) localapi.Block {
	return localapi.Block{
		Pool:        b.Pool,
		Family:      b.Family.String(),
		Block:       b.Block.String(),
		State:       b.State.String(),
		Size:        b.Size,
		Free:        b.Free,
		Held:        b.Held,
		Infra:       b.Infra,
		Cooling:     b.Cooling,
		Quarantined: b.Quarantined,
		Reserved:    b.Reserved,
	}
}
