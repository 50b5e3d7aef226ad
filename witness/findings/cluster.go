// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/witness"
)

// ClusterState holds the objects of the cluster that CompareCluster compares. Lists may
// have any order. An object that could not be read must not be left out: the caller
// does not compare then.
type ClusterState struct {
	Kubernetes bool          // Nodes holds all Node objects
	SetsKnown  bool          // Sets and AddressPools hold all objects
	Nodes      []ClusterNode // Node objects
	IDs        []ClusterID   // node IDs that are held
	Claims     []ClusterClaim
	Sets       []ClusterSet // NetResourceSets
	Pools      []ClusterPool
	// AddressPools are the pools that blocks of NetResourceSets come from.
	AddressPools []ClusterPool
	Services     []netip.Prefix // the cluster's service network
	Docker       []ClusterDocker
	Unenforced   int64 // NetworkPolicies that no program enforces
}

// ClusterNode holds a Node object.
type ClusterNode struct {
	Name  string
	Addrs []netip.Addr
	Pods  []netip.Prefix // its podCIDRs
}

// ClusterID holds a node ID with what its holder has published.
type ClusterID struct {
	ID     uint32
	Node   string
	Silent bool // its agent has not been there for longer than it may allocate without the store
	Addrs  []netip.Addr
	Blocks []netip.Prefix
}

// ClusterClaim holds a claim of a prefix that has not ended.
type ClusterClaim struct {
	Node    string
	Network string // kv.PodNetworkClaims or kv.NodeNetworkClaims
	Prefix  netip.Prefix
	Held    bool
	Silent  bool // as that of a ClusterID
}

// nodeNetwork is the network of claims of node addresses, as package kv names it.
const nodeNetwork = "nodes"

// ClusterSet holds a NetResourceSet.
type ClusterSet struct {
	Node   string
	Blocks []ClusterBlock
}

// ClusterBlock holds a block of a NetResourceSet, or an address of it.
type ClusterBlock struct {
	Prefix netip.Prefix
	Pool   string // the AddressPool that it is from; "": not known
}

// ClusterPool holds a pool of the cluster, or an AddressPool.
type ClusterPool struct {
	Name   string
	Ranges []netip.Prefix
}

// ClusterDocker holds a subnet of Docker's networks on a node that does not come from
// the pod network.
type ClusterDocker struct {
	Node   string
	Prefix netip.Prefix
}

// Numbers of the findings about the cluster: K10x one owner, K11x nodes that are gone,
// K12x NetResourceSets, K13x networks that share addresses, K14x what is not done.
const (
	numBlockTwice       = "K101"
	numNodeAddressTwice = "K102"
	numIDWithoutNode    = "K111"
	numClaimWithoutNode = "K112"
	numSetWithoutNode   = "K113"
	numBlockWithoutSet  = "K121"
	numBlockOutsidePool = "K122"
	numDockerBesidePods = "K131"
	numServicesOverlap  = "K132"
	numNodeInPods       = "K133"
	numPoolsOverlap     = "K134"
	numUnenforced       = "K141"
)

// ClusterKinds returns the kinds of findings about the cluster, by number.
func ClusterKinds() []Kind {
	return []Kind{
		{
			numBlockTwice,
			"block-on-two-nodes",
			"A block, podCIDR or claim of one node shares addresses with that of another node.",
			"cluster",
			"",
			"keep the node whose pods use the block (cadastre leases on both). Delete the other Node object, so that it gets another podCIDR, " +
				"or end its claim (kubectl delete prefixclaims.cadastre.dev NAME)",
		},
		{
			numNodeAddressTwice,
			"node-address-on-two-nodes",
			"Two nodes have the same address.",
			"cluster",
			"",
			"change nodeConfig of one of the nodes in contiv.conf, or its address in the Node object, and restart its agent",
		},
		{
			numIDWithoutNode, "node-id-without-node",
			"A node ID is held by a node that the cluster does not have, and whose agent is silent.", "cluster", "",
			"cadastre node release NODE; the operator does it after --node-id-expire",
		},
		{
			numClaimWithoutNode, "claim-without-node",
			"A claim is of a node that the cluster does not have, and whose agent is silent.", "cluster", "",
			"cadastre node release NODE; the operator ends the claim after --node-id-expire",
		},
		{
			numSetWithoutNode,
			"set-without-node",
			"A NetResourceSet is of a node that the cluster does not have: its blocks cannot be used.",
			"cluster",
			"",
			"kubectl delete netresourcesets.cadastre.dev NODE; the operator does it after two --netresource-orphan-interval",
		},
		{
			numBlockWithoutSet,
			"block-without-set",
			"A node uses a block of an AddressPool that its NetResourceSet does not have: another node may get it.",
			"cluster",
			"",
			"cadastre resync on the node; if the finding stays, drain the node and restart its agent",
		},
		{
			numBlockOutsidePool, "set-block-outside-pool",
			"A NetResourceSet has a block that is not part of its AddressPool.", "cluster", "",
			"add the range to the AddressPool again, or drain the node so that the operator takes the block back",
		},
		{
			numDockerBesidePods,
			"docker-subnet-overlaps",
			"A subnet of Docker's networks shares addresses with the pod or service network of the cluster.",
			"cluster",
			"",
			"docker network rm NAME on the node, and create it with --subnet outside of these networks",
		},
		{
			numServicesOverlap,
			"services-overlap",
			"The service network shares addresses with a pod network.",
			"cluster",
			"",
			"change --service-cluster-ip-range and serviceCIDR of contiv.conf, or move the pods to a pool outside of it (cadastre apply)",
		},
		{
			numNodeInPods, "node-address-in-pods",
			"A node has an address inside a pod network: a pod may get it.", "cluster", "",
			"give the node an address outside of the pod networks, or move the pods to another pool (cadastre apply)",
		},
		{
			numPoolsOverlap, "pools-overlap",
			"Two pools of the cluster share addresses: two nodes may get the same block.", "cluster", "",
			"change one of the pools (cadastre apply -f FILE, or kubectl edit addresspools.cadastre.dev NAME)",
		},
		{
			numUnenforced,
			"policies-not-enforced",
			"The cluster has NetworkPolicies, and the data plane in Linux has no policies: pods accept all packets.",
			"cluster",
			"",
			"install a program that enforces them and remove --policies-not-enforced of the operator, or delete them",
		},
	}
}

// CompareCluster compares the objects of the cluster with each other. It is pure. Two
// objects are read one after the other, so a finding is certain only if a comparison
// some time later has it too.
func CompareCluster(s ClusterState) []Finding {
	c := &clusterComparison{ClusterState: s, kinds: map[string]Kind{}, nodes: map[string]bool{}}
	for _, k := range ClusterKinds() {
		c.kinds[k.Number] = k
	}
	for _, n := range s.Nodes {
		c.nodes[n.Name] = true
	}
	c.compareOwners()
	if s.Kubernetes {
		c.compareNodes()
	}
	if s.SetsKnown {
		c.compareSets()
	}
	c.compareNetworks()
	if s.Unenforced > 0 {
		noun := "NetworkPolicies are"
		if s.Unenforced == 1 {
			noun = "NetworkPolicy is"
		}
		c.report(numUnenforced, Subject{Object: "NetworkPolicies"},
			fmt.Sprintf("%d %s not enforced: pods accept all packets", s.Unenforced, noun),
			"there are NetworkPolicies") // the signature does not depend on the number
	}
	slices.SortFunc(c.found, func(a, b Finding) int {
		return cmp.Or(strings.Compare(a.Number, b.Number), strings.Compare(a.Text, b.Text))
	})
	return c.found
}

// clusterComparison holds one run of CompareCluster.
type clusterComparison struct {
	ClusterState
	kinds map[string]Kind
	nodes map[string]bool // Node objects, by name
	found []Finding
}

// maxEvidence limits the statements of one finding.
const maxEvidence = 8

// report adds a finding. Its facts are the statements of the evidence.
func (c *clusterComparison) report(number string, s Subject, text string, statements ...string) {
	f := Finding{Number: number, Name: c.kinds[number].Name, Subject: s, Text: text, Fix: c.kinds[number].Fix}
	slices.Sort(statements)
	statements = slices.Compact(statements)
	if s.Node != "" {
		f.Fix = strings.ReplaceAll(f.Fix, "NODE", s.Node)
	}
	for i, statement := range statements {
		if i == maxEvidence {
			statement = fmt.Sprintf("%d further statements", len(statements)-i)
		}
		f.Evidence = append(f.Evidence, witness.Evidence{Witness: witness.Cluster, Text: statement})
		if i == maxEvidence {
			break
		}
	}
	f.Sign(statements...)
	c.found = append(c.found, f)
}

// compareNodes looks for IDs, claims and sets of nodes that the cluster does not have. An
// agent that is there may be on a machine outside of Kubernetes.
func (c *clusterComparison) compareNodes() {
	for _, id := range c.IDs {
		if c.nodes[id.Node] || !id.Silent {
			continue
		}
		c.report(numIDWithoutNode, Subject{Node: id.Node, Object: fmt.Sprintf("node ID %d", id.ID)},
			fmt.Sprintf("node ID %d is held by node %s, which the cluster does not have", id.ID, id.Node),
			"there is no Node "+id.Node, fmt.Sprintf("the record of node ID %d names %s", id.ID, id.Node))
	}
	for _, claim := range c.Claims {
		if c.nodes[claim.Node] || !claim.Silent {
			continue
		}
		c.report(
			numClaimWithoutNode,
			Subject{Node: claim.Node, Prefix: claim.Prefix, Network: claim.Network},
			fmt.Sprintf("%s is claimed by node %s, which the cluster does not have", claim.Prefix, claim.Node),
			"there is no Node "+claim.Node,
			fmt.Sprintf("a claim of %s in network %s names %s", claim.Prefix, claim.Network, claim.Node),
		)
	}
	for _, set := range c.Sets {
		if c.SetsKnown && !c.nodes[set.Node] {
			c.report(numSetWithoutNode, Subject{Node: set.Node, Object: "NetResourceSet " + set.Node},
				fmt.Sprintf("NetResourceSet %s is of a node that the cluster does not have", set.Node),
				"there is no Node "+set.Node)
		}
	}
}

// compareSets compares the blocks that nodes use with the NetResourceSets, and these
// with the AddressPools.
func (c *clusterComparison) compareSets() {
	sets, pools := map[string]ClusterSet{}, map[string]ClusterPool{}
	var ranges []netip.Prefix
	for _, set := range c.Sets {
		sets[set.Node] = set
	}
	for _, p := range c.AddressPools {
		pools[p.Name] = p
		ranges = append(ranges, p.Ranges...)
	}
	for _, id := range c.IDs {
		for _, b := range id.Blocks {
			inSet := slices.ContainsFunc(
				sets[id.Node].Blocks,
				func(x ClusterBlock) bool { return x.Prefix.Overlaps(b) },
			)
			if inSet || !within(ranges, b) {
				continue
			}
			c.report(
				numBlockWithoutSet,
				Subject{Node: id.Node, Prefix: b},
				fmt.Sprintf(
					"node %s uses block %s of an AddressPool, and its NetResourceSet does not have it",
					id.Node,
					b,
				),
				fmt.Sprintf("the record of node ID %d has %s", id.ID, b),
			)
		}
	}
	for _, set := range c.Sets {
		for _, b := range set.Blocks {
			pool, found := pools[b.Pool]
			if b.Pool == "" || found && within(pool.Ranges, b.Prefix) {
				continue
			}
			statement := fmt.Sprintf("AddressPool %s has %s", b.Pool, joined(pool.Ranges))
			if !found {
				statement = "there is no AddressPool " + b.Pool
			}
			c.report(
				numBlockOutsidePool,
				Subject{Node: set.Node, Pool: b.Pool, Prefix: b.Prefix},
				fmt.Sprintf(
					"NetResourceSet %s has block %s, which is not part of AddressPool %s",
					set.Node,
					b.Prefix,
					b.Pool,
				),
				statement,
			)
		}
	}
}

// within reports whether one of the ranges contains all of p.
func within(ranges []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Bits() <= p.Bits() && r.Overlaps(p) })
}

func joined(prefixes []netip.Prefix) string {
	all := make([]string, len(prefixes))
	for i, p := range prefixes {
		all[i] = p.String()
	}
	return strings.Join(all, ", ")
}
