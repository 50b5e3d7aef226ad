// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ledger"
)

// shownAtMost limits the addresses and blocks that a branch lists by name.
const shownAtMost = 5

// Pool explains whether a pool has addresses for pods.
func Pool(n *Node, name string) *Tree {
	t := &Tree{Subject: "pool " + name}
	free := n.freeOf(name)
	_, known := n.pool(name)
	switch {
	case !known && !slices.Contains(n.poolNames(), name):
		t.Answer, t.Unknown = fmt.Sprintf("node %s has no pool of this name", n.Name), true
		t.because("the pools of the node are %s", orNone(n.poolNames()))
		t.fix("cadastre pool list", "lists the pools of the cluster, with the network of each")
		return t
	case n.Suspended != "":
		t.Answer = "no new address is allocated: " + n.Suspended
	case len(free) == 0:
		t.Answer = fmt.Sprintf("the pool has no active block on node %s", n.Name)
	default:
		t.Answer = freeText(free)
		for _, f := range free {
			if f.free == 0 && f.cooling == 0 {
				t.Answer = fullText(n, name, f.family)
			}
		}
	}
	n.state(t)
	n.poolBranch(t, name, "")
	n.claimBranches(t)
	return t
}

func (n *Node) poolNames() (names []string) {
	for _, p := range n.Pools {
		names = append(names, p.Name)
	}
	for _, b := range n.Blocks {
		names = append(names, b.Pool)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// poolBranch adds a pool with each of its blocks, and the fixes of a full one. rule tells
// how the pool was selected; "" if it was not.
func (n *Node) poolBranch(t *Tree, name, rule string) {
	p, known := n.pool(name)
	var texts []string
	if rule != "" {
		texts = append(texts, rule)
	}
	if known {
		texts = append(texts, fmt.Sprintf("order %s; a released address cools for %s", p.Order, p.CoolDown))
	}
	b := t.because("pool %s%s", name, because(strings.Join(texts, "; ")))
	blocks := 0
	for _, s := range n.Blocks {
		if s.Pool != name {
			continue
		}
		if blocks++; blocks <= shownAtMost*2 {
			n.blockBranch(t, b, s)
		}
	}
	switch {
	case blocks == 0:
		b.because("the node has no block of the pool")
	case blocks > shownAtMost*2:
		b.because("%d further blocks: cadastre status lists them", blocks-shownAtMost*2)
	}
	for _, f := range n.freeOf(name) {
		if f.free == 0 && f.cooling == 0 {
			n.fixFull(t, name)
		}
	}
}

// figures has the counts of a block in the words of cadastre status.
func figures(s ledger.BlockStat) string {
	return fmt.Sprintf("%d held, %d infra, %d cooling, %d quarantined, %d reserved, %d free of %d",
		s.Held, s.Infra, s.Cooling, s.Quarantined, s.Reserved, s.Free, s.Size)
}

// blockBranch adds a block, and why its addresses are not used.
func (n *Node) blockBranch(t *Tree, to *Branch, s ledger.BlockStat) {
	var b *Branch
	switch {
	case s.State == ledger.Draining:
		b = to.because("block %s is draining and allocates nothing: %s", s.Block, figures(s))
		b.because("the block ends with its last lease")
	case s.Free == 0:
		b = to.because("block %s is full: %s", s.Block, figures(s))
	default:
		b = to.because("block %s has free addresses: %s", s.Block, figures(s))
	}
	for _, c := range n.Claims {
		if !c.Held && c.Prefix.Overlaps(s.Block) {
			b.because("%s", n.claimText(c))
		}
	}
	n.addressBranches(t, b, s)
	if excluded := n.excludedIn(s); len(excluded) > 0 {
		shown := excluded[:min(shownAtMost, len(excluded))]
		for _, e := range shown {
			b.because("%s is excluded by %s", e.Addr, e.Owner+reasonIn(e.Reason))
		}
		if more := len(excluded) - len(shown); more > 0 {
			b.because("%d further addresses are excluded", more)
		}
	}
}

// reasonIn returns a reason in brackets.
func reasonIn(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// addressBranches adds the addresses of a block that cool or are quarantined.
func (n *Node) addressBranches(t *Tree, b *Branch, s ledger.BlockStat) {
	p, known := n.pool(s.Pool)
	cooling, quarantined := 0, 0
	for _, l := range n.Leases {
		if l.Pool != s.Pool || l.Block != s.Block {
			continue
		}
		switch l.State {
		case ledger.Cooling:
			if cooling++; cooling <= shownAtMost {
				text := fmt.Sprintf("%s cools", l.Addr)
				if known {
					text += " until " + n.clock(l.Since.Add(p.CoolDown))
				}
				b.because("%s after %s", text, owner(l.Key, l.Pod, l.Purpose))
			}
		case ledger.Quarantined:
			if quarantined++; quarantined <= shownAtMost {
				b.because("%s is quarantined since %s: %s", l.Addr, n.clock(l.Since), l.Reason)
				t.fix(fmt.Sprintf("cadastre release --ip %s --quarantined", l.Addr),
					"frees an address whose unknown user has ended")
			}
		}
	}
	if cooling > shownAtMost {
		b.because("%d further addresses cool", cooling-shownAtMost)
	}
	if quarantined > shownAtMost {
		b.because("%d further addresses are quarantined: cadastre leases --state quarantined", quarantined-shownAtMost)
	}
}

func (n *Node) excludedIn(s ledger.BlockStat) (found []ledger.Exclusion) {
	for _, e := range n.Exclusions {
		if e.Pool == s.Pool && s.Block.Contains(e.Addr) {
			found = append(found, e)
		}
	}
	return found
}

// owner names the owner of a lease.
func owner(k ledger.Key, p ledger.Pod, purpose ledger.Purpose) string {
	switch {
	case p.Name != "":
		return "pod " + p.String()
	case purpose == ledger.ForInfra:
		return "the node itself (" + k.IfName + ")"
	case purpose == ledger.ForDocker:
		return "a container of Docker (" + k.String() + ")"
	case k == ledger.Key{}:
		return "an unknown owner"
	}
	return "container " + k.ContainerID
}

// fullText says in one sentence why no address of a family is free in a pool.
func fullText(n *Node, pool string, f ledger.Family) string {
	var texts []string
	blocks := 0
	for _, s := range n.Blocks {
		if s.Pool != pool || s.Family != f {
			continue
		}
		if blocks++; blocks > shownAtMost {
			continue
		}
		text := fmt.Sprintf(
			"block %s has %d held, %d infra, %d cooling, %d quarantined and %d reserved of %d addresses",
			s.Block,
			s.Held,
			s.Infra,
			s.Cooling,
			s.Quarantined,
			s.Reserved,
			s.Size,
		)
		if s.State == ledger.Draining {
			text = fmt.Sprintf("block %s is draining", s.Block)
		}
		texts = append(texts, text)
	}
	if blocks > shownAtMost {
		texts = append(texts, fmt.Sprintf("and %d further blocks", blocks-shownAtMost))
	}
	if n.Shortage != "" && pool == "default" {
		texts = append(texts, "the cloud gives no more: "+n.Shortage)
	}
	return fmt.Sprintf("no IP address is free in pool %s (%s) of node %s: %s",
		pool, familyName(f), n.Name, strings.Join(texts, "; "))
}

// fixFull adds the ways to addresses for a full pool.
func (n *Node) fixFull(t *Tree, pool string) {
	t.fix("cadastre check", "finds leases whose container has ended")
	t.fix("cadastre leases --pool "+pool, "lists the owners of the addresses")
	switch {
	case n.PodBlocks == "nodeid":
		t.fix(
			"cadastre apply -f FILE",
			"adds a pool to network %s: every node gets a further block (docs/tasks/change-a-pool.md, "+
				"\"A node is full\")",
			pool,
		)
	case n.PodBlocks == "podcidr" && pool == "default":
		t.fix("kubectl get node "+n.Name+" -o jsonpath='{.spec.podCIDRs}'",
			"shows the block of the node: a Node object that is created again may get a larger one")
	case n.PodBlocks == "netresource" && pool == "default":
		t.fix("kubectl get netresourceset "+n.Name+" -o yaml",
			"shows why the operator adds no further block (status.ipam.operatorStatus.error)")
	case n.PodBlocks == "interfaces" && pool == "default":
		t.fix("cadastre status", "shows the interfaces of the machine, and why its cloud gives no more addresses")
	case n.PodBlocks == "static" && pool == "default":
		t.fix(
			"edit cadastre.staticPodCIDRs in contiv.conf",
			"a further block for this node, after a restart of the agent",
		)
	}
}

// blockOf returns the block that contains an address, an active one before a draining one.
func (n *Node) blockOf(pool string, a netip.Addr) (found *ledger.BlockStat) {
	for i := range n.Blocks {
		s := &n.Blocks[i]
		if (pool == "" || s.Pool == pool) && s.Block.Contains(a) && (found == nil || found.State != ledger.Active) {
			found = s
		}
	}
	return found
}
