// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodesync is Cadastre's nodesync as a plugin of Ligato: this node's ID and the
// claims of its prefixes, whose claimers run from AfterInit to Close, and the other nodes.
package nodesync

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/ligato/cn-infra/infra"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ligato/internal/background"
	"github.com/cadastre/cadastre/ligato/plugins/node"
	"github.com/cadastre/cadastre/ligato/slogger"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// Deps holds the dependencies of the plugin.
type Deps struct {
	infra.PluginDeps
	Node      *node.Plugin
	EventLoop controller.EventLoop
}

// Plugin is the plugin.
type Plugin struct {
	Deps
	*handler
	claimers *ipam.Claimers
	group    *background.Group
}

// handler is embedded under a name that Ligato's look-up of plugins does not see.
type handler = nodesync.NodeSync

// NewPlugin returns the plugin.
func NewPlugin(deps Deps) *Plugin {
	p := &Plugin{Deps: deps}
	slogger.Named(&p.PluginDeps, "cadastre-nodesync")
	return p
}

// String returns the name of the plugin.
func (p *Plugin) String() string { return p.Deps.String() }

// IDs returns the claimer of the node's ID.
func (p *Plugin) IDs() *nodesync.IDClaimer { return p.claimers.IDs }

// Claims returns the claimer of the node's prefixes.
func (p *Plugin) Claims() *claims.Claimer { return p.claimers.Prefixes }

// Init makes the claimers and the event handler.
func (p *Plugin) Init() (err error) {
	log := slogger.New(p.Log)
	p.claimers, err = ipam.NewClaimers(ipam.ClaimersDeps{
		Log:        log,
		Config:     p.Node.Conf().Cadastre,
		ContivConf: p.Node.ContivConf(),
		Store:      p.Node.Store(),
		Alone:      p.Node.Alone(),
		Disk:       p.Node.File(),
		EventLoop:  p.EventLoop,
		Ledger:     p.Node.Ledger(),
		Identity: nodesync.Identity{
			Name:     p.Node.GetAgentLabel(),
			Instance: p.Node.Instance(),
			Session:  p.Node.Session(),
			Machine:  nodesync.Machine{BootID: p.Node.BootID()},
		},
		Now:    time.Now,
		Random: rand.Float64,
	})
	if err != nil {
		return err
	}
	p.handler = nodesync.NewPlugin(nodesync.Deps{
		PluginDeps:   controller.PluginDeps{Log: log},
		ServiceLabel: p.Node,
		IDClaimer:    p.claimers.IDs,
		Claims:       p.claimers.Prefixes,
	})
	return nil
}

// AfterInit starts the claimers.
func (p *Plugin) AfterInit() error {
	p.group = background.New(p.Node.Fail)
	p.group.Go("node ID", p.claimers.IDs.Run)
	p.group.Go("claims", p.claimers.Prefixes.Run)
	return nil
}

// Close ends the claimers.
func (p *Plugin) Close() error {
	p.group.Stop()
	return nil
}

// Claim confirms the node's ID, and then its claims.
func (p *Plugin) Claim(ctx context.Context) error { return p.claimers.Confirm(ctx) }
