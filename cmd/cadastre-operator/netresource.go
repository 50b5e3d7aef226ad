// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/clusterpool"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

// reportEvery is how often the status of AddressPools is written.
const reportEvery = 30 * time.Second

// pools keeps the pools of nodes at their watermarks, while this process leads.
type pools struct {
	log      *slog.Logger
	clients  clients
	provider *clusterpool.Provider
	client   *netresource.Client
	pods     *netresource.PodCount
	config   netresource.Config // without API and Fence
	fence    nodeipam.Fence     // nil: none
	sweep    time.Duration

	mu      sync.Mutex
	waits   string // for what, while the manager does not work yet
	manager *netresource.NetResourceSetManager
}

// netResource keeps the pools of nodes at their watermarks.
func (p *operator) netResource(fence nodeipam.Fence) (c controller, err error) {
	o, metrics := p.options.netresource, netresource.NewMetrics("cadastre_operator")
	s := &pools{
		log: p.log, clients: p.clients, fence: fence, sweep: o.sweep, waits: "it has not begun",
		provider: clusterpool.New(clusterpool.Config{CoolDown: o.coolDown, Pre: o.preAllocate}),
		client:   netresource.NewClient(p.clients.dynamic, 0),
		pods:     netresource.NewPodCount(p.clients.kube),
	}
	s.config = netresource.Config{
		Instances: s.provider, API: s.client, Metrics: metrics, Pending: s.pods.Of, Log: p.log,
		Workers: int64(o.workers), ResyncInterval: o.resync, QPS: o.qps, Burst: o.burst,
		ReleaseExcess: o.release, ReleaseDelay: orNone(o.releaseDelay),
		Consistency: -1, // the provider's book is the NetResourceSets
		Term:        p.identity,
	}
	if fence != nil {
		s.config.Term, s.config.Since = fence.Term(), time.Now()
	}
	return controller{controllerNetResource, s.run, s.ready}, p.metrics.add(metrics)
}

// orNone is d, or less than 0 for none, where 0 stands for a default.
func orNone(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// run works until ctx ends, or another process leads.
func (s *pools) run(ctx context.Context) error {
	ctx, depose := context.WithCancelCause(ctx)
	defer depose(nil)
	config := s.config
	if s.fence != nil {
		config.Fence = func(ctx context.Context) error {
			err := s.fence.Check(ctx)
			if errors.Is(err, nodeipam.ErrDeposed) {
				depose(err)
			}
			return err
		}
	}
	m, err := netresource.New(config)
	if err != nil {
		return err
	}
	sweeper := netresource.Sweeper{Client: s.client, Kube: s.clients.kube, Fence: config.Fence, Every: s.sweep, Log: s.log}
	s.await("the AddressPools are being read", nil)
	err = s.provider.Follow(ctx, s.clients.dynamic, reportEvery, s.log, func(ctx context.Context) error {
		s.await("the pods that wait for addresses are being read", nil)
		return s.pods.Follow(ctx, m.Recount, func(ctx context.Context) error {
			s.await("the Nodes are being read", nil)
			return sweeper.Follow(ctx, func(ctx context.Context) error {
				s.await("the NetResourceSets are being read and taken over", m)
				return s.client.Run(ctx, m)
			})
		})
	})
	if lost := context.Cause(ctx); errors.Is(lost, nodeipam.ErrDeposed) {
		return fmt.Errorf("keep the pools of nodes: %w", lost)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// await notes what is waited for, until m works.
func (s *pools) await(what string, m *netresource.NetResourceSetManager) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits, s.manager = what, m
}

// ready tells what is still waited for.
func (s *pools) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.manager == nil || !s.manager.InstancesAPIIsReady() {
		return errors.New(s.waits)
	}
	return nil
}
