// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/contivconf/nodeconfig"
	"github.com/cadastre/cadastre/plugins/dockeripam"
	"github.com/cadastre/cadastre/plugins/interfaces"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/reclaim"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/tracing"
	"github.com/cadastre/cadastre/witness/cluster"
)

// assembly holds every part of a running agent.
type assembly struct {
	node     Node
	conf     *contivconf.Config
	log      *slog.Logger
	clock    clock
	started  time.Time
	instance string

	lock       *os.File   // of the run directory; nil in a simulation
	file       *bolt.File // nil in a simulation
	store      kvdb.Store
	ledger     *ledger.Ledger
	loop       *controller.Controller
	claimers   *ipam.Claimers
	conditions *conditionWriter // nil: the store has no Node object
	warner     *podWarner       // nil: the store has no Pod objects
	cniList    *listWriter      // nil: the agent writes no CNI list
	source     *kubestate.Source
	sink       controller.Sink
	strays     *strays   // nil: the agent makes no wires
	returned   *returned // nil: likewise
	metrics    *restapi.Metrics
	traces     *tracing.Tracer // nil: CNI requests are not traced

	contivconf *contivconf.ContivConf
	nodeconfig *nodeconfig.NodeConfig
	nodesync   *nodesync.NodeSync
	podmanager *podmanager.PodManager
	ipam       *ipam.IPAM
	reporter   *nodeset.Reporter      // nil: the node has no NetResourceSet
	interfaces *interfaces.Interfaces // nil: blocks are not of interfaces
	ipnet      *ipnet.IPNet
	cluster    *cluster.Reader // the cluster witness
	reclaim    *reclaim.Plugin
	restapi    *restapi.RESTAPI
	docker     *dockeripam.DockerIPAM // nil: not enabled
	// watchEngine calls a function for each event of the Docker engine; nil: there are none.
	watchEngine func(context.Context, func())

	progress  progress
	listening chan struct{} // closed when the socket accepts connections
}

// label is the name of this node.
type label string

// GetAgentLabel returns the name.
func (l label) GetAgentLabel() string { return string(l) }

// dependencies holds what an assembly is made on. A simulation replaces all of it.
type dependencies struct {
	store    kvdb.Store
	mirror   kubestate.Mirror // nil: only this node uses the store
	journal  ledger.Journal
	history  ledger.HistoryReader // of journal; nil: no history
	disk     nodesync.Disk
	records  func(part string) ipamapi.Records
	sink     controller.Sink
	strays   *strays                                            // what stays of pods without leases; nil: the agent makes no wires
	returned *returned                                          // of a data plane that was away; nil: the agent makes no wires
	underlay func(nodeIPs []netip.Addr) (ipnet.Underlay, error) // nil: it is not known
	tunnel   tunnelKey
	instance string
	session  string
	machine  nodesync.Machine
	random   func() float64                            // of claims and beats
	jitter   func() float64                            // of reconnects; nil: random
	handlers []func(Plugins) []controller.EventHandler // behind those of the agent
	readers  reclaim.Readers                           // of the witnesses
	cloud    *givenCloud                               // nil: the program has none
	traces   *tracing.Tracer                           // nil: CNI requests are not traced

	listeners Listeners
	shares    httpserver.Shares // of the file descriptors, by listener
}

// assemble makes every part of the agent, in the order of their dependencies.
func assemble(
	ctx context.Context,
	node Node,
	conf *contivconf.Config,
	log *slog.Logger,
	clock clock,
	d dependencies,
) (*assembly, error) {
	a := &assembly{
		node:       node,
		conf:       conf,
		log:        log,
		clock:      clock,
		started:    clock.now(),
		instance:   d.instance,
		sink:       d.sink,
		strays:     d.strays,
		returned:   d.returned,
		traces:     d.traces,
		contivconf: contivconf.NewPlugin(conf),
		listening:  make(chan struct{}),
	}
	if d.jitter == nil {
		d.jitter = d.random
	}
	if err := a.openLedger(ctx, d); err != nil {
		return nil, err
	}
	a.loop = controller.New(nodeconfig.LoopConfig(conf.Cadastre), controller.Deps{
		Log:     log,
		Sink:    d.sink,
		Observe: a.observe(),
	})
	if s, ok := d.store.(nodeObject); ok {
		a.conditions = newConditionWriter(a, s)
	}
	if s, ok := d.store.(podObject); ok {
		a.warner = newPodWarner(log, s, d.random, a.metrics.PodEvent)
	}
	if conf.Cadastre.CNI.ConfDir != "" {
		a.cniList = &listWriter{a: a, random: d.jitter}
	}
	a.store = &timedStore{d.store, a.metrics.Request}
	if err := a.makeClaimers(d); err != nil {
		return nil, err
	}
	if err := a.makeInterfaces(ctx, d); err != nil {
		return nil, err
	}
	a.makePlugins(d)
	a.makeReclaim(d)
	a.source = kubestate.New(kubestate.Deps{
		Log:       log,
		Node:      node.Name,
		Store:     a.store,
		EventLoop: a.loop,
		Claim:     a.claimers.Confirm,
		Repair:    both(nodesync.Repair(node.Name), ipam.Repair(a.contivconf)),
		Mirror:    d.mirror,
		Ready:     a.hasID,
		Random:    d.jitter,
		Timing:    timing(conf),
	})
	a.claimers.IDs.Attach(a.source, a.ipam)
	if conf.Cadastre.PodBlocks == contivconf.PodBlocksNetResource {
		a.reporter = nodeset.NewReporter(nodeset.ReporterDeps{
			Log:       log,
			Node:      node.Name,
			Allocator: a.ipam.Allocator(),
			Store:     a.store,
			Now:       clock.now,
		})
	}
	if err := errors.Join(a.ipam.Init(), a.makeAPI(d), a.loop.Init()); err != nil {
		return nil, err
	}
	return a, nil
}

// openLedger opens the ledger and makes the metrics of its commits.
func (a *assembly) openLedger(ctx context.Context, d dependencies) (err error) {
	timed := &timedJournal{Journal: d.journal}
	a.ledger, err = ledger.Open(ctx, timed, ledger.Options{
		Log:    a.log,
		Now:    a.clock.now,
		Uptime: a.clock.uptime,
		BootID: a.clock.bootID,
		History: ledger.HistoryOptions{
			Reader:  d.history,
			Entries: a.conf.Cadastre.History.Entries,
			Age:     a.conf.Cadastre.History.Age,
		},
	})
	if err != nil {
		return err
	}
	if a.strays != nil {
		a.strays.ledger = a.ledger
	}
	a.metrics = restapi.NewMetrics(a.ledger.Stats, func() controller.Status { return a.loop.Status() })
	a.metrics.About(a.Status)
	a.metrics.Watch(a.clusterState)
	a.watchSouthbound()
	timed.observe = a.metrics.Commit
	return a.admitAddresses()
}

// makeClaimers makes the claimers of the node's ID and of its prefixes, which run
// beside the event loop.
func (a *assembly) makeClaimers(d dependencies) (err error) {
	a.claimers, err = ipam.NewClaimers(ipam.ClaimersDeps{
		Log:        a.log,
		Config:     a.conf.Cadastre,
		ContivConf: a.contivconf,
		Store:      a.store,
		Alone:      d.mirror == nil,
		Disk:       d.disk,
		EventLoop:  a.loop,
		Ledger:     a.ledger,
		Identity: nodesync.Identity{
			Name:     a.node.Name,
			Instance: d.instance,
			Session:  d.session,
			Machine:  d.machine,
		},
		Docker:  a.dockerSubnets,
		Changed: a.conditions.look,
		Now:     a.clock.now,
		Random:  d.random,
	})
	return err
}

// makePlugins makes the plugins in the order in which the event loop calls them.
func (a *assembly) makePlugins(d dependencies) {
	conf, deps, name := a.conf.Cadastre, controller.PluginDeps{Log: a.log}, label(a.node.Name)
	stage, records := a.ledger.Begin(), d.records
	a.nodeconfig = nodeconfig.NewPlugin(nodeconfig.Deps{
		PluginDeps:   deps,
		ServiceLabel: name,
		File:         a.conf.NodeConfigs,
	})
	a.nodesync = nodesync.NewPlugin(nodesync.Deps{
		PluginDeps:   deps,
		ServiceLabel: name,
		IDClaimer:    a.claimers.IDs,
		Claims:       a.claimers.Prefixes,
	})
	a.podmanager = podmanager.NewPlugin(podmanager.Deps{
		PluginDeps:   deps,
		EventLoop:    a.loop,
		Ledger:       a.ledger,
		IntentDir:    cni.IntentDir(a.socket()),
		UID:          os.Geteuid(),
		Timeout:      conf.Controller.EventTimeout,
		Ready:        a.ready,
		BeforeResync: a.loop.BeforeResync,
		Observe:      a.served,
		Explain:      a.explain,
		Refused:      a.refused(),
		IsPodPool:    func(name string) bool { return a.ipam.HasNetwork(name) },
		Reclaims:     reclaims{a},
		Kernel:       kernelLinks{a},
		Identify:     a.identify,
		Wires:        a.makesWires(),
	})
	a.ipam = ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
		d.Log = a.log
		d.NodeSync = a.nodesync
		d.ContivConf = a.contivconf
		d.ServiceLabel = name
		d.EventLoop = a.loop
		d.PodManager = a.podmanager
		d.Ledger = a.ledger
		d.Stage = stage
		d.Claims = a.claimers.Prefixes
		if records != nil {
			d.Records = records("ipam")
		}
		if a.interfaces != nil {
			d.Interfaces = a.interfaces
		}
	}))
	a.ipnet = ipnet.NewPlugin(ipnet.Deps{
		PluginDeps: deps,
		NodeSync:   a.nodesync,
		IPAM:       a.ipam,
		Ledger:     a.ledger,
		MainIP:     a.nodeconfig.MainIP,
		Transport:  conf.Transport,
		Dataplane:  a.dataplane(d),
		Claims:     a.claimers.Prefixes,
	})
	a.cluster = cluster.New(cluster.Options{
		Node:     a.node.Name,
		Embedded: a.conf.Cadastre.KVDB.Type == contivconf.KVDBBolt,
		Status:   func() kubestate.Status { return a.source.Status() },
		Now:      a.clock.now,
	})
	a.loop.AddHandlers(a.nodeconfig, a.nodesync, a.podmanager, a.ipam, a.ipnet, a.cluster)
	if conf.Docker.Enabled {
		a.docker = dockeripam.NewPlugin(dockeripam.Deps{
			PluginDeps: deps,
			EventLoop:  a.loop,
			Stage:      stage,
			NewDriver:  a.dockerDriver(d.records("docker"), d.readers.Engine),
			Socket:     conf.Docker.Socket,
			Listener:   d.listeners.Docker,
			Limits:     httpserver.Limits{Connections: d.shares.Other},
			Around:     a.metrics.WatchDocker(a.clock.now),
		})
		a.loop.AddHandlers(a.docker)
	}
	for _, more := range d.handlers {
		a.loop.AddHandlers(more(Plugins{
			ContivConf: a.contivconf,
			NodeSync:   a.nodesync,
			IPAM:       a.ipam,
			Ledger:     a.ledger,
			EventLoop:  a.loop,
		})...)
	}
	a.loop.AddCommitters(stage, a.nodesync, a.ipam, a.ipnet)
	if a.interfaces != nil {
		a.loop.AddCommitters(a.interfaces)
	}
}

// refused returns the observer of refused pods, nil if the log alone tells of them.
func (a *assembly) refused() func(podmanager.Refusal) {
	if a.warner == nil {
		return nil
	}
	return a.warner.refused
}

// makeAPI makes the local API.
func (a *assembly) makeAPI(d dependencies) error {
	rest, metrics, err := tcpListeners(a.conf.Cadastre, d.listeners, httpserver.Limits{Connections: d.shares.Other})
	if err != nil {
		return err
	}
	deps := restapi.Deps{
		PluginDeps: controller.PluginDeps{Log: a.log},
		Listen: restapi.Listen{
			Socket:  a.socket(),
			Limits:  httpserver.Limits{Connections: d.shares.Local},
			Opened:  func() { close(a.listening) },
			REST:    rest,
			Metrics: metrics,
		},
		Now:        a.clock.now,
		Agent:      a,
		Ledger:     a.ledger,
		Metrics:    a.metrics.Registry,
		Pods:       pods{a.podmanager, a},
		Loop:       a.loop,
		State:      a.source,
		Southbound: a.sink,
		Cluster:    a.clusterViews(),
		Reclaims:   a.reclaim,
		Checker:    a.checks(),
	}
	if a.docker != nil {
		deps.Docker = a.docker
	}
	if a.traces != nil {
		deps.Traces = a.traces
	}
	a.restapi = restapi.NewPlugin(deps)
	return a.restapi.Init()
}

// socketName names the socket of the local API in the run directory.
const socketName = "agent.sock"

func (a *assembly) socket() string { return filepath.Join(a.node.RunDir, socketName) }

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
