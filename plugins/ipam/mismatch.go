// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/plugins/contivconf"
)

// mismatch says that the node ID and the Node object stand for different pod
// subnets, and which of them count; "" where they agree, or only one says
// something. It is told once, in the log and in the status, as often as it changes.
func (i *IPAM) mismatch(s *state) string {
	name := i.ServiceLabel.GetAgentLabel()
	own := i.NodeSync.GetAllNodes()[name]
	if own == nil || s.nodeID == 0 {
		return ""
	}
	said := i.ofOurFamilies(own.PodCIDRs)
	derived := podSubnets(s.nodes)
	if i.ContivConf.PodBlocks() != contivconf.PodBlocksNodeID {
		derived = i.derivedByID(s)
	}
	if len(said) == 0 || len(derived) == 0 || sameSet(said, derived) {
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
	}
	return fmt.Sprintf("Mismatch: node ID %d stands for %s, Node.spec.podCIDRs of node %s for %s; %s", s.nodeID, texts(derived), name, texts(said), counts)
}

// derivedByID is what the node ID stands for, nothing where it fits no network.
func (i *IPAM) derivedByID(s *state) []netip.Prefix {
	nodes, err := i.ContivConf.Cluster().Node(s.nodeID)
	if err != nil {
		return nil
	}
	return podSubnets(nodes)
}

// noteMismatch puts the report into the state, and into the log where it is news.
func (i *IPAM) noteMismatch(s *state) {
	before := ""
	if old := i.state.Load(); old != nil {
		before = old.mismatch
	}
	s.mismatch = i.mismatch(s)
	switch {
	case s.mismatch == before:
	case s.mismatch == "":
		i.Log.Info("node ID and Node object say the same again")
	default:
		i.Log.Warn(s.mismatch)
	}
}

// Mismatch is what node ID and Node object say different things about, "" for nothing.
func (i *IPAM) Mismatch() string { return i.state.Load().mismatch }
