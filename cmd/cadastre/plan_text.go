// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// warnings returns the settings that are allowed, but may not be meant.
func warnings(cfg *contivconf.Config) []string {
	all := []string{}
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	cluster := cfg.IPAM.Cluster
	if most, limits := largestID(cluster); most < podRoom(cluster) {
		say("the largest node ID is %d, limited by %s", most, listed(limits))
	}
	for _, f := range cluster.Families {
		bits := f.PodsOneNode
		if block, ok := staticBlock(cfg, f); ok {
			bits = block.Bits()
		}
		if n := addrplan.Capacity(netip.PrefixFrom(f.Pods.Addr(), bits)); n < fewPods {
			say("a /%d of %s has only %s for pods", bits, f.Pods, plural(n, "address", "addresses"))
		}
	}
	switch cfg.Cadastre.PodBlocks {
	case contivconf.PodBlocksPodCIDR:
		say(
			"pod subnets come from Node.spec.podCIDRs (useExternalIPAM): the plan shows what would follow from the node ID",
		)
	case contivconf.PodBlocksNetResource:
		say(
			"pod subnets come from NetResourceSet.spec.ipam (podBlocks: netresource): the plan shows what would follow from the node ID",
		)
	case contivconf.PodBlocksStatic:
		say("pod subnets are those of cadastre.staticPodCIDRs, whatever the node ID")
	}
	if cfg.IPAM.NodeInterconnectDHCP {
		say("DHCP decides on node addresses (nodeInterconnectDHCP): nodeIPAddress is empty")
	}
	for _, n := range cfg.Notes {
		say("%s", n)
	}
	return all
}

// podRoom returns the largest node ID for which there is a pod subnet.
func podRoom(c addrplan.Cluster) uint32 {
	most := uint32(math.MaxUint32)
	for _, f := range c.Families {
		most = min(most, addrspace.MaxNodePrefix(f.Pods, f.PodsOneNode))
	}
	return most
}

func listed(limits []limit) string {
	names := make([]string, len(limits))
	for i, l := range limits {
		names[i] = l.String()
	}
	return strings.Join(names, " and ")
}

// planText returns the plan of one node; without VPP it leaves out what only VPP uses.
func planText(n nodePlan, wide, vpp bool) string {
	text := fmt.Sprintf("node ID %d\n", n.NodeID)
	if wide {
		text = fmt.Sprintf("node ID %d of 1 to %d\n", n.NodeID, n.MaxNodeID)
	}
	for _, f := range n.families() {
		of := func(part, whole netip.Prefix) string {
			if wide {
				return show(part) + " of " + show(whole)
			}
			return show(part)
		}
		rows := columns.Rows{
			{"  pods", of(f.PodSubnetThisNode, f.PodSubnetAllNodes)},
			{"  pod gateway", show(f.PodGatewayIP)},
			{"  pod addresses", podAddresses(f)},
		}
		if vpp || wide {
			rows = append(rows, columns.Rows{
				{"  NAT loopback", show(f.NatLoopbackIP)},
				{"  VPP-host link", of(f.HostInterconnectSubnetThisNode, f.HostInterconnectSubnetAllNodes)},
				{"  VPP end", show(f.HostInterconnectIPInVPP)},
				{"  Linux end", show(f.HostInterconnectIPInLinux)},
			}...)
		}
		rows.Add("  node", show(f.NodeIPAddress))
		rows.Add("  VXLAN", show(f.VxlanIPAddress))
		rows.Add("  services", show(f.ServiceNetwork))
		text += "\n" + rows.String()
	}
	return text + warningText(n.Warnings)
}

// plansTable has a row for each node, and for each of its families.
func plansTable(plans []nodePlan, wide, vpp bool) string {
	head := []string{"ID", "PODS", "POD ADDRESSES", "NODE", "VXLAN"}
	if vpp || wide {
		head = slices.Insert(head, 3, "VPP END", "LINUX END")
	}
	if wide {
		head = append(head, "POD GATEWAY", "NAT LOOPBACK", "VPP-HOST LINK")
	}
	g := columns.Rows{head}
	for _, n := range plans {
		for _, f := range n.families() {
			row := []string{
				fmt.Sprint(n.NodeID),
				show(f.PodSubnetThisNode),
				podAddresses(f),
				show(f.NodeIPAddress),
				show(f.VxlanIPAddress),
			}
			if vpp || wide {
				row = slices.Insert(row, 3, show(f.HostInterconnectIPInVPP), show(f.HostInterconnectIPInLinux))
			}
			if wide {
				row = append(row, show(f.PodGatewayIP), show(f.NatLoopbackIP), show(f.HostInterconnectSubnetThisNode))
			}
			g = append(g, row)
		}
	}
	return g.String() + warningText(plans[0].Warnings)
}

func warningText(warnings []string) string {
	text := ""
	for _, w := range warnings {
		text += "\nwarning: " + columns.Clean(w)
	}
	if text != "" {
		text = text + "\n"
	}
	return text
}

func podAddresses(f familyPlan) string {
	return fmt.Sprintf("%s - %s (%s)", f.FirstPodIP, f.LastPodIP, capacity(f))
}

// capacity returns the number of pods; one with too many digits to read is rounded up.
func capacity(f familyPlan) string {
	const readable = 1_000_000_000
	if f.PodCapacity < readable {
		return fmt.Sprint(f.PodCapacity)
	}
	return fmt.Sprintf("nearly 2^%d", f.PodSubnetThisNode.Addr().BitLen()-f.PodSubnetThisNode.Bits())
}

// show returns an address or prefix, and nothing for the zero one.
func show(v interface {
	IsValid() bool
	String() string
}) string {
	if !v.IsValid() {
		return ""
	}
	return v.String()
}
