// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// Address explains which owner an address has, or had at a time; the zero time is now.
func Address(n *Node, a netip.Addr, at time.Time, p *Past) *Tree {
	t := &Tree{Subject: "address " + a.String()}
	if at.IsZero() || !at.Before(n.Now) {
		n.answerNow(t, a)
		if at.After(n.Now) {
			t.Answer = fmt.Sprintf("%s has not come yet; now %s", n.clock(at), t.Answer)
			at = time.Time{}
		}
	} else {
		t.Subject += " at " + n.clock(at)
		n.answerThen(t, a, at, p)
	}
	if peer, block := n.peerOf(a); peer != nil && !n.Has(a) {
		n.elsewhere(t, a, peer, block)
	} else {
		n.place(t, a)
	}
	n.timeline(t, around(p, at))
	if len(p.History) == 0 {
		t.because("the history has no change of %s%s", a, n.reach(p))
	}
	return t
}

// elsewhere names the node whose agent knows the owner of an address.
func (n *Node) elsewhere(t *Tree, a netip.Addr, peer *Peer, block netip.Prefix) {
	if len(t.Because) == 0 && t.Unknown {
		t.Answer = fmt.Sprintf("%s is %s: its agent knows the owner", block, peer.owns(n.Now))
		t.Unknown, t.Ask = false, peer.Name
	}
	t.because("block %s is not of node %s, but of node %s", block, n.Name, peer.Name)
	if n.Kubernetes {
		t.fix(fmt.Sprintf("kubectl cadastre explain address %s --node %s", a, peer.Name), "asks the agent of that node")
		return
	}
	t.fix("cadastre explain address "+a.String(), "on node %s, asks its agent", peer.Name)
}

// reach says how far back the history goes.
func (n *Node) reach(p *Past) string {
	if p.Oldest.IsZero() {
		return ": nothing is recorded"
	}
	return "; it begins at " + n.clock(p.Oldest)
}

func (n *Node) answerNow(t *Tree, a netip.Addr) {
	var texts []string
	for _, l := range n.Leases {
		if l.Addr != a {
			continue
		}
		text := fmt.Sprintf("%s holds it in pool %s since %s", owner(l.Key, l.Pod, l.Purpose), l.Pool, n.clock(l.Since))
		switch l.State {
		case ledger.Cooling:
			text = fmt.Sprintf("it cools in pool %s since %s, after %s", l.Pool, n.clock(l.Since),
				owner(l.Key, l.Pod, l.Purpose))
			if p, known := n.pool(l.Pool); known {
				text += "; it is free at " + n.clock(l.Since.Add(p.CoolDown))
			}
		case ledger.Quarantined:
			text = fmt.Sprintf("it is quarantined in pool %s since %s: %s", l.Pool, n.clock(l.Since), l.Reason)
			t.fix(fmt.Sprintf("cadastre release --ip %s --quarantined", a),
				"frees an address whose unknown user has ended")
		case ledger.Pending:
			text += ", pending: " + pending(&l)
		}
		texts = append(texts, text)
	}
	for _, e := range n.Exclusions {
		if e.Addr == a {
			texts = append(texts, fmt.Sprintf("it is excluded from pool %s by %s", e.Pool, e.Owner+reasonIn(e.Reason)))
		}
	}
	switch b := n.blockOf("", a); {
	case len(texts) > 0:
		t.Answer = strings.Join(texts, "; ")
	case b == nil:
		t.Answer, t.Unknown = fmt.Sprintf("no block of node %s contains it", n.Name), true
		if peer, _ := n.peerOf(a); peer == nil {
			t.fix("cadastre pool list", "lists the pools of the cluster, and their ranges")
		}
	case a == b.Block.Addr() || !b.Block.Contains(a.Next()):
		t.Answer = fmt.Sprintf("it has no lease; it is at the edge of block %s, which may be reserved", b.Block)
	case b.State == ledger.Draining:
		t.Answer = fmt.Sprintf("it has no lease, and its block %s is draining", b.Block)
	default:
		t.Answer = fmt.Sprintf("it is free in pool %s", b.Pool)
	}
}

// place adds the block of an address.
func (n *Node) place(t *Tree, a netip.Addr) {
	b := n.blockOf("", a)
	if b == nil {
		t.because("no block of node %s contains %s now", n.Name, a)
		return
	}
	t.because("block %s of pool %s is %s: %s", b.Block, b.Pool, b.State, figures(*b))
}

// Tenure is the time for which an owner had an address.
type Tenure struct {
	Pool    string
	Key     ledger.Key
	Pod     ledger.Pod
	Purpose ledger.Purpose
	From    time.Time
	To      time.Time // zero: it has not ended, or its end is not recorded
	End     ledger.HistoryEntry
	// Unrecorded is set if the lease has gone and no entry tells when: a version without
	// a history has run in between.
	Unrecorded bool
}

// Then returns the owners of an address at a time, one for each pool that has the
// address. known is false if neither the leases nor the history reach back so far.
func Then(leases []ledger.Lease, p *Past, a netip.Addr, at time.Time) (found []Tenure, known bool) {
	pools := map[string]bool{}
	for _, e := range p.History {
		if e.Addr == a {
			pools[e.Pool] = true
		}
	}
	for _, l := range leases {
		if l.Addr == a {
			pools[l.Pool] = true
		}
	}
	for pool := range pools {
		t, certain := thenIn(leases, p, pool, a, at)
		known = known || certain
		if t != nil {
			found = append(found, *t)
		}
	}
	slices.SortFunc(found, func(x, y Tenure) int { return strings.Compare(x.Pool, y.Pool) })
	return found, known || !p.Oldest.IsZero() && !at.Before(p.Oldest)
}

// thenIn is Then for one pool. It reads back from now: an end tells when its lease began.
func thenIn(leases []ledger.Lease, p *Past, pool string, a netip.Addr, at time.Time) (t *Tenure, certain bool) {
	var end ledger.HistoryEntry // of the lease that the entries further back are about
	for _, l := range leases {
		if l.Addr == a && l.Pool == pool && l.State != ledger.Cooling && !l.Since.After(at) {
			return &Tenure{Pool: pool, Key: l.Key, Pod: l.Pod, Purpose: l.Purpose, From: l.Since}, true
		}
	}
	for _, e := range p.History {
		if e.Addr != a || e.Pool != pool || e.Action == ledger.Excluded || e.Action == ledger.Readmitted {
			continue
		}
		from := e.Time
		if e.Action.Ends() {
			from, end = e.Since, e
		}
		switch {
		case e.Action.Ends() && !e.Time.After(at):
			return nil, true // free or cooling
		case from.IsZero() || from.After(at):
			continue
		case e.Action == ledger.Restored:
			return nil, true
		}
		t = &Tenure{Pool: pool, Key: e.Key, Pod: e.Pod, Purpose: e.Purpose, From: from}
		if end.Generation == e.Generation {
			t.To, t.End = end.Time, end
		}
		t.Unrecorded = t.To.IsZero() && !slices.ContainsFunc(leases, func(l ledger.Lease) bool {
			return l.Addr == a && l.Pool == pool && l.Key == e.Key && l.State != ledger.Cooling
		})
		return t, true
	}
	return nil, false
}

func (n *Node) answerThen(t *Tree, a netip.Addr, at time.Time, p *Past) {
	found, known := Then(n.Leases, p, a, at)
	var texts []string
	for _, x := range found {
		text := fmt.Sprintf("%s had it in pool %s from %s", owner(x.Key, x.Pod, x.Purpose), x.Pool, n.clock(x.From))
		switch {
		case x.Unrecorded:
			text += ", and has it no more; when it ended is not recorded"
		case x.To.IsZero():
			text += ", and still has it"
		default:
			text += " to " + n.clock(x.To)
		}
		texts = append(texts, text)
		if x.Key != (ledger.Key{}) {
			t.because("container %s, interface %s, network %s", x.Key.ContainerID, x.Key.IfName, x.Key.Network)
		}
	}
	switch {
	case len(texts) > 0:
		t.Answer = strings.Join(texts, "; ")
	case known:
		t.Answer = "it had no owner on this node"
	default:
		t.Answer, t.Unknown = "the history does not reach back so far"+n.reach(p), true
	}
}
