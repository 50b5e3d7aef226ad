// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

const (
	defaultConfig = "/etc/cadastre/contiv.conf"
	maxPlans      = 4096 // at once
	fewPods       = 10   // a capacity below this is worth a warning
)

// familyPlan holds the subnets and addresses of a node in one family.
type familyPlan struct {
	PodSubnetThisNode              netip.Prefix `json:"podSubnetThisNode"`
	PodSubnetAllNodes              netip.Prefix `json:"podSubnetAllNodes"`
	PodGatewayIP                   netip.Addr   `json:"podGatewayIP"`
	NatLoopbackIP                  netip.Addr   `json:"natLoopbackIP"`
	FirstPodIP                     netip.Addr   `json:"firstPodIP"`
	LastPodIP                      netip.Addr   `json:"lastPodIP"`
	PodCapacity                    uint64       `json:"podCapacity"`
	HostInterconnectSubnetThisNode netip.Prefix `json:"hostInterconnectSubnetThisNode"`
	HostInterconnectSubnetAllNodes netip.Prefix `json:"hostInterconnectSubnetAllNodes"`
	HostInterconnectIPInVPP        netip.Addr   `json:"hostInterconnectIPInVPP"`
	HostInterconnectIPInLinux      netip.Addr   `json:"hostInterconnectIPInLinux"`
	NodeIPAddress                  netip.Prefix `json:"nodeIPAddress"` // "" where DHCP decides
	VxlanIPAddress                 netip.Prefix `json:"vxlanIPAddress"`
	ServiceNetwork                 netip.Prefix `json:"serviceNetwork"`
}

// nodePlan is everything that follows from a node ID. What is not below ipv4 or
// ipv6 is the first family's.
type nodePlan struct {
	NodeID uint32 `json:"nodeID"`
	familyPlan
	IPv4               *familyPlan `json:"ipv4,omitempty"`
	IPv6               *familyPlan `json:"ipv6,omitempty"`
	MaxNodeID          uint32      `json:"maxNodeID"`
	MaxNodeIDLimitedBy []string    `json:"maxNodeIDLimitedBy"`
	Warnings           []string    `json:"warnings"`
}

// families returns the plan's families, the first one first.
func (n nodePlan) families() []familyPlan {
	all := []familyPlan{n.familyPlan}
	for _, f := range []*familyPlan{n.IPv4, n.IPv6} {
		if f != nil && f.PodSubnetAllNodes != n.PodSubnetAllNodes {
			all = append(all, *f)
		}
	}
	return all
}

func (a *app) planCmd() *cobra.Command {
	var config, ids, against, file string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what follows from a configuration and a node ID",
		Long: `plan shows every subnet and address that follows from a configuration and a node
ID, or says what is wrong with either. It reads the file only.

With -f it shows what would follow from a file of pools for the cluster of the
agent, and changes nothing. The exit code is 4 where the file would be refused.`,
		Example: `  cadastre plan --config conf/contiv.conf --node-id 5
  cadastre plan --config conf/contiv.conf --node-id 1-10 -o json
  cadastre plan -f pools.yaml`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			switch {
			case against == "" && file == "":
				return a.plan(config, ids)
			case file == "":
				return usagef(
					"--filename is missing: write --against %s -f pools.yaml, or -f - for standard input",
					against,
				)
			}
			agent := a.client()
			if against != "" {
				agent = clientOf(against)
			}
			if err := a.apply(ctx, agent, file, true); err != nil {
				return fmt.Errorf("plan: %w", err)
			}
			return nil
		}),
	}
	fileFlag(cmd, &file)
	cmd.Flags().StringVar(
		&against,
		"against",
		"",
		"with -f: ask the agent at this `SOCKET` (default: that of --socket)",
	)
	cmd.Flags().StringVar(&config, "config", defaultConfig, "the configuration `FILE`")
	cmd.Flags().StringVar(
		&ids,
		"node-id",
		"",
		"a node ID, or a range of them such as 1-10 (default: the one that the file pins)",
	)
	for _, name := range []string{"config", "node-id"} { // -f is about a cluster, these are about a file
		cmd.MarkFlagsMutuallyExclusive("filename", name)
	}
	cmd.MarkFlagsMutuallyExclusive("against", "config")
	cmd.MarkFlagsMutuallyExclusive("against", "node-id")
	return cmd
}

func (a *app) plan(config, ids string) error {
	var wanted idRange
	var err error
	if ids != "" {
		if wanted, err = parseIDs(ids); err != nil {
			return err
		}
	}
	cfg, _, err := contivconf.Load(config)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: name the file with --config", err)
	}
	if err != nil {
		return err
	}
	if twice := cfg.DerivedTwice(); len(twice) > 0 {
		lines := make([]error, len(twice))
		for i, e := range twice {
			lines[i] = e
		}
		return fmt.Errorf("configuration %s:\n%w", config, errors.Join(lines...))
	}
	if ids == "" {
		if cfg.Cadastre.NodeID == 0 {
			return usagef(
				"--node-id is missing, and cadastre.nodeID in %s pins none: write --node-id 5, or --node-id 1-10",
				config,
			)
		}
		wanted = idRange{first: cfg.Cadastre.NodeID, last: cfg.Cadastre.NodeID}
	}
	plans, err := makePlans(cfg, wanted, warnings(cfg))
	if err != nil {
		return err
	}
	vpp := cfg.Cadastre.Dataplane != contivconf.DataplaneLinux
	if wanted.several {
		return a.print(plans, func(wide bool) string { return plansTable(plans, wide, vpp) })
	}
	return a.print(plans[0], func(wide bool) string { return planText(plans[0], wide, vpp) })
}

// idRange is the IDs from first to last.
type idRange struct {
	first, last uint32
	several     bool // written as a range
}

func parseIDs(s string) (idRange, error) {
	from, to, several := strings.Cut(s, "-")
	first, err := parseID(s, from)
	if err != nil || !several {
		return idRange{first: first, last: first}, err
	}
	last, err := parseID(s, to)
	switch {
	case err != nil:
		return idRange{}, err
	case first > last:
		return idRange{}, usagef("--node-id: %q ends before it begins: write %d-%d", s, last, first)
	case last-first >= maxPlans:
		return idRange{}, usagef(
			"--node-id: %q are %d IDs: write a range of at most %d",
			s,
			uint64(last)-uint64(first)+1,
			maxPlans,
		)
	}
	return idRange{first, last, true}, nil
}

func parseID(whole, s string) (uint32, error) {
	id, err := strconv.ParseUint(s, 10, 32)
	if err != nil || id == 0 {
		return 0, usagef(
			"--node-id: %q is not a node ID: write one from 1 on, such as 5, or a range such as 1-10",
			whole,
		)
	}
	return uint32(id), nil
}

func makePlans(cfg *contivconf.Config, ids idRange, warnings []string) ([]nodePlan, error) {
	most, limits := largestID(cfg.IPAM.Cluster)
	if ids.last > most {
		return nil, fmt.Errorf(
			"--node-id: %d is out of the range 1 to %d, limited by %s",
			ids.last,
			most,
			listed(limits),
		)
	}
	base := nodePlan{MaxNodeID: most, MaxNodeIDLimitedBy: []string{}, Warnings: warnings}
	for _, l := range limits {
		base.MaxNodeIDLimitedBy = append(base.MaxNodeIDLimitedBy, l.name)
	}
	var plans []nodePlan
	for id := uint64(ids.first); id <= uint64(ids.last); id++ {
		n := base
		n.NodeID = uint32(id)
		if err := n.fill(cfg); err != nil {
			return nil, fmt.Errorf("plan of node ID %d: %w", id, err)
		}
		plans = append(plans, n)
	}
	return plans, nil
}

// fill derives the families as the agent does.
func (n *nodePlan) fill(cfg *contivconf.Config) error {
	nodes, err := cfg.IPAM.Cluster.Node(n.NodeID)
	if err != nil {
		return err
	}
	for i, f := range cfg.IPAM.Cluster.Families {
		node := nodes[i]
		if block, ok := staticBlock(cfg, f); ok {
			pods, err := f.WithPodSubnet(n.NodeID, block)
			if err != nil {
				return err
			}
			pods.HostSubnet, pods.HostVPP, pods.HostLinux = node.HostSubnet, node.HostVPP, node.HostLinux
			pods.NodeIP, pods.VxlanIP = node.NodeIP, node.VxlanIP
			node = pods
		}
		p := newFamilyPlan(f, node)
		if i == 0 {
			n.familyPlan = p
		}
		if f.Pods.Addr().Is4() {
			n.IPv4 = &p
		} else {
			n.IPv6 = &p
		}
	}
	return nil
}

// staticBlock returns the pod subnet that the configuration gives to this node.
func staticBlock(cfg *contivconf.Config, f addrplan.Family) (netip.Prefix, bool) {
	if cfg.Cadastre.PodBlocks != contivconf.PodBlocksStatic {
		return netip.Prefix{}, false
	}
	blocks := cfg.Cadastre.StaticPodCIDRs
	i := slices.IndexFunc(blocks, func(p netip.Prefix) bool { return p.Addr().Is4() == f.Pods.Addr().Is4() })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return blocks[i], true
}

func newFamilyPlan(f addrplan.Family, n addrplan.Node) familyPlan {
	return familyPlan{
		PodSubnetThisNode:              n.PodSubnet,
		PodSubnetAllNodes:              f.Pods,
		PodGatewayIP:                   n.PodGateway,
		NatLoopbackIP:                  n.NatLoopback,
		FirstPodIP:                     n.FirstPod,
		LastPodIP:                      n.LastPod,
		PodCapacity:                    n.PodCapacity(),
		HostInterconnectSubnetThisNode: n.HostSubnet,
		HostInterconnectSubnetAllNodes: f.Hosts,
		HostInterconnectIPInVPP:        n.HostVPP,
		HostInterconnectIPInLinux:      n.HostLinux,
		NodeIPAddress:                  n.NodeIP,
		VxlanIPAddress:                 n.VxlanIP,
		ServiceNetwork:                 f.Service,
	}
}

// limit is a network that has room for so many nodes.
type limit struct {
	name    string
	network netip.Prefix
	most    uint32
}

func (l limit) String() string { return l.name + " (" + l.network.String() + ")" }

// largestID returns the largest ID that fits every network, and those that set it.
func largestID(c addrplan.Cluster) (uint32, []limit) {
	most := c.MaxNodeID()
	var all []limit
	for _, f := range c.Families {
		all = append(all, limit{"podSubnetCIDR", f.Pods, addrspace.MaxNodePrefix(f.Pods, f.PodsOneNode)},
			limit{"vppHostSubnetCIDR", f.Hosts, addrspace.MaxNodePrefix(f.Hosts, f.HostsOneNode)})
		if f.Nodes.IsValid() {
			all = append(all, limit{"nodeInterconnectCIDR", f.Nodes, addrspace.MaxNodeAddr(f.Nodes, f.Gateway)})
		}
		all = append(all, limit{"vxlanCIDR", f.Vxlan, addrspace.MaxNodeAddr(f.Vxlan, netip.Addr{})})
	}
	return most, slices.DeleteFunc(all, func(l limit) bool { return l.most > most })
}
