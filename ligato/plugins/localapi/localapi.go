// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package localapi serves Cadastre's local API from a Ligato agent: the socket for the CNI
// plugin cadastre-cni and the command line cadastre.
package localapi

import (
	"context"
	"time"

	"github.com/ligato/cn-infra/infra"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/httpserver"
	"github.com/cadastre/cadastre/ligato/internal/background"
	controllerplugin "github.com/cadastre/cadastre/ligato/plugins/controller"
	"github.com/cadastre/cadastre/ligato/plugins/kubestate"
	"github.com/cadastre/cadastre/ligato/plugins/node"
	"github.com/cadastre/cadastre/ligato/plugins/nodesync"
	"github.com/cadastre/cadastre/ligato/plugins/podmanager"
	"github.com/cadastre/cadastre/ligato/slogger"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Deps holds the dependencies of the plugin.
type Deps struct {
	infra.PluginDeps
	Node       *node.Plugin
	NodeSync   *nodesync.Plugin
	PodManager *podmanager.Plugin
	Controller *controllerplugin.Plugin
	KubeState  *kubestate.Plugin
}

// Plugin is the plugin.
type Plugin struct {
	Deps
	rest    *restapi.RESTAPI
	opened  chan struct{}
	started time.Time
	group   *background.Group
}

// NewPlugin returns the plugin.
func NewPlugin(deps Deps) *Plugin {
	p := &Plugin{Deps: deps, opened: make(chan struct{})}
	slogger.Named(&p.PluginDeps, "cadastre-localapi")
	return p
}

// Init makes the API.
func (p *Plugin) Init() error {
	shares, err := httpserver.ShareOfProcess()
	if err != nil {
		return err
	}
	p.started = time.Now()
	p.rest = restapi.NewPlugin(restapi.Deps{
		PluginDeps: controller.PluginDeps{Log: slogger.New(p.Log)},
		Listen: restapi.Listen{
			Socket: p.Node.Socket(),
			Limits: httpserver.Limits{Connections: shares.Local},
			Opened: func() { close(p.opened) },
		},
		Agent:      p,
		Ledger:     p.Node.Ledger(),
		Metrics:    prometheus.NewRegistry(),
		Pods:       p.PodManager,
		Loop:       p.Controller,
		State:      p.KubeState.Source(),
		Southbound: p.Controller.Sink,
		Database:   p.Node.File(),
		Doubt:      p.Node.File(),
	})
	return p.rest.Init()
}

// AfterInit serves the API, and then applies the DELs that waited for the agent: their
// writer tries an intent again once the socket is there.
func (p *Plugin) AfterInit() error {
	p.group = background.New(p.Node.Fail)
	p.group.Go(p.String(), p.rest.Serve)
	p.group.Go("recovery", func(ctx context.Context) error {
		select {
		case <-p.opened:
		case <-ctx.Done():
			return nil
		}
		err := p.PodManager.RecoverUntilDone(ctx)
		<-ctx.Done()
		return err
	})
	return nil
}

// Close ends the API when the requests that are under way are answered.
func (p *Plugin) Close() error {
	p.group.Stop()
	return nil
}

// Status describes the agent.
func (p *Plugin) Status() localapi.Status {
	conf := p.Node.Conf().Cadastre
	s := localapi.Status{
		Version:    "ligato",
		NodeName:   p.Node.GetAgentLabel(),
		NodeID:     p.NodeSync.IDs().ID(),
		Instance:   p.Node.Instance(),
		Started:    p.started.UTC(),
		Suspended:  p.Node.Ledger().Suspended(),
		KVDB:       string(conf.KVDB.Type),
		StateDir:   p.Node.StateDir,
		ConfigFile: p.Node.ConfigFile,
		PodBlocks:  string(conf.PodBlocks),
		Dataplane:  string(conf.Dataplane),
		Transport:  string(conf.Transport),
		Loop:       p.Controller.Status(),
		Live:       true,
		Ready:      true,
		Serving:    p.PodManager.Recovered(),
		Blocks:     []localapi.Block{},
	}
	if s.Loop.Fatal != "" {
		s.Live, s.LiveError = false, s.Loop.Fatal
	}
	if err := p.PodManager.Ready(); err != nil {
		s.Ready, s.ReadyError = false, err.Error()
	}
	for _, b := range p.Node.Ledger().Stats() {
		s.Blocks = append(s.Blocks, restapi.BlockOf(b))
	}
	return s
}
