// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"github.com/ligato/cn-infra/infra"
	kvs "github.com/ligato/vpp-agent/plugins/kvscheduler/api"

	"github.com/cadastre/cadastre/ligato/internal/background"
	"github.com/cadastre/cadastre/ligato/slogger"
)

// Deps holds the dependencies of the plugin. The Linux plugins are dependencies because
// they must have registered their descriptors before the first resync.
type Deps struct {
	infra.PluginDeps
	KVScheduler kvs.KVScheduler
	IfPlugin    infra.Plugin
	L3Plugin    infra.Plugin
	Failed      func(error) // ends the agent; called if the plugin cannot go on
}

// Plugin is the Sink as a plugin of Ligato.
type Plugin struct {
	Deps
	*sink
	group *background.Group
}

// sink is embedded under a name that Ligato's look-up of plugins does not see.
type sink = Sink

// NewPlugin returns the plugin.
func NewPlugin(deps Deps) *Plugin {
	p := &Plugin{Deps: deps}
	if p.Failed == nil {
		p.Failed = func(error) {}
	}
	slogger.Named(&p.PluginDeps, "cadastre-southbound")
	return p
}

// Init makes the Sink.
func (p *Plugin) Init() error {
	p.sink = NewSink(p.KVScheduler, slogger.New(p.Log))
	return nil
}

// AfterInit starts the Sink's work in the background.
func (p *Plugin) AfterInit() error {
	p.group = background.New(p.Failed)
	p.group.Go(p.String(), p.Run)
	return nil
}

// Close ends it.
func (p *Plugin) Close() error {
	p.group.Stop()
	return nil
}
