// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// API answers the other plugins' questions about the configuration. It returns copies.
type API interface {
	// GetIPAMConfig returns the networks and their sources.
	GetIPAMConfig() *IPAMConfig

	// GetStaticDefaultGW returns the cluster-wide default gateway of the first family,
	// which no node gets as its address. It is the zero Addr if there is none, and
	// with DHCP.
	GetStaticDefaultGW() netip.Addr

	// Cluster returns the networks from which every node's addresses follow.
	Cluster() addrplan.Cluster

	// PodBlocks returns the source of this node's blocks of pod addresses.
	PodBlocks() PodBlocks

	// StaticPodCIDRs returns those blocks if PodBlocks is static.
	StaticPodCIDRs() []netip.Prefix

	// UseExternalIPAM reports whether another component assigns pod subnets.
	UseExternalIPAM() bool

	// WaitForPodCIDR reports whether, with external IPAM, the agent serves no pod
	// before the Node object has its podCIDRs.
	WaitForPodCIDR() bool

	// CoolDown returns the time between the release of an address and its next
	// allocation.
	CoolDown() time.Duration

	// NetResource returns the initial watermarks of this node's NetResourceSet.
	NetResource() NetResource

	// InstanceID returns the ID of this machine in its cloud; "": that of
	// Node.spec.providerID.
	InstanceID() string

	// StaticAddresses returns the addresses under nodeConfig, which no pool may
	// contain, by the path of their key.
	StaticAddresses() map[string]netip.Addr

	// PinnedNodeID returns the node ID to claim, 0 for any.
	PinnedNodeID() uint32
}

// ContivConf is the plugin that serves the configuration.
type ContivConf struct{ cfg *Config }

// NewPlugin returns a plugin that serves cfg, which must be valid.
func NewPlugin(cfg *Config) *ContivConf { return &ContivConf{cfg: cfg} }

// String returns the name of the plugin.
func (c *ContivConf) String() string { return "contivconf" }

// Init does nothing.
func (c *ContivConf) Init() error { return nil }

// AfterInit does nothing.
func (c *ContivConf) AfterInit() error { return nil }

// Close does nothing.
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
func (c *ContivConf) CoolDown() time.Duration {
	if c.cfg.Cadastre.PodBlocks == PodBlocksInterfaces {
		return c.cfg.Cadastre.Interfaces.CoolDown
	}
	return c.cfg.Cadastre.CoolDown
}

// InstanceID implements API.
func (c *ContivConf) InstanceID() string { return c.cfg.Cadastre.InstanceID }

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
