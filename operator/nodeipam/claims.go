// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/runner"
)

// Claim says that the agent of a node has a right to a pod block, or waits for
// it, whatever the Node objects say.
type Claim struct {
	Node  string
	Block netip.Prefix
	Held  bool      // false: the agent waits for the block
	Since time.Time // when it became what it is
}

// Claims lists the pod blocks that agents claim.
type Claims interface {
	// Claims returns all claims that have not ended, as they are at a moment
	// after the call. It may be called from any goroutine.
	Claims(ctx context.Context) ([]Claim, error)
}

var (
	errClaimed      = errors.New("another node claims the block")
	errNoClaims     = errors.New("the claims of the agents cannot be read")
	errClaimsChange = errors.New("gave up, because the claims of the agents go on changing")
)

// claimReader reads the claims once for all nodes that wait for them.
type claimReader struct {
	gate *runner.Gate
	last atomic.Pointer[claimIndex]
}

// newClaimReader returns a reader of claims; nil stands for a cluster without any.
func newClaimReader(claims Claims, timeout time.Duration) *claimReader {
	r := &claimReader{}
	r.last.Store(indexOf(nil))
	if claims == nil {
		r.gate = runner.NewGate(nil, timeout)
		return r
	}
	r.gate = runner.NewGate(func(ctx context.Context) error {
		all, err := claims.Claims(ctx)
		if err == nil {
			r.last.Store(indexOf(all))
		}
		return err
	}, timeout)
	return r
}

// read returns the claims as they are at a moment after the call.
func (r *claimReader) read(ctx context.Context) (*claimIndex, error) {
	if err := r.gate.Check(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoClaims, err)
	}
	return r.last.Load(), nil
}

// claimIndex finds claims by node and by address. It does not change.
type claimIndex struct {
	byBlock map[netip.Prefix][]Claim
	byNode  map[string][]Claim // the newest first
	blocks  []netip.Prefix     // by address
	lengths []int              // of the blocks, each once
}

func indexOf(all []Claim) *claimIndex {
	x := &claimIndex{byBlock: map[netip.Prefix][]Claim{}, byNode: map[string][]Claim{}}
	for _, c := range all {
		c.Block = c.Block.Masked()
		if x.byBlock[c.Block] == nil {
			x.blocks = append(x.blocks, c.Block)
		}
		if !slices.Contains(x.lengths, c.Block.Bits()) {
			x.lengths = append(x.lengths, c.Block.Bits())
		}
		x.byBlock[c.Block] = append(x.byBlock[c.Block], c)
		x.byNode[c.Node] = append(x.byNode[c.Node], c)
	}
	slices.SortFunc(x.blocks, netip.Prefix.Compare)
	for _, own := range x.byNode {
		slices.SortStableFunc(own, func(a, b Claim) int { return b.Since.Compare(a.Since) })
	}
	return x
}

// overlapping yields the claims that share addresses with p.
func (x *claimIndex) overlapping(p netip.Prefix) iter.Seq[Claim] {
	return func(yield func(Claim) bool) {
		for _, bits := range x.lengths {
			if bits > p.Bits() {
				continue
			}
			for _, c := range x.byBlock[netip.PrefixFrom(p.Addr(), bits).Masked()] {
				if !yield(c) {
					return
				}
			}
		}
		i, _ := slices.BinarySearchFunc(
			x.blocks,
			p.Addr(),
			func(b netip.Prefix, a netip.Addr) int { return b.Addr().Compare(a) },
		)
		for ; i < len(x.blocks) && p.Contains(x.blocks[i].Addr()); i++ {
			if x.blocks[i].Bits() <= p.Bits() {
				continue
			}
			for _, c := range x.byBlock[x.blocks[i]] {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// against returns a claim that keeps a block from a node. A node that waits for
// a block keeps it from all others but the one that holds it.
func (x *claimIndex) against(node string, block netip.Prefix) (Claim, bool) {
	holds := slices.ContainsFunc(x.byNode[node], func(c Claim) bool { return c.Held && c.Block == block })
	for c := range x.overlapping(block) {
		if c.Node != node && (c.Held || !holds) {
			return c, true
		}
	}
	return Claim{}, false
}

// check returns an error if a claim keeps one of the blocks from a node.
func (x *claimIndex) check(node string, blocks []netip.Prefix) error {
	for _, p := range blocks {
		if c, ok := x.against(node, p); ok {
			return fmt.Errorf("assign %s to node %q: %w: node %q claims %s", p, node, errClaimed, c.Node, c.Block)
		}
	}
	return nil
}

// choice returns which blocks a node may get: first those that its agent holds,
// because pods may live there, and none that another node claims.
func (x *claimIndex) choice(node string, sizes []int) blocks.Choice {
	choice := blocks.Choice{Sizes: sizes}
	if len(x.blocks) == 0 {
		return choice
	}
	for _, c := range x.byNode[node] {
		if _, taken := x.against(node, c.Block); c.Held && !taken {
			choice.Prefer = append(choice.Prefer, c.Block)
		}
	}
	choice.Taken = func(block netip.Prefix) (netip.Prefix, bool) {
		c, taken := x.against(node, block)
		return c.Block, taken
	}
	return choice
}
