// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
)

// defaultPool is the pool of a CNI configuration that names none.
const defaultPool = "default"

// Pod explains which addresses a pod has, or why it has none.
func Pod(n *Node, pod ledger.Pod, p *Past) *Tree {
	name := pod.String()
	unknown := []Fix{{"cadastre node list", "lists the nodes: ask the agent of the pod's own node"}}
	if n.Kubernetes {
		unknown = []Fix{
			{"kubectl -n " + pod.Namespace + " describe pod " + pod.Name,
				"shows the pod's node, whether it uses the host's network, and its events"},
			{"kubectl cadastre explain pod " + name, "asks the agent of the pod's own node"},
		}
	}
	return n.attachment("pod "+name, p, func(l *ledger.Lease) bool {
		return l.Pod.Namespace == pod.Namespace && l.Pod.Name == pod.Name
	}, unknown)
}

// Container explains which addresses a container has, or why it has none.
func Container(n *Node, id string, p *Past) *Tree {
	return n.attachment("container "+id, p, func(l *ledger.Lease) bool {
		return l.Purpose != ledger.ForInfra && NamesContainer(id, l.Key.ContainerID)
	}, []Fix{{"crictl inspectp " + id, "shows the sandbox of a pod; docker inspect " + id + " shows a container of Docker"}})
}

// NamesContainer reports whether name is the ID of a container, or its first twelve characters
// or more, as Docker shortens it.
func NamesContainer(name, id string) bool {
	return id == name || len(name) >= 12 && strings.HasPrefix(id, name)
}

// attachment explains the leases for which mine is true. unknown has the next steps for a
// subject that this node does not know.
func (n *Node) attachment(subject string, p *Past, mine func(*ledger.Lease) bool, unknown []Fix) *Tree {
	t := &Tree{Subject: subject}
	var held, over []*ledger.Lease
	for i := range n.Leases {
		l := &n.Leases[i]
		switch {
		case !mine(l):
		case l.State == ledger.Held || l.State == ledger.Pending:
			held = append(held, l)
		default:
			over = append(over, l)
		}
	}
	failed := lastFailure(p)
	pool := defaultPool
	switch {
	case len(held) > 0:
		pool = held[0].Pool
		n.answerHeld(t, held)
	case failed != nil && failedLast(failed, p):
		if failed.Subject.Pool != "" {
			pool = failed.Subject.Pool
		}
		n.answerFailed(t, failed, pool)
	case len(p.History) > 0:
		pool = p.History[0].Pool
		n.answerEnded(t, &p.History[0])
	case len(over) > 0:
		pool = over[0].Pool
		t.Answer = fmt.Sprintf("it has no address; %s is %s", over[0].Addr, over[0].State)
	default:
		t.Answer = fmt.Sprintf("node %s knows nothing of it: no ADD for it has reached the agent", n.Name)
		t.Unknown = true
		n.state(t)
		t.because("the agent records the requests of its own node only; a pod with hostNetwork has no lease")
		for _, f := range unknown {
			t.fix(f.Command, "%s", f.Text)
		}
		n.timeline(t, p)
		return t
	}
	for _, l := range over {
		if l.State == ledger.Quarantined {
			t.because("%s is quarantined since %s: %s", l.Addr, n.clock(l.Since), l.Reason)
		}
	}
	switch {
	case len(held) == 0 && ended(p, failed):
		n.state(t)
		n.again(t, &p.History[0])
	case len(held) == 0:
		n.state(t)
		n.poolBranch(t, pool, rule(pool))
		n.claimBranches(t)
	default:
		t.because("pool %s: %s", pool, rule(pool))
		n.hostPorts(t, held)
	}
	n.timeline(t, p)
	return t
}

// ended reports whether the last that happened to a pod is the end of its lease, which its
// runtime did not ask for: the pool is not the reason then.
func ended(p *Past, failed *controller.Record) bool {
	return len(p.History) > 0 && p.History[0].Action.Ends() && p.History[0].Reason != "CNI DEL" &&
		(failed == nil || !failedLast(failed, p))
}

// again tells how a pod whose lease has ended gets an address.
func (n *Node) again(t *Tree, e *ledger.HistoryEntry) {
	t.because("a pod gets its address when it is started: nothing asks for another one while it runs")
	if e.Pod.Name == "" || !n.Kubernetes {
		t.fix("start it again", "its runtime then asks for an address")
		return
	}
	t.fix(fmt.Sprintf("kubectl -n %s delete pod %s", e.Pod.Namespace, e.Pod.Name),
		"its controller starts the pod again, which gets an address; a pod without a controller is to be created again")
}

// rule tells how a pool was selected.
func rule(pool string) string {
	if pool == defaultPool {
		return "the CNI configuration names no other pool (ipam.pool)"
	}
	return "the configuration of the network names it (CNI: ipam.pool)"
}

// pending says how a pending lease ends.
func pending(l *ledger.Lease) string {
	if l.Reclaiming() { // a round of the witnesses ends it, not its Expiry
		return "its owner seems to be gone, and it is released unless that is undone (cadastre reclaim list)"
	}
	return fmt.Sprintf("it is released after %s unless it is confirmed", l.Expiry.After)
}

func (n *Node) answerHeld(t *Tree, held []*ledger.Lease) {
	var texts []string
	for _, l := range held {
		text := fmt.Sprintf("%s of pool %s since %s", l.Addr, l.Pool, n.clock(l.Since))
		if l.State == ledger.Pending {
			text += ", pending"
			t.because("%s is pending: %s", l.Addr, pending(l))
			if l.Reclaiming() {
				t.fix("cadastre reclaim undo "+l.Addr.String(), "keeps the address for the pod")
			}
		}
		texts = append(texts, text)
	}
	t.Answer = "it has " + strings.Join(texts, ", and ")
}

// hostPorts says that the pod has no host ports, if the list of the agent makes none. The
// agent does not know which ports a pod asks for.
func (n *Node) hostPorts(t *Tree, held []*ledger.Lease) {
	if n.NoHostPorts == "" || !slices.ContainsFunc(held, func(l *ledger.Lease) bool { return l.Wired }) {
		return
	}
	t.because("its host ports are not open, if it asks for some: the CNI list has no portmap: %s", n.NoHostPorts)
	t.fix(
		"cadastre status",
		"has the line host ports: put portmap into the folder that it names, restart the agent, and create the pod again",
	)
}

// lastFailure returns the newest ADD that failed, nil if there is none.
func lastFailure(p *Past) *controller.Record {
	for i := len(p.Events) - 1; i >= 0; i-- {
		if r := &p.Events[i]; r.Error != "" && r.Name == "Add Pod" {
			return r
		}
	}
	return nil
}

// failedLast reports whether the history has nothing newer than a failure.
func failedLast(r *controller.Record, p *Past) bool {
	return len(p.History) == 0 || !p.History[0].Time.After(r.ProcessingEnd)
}

// answerFailed answers with the reason of the last failure, and with the present state of
// the pool if that is why.
func (n *Node) answerFailed(t *Tree, r *controller.Record, pool string) {
	t.Answer = "it has no address: " + failureText(r)
	for _, f := range n.freeOf(pool) {
		if f.free == 0 && f.cooling == 0 && strings.Contains(r.Error, ledger.ErrExhausted.Error()) {
			t.Answer = "it has no address: " + fullText(n, pool, f.family)
			return
		}
	}
	if strings.Contains(r.Error, ledger.ErrExhausted.Error()) {
		t.because("the pool has room again: the runtime's next ADD succeeds")
	}
}

func (n *Node) answerEnded(t *Tree, e *ledger.HistoryEntry) {
	if !e.Action.Ends() {
		t.Answer = "it has no address; the last change was: " + entryText(e)
		return
	}
	t.Answer = fmt.Sprintf("it has no address: %s was %s at %s%s", e.Addr, e.Action, n.clock(e.Time), because(e.Reason))
	if !e.Since.IsZero() {
		t.because("it had %s of pool %s from %s to %s", e.Addr, e.Pool, n.clock(e.Since), n.clock(e.Time))
	}
}
