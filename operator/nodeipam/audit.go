// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/runner"
)

// audits looks, from time to time, at all nodes of which something was missed.
func (a *Allocator) audits(ctx context.Context) {
	for {
		a.audit()
		if runner.Wait(ctx, a.settings.Audit) != nil {
			return
		}
	}
}

// audit enqueues the names of all nodes that hold blocks and are not in the cache as
// they are recorded, and of all nodes without podCIDRs. It also enqueues those with
// problems, and those whose conditions say so: an earlier leader may have left such
// conditions.
func (a *Allocator) audit() {
	for _, o := range a.assigned.all() {
		if node, err := a.lister.Get(o.Name); err != nil || ownerOf(node) != o || !hasPodCIDRs(node) {
			a.enqueue(o.Name)
		}
	}
	nodes, err := a.lister.List(labels.Everything())
	if err != nil {
		a.log.Error("the nodes could not be listed", "error", err)
	}
	for _, node := range nodes {
		if !hasPodCIDRs(node) || hasProblem(node) {
			a.enqueue(node.Name)
		}
	}
	for _, p := range a.reports.list() {
		a.enqueue(p.Node)
	}
	a.wake()
	a.warnOfFullness()
}

// warnOfFullness tells when a range has become nearly full, once.
func (a *Allocator) warnOfFullness() {
	for _, r := range a.assigned.stat().Ranges {
		percent := fullness(r)
		if percent > a.warned[r.Prefix] {
			a.log.Warn("cluster CIDR is nearly full",
				"range", r.Prefix, "used", r.Used, "of", r.Capacity, "percent", percent)
		}
		a.warned[r.Prefix] = percent
	}
}

// fullness is 90 or 80 where so many of a hundred blocks are in use, else 0.
func fullness(r blocks.RangeStat) int {
	for _, percent := range []int{90, 80} {
		if float64(r.Used)*100 >= float64(percent)*float64(r.Capacity) {
			return percent
		}
	}
	return 0
}
