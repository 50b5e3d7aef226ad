// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipam is Cadastre's IPAM as a plugin of Ligato. Other plugins of the agent use it
// as a dependency: *Plugin has the methods of ipam.API.
package ipam

import (
	"github.com/ligato/cn-infra/infra"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ligato/plugins/node"
	"github.com/cadastre/cadastre/ligato/plugins/nodesync"
	"github.com/cadastre/cadastre/ligato/plugins/podmanager"
	"github.com/cadastre/cadastre/ligato/slogger"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// Deps holds the dependencies of the plugin.
type Deps struct {
	infra.PluginDeps
	Node       *node.Plugin
	NodeSync   *nodesync.Plugin
	PodManager *podmanager.Plugin
	EventLoop  controller.EventLoop
}

// Plugin is the plugin.
type Plugin struct {
	Deps
	*handler
}

// handler is embedded under a name that Ligato's look-up of plugins does not see.
type handler = ipam.IPAM

var _ ipam.API = (*Plugin)(nil)

// NewPlugin returns the plugin.
func NewPlugin(deps Deps) *Plugin {
	p := &Plugin{Deps: deps}
	slogger.Named(&p.PluginDeps, "cadastre-ipam")
	return p
}

// String returns the name of the plugin.
func (p *Plugin) String() string { return p.Deps.String() }

// Init makes the event handler.
func (p *Plugin) Init() error {
	p.handler = ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
		d.Log = slogger.New(p.Log)
		d.NodeSync = p.NodeSync
		d.ContivConf = p.Node.ContivConf()
		d.ServiceLabel = p.Node
		d.EventLoop = p.EventLoop
		d.PodManager = p.PodManager
		d.Ledger = p.Node.Ledger()
		d.Stage = p.Node.Stage()
		d.Claims = p.NodeSync.Claims()
	}))
	p.PodManager.Serves(p.HasNetwork)
	return p.handler.Init()
}

// AfterInit does what the event handler needs after Init.
func (p *Plugin) AfterInit() error { return p.handler.AfterInit() }

// Close closes the event handler.
func (p *Plugin) Close() error {
	if p.handler == nil {
		return nil
	}
	return p.handler.Close()
}
