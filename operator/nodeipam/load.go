// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// reload reads all nodes, and ends what an earlier leader has under way.
func (a *Allocator) reload(ctx context.Context) error {
	nodes, err := a.api.list(ctx)
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	a.learn(nodes)
	if a.mode.gives() {
		if err := a.takeOver(ctx, nodes); err != nil {
			return err
		}
	}
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

// learn records what nodes have. What is wrong with it is told when the node is
// looked at for the first time, so that bad nodes do not hold up the others.
func (a *Allocator) learn(nodes []v1.Node) {
	for i := range nodes {
		a.learn1(&nodes[i])
	}
	if a.settings.Policy.CoolDown > 0 {
		a.book.goOn(nodes)
	}
}

// learn1 records what a node has, or is about to get.
func (a *Allocator) learn1(node *v1.Node) {
	if !numbered(node) {
		a.mode.recall(node)
		return
	}
	blocks, _ := podCIDRsOf(node)
	a.book.occupy(ownerOf(node), blocks)
}

// takeOver writes to every node that has no podCIDRs, so that patches that an
// earlier leader has sent, and that have not arrived, are refused. See Fence.
func (a *Allocator) takeOver(ctx context.Context, nodes []v1.Node) error {
	if err := a.gate.Check(ctx); err != nil {
		return err
	}
	todo := make(chan *v1.Node)
	errs := make(chan error, a.settings.Workers)
	var workers sync.WaitGroup
	for range a.settings.Workers {
		workers.Go(func() {
			for node := range todo {
				if err := a.takeOverNode(ctx, node); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	var err error
	for i := range nodes {
		if numbered(&nodes[i]) {
			continue
		}
		select {
		case todo <- &nodes[i]:
			continue
		case err = <-errs:
		}
		break
	}
	close(todo)
	workers.Wait()
	select {
	case err = <-errs:
	default:
	}
	return err
}

// takeOverNode tries until it succeeds, the node is gone, or it takes too long:
// what was sent so long ago does not arrive any more.
func (a *Allocator) takeOverNode(ctx context.Context, node *v1.Node) error {
	began := a.deps.Now()
	wait := Timeout{MaxBackoff: 10 * time.Second, InitialRetry: a.settings.FirstRetry}
	for {
		live, err := a.touch(ctx, node)
		switch {
		case err == nil && live != nil:
			a.learn1(live)
			return nil
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return err
		case a.deps.Now().Sub(began) >= a.settings.TakeoverTime:
			a.log.Error("a node could not be written while taking over; going on without", "node", node.Name, "err", err)
			return nil
		}
		wait.Update(false)
		if !sleep(ctx, wait.Next()) {
			return context.Cause(ctx)
		}
	}
}

// touch changes a node, so that nothing that was sent to it before can be
// applied. It returns the node as it is then; nil if that object is gone.
func (a *Allocator) touch(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	body, err := termPatch(node, fmt.Sprintf("%s %d", a.term, a.touches.Add(1)))
	if err != nil {
		return nil, err
	}
	live, err := a.api.patch(ctx, node.Name, body)
	a.metrics.patched(err)
	switch {
	case err == nil:
		return live, nil
	case apierrors.IsNotFound(err):
		return nil, nil
	case !refused(err):
		return nil, fmt.Errorf("write to node %q: %w", node.Name, err)
	}
	if live, e := a.live(ctx, ownerOf(node)); e == nil && live == nil {
		return nil, nil
	}
	return nil, fmt.Errorf("write to node %q: %w", node.Name, err)
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
