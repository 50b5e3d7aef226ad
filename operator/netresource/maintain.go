// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cadastre/cadastre/api/watermark"
	"github.com/cadastre/cadastre/internal/backoff"
)

// MaintainIPPool runs one round: it allocates the addresses that the node lacks, or
// goes on with the release of excess ones. After an error the round is repeated later.
func (n *NetResource) MaintainIPPool(ctx context.Context) error {
	if err := n.acquireTurn(ctx); err != nil {
		return fmt.Errorf("maintain the pool of node %s: %w", n.name, err)
	}
	defer n.releaseTurn()
	return n.round(ctx)
}

// resync runs a round as part of a resync of all nodes that began at syncTime.
func (n *NetResource) resync(ctx context.Context, syncTime time.Time) {
	if n.acquireTurn(ctx) != nil {
		return
	}
	defer n.releaseTurn()
	n.mu.Lock()
	if syncTime.After(n.waitsFor) {
		n.waitsFor = time.Time{}
	}
	n.release.read(syncTime, n.manager.config.Consistency, n.state.Available)
	n.mu.Unlock()
	n.recalculate(ctx)
	n.mu.Lock()
	if n.known && n.stats.NeededIPs == 0 && len(n.resource.Status.IPAM.ReleaseIPs) == 0 {
		n.full, n.lastError = "", ""
	}
	n.mu.Unlock()
	if n.due() {
		n.manager.maintain.Add(n.name, "resync", 0)
		return
	}
	if err := n.writeOrRetry(ctx); err != nil && ctx.Err() == nil {
		n.log.Warn("write the NetResourceSet", "error", err)
	}
}

func (n *NetResource) round(ctx context.Context) error {
	m := n.manager
	if !m.InstancesAPIIsReady() {
		m.maintain.Add(n.name, "not ready", n.pause())
		return fmt.Errorf("maintain the pool of node %s: %w", n.name, ErrNotReady)
	}
	if !n.IsRunning() {
		return nil
	}
	if wait := n.wait(); wait > 0 {
		m.maintain.Add(n.name, "retry", wait)
		return nil
	}
	n.recalculate(ctx)
	if !n.due() {
		return n.writeOrRetry(ctx)
	}
	mutated, err := n.change(ctx)
	now := m.config.Now()
	if err == nil && m.provider.Traits().TracksChanges {
		mutated = false // its effect is known: the NetResourceSet that is written leads to the next round
	}
	n.mu.Lock()
	if mutated {
		n.waitsFor = now
	}
	switch {
	case err == nil:
		n.failures, n.lastError, n.retryAt = 0, n.full, time.Time{}
	case apierrors.IsConflict(err):
		n.failures = 1 // the agent has written, too: a short wait is enough
	default:
		n.failures++
		n.lastError = err.Error()
	}
	n.mu.Unlock()
	n.recalculate(ctx)
	if mutated {
		m.resync.Add(resyncKey, "changed", 0)
	}
	if err != nil {
		pause := n.pause()
		n.mu.Lock()
		n.retryAt = now.Add(pause)
		n.mu.Unlock()
		m.maintain.Add(n.name, "retry", pause)
		err = fmt.Errorf("maintain the pool of node %s: %w", n.name, err)
	}
	return errors.Join(err, n.writeOrRetry(ctx))
}

// writeOrRetry writes the NetResourceSet, and queues another write after an error.
func (n *NetResource) writeOrRetry(ctx context.Context) error {
	err := n.write(ctx)
	if err != nil && ctx.Err() == nil {
		n.retryWrite()
	}
	return err
}

// retryWrite queues another write after one that has failed.
func (n *NetResource) retryWrite() {
	n.mu.Lock()
	unwritten := n.unwritten
	n.mu.Unlock()
	n.manager.sync.Add(n.name, "retry", n.manager.pauseAfter(unwritten))
}

// wait returns how long the node still waits after a failure.
func (n *NetResource) wait() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.retryAt.Sub(n.manager.config.Now())
}

// pause returns how long to wait after the last failure, or before the first one.
func (n *NetResource) pause() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.manager.pauseAfter(n.failures)
}

// pauseAfter returns how long a node waits after so many failures in a row.
func (n *NetResourceSetManager) pauseAfter(failures int) time.Duration {
	policy := backoff.Policy{First: n.config.RetryInterval, Limit: n.config.RetryMost, Random: n.config.Random}
	return policy.After(max(failures, 1))
}

// change releases addresses or allocates some, never both in one round.
func (n *NetResource) change(ctx context.Context) (mutated bool, err error) {
	if mutated, err = n.releaseAccepted(ctx); mutated || err != nil {
		return mutated, err
	}
	n.mu.Lock()
	n.full = ""
	n.count()
	needed, burst := n.stats.NeededIPs, n.state.Burst
	wanted := n.marks().Request(n.level)
	n.mu.Unlock()
	if burst > 0 {
		wanted = max(needed, wanted)
	}
	if needed == 0 {
		return false, nil
	}
	return n.allocate(ctx, wanted)
}

// allocate allocates up to wanted addresses. A reading follows each call after an error, and
// unless the provider tracks its changes.
func (n *NetResource) allocate(ctx context.Context, wanted int) (mutated bool, err error) {
	if err := n.manager.checkFence(ctx); err != nil {
		return false, err
	}
	set, m := n.newest(), n.manager.config.Metrics
	got, err := nodeCall(ctx, n, "Allocate", func(ctx context.Context) (Allocation, error) {
		return n.manager.provider.Allocate(ctx, set, wanted)
	})
	n.mu.Lock()
	n.stats.RemainingInterfaces = got.Interfaces
	n.mu.Unlock()
	switch {
	case err != nil:
		if got.Failed != "" {
			m.IncAllocationAttempt(got.Failed, string(got.Pool))
		}
		return got.Failed != "" || errors.Is(err, ErrUnknownOutcome), err
	case got.Addresses == 0:
		n.reportCapacity(wanted)
		return false, nil
	}
	m.IncAllocationAttempt("success", string(got.Pool))
	m.AddIPAllocation(string(got.Pool), int64(got.Addresses))
	n.log.Info("the node is given addresses", "pool", got.Pool, "interface", got.Interface, "addresses", got.Addresses)
	return true, nil
}

// reportCapacity logs, at most once an hour, that the node can have no more.
func (n *NetResource) reportCapacity(request int) {
	now := n.manager.config.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.full = fmt.Sprintf("the node is at capacity: it has %d addresses, and %d more are wanted", n.level.Total, request)
	if !n.capacityReported.IsZero() && now.Sub(n.capacityReported) < time.Hour {
		return
	}
	n.capacityReported = now
	n.log.Warn("the node is at capacity: it gets no more addresses", "lacks", request, "has", n.level.Total)
}

// plan decides which releases begin, go on, or are cancelled. It does so for the
// newest version of the NetResourceSet, before each attempt to write it. While the
// node's addresses are not known, all releases stay as they are.
func (n *NetResource) plan(ctx context.Context) error {
	n.mu.Lock()
	n.release.hold = n.removed || !n.known || !n.waitsFor.IsZero()
	if n.release.hold {
		n.mu.Unlock()
		return nil
	}
	n.count()
	entries, level := n.resource.Status.IPAM.ReleaseIPs, n.level
	needed, excess := n.marks().Needed(level), n.stats.ExcessIPs
	n.release.begin(entries, n.state.Available)
	if !n.manager.config.ReleaseExcess || n.state.Burst > 0 {
		needed, excess = math.MaxInt, 0
	}
	if needed > 0 {
		n.release.abort(entries, needed)
	}
	n.mu.Unlock()
	if needed > 0 {
		return nil
	}
	return n.candidates(ctx, excess, level)
}

// candidates chooses the addresses to release next: as many as the node has had too many
// for the delay. Which ones it was then does not matter: pods that come and go use each
// address now and then.
func (n *NetResource) candidates(ctx context.Context, excess int, level watermark.Level) error {
	c := n.manager.config
	now := c.Now()
	n.mu.Lock()
	grown := n.release.excess.note(excess, now)
	ripe := n.release.excess.since(now.Add(-c.ReleaseDelay))
	n.mu.Unlock()
	if grown {
		n.manager.maintain.Add(n.name, "delay", c.ReleaseDelay)
	}
	if ripe == 0 {
		return nil
	}
	set := n.newest()
	spare, err := nodeCall(ctx, n, "Spare", func(ctx context.Context) ([]string, error) {
		return n.manager.provider.Spare(ctx, set, ripe+level.GivingBack)
	})
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.release.choose(spare, ripe, n.resource.Status.IPAM.ReleaseIPs)
	return nil
}
