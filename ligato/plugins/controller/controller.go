// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package controller runs Cadastre's event loop in a Ligato agent: Init makes the loop with
// its handlers, committers and southbound, AfterInit starts it, Close ends it.
package controller

import (
	"context"
	"errors"

	"github.com/ligato/cn-infra/infra"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ligato/internal/background"
	"github.com/cadastre/cadastre/ligato/plugins/node"
	"github.com/cadastre/cadastre/ligato/slogger"
	"github.com/cadastre/cadastre/plugins/contivconf/nodeconfig"
)

// Deps holds the dependencies of the plugin. Ligato initialises the handlers before the
// controller. They have the plugin's Loop, which is not a plugin, so that the dependencies
// have no cycle.
type Deps struct {
	infra.PluginDeps
	Node          *node.Plugin
	Sink          controller.Sink
	EventHandlers []controller.EventHandler     // in order: dependencies first
	Committers    func() []controller.Committer // called by Init, when the handlers are initialised
}

// Plugin is the controller.
type Plugin struct {
	Deps
	*loop
	handle Loop
	group  *background.Group
}

// loop is embedded under a name that Ligato's look-up of plugins does not see.
type loop = controller.Controller

// Loop takes events for the controller, also in the Init of other plugins.
type Loop struct{ p *Plugin }

// PushEvent queues an event.
func (l *Loop) PushEvent(ev controller.Event) error {
	if l.p.loop == nil {
		return controller.ErrClosedController
	}
	return l.p.PushEvent(ev)
}

// PushEventWait queues an event and waits for room.
func (l *Loop) PushEventWait(ctx context.Context, ev controller.Event) error {
	if l.p.loop == nil {
		return controller.ErrClosedController
	}
	return l.p.PushEventWait(ctx, ev)
}

// BeforeResync calls f as the loop does: unless the first resync is done or under way.
func (l *Loop) BeforeResync(f func() error) (called bool, err error) {
	if l.p.loop == nil {
		return true, f()
	}
	return l.p.BeforeResync(f)
}

// Status returns the state of the event loop.
func (l *Loop) Status() controller.Status {
	if l.p.loop == nil {
		return controller.Status{}
	}
	return l.p.Status()
}

// NewPlugin returns the plugin.
func NewPlugin(deps Deps) *Plugin {
	p := &Plugin{Deps: deps}
	p.handle.p = p
	slogger.Named(&p.PluginDeps, "cadastre-controller")
	return p
}

// Loop returns the producers' side of the event loop.
func (p *Plugin) Loop() *Loop { return &p.handle }

// String returns the name of the plugin.
func (p *Plugin) String() string { return p.Deps.String() }

// Init makes the event loop.
func (p *Plugin) Init() error {
	p.loop = controller.New(nodeconfig.LoopConfig(p.Node.Conf().Cadastre), controller.Deps{
		Log:        slogger.New(p.Log),
		Sink:       p.Sink,
		Handlers:   p.EventHandlers,
		Committers: p.Committers(),
	})
	return p.loop.Init()
}

// AfterInit starts the event loop. An error that ends it ends the agent.
func (p *Plugin) AfterInit() error {
	if err := p.loop.AfterInit(); err != nil {
		return err
	}
	p.group = background.New(p.Node.Fail)
	p.group.Go("event loop", func(ctx context.Context) error {
		select {
		case <-p.Ended():
			return errors.New(p.loop.Status().Fatal)
		case <-ctx.Done():
			return nil
		}
	})
	return nil
}

// Close ends the event loop and waits until all accepted events are done. An error that
// ended the loop before has gone to the node: Ligato closes no further plugin after an
// error.
func (p *Plugin) Close() error {
	p.group.Stop()
	if p.loop != nil {
		_ = p.loop.Close()
	}
	return nil
}
