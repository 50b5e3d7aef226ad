// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// cloudBase holds the methods that the cloud modes share.
type cloudBase struct{ *Allocator }

func machineOf(node *v1.Node) Machine {
	return Machine{Node: node.Name, ProviderID: node.Spec.ProviderID}
}

// aliases returns what the cloud routes to a node's machine, as the cloud says it.
func (d cloudBase) aliases(ctx context.Context, node *v1.Node) ([]netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(ctx, d.settings.CallTimeout)
	defer cancel()
	all, err := d.deps.Cloud.Aliases(ctx, machineOf(node))
	if err != nil {
		return nil, fmt.Errorf(
			"read the aliases of node %q in cloud %s: %w",
			node.Name,
			d.deps.Cloud.ProviderName(),
			err,
		)
	}
	return all, nil
}

// masked returns the prefixes without their host bits.
func masked(all []netip.Prefix) []netip.Prefix {
	plain := make([]netip.Prefix, len(all)) // the cloud may go on using its own
	for i, p := range all {
		plain[i] = p.Masked()
	}
	return plain
}

func (d cloudBase) addAlias(ctx context.Context, node *v1.Node, p netip.Prefix) error {
	if err := d.gate.Check(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, d.settings.CallTimeout)
	defer cancel()
	if err := d.deps.Cloud.AddAlias(ctx, machineOf(node), p); err != nil {
		err = fmt.Errorf("add alias %s of node %q in cloud %s: %w", p, node.Name, d.deps.Cloud.ProviderName(), err)
		if errors.Is(err, ErrRouted) { // people have to do something
			d.reports.problem(ctx, node, ReasonConflict, err.Error())
		}
		return err
	}
	return nil
}

// routed notes that all is well with node, and sets the condition that its
// network is there.
func (d cloudBase) routed(ctx context.Context, node *v1.Node) error {
	d.reports.fine(ctx, node)
	return d.reports.setCondition(
		ctx,
		node,
		v1.NodeCondition{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionFalse,
			Reason: "RouteCreated", Message: "The cloud routes the node's podCIDRs to its machine"},
	)
}

// networkStatus is the state of the condition that routed sets.
func networkStatus(node *v1.Node) v1.ConditionStatus {
	for _, c := range node.Status.Conditions {
		if c.Type == v1.NodeNetworkUnavailable {
			return c.Status
		}
	}
	return ""
}

// oneOfEach is the first alias of each family: a node can have no more.
func (d cloudBase) oneOfEach(node *v1.Node, all []netip.Prefix) (some []netip.Prefix) {
	for _, p := range all {
		if !slices.ContainsFunc(some, func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() }) {
			some = append(some, p)
		}
	}
	if len(some) < len(all) {
		d.log.Warn("a machine has more aliases than a node can have podCIDRs",
			"node", node.Name, "aliases", all, "taken", some)
	}
	return some
}

// copyAliases gives a node without podCIDRs those that its machine has.
func (d cloudBase) copyAliases(ctx context.Context, node *v1.Node, aliases []netip.Prefix) error {
	if err := d.assigned.twin(ownerOf(node)); err != nil {
		d.reports.problem(ctx, node, ReasonConflict, err.Error())
		return fmt.Errorf("%w: %w", ErrQuarantined, err)
	}
	d.assigned.keepOnly(ownerOf(node), aliases) // what the cloud has routed elsewhere since
	for _, err := range d.assigned.occupy(ownerOf(node), aliases) {
		if err != nil {
			d.reports.problem(ctx, node, ReasonConflict, "The cloud routes what another node has: "+err.Error())
			return fmt.Errorf("%w: %w", ErrQuarantined, err)
		}
	}
	live, err := d.publish(ctx, node, aliases)
	if err != nil || live == nil {
		return err
	}
	return d.checkRouted(ctx, live, aliases)
}

// checkRouted sets the condition of a node that has what the cloud routes to it.
func (d cloudBase) checkRouted(ctx context.Context, node *v1.Node, aliases []netip.Prefix) error {
	have, err := podCIDRsOf(node)
	if err != nil || len(minus(have, aliases)) > 0 {
		d.mismatch(ctx, node, aliases)
		return nil //nolint:nilerr // the condition reports CIDRs that cannot be read
	}
	return d.routed(ctx, node)
}

// mismatch reports that cluster and cloud differ. The allocator cannot repair it: podCIDRs
// are set once, and the alias may be in use.
func (d cloudBase) mismatch(ctx context.Context, node *v1.Node, aliases []netip.Prefix) {
	d.reports.problem(ctx, node, ReasonMismatch, fmt.Sprintf(
		"node %q has podCIDRs %v, cloud %s routes %s to it; podCIDRs only change when the Node object is made anew",
		node.Name, podCIDRTexts(node), d.deps.Cloud.ProviderName(), joined(aliases)))
}

// minus returns the elements of all that are not in some.
func minus(all, some []netip.Prefix) (rest []netip.Prefix) {
	for _, p := range all {
		if !slices.Contains(some, p) {
			rest = append(rest, p)
		}
	}
	return rest
}

// wants tells whether a node's podCIDRs are to be set to want.
func wants(node *v1.Node, want []netip.Prefix) (bool, error) {
	if len(want) > 2 || len(want) == 2 && want[0].Addr().Is4() == want[1].Addr().Is4() {
		return false, fmt.Errorf("podCIDRs %s of node %q: there can be one of each family", joined(want), node.Name)
	}
	have, err := podCIDRsOf(node)
	order := func(p, q netip.Prefix) int { return cmp.Compare(p.Addr().BitLen(), q.Addr().BitLen()) }
	slices.SortStableFunc(have, order)
	want = slices.SortedStableFunc(slices.Values(want), order)
	return err != nil || !slices.Equal(have, want), nil //nolint:nilerr // CIDRs that cannot be read differ
}

// cloudMode is CloudAllocator.
type cloudMode struct{ cloudBase }

var _ mode = (*cloudMode)(nil)

func (m *cloudMode) allocates() bool { return false }
func (m *cloudMode) pins() bool      { return false }
func (m *cloudMode) requeuePolicy() requeuePolicy {
	return &cloudPolicy{random: m.deps.Random, rest: m.settings.Audit}
}

func (m *cloudMode) reconcile(ctx context.Context, node *v1.Node) error {
	if node.DeletionTimestamp != nil {
		return nil
	}
	all, err := m.aliases(ctx, node)
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("cloud %s routes nothing to node %q", m.deps.Cloud.ProviderName(), node.Name)
	}
	if err != nil {
		m.reports.problem(ctx, node, ReasonNotAvailable, err.Error())
		return err
	}
	want := m.oneOfEach(node, masked(all))
	differ, err := wants(node, want)
	switch {
	case err != nil:
		return err
	case !hasPodCIDRs(node):
		return m.copyAliases(ctx, node, want)
	case differ:
		m.mismatch(ctx, node, want)
		return fmt.Errorf("%w: cluster and cloud differ", ErrQuarantined)
	}
	if err := m.occupy(ctx, node); err != nil {
		return err
	}
	return m.routed(ctx, node)
}

// cloudPolicy is upstream's policy for clouds: the wait doubles and is spread at
// random; after quickTries errors in a row it is rest.
type cloudPolicy struct {
	random func() float64
	rest   time.Duration // between two tries, after the quick ones
	tries  int
}

// quickTries are upstream's number of tries.
const quickTries = 10

func (p *cloudPolicy) after(err error) (time.Duration, bool) {
	if err == nil {
		p.tries = 0
		return 0, false
	}
	if p.tries++; p.tries > quickTries {
		return p.rest, true
	}
	return cloudDelay(p.tries-1, p.random()), true
}

// cloudDelay is the time to the next try after so many before it: 250 ms, each
// time doubled, up to 5 s. By random, in [0, 1), it is from half to one and a half
// of that.
func cloudDelay(before int, random float64) time.Duration {
	const first, most = 250 * time.Millisecond, 5 * time.Second
	base := float64(most)
	if before < 10 {
		base = math.Min(base, float64(first)*math.Pow(2, float64(before)))
	}
	return time.Duration(base/2 + random*base)
}

// errInvalidMode is ErrMode with what there is on both sides.
func (d cloudBase) errInvalidMode(ctx context.Context, node *v1.Node, what string) error {
	err := fmt.Errorf("node %q: %w: %s", node.Name, ErrMode, what)
	d.reports.problem(ctx, node, ReasonInvalidMode, err.Error())
	return err
}
