// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// configDiffers returns how the pod network of contiv.conf differs from the pools
// of the cluster, "" if an active pool has its ranges. contiv.conf sets only the first
// pool of a cluster. Without an active pool there is nothing to differ from.
func (i *IPAM) configDiffers(pools []poolplan.Pool) string {
	conf := poolplan.FromCluster(i.ContivConf.Cluster())
	var active []string
	for _, p := range pools {
		if p.Network != PodPool || p.State != poolplan.Active {
			continue
		}
		if slices.Equal(p.Ranges, conf.Ranges) {
			return ""
		}
		active = append(active, fmt.Sprintf("pool %s with %s", p.Name, ranges(p)))
	}
	if len(active) == 0 { // in the middle of a change of several pools, each of which is an event
		return ""
	}
	return fmt.Sprintf("contiv.conf has podSubnetCIDR %s, but the cluster has %s, and the cluster's pools count: "+
		"write the ranges of one of them into contiv.conf, or change the pools with cadastre apply",
		ranges(conf), strings.Join(active, " and "))
}

// ranges describes the ranges of a pool.
func ranges(p poolplan.Pool) string {
	var all []string
	for _, r := range p.Ranges {
		all = append(all, fmt.Sprintf("%s (a /%d for each node)", r.CIDR, r.OneNode))
	}
	return strings.Join(all, ", ")
}

// mismatch describes the difference between the pod subnets of the node ID and those of
// the Node object, and which of them count. It returns "" if they are equal, or if one
// of them has none.
func (i *IPAM) mismatch(s *state) string {
	name := i.ServiceLabel.GetAgentLabel()
	own := nodesync.GetNode(i.NodeSync, name)
	if own == nil || s.nodeID == 0 {
		return ""
	}
	published := i.ofOurFamilies(own.PodCIDRs)
	derived := podSubnets(s.nodes)
	if i.ContivConf.PodBlocks() != contivconf.PodBlocksNodeID {
		derived = i.derivedByID(s)
	}
	if len(published) == 0 || len(derived) == 0 || sameSet(published, derived) {
		return ""
	}
	counts := "the node ID counts; set useExternalIPAM to follow the Node object, or let no controller number nodes (--allocate-node-cidrs=false)"
	switch i.ContivConf.PodBlocks() {
	case contivconf.PodBlocksPodCIDR:
		counts = "the Node object counts, as useExternalIPAM is set"
	case contivconf.PodBlocksStatic:
		counts = "neither counts: cadastre.staticPodCIDRs does"
	case contivconf.PodBlocksNetResource:
		counts = "neither counts: the NetResourceSet does"
	case contivconf.PodBlocksInterfaces:
		counts = "neither counts: the interfaces of this machine do"
	}
	return fmt.Sprintf("Mismatch: node ID %d stands for %s, Node.spec.podCIDRs of node %s for %s; %s",
		s.nodeID, texts(derived), name, texts(published), counts)
}

// derivedByID returns the pod subnets that follow from the node ID, none if it fits no
// network.
func (i *IPAM) derivedByID(s *state) []netip.Prefix {
	nodes, err := i.ContivConf.Cluster().Node(s.nodeID)
	if err != nil {
		return nil
	}
	return podSubnets(nodes)
}

// noteMismatch sets the mismatch of s.
func (i *IPAM) noteMismatch(s *state) {
	s.mismatch = i.mismatch(s)
	i.logChange(i.state.Load().mismatch, s.mismatch, "node ID and Node object agree again")
}

// noteDifference sets the difference between contiv.conf and the pools of s.
func (i *IPAM) noteDifference(s *state) {
	s.differs = i.configDiffers(s.pools)
	i.logChange(i.state.Load().differs, s.differs, "contiv.conf differs no more from the pools of the cluster")
}

// logChange logs a difference when it changes. "" means no difference, and end reports
// that it is resolved.
func (i *IPAM) logChange(before, now, end string) {
	switch now {
	case before:
	case "":
		i.Log.Info(end)
	default:
		i.Log.Warn(now)
	}
}

// Mismatch returns the difference between node ID and Node object, "" if there is none.
func (i *IPAM) Mismatch() string { return i.state.Load().mismatch }

// ConfigDiffers returns how contiv.conf differs from the pools of the cluster, "" if it
// does not.
func (i *IPAM) ConfigDiffers() string { return i.state.Load().differs }
