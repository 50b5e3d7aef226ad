// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	goruntime "runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/informers"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/version"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/operator/audit"
	"github.com/cadastre/cadastre/operator/ksr"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/nodeipam"
	"github.com/cadastre/cadastre/operator/nodeipam/agentclaims"
	"github.com/cadastre/cadastre/operator/runner"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/witness"
)

// operator holds the parts of the program that exist before it leads.
type operator struct {
	options   commandLine
	log       *slog.Logger
	clients   clients
	store     kvdb.Store     // nil: no flag names one
	cloud     cloud.Cloud    // of --netresource-provider; nil: none
	aliases   nodeipam.Cloud // of --cidr-allocator-type; nil: none
	identity  string
	registry  *prometheus.Registry
	runner    *runner.Runner
	listening func(net.Addr)
	decisions *decisions
	page      *page // nil: without a cluster store
}

// open returns an operator that does not run yet.
func open(ctx context.Context, o commandLine, h host, log *slog.Logger) (*operator, error) {
	name, err := h.hostname()
	if err != nil {
		return nil, fmt.Errorf("read the host's name: %w", err)
	}
	kept := newDecisions(time.Now)
	log = slog.New(kept.wrap(log.Handler()))
	p := &operator{
		decisions: kept,
		options:   o,
		log:       log,
		identity:  name + "_" + string(uuid.NewUUID()),
		registry:  prometheus.NewRegistry(),
		listening: h.listening,
	}
	if p.clients, err = h.clients(o); err != nil {
		return nil, err
	}
	if err := p.openClouds(ctx); err != nil {
		return nil, err
	}
	if o.store.configured() {
		if p.store, err = h.store(o.store, p.clients, log); err != nil {
			return nil, err
		}
		p.page = p.newPage()
	}
	p.runner = runner.New(runner.Config{
		Identity:    p.identity,
		Election:    o.elect.election(p.clients),
		Controllers: p.controllers,
		Registry:    p.registry,
		Log:         log,
	})
	p.registerMetrics()
	return p, nil
}

// close closes the store.
func (p *operator) close() error {
	if p.store == nil {
		return nil
	}
	return p.store.Close()
}

// registerMetrics registers the metrics of the program; the runner registers
// those of the controllers.
func (p *operator) registerMetrics() {
	leader := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "cadastre_operator_leader",
		Help: "1 while this process leads and its controllers run, else 0.",
	}, func() float64 {
		if p.runner.Leading() {
			return 1
		}
		return 0
	})
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "cadastre_operator_build_info",
		Help:        "Version of this program and of Go; always 1.",
		ConstLabels: prometheus.Labels{"version": version.Current(), "go_version": goruntime.Version()},
	})
	build.Set(1)
	process := collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})
	p.registry.MustRegister(leader, build, collectors.NewGoCollector(), process)
}

// controllers returns every controller that the options select, with its
// dependencies, for one leadership.
func (p *operator) controllers(term *runner.Term) (all []runner.Controller, err error) {
	plan := p.options.plan()
	constructors := map[string]func(*runner.Term) (runner.Controller, error){
		controllerNodeIPAM:    p.nodeIPAM,
		controllerKSR:         p.reflector,
		controllerNodeIDs:     p.releaser,
		controllerNetResource: p.netResource,
		controllerAudit:       p.audit,
	}
	for _, name := range allControllers() {
		if why := plan.not[name]; why != "" {
			p.log.Info("a controller does not run", "controller", name, "reason", why)
			continue
		}
		c, err := constructors[name](term)
		if err != nil {
			return nil, fmt.Errorf("controller %s: %w", name, err)
		}
		c.Name = name
		all = append(all, c)
	}
	return all, nil
}

// nodeIPAM returns the controller that assigns podCIDRs to nodes.
func (p *operator) nodeIPAM(term *runner.Term) (c runner.Controller, err error) {
	settings, warnings, errs := p.options.nodeipam.Settings()
	if len(errs) > 0 {
		return c, errors.Join(errs...)
	}
	for _, w := range warnings {
		p.log.Warn("a flag is not used as given", "controller", controllerNodeIPAM, "reason", w)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(
		p.clients.kube,
		0,
		informers.WithTransform(dropManagedFields),
	)
	nodes := factory.Core().V1().Nodes()
	a, err := nodeipam.NewAllocator(nodeipam.Deps{
		Client:   p.clients.kube,
		Nodes:    nodes,
		Cloud:    p.aliases,
		Fence:    term,
		Log:      p.log,
		Instance: p.identity,
		Claims:   p.claims(),
	}, settings)
	if err != nil {
		return c, err
	}
	informer := nodes.Informer()
	c.Metrics = []prometheus.Collector{a.Metrics()}
	c.Run = func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		factory.Start(ctx.Done())
		err := a.RunContext(ctx)
		cancel()
		factory.Shutdown()
		return err
	}
	c.Ready = func() error {
		if !a.Status().Leading || !informer.HasSynced() {
			return errors.New("the nodes are being read")
		}
		return nil
	}
	return c, nil
}

// dropManagedFields removes a large part of objects that no controller reads.
func dropManagedFields(obj any) (any, error) {
	if m, ok := obj.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// claims returns the reader of the agents' claims, nil without a cluster store.
func (p *operator) claims() nodeipam.Claims {
	if p.store == nil {
		p.log.Info("the claims of the agents are not known: a block is free as soon as no Node object has it",
			"controller", controllerNodeIPAM,
			"reason", "neither --"+flagEndpoints+" nor --"+flagStoreType+"="+storeKubernetes+" is given")
		return nil
	}
	return agentclaims.Reader{Store: p.store, Expire: cmp.Or(p.options.expire, defaultExpire), Now: time.Now}
}

// reflector returns the controller that copies Kubernetes' state into the cluster store.
func (p *operator) reflector(term *runner.Term) (c runner.Controller, _ error) {
	r := ksr.New(ksr.Deps{
		Log:     p.log,
		Client:  p.clients.kube,
		Dynamic: p.clients.dynamic,
		Store:   p.store,
		Fence:   term.Check,
	})
	c.Metrics = []prometheus.Collector{r.Metrics()}
	c.Run = r.Run
	c.Ready = func() error {
		switch s := r.Status(); {
		case s.Synced:
			return nil
		case s.Error != "":
			return fmt.Errorf("not all keys have been compared yet: %s", s.Error)
		default:
			return errors.New("not all keys have been compared yet")
		}
	}
	return c, nil
}

// releaser returns the controller that releases the node IDs and the claims of
// nodes that are gone.
func (p *operator) releaser(term *runner.Term) (c runner.Controller, _ error) {
	gone := func(node ksr.Lookup) nodesync.Expired {
		return nodesync.Expired{After: p.options.expire, Node: node}
	}
	r := ksr.NewReleaser(ksr.ReleaserDeps{
		Log:    p.log,
		Client: p.clients.kube,
		Fence:  term.Check,
		Every:  p.options.releaseInterval(),
		Release: func(ctx context.Context, node ksr.Lookup) ([]string, error) {
			return nodesync.ReleaseExpired(ctx, p.store, gone(node), time.Now())
		},
		EndClaims: func(ctx context.Context, node ksr.Lookup) ([]string, error) {
			return nodesync.EndClaims(ctx, p.store, gone(node), time.Now())
		},
	})
	c.Metrics = []prometheus.Collector{r.Metrics()}
	c.Run = r.Run
	return c, nil
}

// audit returns the controller that compares the objects of the cluster with each other.
func (p *operator) audit(term *runner.Term) (c runner.Controller, _ error) {
	deps := audit.Deps{
		Log:      p.log,
		Client:   p.clients.kube,
		Store:    p.store,
		Instance: p.identity,
		Fence:    term.Check,
		Services: witness.ParsePrefixes(strings.Split(p.options.nodeipam.Service, ",")),
		Policies: p.options.policies,
		Every:    p.options.auditEvery,
		Confirm:  p.options.auditEvery / 2,
	}
	if slices.Contains(p.options.plan().run, controllerNetResource) {
		deps.Dynamic = p.clients.dynamic
	}
	a := audit.New(deps)
	c.Metrics = []prometheus.Collector{a.Metrics()}
	c.Run = a.Run
	return c, nil
}

// netResource returns the controller that keeps the addresses of nodes at their
// watermarks. It begins when it has read, in this order, the AddressPools if they are
// its source, the pods that wait for addresses, the Nodes and the NetResourceSets.
func (p *operator) netResource(term *runner.Term) (c runner.Controller, _ error) {
	o, metrics := p.options.netresource, netresource.NewMetrics("cadastre_operator")
	source := p.addresses(term)
	client := netresource.NewClient(p.clients.dynamic, 0)
	pods := netresource.NewPodCount(p.clients.kube)
	m, err := netresource.New(netresource.Config{
		Provider:       source.provider,
		API:            client,
		Metrics:        metrics,
		Pending:        pods.Of,
		Log:            p.log,
		Workers:        int64(o.workers),
		ResyncInterval: o.resync,
		ReleaseExcess:  o.release,
		ReleaseDelay:   cmp.Or(o.releaseDelay, -1), // 0 would stand for the default
		Consistency:    source.consistency,
		Fence:          term.Check,
		Since:          term.Since(),
	})
	if err != nil {
		return c, err
	}
	sweeper := netresource.Sweeper{
		Client: client,
		Kube:   p.clients.kube,
		Fence:  term.Check,
		Every:  o.sweep,
		Log:    p.log,
	}
	var waiting atomic.Value // what is being read, a string
	waiting.Store(source.reads)
	c.Metrics = []prometheus.Collector{metrics}
	c.Run = func(ctx context.Context) error {
		err := source.follow(ctx, func(ctx context.Context) error {
			waiting.Store("the pods that wait for addresses are being read")
			return pods.Follow(ctx, m.Recount, func(ctx context.Context) error {
				waiting.Store("the Nodes are being read")
				return sweeper.Follow(ctx, func(ctx context.Context) error {
					waiting.Store("the NetResourceSets are being read")
					return client.Run(ctx, m)
				})
			})
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the context has ended: so has the work
		}
		return err
	}
	c.Ready = func() error {
		if !m.InstancesAPIIsReady() {
			return errors.New(waiting.Load().(string))
		}
		return nil
	}
	return c, nil
}
