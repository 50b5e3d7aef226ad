// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// Node holds the views of an agent's node at one moment.
type Node struct {
	Now       time.Time // in the time zone of the texts
	Name      string
	ID        uint32 // 0: the node has none yet
	IDProblem string // why ID may belong to another node; "": nothing is wrong
	NotReady  string // why the node cannot serve ADD; "": it can
	Suspended string // why no new address is allocated; "": addresses are allocated
	PodBlocks string // source of the pod blocks: nodeid, podcidr, netresource, interfaces or static
	Shortage  string // why the cloud gives this machine no more addresses; "": it gives them
	// NoHostPorts says why pods whose wires the agent makes get no host ports; "": they do.
	NoHostPorts string

	Pools      []ledger.Pool
	Blocks     []ledger.BlockStat
	Leases     []ledger.Lease
	Exclusions []ledger.Exclusion
	Claims     []Claim
	Peers      []Peer   // other nodes that this one knows; only for an address
	Kubernetes bool     // the node is one of Kubernetes: kubectl helps
	StateDir   string   // the folder of the database
	Problems   []string // of the configuration and the cluster's objects
}

// Claim is the right of the node to a prefix.
type Claim struct {
	Prefix netip.Prefix
	Held   bool
	Reason string // what a pending claim waits for
	Since  time.Time
}

// Peer is another node of the cluster.
type Peer struct {
	Name   string
	ID     uint32
	Addr   netip.Addr // in the underlay; the zero Addr: not known
	Seen   time.Time  // its last beat; zero: none
	Blocks []netip.Prefix
}

// owns says whose a block is, how to reach that node, and since when it is silent.
func (p *Peer) owns(now time.Time) string {
	texts := []string{fmt.Sprintf("ID %d", p.ID)}
	if p.Addr.IsValid() {
		texts = append(texts, p.Addr.String())
	}
	if p.Seen.IsZero() {
		texts = append(texts, "never seen")
	} else {
		texts = append(texts, fmt.Sprintf("seen %s ago", max(now.Sub(p.Seen), 0).Round(time.Second)))
	}
	return fmt.Sprintf("%s's (%s)", p.Name, strings.Join(texts, ", "))
}

// peerOf returns the other node with a block that contains an address, and the block.
func (n *Node) peerOf(a netip.Addr) (*Peer, netip.Prefix) {
	for i := range n.Peers {
		for _, b := range n.Peers[i].Blocks {
			if b.Contains(a) {
				return &n.Peers[i], b
			}
		}
	}
	return nil, netip.Prefix{}
}

// Has reports whether a block of the node contains an address.
func (n *Node) Has(a netip.Addr) bool { return n.blockOf("", a) != nil }

// clock returns a time as the texts have it: with the date, unless it is of today.
func (n *Node) clock(t time.Time) string {
	t = t.In(n.Now.Location())
	if t.Format(time.DateOnly) == n.Now.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// pool returns the policy of a pool; ok is false if the node has none of this name.
func (n *Node) pool(name string) (p ledger.Pool, ok bool) {
	for _, p := range n.Pools {
		if p.Name == name {
			return p, true
		}
	}
	return ledger.Pool{Name: name}, false
}

// ThisNode explains whether the node can give addresses to pods.
func ThisNode(n *Node) *Tree {
	t := &Tree{Subject: "node " + n.Name}
	free := n.freeOf("default")
	switch {
	case n.Suspended != "":
		t.Answer = "no new address is allocated: " + n.Suspended
	case n.NotReady != "":
		t.Answer = "the node is not ready: " + n.NotReady
	case len(free) == 0:
		t.Answer = "the node has no block of pool default to allocate from"
	default:
		t.Answer = "new pods get addresses: " + freeText(free)
		for _, f := range free {
			if f.free == 0 && f.cooling == 0 {
				t.Answer = "a new pod gets no address: " + fullText(n, "default", f.family)
			}
		}
	}
	n.state(t)
	for _, name := range n.poolNames() {
		n.poolBranch(t, name, "")
	}
	n.claimBranches(t)
	return t
}

// state adds what holds for all pools of the node.
func (n *Node) state(t *Tree) {
	switch {
	case n.ID == 0:
		t.because("node %s has no node ID yet", n.Name)
	case n.IDProblem != "":
		t.because("node ID %d may belong to another node: %s", n.ID, n.IDProblem)
	default:
		t.because("node %s has node ID %d; its pod blocks come from %s", n.Name, n.ID, source(n.PodBlocks))
	}
	if n.Suspended != "" {
		t.because("the agent allocates no new address: %s", n.Suspended)
		if strings.Contains(n.Suspended, "cadastre accept") {
			t.fix("cadastre restore FILE", "first, without the agent: brings the newest copy back; safe while pods run")
			t.fix("cadastre rebuild", "second, without the agent: makes a database from what runs; safe while pods run")
			t.fix(
				"cadastre accept",
				"last: names what the database may not know and what is in use, and accepts it with --yes",
			)
		}
	}
	if n.NotReady != "" && n.NotReady != n.Suspended {
		t.because("the node is not ready: %s", n.NotReady)
	}
	if n.Shortage != "" {
		t.because("the cloud gives no more addresses: %s", n.Shortage)
	}
	for _, p := range n.Problems {
		t.because("problem: %s", p)
	}
	if strings.Contains(n.NotReady, syscall.ENOSPC.Error()) {
		t.fix("df -h "+n.StateDir, "shows the disk that is full: make room, and the agent goes on by itself")
		return
	}
	if n.Suspended != "" || n.NotReady != "" {
		t.fix("cadastre status", "shows the state of the agent, its store and its claims")
	}
}

// source names the source of pod blocks.
func source(podBlocks string) string {
	switch podBlocks {
	case "nodeid":
		return "the node ID"
	case "podcidr":
		return "the podCIDRs of the Node object"
	case "netresource":
		return "the node's NetResourceSet"
	case "interfaces":
		return "the machine's interfaces in its cloud"
	case "static":
		return "staticPodCIDRs of contiv.conf"
	}
	return podBlocks
}

// claimBranches adds the claims that are pending.
func (n *Node) claimBranches(t *Tree) {
	for _, c := range n.Claims {
		if c.Held {
			continue
		}
		t.because("%s", n.claimText(c))
		t.fix("cadastre status", "shows the state of the agent, its store and its claims")
	}
}

// claimText describes a pending claim.
func (n *Node) claimText(c Claim) string {
	why := c.Reason
	if why == "" {
		why = "the cluster store has not answered yet"
	}
	return fmt.Sprintf("the claim of %s is pending since %s: %s", c.Prefix, n.clock(c.Since), why)
}

// familyFree counts the addresses of a family of a pool that a claim may get.
type familyFree struct {
	family  ledger.Family
	free    uint64
	cooling int
}

// freeOf returns the counts of the families of which a pool has active blocks.
func (n *Node) freeOf(pool string) (all []familyFree) {
	for _, f := range []ledger.Family{ledger.IPv4, ledger.IPv6} {
		sum, has := familyFree{family: f}, false
		for _, b := range n.Blocks {
			if b.Pool != pool || b.Family != f || b.State != ledger.Active {
				continue
			}
			has = true
			if sum.free += b.Free; sum.free < b.Free {
				sum.free = ^uint64(0)
			}
			sum.cooling += b.Cooling
		}
		if has {
			all = append(all, sum)
		}
	}
	return all
}

func freeText(all []familyFree) string {
	var texts []string
	for _, f := range all {
		text := fmt.Sprintf("%d %s addresses are free", f.free, familyName(f.family))
		if f.free == 0 {
			text = fmt.Sprintf("no %s address is free, and the one that has cooled longest of %d is used",
				familyName(f.family), f.cooling)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, ", ")
}

func familyName(f ledger.Family) string {
	if f == ledger.IPv4 {
		return "IPv4"
	}
	return "IPv6"
}
