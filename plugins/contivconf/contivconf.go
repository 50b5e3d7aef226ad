// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// API is what other plugins ask the configuration. Nothing that they do to an
// answer reaches the configuration.
type API interface {
	// GetIPAMConfig is the networks, and how they came about.
	GetIPAMConfig() *IPAMConfig

	// GetStaticDefaultGW is the cluster-wide default gateway of the first
	// family, which no node gets as its address. It is the zero Addr where
	// there is none, and with DHCP.
	GetStaticDefaultGW() netip.Addr

	// Cluster is the networks from which every node's addresses follow.
	Cluster() addrplan.Cluster

	// PodBlocks says where this node's blocks of pod addresses come from.
	PodBlocks() PodBlocks

	// StaticPodCIDRs are those blocks where PodBlocks is static.
	StaticPodCIDRs() []netip.Prefix

	// UseExternalIPAM is whether somebody else decides on pod subnets.
	UseExternalIPAM() bool

	// WaitForPodCIDR is whether, with external IPAM, no pod is served before
	// the Node object has its podCIDRs.
	WaitForPodCIDR() bool

	// CoolDown is how long an address rests before it is lent again.
	CoolDown() time.Duration

	// NetResource is how this node's NetResourceSet begins.
	NetResource() NetResource

	// StaticAddresses are those under nodeConfig that no pool may contain, by the path of their key.
	StaticAddresses() map[string]netip.Addr

	// PinnedNodeID is the node ID to claim, 0 for any.
	PinnedNodeID() uint32
}

// ContivConf is the plugin: a configuration that does not change while the
// agent runs.
type ContivConf struct{ cfg *Config }

// NewPlugin serves cfg, which must be valid.
func NewPlugin(cfg *Config) *ContivConf { return &ContivConf{cfg: cfg} }

// String is the name of the plugin.
func (c *ContivConf) String() string { return "contivconf" }

// Init has nothing to do.
func (c *ContivConf) Init() error { return nil }

// AfterInit has nothing to do.
func (c *ContivConf) AfterInit() error { return nil }

// Close has nothing to do.
func (c *ContivConf) Close() error { return nil }

// GetIPAMConfig implements API.
func (c *ContivConf) GetIPAMConfig() *IPAMConfig {
	copied := *c.cfg.IPAM
	copied.ContivCIDR = slices.Clone(copied.ContivCIDR)
	copied.Cluster = c.Cluster()
	return &copied
}

// GetStaticDefaultGW implements API.
func (c *ContivConf) GetStaticDefaultGW() netip.Addr { return c.cfg.IPAM.Cluster.Families[0].Gateway }

// Cluster implements API.
func (c *ContivConf) Cluster() addrplan.Cluster {
	return addrplan.Cluster{Families: slices.Clone(c.cfg.IPAM.Cluster.Families)}
}

// PodBlocks implements API.
func (c *ContivConf) PodBlocks() PodBlocks { return c.cfg.Cadastre.PodBlocks }

// StaticPodCIDRs implements API.
func (c *ContivConf) StaticPodCIDRs() []netip.Prefix {
	return slices.Clone(c.cfg.Cadastre.StaticPodCIDRs)
}

// UseExternalIPAM implements API.
func (c *ContivConf) UseExternalIPAM() bool { return c.cfg.IPAM.UseExternalIPAM }

// WaitForPodCIDR implements API.
func (c *ContivConf) WaitForPodCIDR() bool { return c.cfg.Cadastre.WaitForPodCIDR }

// CoolDown implements API.
func (c *ContivConf) CoolDown() time.Duration { return c.cfg.Cadastre.CoolDown }

// NetResource implements API.
func (c *ContivConf) NetResource() NetResource { return c.cfg.Cadastre.NetResource }

// StaticAddresses implements API.
func (c *ContivConf) StaticAddresses() map[string]netip.Addr {
	all := map[string]netip.Addr{}
	for _, s := range c.cfg.statics() {
		all[s.field] = s.addr
	}
	return all
}

// PinnedNodeID implements API.
func (c *ContivConf) PinnedNodeID() uint32 { return c.cfg.Cadastre.NodeID }
