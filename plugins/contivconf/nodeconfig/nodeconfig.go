// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package nodeconfig serves this node's own part of the configuration, which may
// change while the agent runs. It is the NodeConfig of the cluster's state if there is
// one, else the node's entry under nodeConfig in contiv.conf.
//
// A change becomes a NodeConfigChange, an upstream resync. If a NodeConfig is not
// valid, Problem reports it and the node uses its entry in contiv.conf. The plugin
// belongs to the loop; any goroutine may call Problem.
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

// Deps holds the dependencies of the plugin.
type Deps struct {
	controller.PluginDeps
	ServiceLabel controller.AgentLabel
	File         []contivconf.NodeConfig // from contiv.conf
}

// NodeConfig is the plugin.
type NodeConfig struct {
	Deps
	object  *kv.NodeConfig // nil: the cluster's state has none
	problem atomic.Pointer[string]
}

var _ controller.EventHandler = (*NodeConfig)(nil)

// NewPlugin returns the plugin.
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

// MainIP returns the address of the node's main interface with the length of its
// network, the zero Prefix if it follows from the node ID.
func (p *NodeConfig) MainIP() netip.Prefix {
	ip, err := p.mainIP()
	p.report(err)
	return ip
}

// mainIP falls back to contiv.conf if the object is not valid.
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
		return netip.Prefix{}, fmt.Errorf(
			"main IP %q of the node's configuration is not an address with the length of its network: want one such as 192.168.17.10/24",
			text,
		)
	}
	return ip, nil
}

// Problem returns what is wrong with the node's configuration, "" if nothing is.
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
func (p *NodeConfig) Resync(
	_ controller.Event,
	state controller.KubeStateData,
	_ int,
	_ controller.ResyncOperations,
) error {
	p.object, _ = state[kubestate.NodeConfigs][p.key()].(*kv.NodeConfig)
	return nil
}

// Update requests an upstream resync if the configuration has changed.
func (p *NodeConfig) Update(event controller.Event, txn controller.UpdateOperations) (string, error) {
	now, _ := event.(*controller.KubeStateChange).New.(*kv.NodeConfig)
	if proto.Equal(now, p.object) && (now == nil) == (p.object == nil) {
		return "", nil
	}
	p.object = now
	return "the node's configuration has changed", txn.FollowUp(&NodeConfigChange{NodeConfig: now})
}

// Revert does nothing: the cluster's state does not change back.
func (p *NodeConfig) Revert(controller.Event) error { return nil }

// NodeConfigChange is the event of a changed configuration of this node.
type NodeConfigChange struct {
	NodeConfig *kv.NodeConfig // nil: it was deleted
}

// GetName returns "Node Config Change".
func (ev *NodeConfigChange) GetName() string { return "Node Config Change" }

func (ev *NodeConfigChange) String() string {
	if ev.NodeConfig == nil {
		return ev.GetName() + "\n* that of contiv.conf"
	}
	return fmt.Sprintf("%s\n* main IP: %s", ev.GetName(), ev.NodeConfig.MainIp)
}

// Method returns UpstreamResync.
func (ev *NodeConfigChange) Method() controller.EventMethodType { return controller.UpstreamResync }

// IsBlocking returns false.
func (ev *NodeConfigChange) IsBlocking() bool { return false }

// Done does nothing.
func (ev *NodeConfigChange) Done(error) {}
