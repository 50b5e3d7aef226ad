// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/controller"
)

// Cluster holds what the operator knows of the cluster at one moment. No lease is in it:
// the agents' explanations have these.
type Cluster struct {
	Now         time.Time
	Pools       []ClusterPool
	Blocks      []ClusterBlock
	Nodes       []ClusterNode
	Pods        []ClusterPod // those that the subject needs
	PodsUnknown string       // why Pods are not known; "": they are
	Findings    []ClusterFinding
	Decisions   []controller.Record // of this operator, about the subject
}

// ClusterPool is a pool of the cluster.
type ClusterPool struct {
	Name    string
	Network string
	Ranges  []string // "10.1.0.0/16, a /24 for each node"
	State   string
}

// ClusterBlock is a block of a node.
type ClusterBlock struct {
	Pool     string
	Prefix   netip.Prefix
	Node     string
	Size     uint64
	Used     uint64
	Known    bool // Used is known
	Draining bool
}

// ClusterNode is the record of a node.
type ClusterNode struct {
	Name     string
	ID       uint32
	Addrs    []string
	Released bool
	LastSeen time.Time // zero: its agent has never reported
	Stopped  bool      // the agent has ended in good order
}

// ClusterPod is a Pod as the API server has it.
type ClusterPod struct {
	Namespace, Name, Node, Phase string
	HostNetwork                  bool
	Addrs                        []netip.Addr
	Containers                   []string // "containerd://ID"
}

// ClusterFinding is a difference between objects of the cluster.
type ClusterFinding struct {
	Number, Name, Text, Fix string
	Node, Pool              string
	Prefix                  netip.Prefix // invalid: the finding names none
}

// use tells how many addresses of a block are in use.
func (b *ClusterBlock) use() string {
	text := fmt.Sprintf("%d of %d addresses in use", b.Used, b.Size)
	if !b.Known {
		text = fmt.Sprintf("the use of its %d addresses is not known here", b.Size)
	}
	if b.Draining {
		text += ", draining"
	}
	return text
}

// seen tells when the agent of a node has reported.
func (c *Cluster) seen(n *ClusterNode) string {
	switch {
	case n.LastSeen.IsZero():
		return "its agent has never reported"
	case n.Stopped:
		return "its agent has ended " + c.ago(n.LastSeen)
	}
	return "its agent reported " + c.ago(n.LastSeen)
}

func (c *Cluster) ago(t time.Time) string {
	return max(c.Now.Sub(t), 0).Round(time.Second).String() + " ago"
}

// PoolOfCluster explains how much of a pool the nodes have.
func PoolOfCluster(c *Cluster, name string) *Tree {
	t := &Tree{Subject: "pool " + name}
	var blocks []ClusterBlock
	for _, b := range c.Blocks {
		if b.Pool == name {
			blocks = append(blocks, b)
		}
	}
	pools := c.poolsOf(name)
	if len(pools) == 0 && len(blocks) == 0 {
		t.Answer = "the cluster has no pool of this name"
		t.fix("cadastre pool list", "lists the pools of the cluster, with the network of each")
		return t
	}
	t.Answer = usedText(blocks)
	for _, p := range pools {
		t.because("pool %s (%s): %s", p.Name, p.State, orNone(p.Ranges))
	}
	slices.SortStableFunc(blocks, func(a, b ClusterBlock) int { // the fullest first
		return int(b.Used*100/max(b.Size, 1)) - int(a.Used*100/max(a.Size, 1))
	})
	for i := range blocks[:min(len(blocks), shownAtMost)] {
		b := &blocks[i]
		t.because("block %s of node %s: %s", b.Prefix, b.Node, b.use())
	}
	if more := len(blocks) - shownAtMost; more > 0 {
		t.because("%d further blocks, with fewer addresses in use", more)
	}
	c.findings(t, func(f *ClusterFinding) bool { return f.Pool == name })
	return t
}

func (c *Cluster) poolsOf(network string) (all []ClusterPool) {
	for _, p := range c.Pools {
		if p.Network == network {
			all = append(all, p)
		}
	}
	return all
}

// usedText sums the blocks in one sentence.
func usedText(blocks []ClusterBlock) string {
	nodes, used, size, unknown := map[string]bool{}, uint64(0), uint64(0), 0
	for i := range blocks {
		b := &blocks[i]
		nodes[b.Node] = true
		if !b.Known {
			unknown++
			continue
		}
		used += b.Used
		size += min(b.Size, ^uint64(0)-size)
	}
	text := fmt.Sprintf("%d nodes have %d blocks, with %d of %d addresses in use", len(nodes), len(blocks), used, size)
	if unknown > 0 {
		text += fmt.Sprintf("; the use of %d blocks is not known here", unknown)
	}
	return text
}

// BlockOfCluster explains which nodes have a part of a prefix.
func BlockOfCluster(c *Cluster, pool string, prefix netip.Prefix) *Tree {
	t := &Tree{Subject: fmt.Sprintf("block %s of pool %s", prefix, pool)}
	var blocks []ClusterBlock
	for _, b := range c.Blocks {
		if b.Pool == pool && b.Prefix.Overlaps(prefix) {
			blocks = append(blocks, b)
		}
	}
	switch {
	case len(blocks) == 0:
		t.Answer = "no node has a block of it"
	case len(blocks) == 1:
		t.Answer = fmt.Sprintf("node %s has block %s: %s", blocks[0].Node, blocks[0].Prefix, blocks[0].use())
		c.nodeBranch(t, blocks[0].Node)
		t.fix("kubectl cadastre leases --node "+blocks[0].Node, "lists the leases of the node")
	default:
		t.Answer = usedText(blocks)
		for i := range blocks[:min(len(blocks), shownAtMost)] {
			b := &blocks[i]
			t.because("block %s of node %s: %s", b.Prefix, b.Node, b.use())
		}
		if more := len(blocks) - shownAtMost; more > 0 {
			t.because("%d further blocks", more)
		}
	}
	c.findings(t, func(f *ClusterFinding) bool { return f.Prefix.IsValid() && f.Prefix.Overlaps(prefix) })
	c.decisions(t)
	return t
}

// NodeOfCluster explains which blocks a node has.
func NodeOfCluster(c *Cluster, name string) *Tree {
	t := &Tree{Subject: "node " + name}
	var blocks []ClusterBlock
	for _, b := range c.Blocks {
		if b.Node == name {
			blocks = append(blocks, b)
		}
	}
	known := c.nodeBranch(t, name)
	switch {
	case !known && len(blocks) == 0:
		t.Answer = "the cluster store has no node of this name"
		t.fix("cadastre node list", "lists the nodes of the cluster")
		return t
	case len(blocks) == 0:
		t.Answer = "the node has no block"
	default:
		t.Answer = usedText(blocks)
	}
	for i := range blocks[:min(len(blocks), 2*shownAtMost)] {
		b := &blocks[i]
		t.because("block %s of pool %s: %s", b.Prefix, b.Pool, b.use())
	}
	if more := len(blocks) - 2*shownAtMost; more > 0 {
		t.because("%d further blocks", more)
	}
	c.findings(t, func(f *ClusterFinding) bool { return f.Node == name })
	c.decisions(t)
	t.fix("kubectl cadastre explain node "+name, "asks the agent of the node")
	return t
}

// nodeBranch adds the record of a node, and reports whether there is one.
func (c *Cluster) nodeBranch(t *Tree, name string) (found bool) {
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.Name != name {
			continue
		}
		found = true
		if n.Released {
			t.because("its former node ID %d is released", n.ID)
			continue
		}
		t.because("node %s has node ID %d and addresses %s; %s", n.Name, n.ID, orNone(n.Addrs), c.seen(n))
	}
	return found
}

// AddressOfCluster explains which node has the block of an address, and which pods report
// the address.
func AddressOfCluster(c *Cluster, a netip.Addr) *Tree {
	t := &Tree{Subject: "address " + a.String()}
	var blocks []ClusterBlock
	for _, b := range c.Blocks {
		if b.Prefix.Contains(a) {
			blocks = append(blocks, b)
		}
	}
	var pods []string
	for i := range c.Pods {
		if p := &c.Pods[i]; slices.Contains(p.Addrs, a) {
			pods = append(pods, p.Namespace+"/"+p.Name)
			t.because("pod %s/%s on node %s reports it (%s)", p.Namespace, p.Name, p.Node, p.Phase)
		}
	}
	for i := range blocks {
		b := &blocks[i]
		t.because("block %s of pool %s belongs to node %s: %s", b.Prefix, b.Pool, b.Node, b.use())
		t.fix(
			fmt.Sprintf("kubectl cadastre explain address %s --node %s", a, b.Node),
			"shows the lease of the address and its history, which only the node's agent has",
		)
	}
	switch {
	case len(pods) > 0:
		t.Answer = "it is the address of pod " + strings.Join(pods, " and pod ")
	case len(blocks) > 0 && c.PodsUnknown != "":
		t.Answer = fmt.Sprintf("it is in a block of node %s; its pod is not known here", blocks[0].Node)
	case len(blocks) > 0:
		t.Answer = fmt.Sprintf("it is in a block of node %s; no pod reports it", blocks[0].Node)
	default:
		t.Answer = "no node has a block with this address"
	}
	c.unknownPods(t)
	own := netip.PrefixFrom(a, a.BitLen())
	c.findings(t, func(f *ClusterFinding) bool { return f.Prefix.IsValid() && f.Prefix.Overlaps(own) })
	c.decisions(t)
	return t
}

func (c *Cluster) unknownPods(t *Tree) {
	if c.PodsUnknown != "" {
		t.because("the Pods are not known here: %s", c.PodsUnknown)
	}
}

// PodOfCluster explains the addresses of a pod.
func PodOfCluster(c *Cluster, namespace, name string) *Tree {
	t := &Tree{Subject: fmt.Sprintf("pod %s/%s", namespace, name)}
	i := slices.IndexFunc(c.Pods, func(p ClusterPod) bool { return p.Namespace == namespace && p.Name == name })
	if i < 0 {
		if t.Answer = "the API server has no Pod of this name"; c.PodsUnknown != "" {
			t.Answer = "the Pod is not known here"
		}
		c.unknownPods(t)
		return t
	}
	p := &c.Pods[i]
	var addrs []string
	for _, a := range p.Addrs {
		addrs = append(addrs, a.String())
	}
	switch {
	case p.HostNetwork:
		t.Answer = "it uses the network of its node, and so has no address of a pool"
	case len(addrs) == 0:
		t.Answer = "it reports no address"
	default:
		t.Answer = "it has " + strings.Join(addrs, " and ")
	}
	if p.Node == "" {
		t.because("it has no node yet")
		t.fix(fmt.Sprintf("kubectl -n %s describe pod %s", namespace, name), "shows why it is not scheduled")
		return t
	}
	t.because("it is on node %s, and is %s", p.Node, p.Phase)
	c.nodeBranch(t, p.Node)
	for _, a := range p.Addrs {
		c.podAddress(t, p, a)
	}
	c.decisions(t)
	t.fix(fmt.Sprintf("kubectl cadastre explain pod %s/%s", namespace, name), "asks the agent of the pod's node")
	return t
}

// podAddress adds the block of a pod's address.
func (c *Cluster) podAddress(t *Tree, p *ClusterPod, a netip.Addr) {
	if p.HostNetwork {
		return
	}
	found := false
	for i := range c.Blocks {
		b := &c.Blocks[i]
		if !b.Prefix.Contains(a) {
			continue
		}
		found = true
		if b.Node == p.Node {
			t.because("%s is in block %s of its node: %s", a, b.Prefix, b.use())
		} else {
			t.because("%s is in block %s of another node, %s: %s", a, b.Prefix, b.Node, b.use())
		}
	}
	if !found {
		t.because("%s is in no block that a node has", a)
	}
}

// findings adds the findings that concern the subject.
func (c *Cluster) findings(t *Tree, concerns func(*ClusterFinding) bool) {
	for i := range c.Findings {
		if f := &c.Findings[i]; concerns(f) {
			b := t.because("finding %s %s: %s", f.Number, f.Name, f.Text)
			b.because("%s", f.Fix)
		}
	}
}

// decisions adds the operator's decisions about the subject.
func (c *Cluster) decisions(t *Tree) {
	if len(c.Decisions) == 0 {
		return
	}
	b := t.because("decisions of this operator")
	for i := range c.Decisions {
		r := &c.Decisions[i]
		text := fmt.Sprintf("%s %s %s", r.ProcessingStart.UTC().Format(time.TimeOnly), r.Name, r.Description)
		if r.Error != "" {
			text += ": " + r.Error
		}
		b.because("%s", text)
	}
}
