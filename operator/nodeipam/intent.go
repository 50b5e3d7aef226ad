// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"fmt"
	"net/netip"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/runner"
)

// intends reports whether a node is told what it is about to get before it gets
// it: for the next leader, or because the cloud is told as well.
func (a *Allocator) intends() bool {
	return a.mode.allocates() && (a.deps.Fence != nil || a.mode.pins())
}

// intend announces to node what it is about to get. It returns the node as it is
// then; nil if it is gone or being deleted.
func (a *Allocator) intend(ctx context.Context, node *v1.Node, blocks []netip.Prefix) (*v1.Node, error) {
	o := ownerOf(node)
	live, err := runner.Write[*v1.Node]{
		Fence: a.gate.Check,
		Done:  func(n *v1.Node) bool { return final(n) || intended(n, blocks) },
		Send: func(ctx context.Context, n *v1.Node) (*v1.Node, error) {
			return a.patchIntent(ctx, n, blocks)
		},
		Read:     func(ctx context.Context) (*v1.Node, error) { return a.live(ctx, o) },
		Attempts: tries,
	}.Do(ctx, node)
	switch {
	case err != nil:
		return nil, err
	case live == nil:
		a.release(o)
		return nil, nil
	case !hasPodCIDRs(live) && live.DeletionTimestamp != nil:
		return nil, nil
	}
	return live, nil
}

// final reports whether a node gets no podCIDRs any more: it is gone (nil) or being
// deleted, or has some.
func final(node *v1.Node) bool {
	return node == nil || hasPodCIDRs(node) || node.DeletionTimestamp != nil
}

func (a *Allocator) patchIntent(ctx context.Context, node *v1.Node, blocks []netip.Prefix) (*v1.Node, error) {
	body, err := intentPatch(node, blocks)
	if err != nil {
		return nil, err
	}
	live, err := a.api.patch(ctx, node.Name, body)
	a.metrics.patched(err)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("write down that node %q is to get %s: %w", node.Name, joined(blocks), err)
	}
	return live, err
}

// occupyIntents takes what nodes without podCIDRs are about to get for these nodes: patches
// with these blocks may be under way. If two of them are to get the same block, that
// is found out when they are looked at. Only what the first list of all nodes shows
// counts: an intent that arrives later is that of a deposed leader, which its fence
// keeps from going on.
func (a *Allocator) occupyIntents(nodes []v1.Node) {
	offers := map[blocks.Owner][]netip.Prefix{}
	for i := range nodes {
		node := &nodes[i]
		intent := intentOf(node)
		if hasPodCIDRs(node) || len(intent) == 0 {
			continue
		}
		if err := a.checkOffer(ownerOf(node), intent); err != nil {
			a.log.Warn("what a node is about to get is not an offer of this operator, and is not respected",
				"node", node.Name, "annotation", IntentAnnotation, "error", err)
			continue
		}
		offers[ownerOf(node)] = intent
	}
	for o, intent := range offers {
		a.assigned.occupy(o, intent)
	}
}

// checkOffer returns an error unless a leader can have offered these blocks. A node
// may write its own annotations. So what another node has in its podCIDRs, and what
// no node gets, is not taken for it. The other node is then not in a conflict. These
// blocks need not be held back, and the node is told anew before it gets others.
func (a *Allocator) checkOffer(o blocks.Owner, intent []netip.Prefix) error {
	if err := a.assigned.check(intent, a.settings.fits); err != nil {
		return err
	}
	return a.assigned.checkFree(o, intent)
}

// withdraw takes back what a node was offered: it changes the node, so that
// nothing that was sent to it before can be applied. It returns the node as it
// is then; nil if that object is gone.
func (a *Allocator) withdraw(ctx context.Context, node *v1.Node) (*v1.Node, error) {
	body, err := withdrawPatch(node, fmt.Sprintf("withdrawn %s %d", a.term, a.withdrawals.Add(1)))
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
		return nil, fmt.Errorf("withdraw what node %q was offered: %w", node.Name, err)
	}
	if live, e := a.live(ctx, ownerOf(node)); e == nil && live == nil {
		return nil, nil
	}
	return nil, fmt.Errorf("withdraw what node %q was offered: %w", node.Name, err)
}
