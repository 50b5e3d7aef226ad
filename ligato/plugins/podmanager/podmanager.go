// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package podmanager is Cadastre's podmanager as a plugin of Ligato: CNI requests become
// AddPod and DeletePod events.
package podmanager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/ligato/cn-infra/infra"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ligato/internal/background"
	"github.com/cadastre/cadastre/ligato/plugins/node"
	"github.com/cadastre/cadastre/ligato/slogger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/witness/kernel"
)

// Loop is the event loop, and shows its state. The controller's Loop implements it.
type Loop interface {
	controller.EventLoop
	Status() controller.Status
	BeforeResync(f func() error) (called bool, err error)
}

// Deps holds the dependencies of the plugin.
type Deps struct {
	infra.PluginDeps
	Node      *node.Plugin
	EventLoop Loop
	Inspector Inspector // nil: CHECK does not look at the wire
}

// Inspector compares one wanted value with the kernel. The southbound implements it.
type Inspector interface {
	// Inspect returns the difference, nil if there is none.
	Inspect(ctx context.Context, key string) error
}

// Plugin is the plugin.
type Plugin struct {
	Deps
	*handler
	group     *background.Group
	networks  func(name string) bool
	recovered atomic.Bool // the DELs that waited are applied
}

// handler is embedded under a name that Ligato's look-up of plugins does not see.
type handler = podmanager.PodManager

// NewPlugin returns the plugin.
func NewPlugin(deps Deps) *Plugin {
	p := &Plugin{Deps: deps, networks: func(name string) bool { return name == ipam.PodPool }}
	slogger.Named(&p.PluginDeps, "cadastre-podmanager")
	return p
}

// String returns the name of the plugin.
func (p *Plugin) String() string { return p.Deps.String() }

// Init makes the event handler.
func (p *Plugin) Init() error {
	deps := podmanager.Deps{
		PluginDeps:   controller.PluginDeps{Log: slogger.New(p.Log)},
		EventLoop:    p.EventLoop,
		Ledger:       p.Node.Ledger(),
		IntentDir:    cni.IntentDir(p.Node.Socket()),
		UID:          os.Geteuid(),
		Timeout:      p.Node.Conf().Cadastre.Controller.EventTimeout,
		Ready:        p.ready,
		BeforeResync: p.EventLoop.BeforeResync,
		IsPodPool:    func(name string) bool { return p.networks(name) },
		Identify: func(netns string) kv.NetNSID {
			id, err := kernel.Identify(netns, p.Node.BootID())
			if err != nil {
				p.Log.Debugf("a network namespace is not known: %v", err)
			}
			return id
		},
	}
	if p.Node.Conf().Cadastre.Dataplane != contivconf.DataplaneNone {
		deps.Wires = wires{p}
	}
	p.handler = podmanager.NewPlugin(deps)
	return nil
}

// Serves sets the function that reports whether pods may use a pool. It is called before
// AfterInit.
func (p *Plugin) Serves(isPodPool func(name string) bool) { p.networks = isPodPool }

// AfterInit starts the work of the plugin in the background.
func (p *Plugin) AfterInit() error {
	p.group = background.New(p.Node.Fail)
	p.group.Go(p.String(), p.Run)
	return nil
}

// Close ends it.
func (p *Plugin) Close() error {
	p.group.Stop()
	return nil
}

// recoverRetry is the pause between two attempts to apply the DELs that waited.
const recoverRetry = time.Second

// RecoverUntilDone applies the DELs that waited for the agent. Until then CNI requests are
// refused.
func (p *Plugin) RecoverUntilDone(ctx context.Context) error {
	for {
		err := p.Recover(ctx)
		if err == nil {
			p.recovered.Store(true)
			return nil
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the agent ends
		}
		p.Log.Warnf("DELs that waited for the agent cannot be applied yet: %v", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(recoverRetry):
		}
	}
}

// Serve serves a CNI request.
func (p *Plugin) Serve(ctx context.Context, req cni.Request) (cni.Reply, error) {
	if !p.recovered.Load() {
		return cni.Reply{}, fmt.Errorf("%s: %w: %w", req.Command, podmanager.ErrAway, p.ready())
	}
	return p.handler.Serve(ctx, req)
}

// ready returns the reason why no ADD is served; nil: it is.
func (p *Plugin) ready() error {
	s := p.EventLoop.Status()
	switch {
	case s.Fatal != "":
		return errors.New(s.Fatal)
	case !s.Resynced && s.LastError != "":
		return fmt.Errorf("no resync has succeeded yet: %s", s.LastError)
	case !s.Resynced:
		return errors.New("no resync has succeeded yet")
	case !p.recovered.Load():
		return errors.New("DELs that waited for the agent are being applied")
	case p.Node.Ledger().Suspended() != "":
		return errors.New(p.Node.Ledger().Suspended())
	}
	return nil
}

// Ready returns the reason why no ADD is served; nil: it is.
func (p *Plugin) Ready() error { return p.ready() }

// Recovered reports whether CNI requests are answered.
func (p *Plugin) Recovered() bool { return p.recovered.Load() }
