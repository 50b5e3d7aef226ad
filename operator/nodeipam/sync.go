// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/operator/blocks"
)

// resyncPeriodically is the policy of a node that is also processed without an event.
type resyncPeriodically struct{ timeout Timeout }

func (p *resyncPeriodically) after(err error) (time.Duration, bool) {
	p.timeout.Update(err == nil)
	return p.timeout.Next(), true
}

func (a *Allocator) syncPolicy() requeuePolicy {
	c := a.settings.Sync
	return &resyncPeriodically{Timeout{Resync: c.Resync, MaxBackoff: c.MaxBackoff, InitialRetry: c.InitialRetry}}
}

// fromCloudMode is IPAMFromCloud.
type fromCloudMode struct{ cloudBase }

var _ mode = (*fromCloudMode)(nil)

func (m *fromCloudMode) allocates() bool              { return false }
func (m *fromCloudMode) pins() bool                   { return false }
func (m *fromCloudMode) requeuePolicy() requeuePolicy { return m.syncPolicy() }

func (m *fromCloudMode) reconcile(ctx context.Context, node *v1.Node) error {
	if node.DeletionTimestamp != nil {
		return nil
	}
	all, err := m.aliases(ctx, node)
	aliases := masked(all)
	switch {
	case err != nil:
		return err
	case len(aliases) == 0 && !hasPodCIDRs(node):
		return m.errInvalidMode(ctx, node, "the cloud is to say which podCIDRs it has, and routes nothing to it")
	case len(aliases) == 0:
		return m.errInvalidMode(
			ctx,
			node,
			fmt.Sprintf("it has podCIDRs %v, which the cloud does not route", podCIDRTexts(node)),
		)
	case !hasPodCIDRs(node):
		return m.copyAliases(ctx, node, m.oneOfEach(node, aliases))
	}
	return m.compare(ctx, node, aliases)
}

// compare compares the podCIDRs of a node with the aliases of its machine. A difference is
// reported and is not an error, because a retry would change nothing.
func (d cloudBase) compare(ctx context.Context, node *v1.Node, aliases []netip.Prefix) error {
	if err := d.occupy(ctx, node); err != nil {
		return err
	}
	return d.checkRouted(ctx, node, aliases)
}

// clusterMode is IPAMFromCluster. What a node is about to get is written to its
// metadata first, then to the cloud, and then to its podCIDRs. So wherever this
// stops, the next try, also that of another process, goes on with the same.
type clusterMode struct{ cloudBase }

var _ mode = (*clusterMode)(nil)

func (m *clusterMode) allocates() bool              { return true }
func (m *clusterMode) pins() bool                   { return true } // to its machine
func (m *clusterMode) requeuePolicy() requeuePolicy { return m.syncPolicy() }

func (m *clusterMode) reconcile(ctx context.Context, node *v1.Node) error {
	if node.DeletionTimestamp != nil {
		if hasPodCIDRs(node) {
			return m.occupy(ctx, node)
		}
		return nil
	}
	all, err := m.aliases(ctx, node)
	if err != nil {
		return err
	}
	if !hasPodCIDRs(node) {
		return m.give(ctx, node, all)
	}
	aliases := masked(all)
	if err := m.occupy(ctx, node); err != nil {
		return err
	}
	have, _ := podCIDRsOf(node)
	if missing := minus(have, aliases); len(missing) > 0 {
		if len(minus(aliases, have)) > 0 {
			m.mismatch(ctx, node, aliases)
			return nil
		}
		if err := m.addAliases(ctx, node, missing); err != nil {
			return err
		}
	}
	return m.routed(ctx, node)
}

// give gives a node without podCIDRs a block of each pool, all the way. all are
// the aliases as the cloud says them.
func (m *clusterMode) give(ctx context.Context, node *v1.Node, all []netip.Prefix) error {
	o, aliases := ownerOf(node), masked(all)
	if blocks, _ := m.assigned.blocks(o); len(blocks) == 0 && len(aliases) > 0 {
		// No process of ours has noted why. If it can be this node's, it is.
		if err := m.claimAliases(node, m.oneOfEach(node, all)); err != nil {
			return m.errInvalidMode(
				ctx,
				node,
				fmt.Sprintf(
					"the cluster is to say which podCIDRs it has, and the cloud routes %s to it already: %v",
					joined(all),
					err,
				),
			)
		}
	}
	blocks, err := m.choose(ctx, node)
	if err != nil {
		return err
	}
	if c := m.assigned.conflicts(o); len(c) > 0 {
		m.reports.problem(ctx, node, ReasonConflict, c[0].Error())
		return fmt.Errorf("%w: %w", ErrQuarantined, c[0])
	}
	missing := minus(blocks, aliases)
	if len(missing) > 0 && len(minus(aliases, blocks)) > 0 {
		return m.errInvalidMode(
			ctx,
			node,
			fmt.Sprintf("it is to have %s, and the cloud routes %s to it", joined(blocks), joined(aliases)),
		)
	}
	if node, err = m.intend(ctx, node, blocks); err != nil || node == nil {
		return err
	}
	if hasPodCIDRs(node) {
		return m.reconcile(ctx, node)
	}
	// Those that are there, too: an earlier call may have added one and not have learned whether
	// another machine has it.
	if err := m.addAliases(ctx, node, blocks); err != nil {
		return err
	}
	live, err := m.publish(ctx, node, blocks)
	if err != nil || live == nil {
		return err
	}
	return m.checkRouted(ctx, live, blocks)
}

// claimAliases takes for a node what its machine has, if that is exactly one
// block of each pool, in the size that the node is to get, and free.
func (m *clusterMode) claimAliases(node *v1.Node, aliases []netip.Prefix) error {
	sizes, err := m.settings.SizeOf(node, m.assigned.pools())
	if err != nil {
		return err
	}
	fits := func(r blocks.Range, bits int) bool {
		if r.Pool < len(sizes) && sizes[r.Pool] != 0 {
			return bits == sizes[r.Pool] && m.settings.fits(r, bits)
		}
		return bits == r.Bits
	}
	if err := m.assigned.check(aliases, fits); err != nil {
		return err
	}
	return m.assigned.claim(ownerOf(node), aliases)
}

func (m *clusterMode) addAliases(ctx context.Context, node *v1.Node, blocks []netip.Prefix) error {
	for _, p := range blocks {
		if err := m.addAlias(ctx, node, p); err != nil {
			return err
		}
	}
	return nil
}
