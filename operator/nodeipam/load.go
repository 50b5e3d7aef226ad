// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"fmt"
	"math"

	v1 "k8s.io/api/core/v1"
)

// load makes the book, unless it is made: before that, nothing is given.
func (a *Allocator) load(ctx context.Context) error {
	a.loading.Lock()
	defer a.loading.Unlock()
	if a.loaded {
		return nil
	}
	return a.reload(ctx)
}

// reload reads all nodes: what they have, and what an earlier leader may still
// have under way to them. It writes nothing, so no node can hold it up. See Fence.
func (a *Allocator) reload(ctx context.Context) error {
	nodes, err := a.api.list(ctx)
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	if err := a.gate.Check(ctx); err != nil {
		return err
	}
	a.learn(nodes)
	a.loaded = true
	a.logCapacity()
	return nil
}

// preload makes the book of nodes that the caller has read. Run reads them again.
func (a *Allocator) preload(nodes []v1.Node) {
	a.loading.Lock()
	defer a.loading.Unlock()
	a.learn(nodes)
	a.loaded = true
}

// learn records what nodes have, and then what others are about to get. What is
// wrong with it is reported when the node is looked at for the first time, so
// that bad nodes do not hold up the others.
func (a *Allocator) learn(nodes []v1.Node) {
	for i := range nodes {
		if node := &nodes[i]; numbered(node) {
			blocks, _ := podCIDRsOf(node)
			a.book.occupy(ownerOf(node), blocks)
		}
	}
	if a.mode.gives() {
		a.recall(nodes)
	}
	if a.settings.Policy.CoolDown > 0 {
		a.book.goOn(nodes)
	}
}

// logCapacity says how many nodes there can be.
func (a *Allocator) logCapacity() {
	if !a.mode.gives() {
		return
	}
	stat := a.book.stat()
	capacity, free := map[int]uint64{}, map[int]uint64{}
	for _, r := range stat.Ranges {
		a.log.Info("cluster CIDR", "range", r.Prefix, "pool", r.Pool, "blocks", r.Capacity, "size", fmt.Sprintf("/%d", r.Bits),
			"used", r.Used, "free", r.Free(), "cooling", r.Cooling, "draining", r.Draining)
		capacity[r.Pool] += r.Capacity
		if !r.Draining {
			free[r.Pool] += r.Free()
		}
	}
	least := uint64(math.MaxUint64)
	for pool := range capacity {
		least = min(least, free[pool])
	}
	a.log.Info("node CIDRs: capacity", "nodes", stat.Owners, "more", least)
	for pool, n := range free {
		if n > least && least < n/16 {
			a.log.Info("one pool ends long before another", "pool", pool, "free", n, "least", least)
		}
		if capacity[pool] == 1 {
			a.log.Warn("there can be one node only: the block is as large as the range", "pool", pool)
		}
	}
}
