// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/runner"
)

// rangeMode is RangeAllocator.
type rangeMode struct{ *Allocator }

var _ mode = (*rangeMode)(nil)

func (m *rangeMode) allocates() bool { return true }
func (m *rangeMode) pins() bool      { return false }
func (m *rangeMode) requeuePolicy() requeuePolicy {
	return &retryErrors{Timeout{MaxBackoff: m.settings.MaxRetry, InitialRetry: m.settings.FirstRetry}}
}

func (m *rangeMode) reconcile(ctx context.Context, node *v1.Node) error {
	switch {
	case hasPodCIDRs(node):
		return m.accept(ctx, node)
	case node.DeletionTimestamp != nil: // what it may have been offered stays its own until it is gone
		return nil
	default:
		return m.assign(ctx, node)
	}
}

// live is o's Node object as the API server has it, nil if it is gone.
func (a *Allocator) live(ctx context.Context, o blocks.Owner) (*v1.Node, error) {
	node, err := a.api.get(ctx, o.Name)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read node %q: %w", o.Name, err)
	case ownerOf(node) != o:
		return nil, nil
	}
	return node, nil
}

// occupy records the podCIDRs of a node, and reports their errors. They are set, so no
// other podCIDRs can reach the node any more.
func (a *Allocator) occupy(ctx context.Context, node *v1.Node) error {
	cidrs, err := podCIDRsOf(node)
	reason := ReasonInvalidPodCIDR
	o := ownerOf(node)
	for _, e := range a.assigned.occupy(o, cidrs) {
		if e != nil && err == nil {
			reason = ReasonConflict
			if errors.Is(e, blocks.ErrOutOfRange) {
				reason = ReasonOutOfRange
			}
		}
		err = errors.Join(err, e)
	}
	if twin := a.assigned.twin(o); twin != nil {
		if err == nil {
			reason = ReasonConflict
		}
		err = errors.Join(err, twin)
	}
	if !a.mode.pins() && a.assigned.keepOnly(o, cidrs) {
		a.wake()
	}
	if err != nil {
		a.reports.problem(ctx, node, reason, err.Error())
		return fmt.Errorf("%w: %w", ErrQuarantined, err)
	}
	return nil
}

// accept records the podCIDRs of a node and clears its problem.
func (m *rangeMode) accept(ctx context.Context, node *v1.Node) error {
	if err := m.occupy(ctx, node); err != nil {
		return err
	}
	m.reports.fine(ctx, node)
	return nil
}

// assign gives a node without podCIDRs a block of each pool.
func (m *rangeMode) assign(ctx context.Context, node *v1.Node) error {
	o := ownerOf(node)
	blocks, err := m.choose(ctx, node)
	if err != nil {
		return err
	}
	if len(m.assigned.conflicts(o)) > 0 || m.claims.last.Load().check(o.Name, blocks) != nil {
		live, err := m.withdraw(ctx, node) // what was sent with these blocks cannot arrive any more
		if err != nil || live == nil {
			return err
		}
		if hasPodCIDRs(live) {
			return m.accept(ctx, live)
		}
		m.assigned.keepOnly(o, nil)
		if blocks, err = m.choose(ctx, live); err != nil {
			return err
		}
		node = live
	}
	if m.intends() {
		if node, err = m.intend(ctx, node, blocks); err != nil || node == nil {
			return err
		}
		if hasPodCIDRs(node) {
			return m.accept(ctx, node)
		}
	}
	live, err := m.publish(ctx, node, blocks)
	if err == nil && live != nil {
		m.reports.fine(ctx, live)
	}
	return err
}

// choose returns the blocks of a node: those that it was offered before, or new ones.
func (a *Allocator) choose(ctx context.Context, node *v1.Node) ([]netip.Prefix, error) {
	if err := a.assigned.twin(ownerOf(node)); err != nil {
		a.reports.problem(ctx, node, ReasonConflict, err.Error())
		return nil, fmt.Errorf("%w: %w", ErrQuarantined, err)
	}
	sizes, err := a.settings.SizeOf(node, a.assigned.pools())
	var cidrs []netip.Prefix
	if err == nil {
		cidrs, err = a.reserve(ctx, ownerOf(node), sizes)
	}
	switch {
	case errors.Is(err, blocks.ErrSize):
		a.reports.problem(ctx, node, ReasonInvalidSize, err.Error())
		return nil, fmt.Errorf("%w: %w", ErrQuarantined, err)
	case errors.Is(err, blocks.ErrExhausted), errors.Is(err, blocks.ErrNoRange):
		a.reports.unserved(ctx, node, err)
	case errors.Is(err, errNoClaims):
		a.reports.problem(ctx, node, ReasonAssignmentFailed, errNoClaims.Error())
	}
	return cidrs, err
}

// reserve allocates blocks for o. New ones are in no claim of another
// node that was written before they were free. The allocator reads the claims again
// when the blocks are allocated for o. By then the Node object is gone by which an
// agent could have learned of them.
func (a *Allocator) reserve(ctx context.Context, o blocks.Owner, sizes []int) ([]netip.Prefix, error) {
	had, _ := a.assigned.blocks(o)
	claims, err := a.claims.read(ctx)
	for i := 0; err == nil && i < tries; i++ {
		choice := claims.choice(o.Name, sizes)
		choice.Fits = a.settings.fits
		blocks, e := a.assigned.allocate(o, choice)
		if e != nil {
			return nil, e
		}
		if claims, err = a.claims.read(ctx); err == nil && claims.check(o.Name, minus(blocks, had)) == nil {
			return blocks, nil
		}
		if a.assigned.keepOnly(o, had) {
			a.wake()
		}
	}
	if err == nil {
		err = fmt.Errorf("choose blocks for node %q: %w", o.Name, errClaimsChange)
	}
	return nil, err
}

// tries limits the attempts of a patch before the node goes back to the queue.
const tries = 3

// publish writes blocks to a node. If the outcome is unknown, they stay the
// node's: it is read back, and written again, until it has them, has others, or
// is gone. It returns the node with its podCIDRs, or nil if the object is gone or
// being deleted.
func (a *Allocator) publish(ctx context.Context, node *v1.Node, blocks []netip.Prefix) (*v1.Node, error) {
	o := ownerOf(node)
	live, err := runner.Write[*v1.Node]{
		Fence: a.gate.Check,
		Done:  func(n *v1.Node) bool { return final(n) || a.intends() && !intended(n, blocks) },
		Send: func(ctx context.Context, n *v1.Node) (*v1.Node, error) {
			return a.patchSpec(ctx, n, blocks)
		},
		Read:     func(ctx context.Context) (*v1.Node, error) { return a.live(ctx, o) },
		Attempts: tries,
	}.Do(ctx, node)
	switch {
	case errors.Is(err, runner.ErrGaveUp):
		a.reports.problem(ctx, live, ReasonAssignmentFailed, err.Error())
		return nil, fmt.Errorf("write the podCIDRs of node %q: %w", o.Name, err)
	case err != nil:
		return nil, fmt.Errorf("write the podCIDRs of node %q: %w", o.Name, err)
	case live == nil:
		a.release(o)
		return nil, nil
	case hasPodCIDRs(live):
		return live, a.published(ctx, live, blocks)
	case live.DeletionTimestamp != nil:
		return nil, nil
	}
	return nil, fmt.Errorf("write podCIDRs %s of node %q: another process has changed its annotation %s to %q",
		joined(blocks), o.Name, IntentAnnotation, live.Annotations[IntentAnnotation])
}

// patchSpec sends one patch of the podCIDRs.
func (a *Allocator) patchSpec(ctx context.Context, node *v1.Node, blocks []netip.Prefix) (*v1.Node, error) {
	body, err := specPatch(node, blocks)
	if err != nil {
		return nil, err
	}
	live, err := a.api.patch(ctx, node.Name, body)
	a.metrics.patched(err)
	if err != nil {
		return nil, fmt.Errorf("write podCIDRs %s of node %q: %w", joined(blocks), node.Name, err)
	}
	a.metrics.assignedAfter(a.deps.Now().Sub(node.CreationTimestamp.Time))
	if text := a.settings.unreadSize(node, a.assigned.pools()); a.mode.allocates() && text != "" {
		a.log.Warn("the size that a node asks for is not used", "node", node.Name, "reason", text)
		a.reports.event(node, ReasonInvalidSize, text)
	}
	return live, nil
}

// published records the node as it is after a patch.
func (a *Allocator) published(ctx context.Context, live *v1.Node, blocks []netip.Prefix) error {
	if have, _ := podCIDRsOf(live); !slices.Equal(have, blocks) {
		a.log.Warn("another process has written the podCIDRs of a node",
			"node", live.Name, "has", have, "offered", blocks)
	} else {
		a.log.Info("node has its CIDRs", "node", live.Name, "cidrs", blocks)
	}
	return a.occupy(ctx, live)
}
