// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubestate reads the cluster's state from the store into the event loop of a
// Ligato agent, from AfterInit to Close.
package kubestate

import (
	"math/rand/v2"
	"time"

	"github.com/ligato/cn-infra/infra"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ligato/internal/background"
	controllerplugin "github.com/cadastre/cadastre/ligato/plugins/controller"
	ipamplugin "github.com/cadastre/cadastre/ligato/plugins/ipam"
	"github.com/cadastre/cadastre/ligato/plugins/node"
	nodesyncplugin "github.com/cadastre/cadastre/ligato/plugins/nodesync"
	"github.com/cadastre/cadastre/ligato/slogger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// Deps holds the dependencies of the plugin. The controller is one: it takes events from
// its AfterInit on.
type Deps struct {
	infra.PluginDeps
	Node       *node.Plugin
	NodeSync   *nodesyncplugin.Plugin
	IPAM       *ipamplugin.Plugin
	Controller *controllerplugin.Plugin
}

// Plugin is the plugin.
type Plugin struct {
	Deps
	source *kubestate.Source
	group  *background.Group
}

// NewPlugin returns the plugin.
func NewPlugin(deps Deps) *Plugin {
	p := &Plugin{Deps: deps}
	slogger.Named(&p.PluginDeps, "cadastre-kubestate")
	return p
}

// Init makes the source.
func (p *Plugin) Init() error {
	c := p.Node.Conf().Cadastre.Controller
	timing := kubestate.Timing{DelayLocal: c.DelayLocalResync}
	if !p.Node.Alone() {
		timing.Probe = c.RemoteDBProbingInterval
		timing.Spread = c.RemoteDBProbingInterval
		timing.RetryLimit = max(c.RemoteDBProbingInterval, time.Second)
	}
	ofNodes, ofPools := nodesync.Repair(p.Node.GetAgentLabel()), ipam.Repair(p.Node.ContivConf())
	p.source = kubestate.New(kubestate.Deps{
		Log:       slogger.New(p.Log),
		Node:      p.Node.GetAgentLabel(),
		Store:     p.Node.Store(),
		EventLoop: p.Controller.Loop(),
		Claim:     p.NodeSync.Claim,
		Repair: func(known, found controller.KubeStateData, gone []string) []kubestate.Write {
			return append(ofNodes(known, found, gone), ofPools(known, found, gone)...)
		},
		Mirror: p.Node.Mirror(),
		Ready:  func() bool { return p.NodeSync.IDs().ID() != 0 },
		Random: rand.Float64,
		Timing: timing,
	})
	p.NodeSync.IDs().Attach(p.source, p.IPAM)
	return nil
}

// Source returns the source.
func (p *Plugin) Source() *kubestate.Source { return p.source }

// AfterInit starts to follow the store.
func (p *Plugin) AfterInit() error {
	p.group = background.New(p.Node.Fail)
	p.group.Go("cluster state", p.source.Run)
	p.group.Go("start without the cluster store", p.source.StartLocal)
	p.group.Go("ledger", p.Node.Ledger().Run)
	return nil
}

// Close ends that.
func (p *Plugin) Close() error {
	p.group.Stop()
	return nil
}
