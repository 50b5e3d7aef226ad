// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package agent assembles the agent of a node from its plugins and runs it.
//
// New takes a configuration and options, and opens nothing. Run opens the
// database and the stores, starts every part, and closes all of them before it
// returns, also the store, the southbound and the listeners that options have set.
// An Agent runs once; several agents may run in one process if each has directories
// of its own. The plugins and the order in which the event loop calls
// them are listed in assemble.go. A program adds its own plugins with
// WithEventHandlers.
//
// If one part of the agent fails, or returns before its context has ended, Run ends
// the other parts and returns the error. Run returns nil when its context has ended
// and every event is done.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// Agent is the agent of one node.
type Agent struct {
	conf      *contivconf.Config
	node      Node
	log       *slog.Logger
	exit      func(error)
	handlers  []func(Plugins) []controller.EventHandler
	sink      controller.Sink
	store     kvdb.Store
	listeners Listeners
	tail      *LogTail
	cloud     *givenCloud // nil: the program has none
	dataplane *Dataplane  // nil: the program has that of Linux alone
	ran       atomic.Bool
}

// Node names the node, its directories and the files that identify its machine.
type Node struct {
	Name     string
	StateDir string // of the database
	RunDir   string // of the socket; a reboot must empty it

	BootIDFile      string // holds the boot ID of the machine
	ProductUUIDFile string // holds the DMI product UUID; a file that cannot be read is not an error
	ConfigFile      string // named in errors about the configuration

	// CheckInterval is the time between two checks of the database file for changes
	// by other programs.
	CheckInterval time.Duration
}

// DefaultCheckInterval is the CheckInterval of DefaultNode.
const DefaultCheckInterval = 5 * time.Second

// DefaultNode returns the node of this host, with the paths of an installed agent.
// Name is empty if the host has no name.
func DefaultNode() Node {
	host, _ := os.Hostname()
	return Node{
		Name:            host,
		StateDir:        "/var/lib/cadastre",
		RunDir:          "/run/cadastre",
		BootIDFile:      "/proc/sys/kernel/random/boot_id",
		ProductUUIDFile: "/sys/class/dmi/id/product_uuid",
		ConfigFile:      "/etc/cadastre/contiv.conf",
		CheckInterval:   DefaultCheckInterval,
	}
}

// Plugins holds the plugins that an event handler may use, in the order in which
// the event loop calls them.
type Plugins struct {
	ContivConf contivconf.API
	NodeSync   nodesync.API
	IPAM       ipam.API
	Ledger     *ledger.Ledger
	EventLoop  controller.EventLoop
}

// Option changes an Agent before it runs.
type Option func(*Agent)

// WithNode replaces DefaultNode.
func WithNode(node Node) Option { return func(a *Agent) { a.node = node } }

// WithLog sets the logger. Without it the agent logs nothing.
func WithLog(log *slog.Logger) Option { return func(a *Agent) { a.log = log } }

// WithExit sets the function that ends the process if another program has changed
// the open database. exit must not return: the database may hold its locks for ever.
// Without WithExit the agent ends as after any error.
func WithExit(exit func(error)) Option { return func(a *Agent) { a.exit = exit } }

// WithEventHandlers adds event handlers behind those of the agent. The agent calls
// makeHandlers once, before the event loop starts; the plugins answer from the first
// resync on.
func WithEventHandlers(makeHandlers func(Plugins) []controller.EventHandler) Option {
	return func(a *Agent) { a.handlers = append(a.handlers, makeHandlers) }
}

// WithSouthbound replaces the southbound that cadastre.transport selects. The agent
// calls the sink's Run and Close.
func WithSouthbound(sink controller.Sink) Option { return func(a *Agent) { a.sink = sink } }

// WithStore replaces the cluster store. cadastre.kvdb.type still says which nodes use
// it: only this one if the type is bolt, otherwise all nodes of the cluster. The agent
// closes the store.
func WithStore(store kvdb.Store) Option { return func(a *Agent) { a.store = store } }

// WithLogTail serves the last lines of the log on the agent's socket. The caller has the
// logger of WithLog write into tail as well.
func WithLogTail(tail *LogTail) Option { return func(a *Agent) { a.tail = tail } }

// WithListeners sets listeners that the caller has opened.
func WithListeners(listeners Listeners) Option {
	return func(a *Agent) { a.listeners = listeners }
}

// New returns an agent that does not run yet.
func New(conf *contivconf.Config, opts ...Option) (*Agent, error) {
	a := &Agent{conf: conf, node: DefaultNode(), log: slog.New(slog.DiscardHandler)}
	for _, opt := range opts {
		opt(a)
	}
	switch {
	case conf == nil:
		return nil, errors.New("new agent: the configuration is nil: want the result of contivconf.Parse or Load")
	case a.node.Name == "":
		return nil, errors.New("new agent: Node.Name is empty: want the name of the node, as Kubernetes has it")
	case a.node.StateDir == "" || a.node.RunDir == "":
		return nil, fmt.Errorf(
			"new agent: Node.StateDir %q, RunDir %q: want a directory for each",
			a.node.StateDir,
			a.node.RunDir,
		)
	case a.node.CheckInterval <= 0:
		return nil, fmt.Errorf(
			"new agent: Node.CheckInterval %s: want a duration above zero, such as %s",
			a.node.CheckInterval,
			DefaultCheckInterval,
		)
	}
	if conf.Cadastre.PodBlocks == contivconf.PodBlocksInterfaces && a.cloud == nil {
		return nil, fmt.Errorf("new agent: cadastre.podBlocks %q needs a cloud, and this program has none: "+
			"run cadastre-agent-openstack or cadastre-agent-ec2, or write another value", conf.Cadastre.PodBlocks)
	}
	if err := a.hasDataplane(); err != nil {
		return nil, err
	}
	ours := *conf
	ours.Cadastre.Masquerade = conf.Masquerades(a.node.Name)
	a.conf = &ours
	return a, nil
}

// Run runs the agent until ctx ends or a part of the agent fails.
func (a *Agent) Run(ctx context.Context) error {
	if a.ran.Swap(true) {
		return errors.New("run the agent: it has run before: want a new Agent for each run")
	}
	running, err := a.open(ctx)
	switch {
	case err == nil:
		err = errors.Join(running.serve(ctx, running.restapi.Serve), running.close())
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		a.log.Info("the agent was stopped before it has started", "error", err)
		err = a.closeGiven()
	default:
		err = errors.Join(fmt.Errorf("start the agent: %w", err), a.closeGiven())
	}
	return errors.Join(err, a.listeners.close())
}

// fail ends the process after another program has changed the database. It closes
// nothing.
func (a *Agent) fail(err error) {
	a.log.Error("the agent ends", "error", err)
	if a.exit != nil {
		a.exit(err)
	}
}
