// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/operator/ksr"
	"github.com/cadastre/cadastre/operator/nodeipam"
	"github.com/cadastre/cadastre/operator/nodeipam/agentclaims"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// operator is all that runs.
type operator struct {
	options   options
	log       *slog.Logger
	clients   clients
	store     kvdb.Store     // nil where no flag names one
	cloud     nodeipam.Cloud // nil: none
	identity  string
	metrics   *metrics
	listening func(net.Addr)

	mu        sync.Mutex
	leading   bool
	works     []controller // while leading
	lookedFor time.Time    // when the lease was last asked for
}

// controller is one part of the work of a leader.
type controller struct {
	name string
	// run works until the context ends, and waits for all that it has started.
	run func(context.Context) error
	// ready tells what a controller still waits for, nil for nothing.
	ready func() error
}

// wire lists every controller, with what it is given. The fence is that of this
// leadership; it is nil where there is no election.
func (p *operator) wire(fence nodeipam.Fence) (all []controller, err error) {
	plan := p.options.plan()
	makers := map[string]func(nodeipam.Fence) (controller, error){
		controllerNodeIPAM:    p.nodeIPAM,
		controllerKSR:         p.reflector,
		controllerNodeIDs:     p.releaser,
		controllerNetResource: p.netResource,
	}
	for _, name := range allControllers() {
		if why := plan.not[name]; why != "" {
			p.log.Info("a controller is not run", "controller", name, "reason", why)
			continue
		}
		c, err := makers[name](fence)
		if err != nil {
			return nil, fmt.Errorf("controller %s: %w", name, err)
		}
		all = append(all, c)
	}
	return all, nil
}

// nodeIPAM gives nodes their podCIDRs.
func (p *operator) nodeIPAM(fence nodeipam.Fence) (c controller, err error) {
	settings, warnings, errs := p.options.nodeipam.Settings()
	if len(errs) > 0 {
		return c, errors.Join(errs...)
	}
	for _, w := range warnings {
		p.log.Warn("a flag is not used as given", "controller", controllerNodeIPAM, "reason", w)
	}
	if fence == nil {
		fence = only{p.identity}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(p.clients.kube, 0, informers.WithTransform(withoutFields))
	nodes := factory.Core().V1().Nodes()
	a, err := nodeipam.NewAllocator(nodeipam.Deps{
		Client: p.clients.kube, Nodes: nodes, Cloud: p.cloud, Fence: fence, Log: p.log, Instance: p.identity, Claims: p.claims(),
	}, settings)
	if err != nil {
		return c, err
	}
	informer := nodes.Informer()
	run := func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		factory.Start(ctx.Done())
		err := a.RunContext(ctx)
		cancel()
		factory.Shutdown()
		return err
	}
	ready := func() error {
		if !a.Status().Leading || !informer.HasSynced() {
			return errors.New("the nodes are being read")
		}
		return nil
	}
	return controller{controllerNodeIPAM, run, ready}, p.metrics.add(a.Metrics())
}

// only is the fence of an operator without an election: no other one may run, but
// one that was killed may have writes under way.
type only struct{ identity string }

// Term implements nodeipam.Fence.
func (o only) Term() string { return o.identity }

// Check implements nodeipam.Fence.
func (only) Check(ctx context.Context) error { return ctx.Err() }

// claims reads what the agents claim, nil without a cluster store.
func (p *operator) claims() nodeipam.Claims {
	if p.store == nil {
		p.log.Info("the claims of the agents are not known: a block is free as soon as no Node object has it", "controller", controllerNodeIPAM,
			"reason", "neither --"+flagEndpoints+" nor --"+flagStoreType+"="+storeKubernetes+" is given")
		return nil
	}
	return agentclaims.Reader{Store: p.store, Expire: cmp.Or(p.options.expire, defaultExpire), Now: time.Now}
}

// reflector copies Kubernetes' state into the cluster store.
func (p *operator) reflector(fence nodeipam.Fence) (controller, error) {
	r := ksr.New(ksr.Deps{
		Log: p.log, Client: p.clients.kube, Dynamic: p.clients.dynamic, Store: p.store, Fence: fenceOf(fence),
	}, ksr.Settings{})
	ready := func() error {
		if s := r.Status(); !s.Synced {
			return errors.Join(errors.New("not everything has been reflected yet"), nonEmpty(s.Error))
		}
		return nil
	}
	return controller{controllerKSR, r.Run, ready}, p.metrics.add(r.Metrics())
}

// releaser gives up the node IDs and the claims of nodes that are gone.
func (p *operator) releaser(fence nodeipam.Fence) (controller, error) {
	gone := func(node ksr.Lookup) nodesync.Expired {
		return nodesync.Expired{After: p.options.expire, Node: node}
	}
	r := ksr.NewReleaser(ksr.ReleaserDeps{
		Log: p.log, Client: p.clients.kube, Fence: fenceOf(fence), Every: p.options.lookForGone(),
		Release: func(ctx context.Context, node ksr.Lookup) ([]string, error) {
			return nodesync.ReleaseExpired(ctx, p.store, gone(node), time.Now())
		},
		EndClaims: func(ctx context.Context, node ksr.Lookup) ([]string, error) {
			return nodesync.EndClaims(ctx, p.store, gone(node), time.Now())
		},
	})
	return controller{controllerNodeIDs, r.Run, func() error { return nil }}, p.metrics.add(r.Metrics()...)
}

// fenceOf is the fence of nodeipam as ksr's.
func fenceOf(fence nodeipam.Fence) func(context.Context) error {
	if fence == nil {
		return nil
	}
	return func(ctx context.Context) error {
		err := fence.Check(ctx)
		if errors.Is(err, nodeipam.ErrDeposed) {
			return fmt.Errorf("%w: %w", ksr.ErrDeposed, err)
		}
		return err
	}
}

// withoutFields leaves out what is large and nobody here reads.
func withoutFields(obj any) (any, error) {
	if m, ok := obj.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

func nonEmpty(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}
