// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package ligato composes an agent of Ligato in which Cadastre's plugins live: its event
// loop, nodesync, podmanager, ipam and ipnet, with Ligato's KVScheduler and Linux plugins
// below them.
//
//	root := ligato.New()
//	a := agent.NewAgent(agent.AllPlugins(root), agent.QuitOnClose(root.Node.Ended()))
//	err := a.Run()
//
// Ligato initialises the plugins in the order of their dependencies and closes them in the
// opposite one. A program with plugins of its own makes a root like Agent, or takes single
// plugins: each has Deps and NewPlugin.
//
// The label of the agent (flag -microservice-label) is the name of the node. An agent runs
// once in a process: the plugins of Ligato have global parts.
package ligato

import (
	"github.com/ligato/cn-infra/infra"
	"github.com/ligato/vpp-agent/plugins/kvscheduler"
	"github.com/ligato/vpp-agent/plugins/linux/ifplugin"
	"github.com/ligato/vpp-agent/plugins/linux/l3plugin"
	"github.com/ligato/vpp-agent/plugins/linux/nsplugin"
	"github.com/ligato/vpp-agent/plugins/netalloc"

	"github.com/cadastre/cadastre/controller"
	controllerplugin "github.com/cadastre/cadastre/ligato/plugins/controller"
	"github.com/cadastre/cadastre/ligato/plugins/ipam"
	"github.com/cadastre/cadastre/ligato/plugins/ipnet"
	"github.com/cadastre/cadastre/ligato/plugins/kubestate"
	"github.com/cadastre/cadastre/ligato/plugins/localapi"
	"github.com/cadastre/cadastre/ligato/plugins/node"
	"github.com/cadastre/cadastre/ligato/plugins/nodesync"
	"github.com/cadastre/cadastre/ligato/plugins/podmanager"
	"github.com/cadastre/cadastre/ligato/southbound"
)

// Agent is the root of the plugins, as agent.AllPlugins takes it.
type Agent struct {
	infra.PluginName
	Node        *node.Plugin
	KVScheduler *kvscheduler.Scheduler
	IfPlugin    *ifplugin.IfPlugin
	L3Plugin    *l3plugin.L3Plugin
	Southbound  *southbound.Plugin
	NodeSync    *nodesync.Plugin
	PodManager  *podmanager.Plugin
	IPAM        *ipam.Plugin
	IPNet       *ipnet.Plugin
	Controller  *controllerplugin.Plugin
	KubeState   *kubestate.Plugin
	LocalAPI    *localapi.Plugin
}

// New returns the plugins of an agent. Fields of its node may be changed before it starts.
func New() *Agent {
	a := &Agent{PluginName: "cadastre", Node: node.NewPlugin()}
	a.addLigato()
	a.Controller = controllerplugin.NewPlugin(controllerplugin.Deps{})
	loop := a.Controller.Loop()
	a.NodeSync = nodesync.NewPlugin(nodesync.Deps{Node: a.Node, EventLoop: loop})
	a.PodManager = podmanager.NewPlugin(podmanager.Deps{Node: a.Node, EventLoop: loop, Inspector: a.Southbound})
	a.IPAM = ipam.NewPlugin(ipam.Deps{Node: a.Node, NodeSync: a.NodeSync, PodManager: a.PodManager, EventLoop: loop})
	a.IPNet = ipnet.NewPlugin(ipnet.Deps{Node: a.Node, NodeSync: a.NodeSync, IPAM: a.IPAM, EventLoop: loop})
	a.Controller.Node, a.Controller.Sink = a.Node, a.Southbound
	a.Controller.EventHandlers = []controller.EventHandler{a.NodeSync, a.PodManager, a.IPAM, a.IPNet}
	a.Controller.Committers = func() []controller.Committer {
		return []controller.Committer{a.Node.Stage(), a.NodeSync, a.IPAM, a.IPNet}
	}
	a.KubeState = kubestate.NewPlugin(kubestate.Deps{
		Node: a.Node, NodeSync: a.NodeSync, IPAM: a.IPAM, Controller: a.Controller,
	})
	a.LocalAPI = localapi.NewPlugin(localapi.Deps{
		Node:       a.Node,
		NodeSync:   a.NodeSync,
		PodManager: a.PodManager,
		Controller: a.Controller,
		KubeState:  a.KubeState,
	})
	return a
}

// addLigato adds the plugins of Ligato and the southbound over them.
func (a *Agent) addLigato() {
	label := a.Node.ServiceLabel
	a.KVScheduler = kvscheduler.NewPlugin(kvscheduler.UseDeps(func(d *kvscheduler.Deps) {
		d.HTTPHandlers = nil
	}))
	alloc := netalloc.NewPlugin(netalloc.UseDeps(func(d *netalloc.Deps) { d.KVScheduler = a.KVScheduler }))
	ns := nsplugin.NewPlugin(nsplugin.UseDeps(func(d *nsplugin.Deps) { d.KVScheduler = a.KVScheduler }))
	a.IfPlugin = ifplugin.NewPlugin(ifplugin.UseDeps(func(d *ifplugin.Deps) {
		d.ServiceLabel, d.KVScheduler, d.NsPlugin, d.AddrAlloc = label, a.KVScheduler, ns, alloc
	}))
	a.L3Plugin = l3plugin.NewPlugin(l3plugin.UseDeps(func(d *l3plugin.Deps) {
		d.KVScheduler, d.NsPlugin, d.IfPlugin, d.AddrAlloc = a.KVScheduler, ns, a.IfPlugin, alloc
	}))
	a.Southbound = southbound.NewPlugin(southbound.Deps{
		KVScheduler: a.KVScheduler, IfPlugin: a.IfPlugin, L3Plugin: a.L3Plugin, Failed: a.Node.Fail,
	})
}

// Init does nothing: the plugins initialise themselves.
func (a *Agent) Init() error { return nil }

// Close does nothing.
func (a *Agent) Close() error { return nil }
