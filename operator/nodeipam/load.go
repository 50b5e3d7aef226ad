// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"fmt"
	"math"

	v1 "k8s.io/api/core/v1"
)

// load reads the blocks of all nodes once: before that, nothing is allocated.
func (a *Allocator) load(ctx context.Context) error {
	a.loading.Lock()
	defer a.loading.Unlock()
	if a.loaded {
		return nil
	}
	return a.reload(ctx)
}

// reload reads all nodes: the blocks that they have, and the blocks that an earlier leader may
// still be writing to them. It writes nothing, so no node can delay it. See Fence.
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

// preload records the blocks of nodes that the caller has read. Run reads them again.
func (a *Allocator) preload(nodes []v1.Node) {
	a.loading.Lock()
	defer a.loading.Unlock()
	a.learn(nodes)
	a.loaded = true
}

// learn records the blocks of nodes, and then the intents of nodes without blocks. Errors
// are reported with the first reconciliation of the node, so that one bad node does not
// delay another.
func (a *Allocator) learn(nodes []v1.Node) {
	for i := range nodes {
		if node := &nodes[i]; hasPodCIDRs(node) {
			blocks, _ := podCIDRsOf(node)
			a.assigned.occupy(ownerOf(node), blocks)
		}
	}
	if a.mode.allocates() {
		a.occupyIntents(nodes)
	}
	if a.settings.Policy.CoolDown > 0 {
		a.assigned.continueAfter(nodes)
	}
}

// logCapacity logs the number of nodes that the ranges suffice for.
func (a *Allocator) logCapacity() {
	if !a.mode.allocates() {
		return
	}
	stat := a.assigned.stat()
	capacity, free := map[int]uint64{}, map[int]uint64{}
	for _, r := range stat.Ranges {
		a.log.Info("cluster CIDR",
			"range", r.Prefix, "pool", r.Pool, "blocks", r.Capacity, "size", fmt.Sprintf("/%d", r.Bits),
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
