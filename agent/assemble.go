// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	mathrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/contivconf/nodeconfig"
	"github.com/cadastre/cadastre/plugins/dockeripam"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi"
)

// assembly holds every part of a running agent.
type assembly struct {
	node     Node
	conf     *contivconf.Config
	log      *slog.Logger
	clock    clock
	started  time.Time
	instance string

	lock      *os.File   // of the run directory; nil in a simulation
	file      *bolt.File // nil in a simulation
	store     kvdb.Store
	ledger    *ledger.Ledger
	loop      *controller.Controller
	idClaimer *nodesync.IDClaimer
	claimer   *claims.Claimer
	told      *reporter // of the Node conditions; nil: there is no Node object
	source    *kubestate.Source
	sink      controller.Sink
	metrics   *restapi.Metrics

	contivconf *contivconf.ContivConf
	nodeconfig *nodeconfig.NodeConfig
	nodesync   *nodesync.NodeSync
	podmanager *podmanager.PodManager
	ipam       *ipam.IPAM
	reporter   *ipam.Reporter // nil: there is no NetResourceSet
	ipnet      *ipnet.IPNet
	restapi    *restapi.RESTAPI
	docker     *dockeripam.DockerIPAM // nil: not enabled

	serving   state
	listening chan struct{} // closed when the socket is there
}

// label is the name of this node.
type label string

// GetAgentLabel is the name.
func (l label) GetAgentLabel() string { return string(l) }

// open opens the node's database and the stores, and assembles the agent.
func (a *Agent) open(ctx context.Context) (*assembly, error) {
	clock, err := newHostClock(a.node.BootIDFile)
	if err != nil {
		return nil, err
	}
	lock, err := lockRunDir(a.node.RunDir, os.Geteuid())
	if err != nil {
		return nil, err
	}
	running, err := a.openState(ctx, clock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	running.lock = lock
	return running, nil
}

// openState opens the node's database and what depends on it.
func (a *Agent) openState(ctx context.Context, clock clock) (*assembly, error) {
	file, err := bolt.OpenFile(filepath.Join(a.node.StateDir, "cadastre.db"), bolt.FileOptions{
		Holder: "cadastre-agent of node " + a.node.Name,
		BootID: clock.bootID,
		Now:    clock.now,
		Fail:   a.fail,
		Notes:  []string{filepath.Join(a.node.RunDir, "db.note"), filepath.Join(a.node.StateDir, "cadastre.db.note")},
		Level1: filepath.Join(a.node.RunDir, "db.level"),
	})
	if err != nil {
		return nil, err
	}
	if err := leaveRunDir(file, a.node.RunDir, os.Geteuid(), a.log); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	running, err := a.openStores(ctx, clock, file)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return running, nil
}

// openStores opens the cluster store and the southbound.
func (a *Agent) openStores(ctx context.Context, clock clock, file *bolt.File) (*assembly, error) {
	instance, err := file.Local("instance")
	if err == nil && instance == "" {
		instance = newUUID()
		err = file.SetLocal("instance", instance)
	}
	if err != nil {
		return nil, err
	}
	d := dependencies{
		journal:        file.Journal(),
		disk:           file,
		records:        func(part string) ipamapi.Records { return file.Records(part) },
		instance:       instance,
		session:        newUUID(),
		machine:        machineOf(a.node, clock),
		random:         mathrand.Float64,
		handlers:       a.handlers,
		dockerListener: a.listeners.Docker,
	}
	if d.shares, err = httpserver.ShareOfProcess(); err != nil {
		return nil, err
	}
	if err := a.openStore(&d, file); err != nil {
		return nil, err
	}
	logMachine(a.log, d, a.node)
	if err := a.openSink(&d); err != nil {
		return nil, errors.Join(err, d.store.Close())
	}
	running, err := assemble(ctx, a.node, a.conf, a.log, clock, d)
	if err != nil {
		return nil, errors.Join(err, d.store.Close())
	}
	running.file = file
	running.restapi.Backup, running.restapi.Accept = file.Backup, running.accept
	running.suspendInDoubt()
	_ = file.Probe(ctx) // a file that cannot be written is in assembly.ready, and damage that only a commit finds ends the process here
	return running, nil
}

// dependencies holds what an assembly is made on; a simulation replaces all of it.
type dependencies struct {
	store    kvdb.Store
	mirror   kubestate.Mirror // nil: the store is of this node
	journal  ledger.Journal
	disk     nodesync.Disk
	records  func(part string) ipamapi.Records
	sink     controller.Sink
	instance string
	session  string
	machine  nodesync.Machine
	random   func() float64                            // of claims and beats
	jitter   func() float64                            // of reconnects; nil: the same
	handlers []func(Plugins) []controller.EventHandler // behind those of the agent

	dockerListener net.Listener      // that a supervisor has opened; nil: none
	shares         httpserver.Shares // of the descriptors, by listener
}

// assemble lists every plugin, in order, with what it is given.
func assemble(ctx context.Context, node Node, conf *contivconf.Config, log *slog.Logger, clock clock, d dependencies) (*assembly, error) {
	a := &assembly{node: node, conf: conf, log: log, clock: clock, started: clock.now(), instance: d.instance, store: d.store, sink: d.sink, listening: make(chan struct{})}
	deps := func() controller.PluginDeps { return controller.PluginDeps{Log: log} }
	nodeLabel := label(node.Name)

	if d.jitter == nil {
		d.jitter = d.random
	}
	a.contivconf = contivconf.NewPlugin(conf)
	a.nodeconfig = nodeconfig.NewPlugin(nodeconfig.Deps{PluginDeps: deps(), ServiceLabel: nodeLabel, File: conf.NodeConfigs})
	timed := &timedJournal{Journal: d.journal}
	var err error
	a.ledger, err = ledger.Open(ctx, timed, ledger.Options{Log: log, Now: clock.now, Uptime: clock.uptime, BootID: clock.bootID})
	if err != nil {
		return nil, err
	}
	if err := a.admitAddresses(); err != nil {
		return nil, err
	}
	a.metrics = restapi.NewMetrics(a.ledger.Stats, func() controller.Status { return a.loop.Status() })
	a.metrics.Watch(a.cluster)
	if s, ok := d.store.(conditioned); ok {
		a.told = newReporter(a, s)
	}
	d.store = &timedStore{d.store, a.metrics.Request}
	a.store = d.store
	timed.observe = a.metrics.Commit
	stage := a.ledger.Begin()

	a.idClaimer, err = nodesync.NewIDClaimer(nodesync.IDClaimerDeps{
		Log: log, Store: d.store, Disk: d.disk, EventLoop: eventLoop{a}, Now: clock.now, Random: d.random,
		Identity: nodesync.Identity{
			Name: node.Name, Instance: d.instance, Session: d.session, Machine: d.machine, Pinned: conf.Cadastre.NodeID, Limit: ipam.NodeIDLimit(a.contivconf), Fresh: conf.Cadastre.NodeIDs.Fresh, Expire: conf.Cadastre.NodeIDs.Expire, Random: d.random,
			Claims: a.register(), Explicit: ipam.ExplicitBlocks(a.contivconf), Quarantine: quarantine(conf, d),
		},
		Refresh: conf.Cadastre.NodeIDs.Refresh, Expire: conf.Cadastre.NodeIDs.Expire, Settle: settle(conf), Alone: d.mirror == nil,
		Follows: func() bool { return a.source.Status().Connected }, Busy: a.busy, Uses: func() []*kv.PoolUse { return a.ipam.PoolUses() }, Suspend: func(why string) { a.ledger.Suspend("node ID", why) },
	})
	if err != nil {
		return nil, err
	}
	if a.claimer, err = a.newClaimer(d); err != nil {
		return nil, err
	}
	a.nodesync = nodesync.NewPlugin(nodesync.Deps{PluginDeps: deps(), ServiceLabel: nodeLabel, IDClaimer: a.idClaimer, Claims: a.claimer})
	a.podmanager = podmanager.NewPlugin(podmanager.Deps{
		PluginDeps: deps(), EventLoop: eventLoop{a}, Ledger: a.ledger, IntentDir: cni.IntentDir(a.socket()), UID: os.Geteuid(), Timeout: conf.Cadastre.Controller.EventTimeout,
		Ready: a.ready, Unsynced: a.unsynced, Observe: a.metrics.Served, IsPodPool: func(name string) bool { return a.ipam.HasNetwork(name) },
	})
	a.ipam = ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
		*d = ipam.Deps{
			PluginDeps: controller.PluginDeps{Name: "ipam", Log: log}, NodeSync: a.nodesync, ContivConf: a.contivconf, ServiceLabel: nodeLabel,
			EventLoop: eventLoop{a}, PodManager: a.podmanager, Ledger: a.ledger, Stage: stage, Claims: a.claimer,
		}
	}))
	a.ipnet = ipnet.NewPlugin(ipnet.Deps{PluginDeps: deps(), NodeSync: a.nodesync, IPAM: a.ipam, Ledger: a.ledger, MainIP: a.nodeconfig.MainIP, NodeIPs: conf.Cadastre.Routes == contivconf.RoutesNodeIP, Claims: a.claimer})

	handlers := []controller.EventHandler{a.nodeconfig, a.nodesync, a.podmanager, a.ipam, a.ipnet}
	if conf.Cadastre.Docker.Enabled {
		a.docker = dockeripam.NewPlugin(dockeripam.Deps{
			PluginDeps: deps(), EventLoop: eventLoop{a}, Stage: stage, NewDriver: a.dockerDriver(d.records("docker")), Socket: conf.Cadastre.Docker.Socket, Listener: d.dockerListener,
			Limits: httpserver.Limits{Connections: d.shares.Other},
		})
		handlers = append(handlers, a.docker)
	}
	for _, more := range d.handlers {
		handlers = append(handlers, more(Plugins{a.contivconf, a.nodesync, a.ipam, a.ledger, eventLoop{a}})...)
	}
	a.loop = controller.New(loopConfig(conf.Cadastre), controller.Deps{
		Log: log, Sink: d.sink, Observe: a.observe(),
		Handlers:   handlers,
		Committers: []controller.Committer{stage, a.nodesync, a.ipam, a.ipnet},
	})
	if conf.Cadastre.PodBlocks == contivconf.PodBlocksNetResource {
		a.reporter = ipam.NewReporter(ipam.ReporterDeps{Log: log, IPAM: a.ipam, Store: d.store, Now: clock.now})
	}
	a.source = kubestate.New(kubestate.Deps{
		Log: log, Node: node.Name, Store: d.store, EventLoop: a.loop, Claim: a.claim, Repair: both(nodesync.Repair(node.Name), ipam.Repair(a.contivconf)), Mirror: d.mirror,
		Ready: func() bool { return a.idClaimer.ID() != 0 }, Random: d.jitter, Timing: timing(conf),
	})
	tcp, metrics, err := tcpListeners(conf.Cadastre, httpserver.Limits{Connections: d.shares.Other})
	if err != nil {
		return nil, err
	}
	a.restapi = restapi.NewPlugin(restapi.Deps{
		PluginDeps: deps(), Socket: a.socket(), Limits: httpserver.Limits{Connections: d.shares.Local}, Listening: func() { close(a.listening) }, TCP: tcp, MetricsTCP: metrics, CNI: a.serveCNI, Delivered: a.podmanager.Delivered, Delete: a.podmanager.Delete, Status: a.status, Ledger: a.ledger,
		Events: a.loop.Events, History: a.loop.Query, Resync: a.source.Resync, Dump: d.sink.Dump, Metrics: a.metrics.Registry,
		Dispatch: a.dispatch, IPAM: a.contivIPAM, Nodes: a.nodes, ReleaseNode: a.releaseNode, Pools: a.pools, Apply: a.apply,
	})
	if a.docker != nil {
		a.restapi.DockerPools, a.restapi.EndDockerPool = a.docker.Pools, a.docker.EndPool
	}
	return a, nil
}

// eventLoop breaks the circle between the loop and the plugins that push.
type eventLoop struct{ a *assembly }

// PushEvent pushes to the loop.
func (e eventLoop) PushEvent(ev controller.Event) error { return e.a.loop.PushEvent(ev) }

// PushEventWait pushes to the loop.
func (e eventLoop) PushEventWait(ctx context.Context, ev controller.Event) error {
	return e.a.loop.PushEventWait(ctx, ev)
}

// socketName is the local API's, in the run directory.
const socketName = "agent.sock"

func (a *assembly) socket() string { return filepath.Join(a.node.RunDir, socketName) }

func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// never is longer than any agent runs.
const never time.Duration = math.MaxInt64

// loopConfig returns the event loop's part of the configuration. A cluster store may
// be away for any time, so that only the embedded one has a deadline for the first
// resync: the agent waits, serves what it has, and its status says what it waits for.
func loopConfig(all contivconf.Cadastre) controller.Config {
	conf, c := controller.DefaultConfig(), all.Controller
	conf.EnableRetry, conf.DelayRetry, conf.MaxRetryAttempts, conf.EnableExpBackoffRetry = c.EnableRetry, c.DelayRetry, c.MaxRetryAttempts, c.EnableExpBackoffRetry
	conf.StartupResyncDeadline = never
	if all.KVDB.Type == contivconf.KVDBBolt {
		conf.StartupResyncDeadline = c.StartupResyncDeadline
	}
	conf.EnablePeriodicHealing, conf.PeriodicHealingInterval = c.EnablePeriodicHealing, c.PeriodicHealingInterval
	conf.DelayAfterErrorHealing, conf.HealingBackoffLimit, conf.MaxHealingAttempts = c.DelayAfterErrorHealing, c.HealingBackoffLimit, c.MaxHealingAttempts
	conf.EventTimeout, conf.EnableVerification = c.EventTimeout, c.EnableVerification
	conf.RecordEventHistory, conf.EventHistoryAgeLimit, conf.PermanentlyRecordedInitPeriod = c.RecordEventHistory, c.EventHistoryAgeLimit, c.PermanentlyRecordedInitPeriod
	return conf
}
