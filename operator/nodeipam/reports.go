// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/operator/blocks"
)

// Reasons of events and conditions. The first five are upstream's.
const (
	ReasonNotAvailable     = "CIDRNotAvailable"
	ReasonAssignmentFailed = "CIDRAssignmentFailed"
	ReasonInvalidPodCIDR   = "CloudCIDRAllocatorInvalidPodCIDR"
	ReasonInvalidMode      = "CloudCIDRAllocatorInvalidMode"
	ReasonMismatch         = "CloudCIDRAllocatorMismatch"
	ReasonConflict         = "CIDRConflict"
	ReasonOutOfRange       = "CIDROutOfRange"
	ReasonInvalidSize      = "CIDRSizeInvalid"
	ReasonAssigned         = "CIDRAssigned"
)

// ConditionProblem is the condition of a node whose podCIDRs are missing, or
// wrong; its reason says why. It is False when that is over, and nodes that
// never had a problem do not have it.
const ConditionProblem v1.NodeConditionType = "PodCIDRProblem"

// reports tells people of what goes wrong: once, and not again with every
// retry. A node whose problem is over may have a new one, which is told again.
type reports struct {
	api nodeAPI
	log *slog.Logger
	now func() time.Time

	mu        sync.Mutex
	events    EventRecorder // none before Run
	problems  map[blocks.ID]Problem
	marked    map[blocks.ID]bool      // nodes that have a condition of ours
	waiting   map[string]blocks.Owner // nodes for which nothing is left, by name
	exhausted bool                    // and it was told
}

// Problem describes the error of a node.
type Problem struct {
	Node    string
	Reason  string
	Message string
}

func newReports(api nodeAPI, deps Deps) *reports {
	return &reports{api: api, log: deps.Log, now: deps.Now, events: deps.Events,
		problems: map[blocks.ID]Problem{}, marked: map[blocks.ID]bool{}, waiting: map[string]blocks.Owner{}}
}

func (r *reports) record(events EventRecorder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = events
}

// event writes an event about node, if there is a recorder.
func (r *reports) event(node *v1.Node, reason, message string) {
	r.mu.Lock()
	events := r.events
	r.mu.Unlock()
	if events != nil {
		events.Eventf(node, v1.EventTypeWarning, reason, "%s", message)
	}
}

// problem notes what is wrong with node, and tells it if that is news.
func (r *reports) problem(ctx context.Context, node *v1.Node, reason, message string) {
	p := Problem{node.Name, reason, message}
	r.mu.Lock()
	known := r.problems[ownerOf(node).ID] == p
	r.problems[ownerOf(node).ID] = p
	r.marked[ownerOf(node).ID] = true
	r.served(node.Name) // it is not for want of a block any more
	r.mu.Unlock()
	if !known {
		r.log.Warn("a node has a problem with its podCIDRs", "node", node.Name, "reason", reason, "problem", message)
		r.event(node, reason, message)
	}
	r.condition(
		ctx,
		node,
		v1.NodeCondition{Type: ConditionProblem, Status: v1.ConditionTrue, Reason: reason, Message: message},
	)
}

// unserved notes that nothing is left for node. That is told once, with the
// first such node, until all that wait have got theirs.
func (r *reports) unserved(ctx context.Context, node *v1.Node, err error) {
	message := fmt.Sprintf("No block is left for this node: %v", err)
	r.mu.Lock()
	r.waiting[node.Name] = ownerOf(node)
	delete(r.problems, ownerOf(node).ID)
	r.marked[ownerOf(node).ID] = true
	told := r.exhausted
	r.exhausted = true
	r.mu.Unlock()
	if !told {
		r.log.Error("node CIDRs are exhausted; nodes have to wait", "node", node.Name, "error", err)
		r.event(node, ReasonNotAvailable, message)
	}
	r.condition(
		ctx,
		node,
		v1.NodeCondition{
			Type:    ConditionProblem,
			Status:  v1.ConditionTrue,
			Reason:  ReasonNotAvailable,
			Message: message,
		},
	)
}

// fine notes that node has what it should have.
func (r *reports) fine(ctx context.Context, node *v1.Node) {
	r.mu.Lock()
	delete(r.problems, ownerOf(node).ID)
	marked := r.marked[ownerOf(node).ID]
	delete(r.marked, ownerOf(node).ID)
	over := r.served(node.Name)
	r.mu.Unlock()
	if over {
		r.log.Info("every node has its podCIDRs again")
	}
	if marked || hasProblem(node) {
		r.condition(
			ctx,
			node,
			v1.NodeCondition{Type: ConditionProblem, Status: v1.ConditionFalse, Reason: ReasonAssigned,
				Message: "The node has its podCIDRs: " + fmt.Sprint(podCIDRTexts(node))},
		)
	}
}

// hasProblem reports whether node has a condition of this allocator that states a problem.
func hasProblem(node *v1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == ConditionProblem && c.Status != v1.ConditionFalse
	})
}

// served takes a node from those that wait; true when it was the last.
func (r *reports) served(name string) bool {
	delete(r.waiting, name)
	over := r.exhausted && len(r.waiting) == 0
	if over {
		r.exhausted = false
	}
	return over
}

// gone forgets a Node object.
func (r *reports) gone(o blocks.Owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.problems, o.ID)
	delete(r.marked, o.ID)
	if r.waiting[o.Name] == o {
		r.served(o.Name)
	}
}

// vanished forgets all Node objects of a name, of which there is none any more.
func (r *reports) vanished(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, p := range r.problems {
		if p.Node == name {
			delete(r.problems, id)
			delete(r.marked, id)
		}
	}
	r.served(name)
}

// condition writes a condition, unless node has it. A failed write changes
// nothing else.
func (r *reports) condition(ctx context.Context, node *v1.Node, c v1.NodeCondition) {
	if err := r.setCondition(ctx, node, c); err != nil {
		r.log.Warn("a condition could not be written", "node", node.Name, "condition", c.Type, "error", err)
	}
}

func (r *reports) setCondition(ctx context.Context, node *v1.Node, c v1.NodeCondition) error {
	now := metav1.NewTime(r.now())
	c.LastHeartbeatTime, c.LastTransitionTime = now, now
	for _, old := range node.Status.Conditions {
		if old.Type != c.Type {
			continue
		}
		if old.Status == c.Status && old.Reason == c.Reason {
			return nil
		}
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	body, err := conditionPatch(node, c)
	if err == nil {
		err = r.api.patchStatus(ctx, node.Name, body)
	}
	if err != nil {
		return fmt.Errorf("set condition %s of node %q to %s: %w", c.Type, node.Name, c.Status, err)
	}
	return nil
}

// waitingNodes returns the names of the nodes without a free block.
func (r *reports) waitingNodes() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for name := range r.waiting {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// list returns the problems in the order of the nodes' names.
func (r *reports) list() []Problem {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Problem
	for _, p := range r.problems {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b Problem) int {
		if a.Node < b.Node {
			return -1
		}
		return 1
	})
	return all
}
