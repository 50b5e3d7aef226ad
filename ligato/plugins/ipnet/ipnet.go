// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ipnet is Cadastre's ipnet as a plugin of Ligato: the values of the network, which
// the southbound makes true.
package ipnet

import (
	"context"
	"net/netip"
	"time"

	"github.com/ligato/cn-infra/infra"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ligato/internal/background"
	ipamplugin "github.com/cadastre/cadastre/ligato/plugins/ipam"
	"github.com/cadastre/cadastre/ligato/plugins/node"
	"github.com/cadastre/cadastre/ligato/plugins/nodesync"
	"github.com/cadastre/cadastre/ligato/slogger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/southbound/linux"
)

// Deps holds the dependencies of the plugin.
type Deps struct {
	infra.PluginDeps
	Node      *node.Plugin
	NodeSync  *nodesync.Plugin
	IPAM      *ipamplugin.Plugin
	EventLoop controller.EventLoop
}

// Plugin is the plugin.
type Plugin struct {
	Deps
	*handler
	group *background.Group
}

// handler is embedded under a name that Ligato's look-up of plugins does not see.
type handler = ipnet.IPNet

// NewPlugin returns the plugin.
func NewPlugin(deps Deps) *Plugin {
	p := &Plugin{Deps: deps}
	slogger.Named(&p.PluginDeps, "cadastre-ipnet")
	return p
}

// String returns the name of the plugin.
func (p *Plugin) String() string { return p.Deps.String() }

// Init makes the event handler.
func (p *Plugin) Init() error {
	conf := p.Node.Conf().Cadastre
	deps := ipnet.Deps{
		PluginDeps: controller.PluginDeps{Log: slogger.New(p.Log)},
		NodeSync:   p.NodeSync,
		IPAM:       p.IPAM,
		Ledger:     p.Node.Ledger(),
		Transport:  conf.Transport,
		Claims:     p.NodeSync.Claims(),
	}
	if conf.Dataplane == contivconf.DataplaneLinux {
		deps.Dataplane = &ipnet.Dataplane{NodeName: p.Node.GetAgentLabel(), MTU: uint32(conf.MTU)}
		if conf.Transport != contivconf.TransportNone {
			deps.Dataplane.Underlay = p.readUnderlay
		}
	}
	p.handler = ipnet.NewPlugin(deps)
	return p.handler.Init()
}

// readTimeout bounds one reading of the node's links.
const readTimeout = 10 * time.Second

func (p *Plugin) readUnderlay(nodeIPs []netip.Addr) (ipnet.Underlay, error) {
	ctx, cancel := context.WithTimeout(context.Background(), readTimeout)
	defer cancel()
	conf := p.Node.Conf().Cadastre.Underlay
	u, err := linux.ReadUnderlay(ctx, linux.UnderlayOptions{
		Interface: conf.Interface,
		CIDRs:     conf.CIDRs,
		NodeIPs:   nodeIPs,
	})
	return ipnet.Underlay{Addresses: u.Addresses, Link: u.Link, MTU: uint32(u.MTU)}, err
}

// AfterInit starts to watch the underlay.
func (p *Plugin) AfterInit() error {
	p.group = background.New(p.Node.Fail)
	if p.Dataplane != nil {
		p.group.Go("underlay", func(ctx context.Context) error {
			return p.Watch(ctx, p.EventLoop, time.After)
		})
	}
	return p.handler.AfterInit()
}

// Close ends that.
func (p *Plugin) Close() error {
	p.group.Stop()
	return nil
}
