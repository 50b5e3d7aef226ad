// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeconfig is the part of the configuration that is this node's own
// and may change while the agent runs: the NodeConfig of the cluster's state
// where there is one, which replaces the node's entry under nodeConfig in
// contiv.conf as a whole, else that entry.
//
// A change becomes a NodeConfigChange, by which all plugins build what they want
// anew. One that is no good is reported (Problem), and the node goes on with
// what it had from contiv.conf. The plugin belongs to the loop; Problem may be
// asked by anybody.
//
// Example: with
//
//	nodeConfig: [{nodeName: node-a, mainVPPInterface: {ip: 192.168.17.200/24}}]
//
// node-a tells the others that it is at 192.168.17.200, whatever its node ID.
package nodeconfig

import (
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// Deps is what the plugin is given.
type Deps struct {
	controller.PluginDeps
	ServiceLabel controller.AgentLabel
	File         []contivconf.NodeConfig // of contiv.conf
}

// NodeConfig is the plugin.
type NodeConfig struct {
	Deps
	object  *kv.NodeConfig // nil: there is none
	problem atomic.Pointer[string]
}

var _ controller.EventHandler = (*NodeConfig)(nil)

// NewPlugin makes the plugin.
func NewPlugin(deps Deps) *NodeConfig {
	deps.Name = "contivconf"
	return &NodeConfig{Deps: deps}
}

// Init does nothing.
func (p *NodeConfig) Init() error { return nil }

// AfterInit does nothing.
func (p *NodeConfig) AfterInit() error { return nil }

// Close does nothing.
func (p *NodeConfig) Close() error { return nil }

// MainIP is the address of the node's main interface with the length of its
// network, the zero Prefix where it follows from the node ID.
func (p *NodeConfig) MainIP() netip.Prefix {
	ip, err := p.mainIP()
	p.report(err)
	return ip
}

// mainIP falls back to contiv.conf where the object is no good.
func (p *NodeConfig) mainIP() (netip.Prefix, error) {
	inFile := p.inFile()
	if p.object == nil {
		return parse(inFile)
	}
	ip, err := parse(p.object.MainIp)
	if err != nil {
		fallback, _ := parse(inFile)
		return fallback, err
	}
	return ip, nil
}

func (p *NodeConfig) inFile() string {
	name := p.ServiceLabel.GetAgentLabel()
	if k := slices.IndexFunc(p.File, func(c contivconf.NodeConfig) bool { return c.NodeName == name }); k >= 0 {
		return p.File[k].MainVPPInterface.IP
	}
	return ""
}

func parse(text string) (netip.Prefix, error) {
	if text == "" {
		return netip.Prefix{}, nil
	}
	ip, err := netip.ParsePrefix(text)
	if err != nil || ip.Addr() == ip.Masked().Addr() && ip.Addr().BitLen()-ip.Bits() > 1 {
		return netip.Prefix{}, fmt.Errorf("main IP %q of the node's configuration is not an address with the length of its network: want one such as 192.168.17.10/24", text)
	}
	return ip, nil
}

// Problem is what is wrong with the node's configuration, "" for nothing.
func (p *NodeConfig) Problem() string {
	if s := p.problem.Load(); s != nil {
		return *s
	}
	return ""
}

func (p *NodeConfig) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != p.Problem() {
		p.Log.Error("the node's configuration is not used", "error", err)
	}
	p.problem.Store(&text)
}

// HandlesEvent selects resyncs and changes of this node's configuration.
func (p *NodeConfig) HandlesEvent(event controller.Event) bool {
	if event.Method() != controller.Update {
		return true
	}
	change, ok := event.(*controller.KubeStateChange)
	return ok && change.Resource == kubestate.NodeConfigs && change.Key == p.key()
}

func (p *NodeConfig) key() string { return kv.NodeConfigKey(p.ServiceLabel.GetAgentLabel()) }

// Resync reads the node's configuration.
func (p *NodeConfig) Resync(_ controller.Event, state controller.KubeStateData, _ int, _ controller.ResyncOperations) error {
	p.object, _ = state[kubestate.NodeConfigs][p.key()].(*kv.NodeConfig)
	return nil
}

// Update has everything built anew where the configuration has changed.
func (p *NodeConfig) Update(event controller.Event, txn controller.UpdateOperations) (string, error) {
	now, _ := event.(*controller.KubeStateChange).New.(*kv.NodeConfig)
	if proto.Equal(now, p.object) && (now == nil) == (p.object == nil) {
		return "", nil
	}
	p.object = now
	return "the node's configuration has changed", txn.FollowUp(&NodeConfigChange{NodeConfig: now})
}

// Revert does nothing: the cluster's state is not undone.
func (p *NodeConfig) Revert(controller.Event) error { return nil }

// NodeConfigChange says that the configuration of this node has changed.
type NodeConfigChange struct {
	NodeConfig *kv.NodeConfig // nil: there is none any more
}

// GetName is "Node Config Change".
func (ev *NodeConfigChange) GetName() string { return "Node Config Change" }

func (ev *NodeConfigChange) String() string {
	if ev.NodeConfig == nil {
		return ev.GetName() + "\n* that of contiv.conf"
	}
	return fmt.Sprintf("%s\n* main IP: %s", ev.GetName(), ev.NodeConfig.MainIp)
}

// Method is UpstreamResync.
func (ev *NodeConfigChange) Method() controller.EventMethodType { return controller.UpstreamResync }

// IsBlocking is false.
func (ev *NodeConfigChange) IsBlocking() bool { return false }

// Done does nothing.
func (ev *NodeConfigChange) Done(error) {}
