// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package contivconf turns contiv.conf into a typed, validated configuration.
//
// Parse accepts the file of a Contiv-VPP cluster as it is: keys keep their
// places, are matched whatever their case, and those that only a vswitch
// dataplane needs are accepted and returned as not used yet. What is
// Cadastre's own stands under "cadastre:". Everything else that is unknown, and
// every value that could not work, is a FieldError with the key, the value and
// what would be right; all of them are reported at once. A Config that Parse
// returned gives a plan for node ID 1 and for a pinned node ID.
//
// A file with the one line
//
//	ipamConfig: {podSubnetCIDR: 10.1.0.0/16}
//
// is the default cluster, in which node 5 has
//
//	pods      10.1.5.0/24, gateway 10.1.5.1, NAT loopback 10.1.5.254
//	VPP-host  172.30.5.1 and 172.30.5.2
//	node      192.168.16.5/24, VXLAN 192.168.30.5/24
package contivconf

import (
	"log/slog"
	"net/netip"
	"time"
)

// Config is what a contiv.conf says, with defaults for what it does not say.
type Config struct {
	IPAM     *IPAMConfig
	Cadastre Cadastre
	// NodeConfigs are Contiv's settings for single nodes. The main interface's
	// address is what the node tells the others; no other address follows from
	// them: a gateway in here would give the nodes different opinions of each
	// other's addresses.
	NodeConfigs []NodeConfig
	// Tolerated lists the problems that LoadInUse accepted and Load refuses.
	Tolerated []*FieldError
}

// Cadastre is the section "cadastre".
type Cadastre struct {
	NodeID         uint32 // 0: claim one
	PodBlocks      PodBlocks
	StaticPodCIDRs []netip.Prefix // the blocks of this node where PodBlocks is static
	WaitForPodCIDR bool           // podcidr: serve no pod before the Node object has its podCIDRs
	CoolDown       time.Duration  // how long an address rests before it is lent again
	AllowOverlap   []NetworkPair
	KVDB           KVDB
	NetResource    NetResource
	NodeIDs        NodeIDs
	Routes         Routes
	REST           REST
	Metrics        Metrics
	Log            Log
	Docker         Docker
	Controller     Controller
}

// PodBlocks says who decides which block of pod addresses a node has.
type PodBlocks string

// The sources of blocks.
const (
	PodBlocksNodeID      PodBlocks = "nodeid"      // computed from the node ID
	PodBlocksPodCIDR     PodBlocks = "podcidr"     // Node.spec.podCIDRs: external IPAM
	PodBlocksNetResource PodBlocks = "netresource" // NetResourceSet.spec.ipam
	PodBlocksStatic      PodBlocks = "static"      // staticPodCIDRs
)

// KVDBType is a kind of cluster store.
type KVDBType string

// The cluster stores.
const (
	KVDBBolt       KVDBType = "bolt" // embedded, for one node
	KVDBEtcd       KVDBType = "etcd"
	KVDBKubernetes KVDBType = "kubernetes" // the API server: objects of group cadastre.dev
)

// KVDB is where the cluster store is.
type KVDB struct {
	Type         KVDBType `json:"type"`
	Endpoints    []string `json:"endpoints"`
	Prefix       string   `json:"prefix"`
	CA           string   `json:"ca"`
	Cert         string   `json:"cert"`
	Key          string   `json:"key"`
	Username     string   `json:"username"`
	PasswordFile string   `json:"passwordFile"`
	Kubeconfig   string   `json:"kubeconfig"`
}

// NetResource is the watermarks with which an agent makes its NetResourceSet
// where there is none; from then on the object has them.
type NetResource struct {
	MinAllocate       int `json:"minAllocate"`       // addresses that the node has at least
	MaxAllocate       int `json:"maxAllocate"`       // and at most; 0: as many as the provider can
	PreAllocate       int `json:"preAllocate"`       // free at all times; 0: the provider's own value, -1: none
	MaxAboveWatermark int `json:"maxAboveWatermark"` // more that are taken at once, and kept
}

// NodeIDs is how long a claim to a node ID counts.
type NodeIDs struct {
	Refresh time.Duration `json:"refresh"` // how often an agent says that it is there
	Fresh   time.Duration `json:"fresh"`   // how long that says that it is alive
	Expire  time.Duration `json:"expire"`  // after how long without it its ID and claims may go to another node
	// Quarantine delays the first allocation of a node that claimed its ID in a new or
	// wiped store; 0: not at all.
	Quarantine time.Duration `json:"quarantine"`
}

// Routes says what is done about the way to other nodes' pods.
type Routes string

// The ways.
const (
	RoutesNone   Routes = "none"   // somebody else sees to it
	RoutesHostGW Routes = "hostgw" // routes in Linux, by the other nodes' addresses in nodeInterconnectCIDR
	RoutesNodeIP Routes = "nodeip" // routes in Linux, by the addresses of the other nodes' Node objects
)

// REST is the read-only HTTPS listener; there is none where Listen is empty.
type REST struct {
	Listen   string `json:"listen"`
	Cert     string `json:"cert"`
	Key      string `json:"key"`
	ClientCA string `json:"clientCA"`
}

// Metrics is the listener for metrics and probes. It has plain text on a loopback
// address, and TLS everywhere else.
type Metrics struct {
	Enabled  bool   `json:"enabled"`
	Listen   string `json:"listen"`
	Cert     string `json:"cert"`
	Key      string `json:"key"`
	ClientCA string `json:"clientCA"`
}

// LogFormat is how a log line looks.
type LogFormat string

// The log formats.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// LogLevel is the least level that is logged.
type LogLevel string

// The log levels.
const (
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
	LogWarn  LogLevel = "warn"
	LogError LogLevel = "error"
)

// Slog is the level as log/slog counts; info where l is none of the levels.
func (l LogLevel) Slog() slog.Level {
	switch l {
	case LogDebug:
		return slog.LevelDebug
	case LogWarn:
		return slog.LevelWarn
	case LogError:
		return slog.LevelError
	}
	return slog.LevelInfo
}

// Log is how much is logged, and how.
type Log struct {
	Level  LogLevel  `json:"level"`
	Format LogFormat `json:"format"`
}

// Docker is Docker's IPAM driver.
type Docker struct {
	Enabled  bool          `json:"enabled"`
	Socket   string        `json:"socket"`
	FromPods bool          `json:"fromPods"` // pools that nobody names are parts of this node's pod block
	Pools    []DockerPool  `json:"pools"`    // where the other ones are chosen from; none: Docker's own list
	CoolDown time.Duration `json:"coolDown"` // how long a container's address rests
	Serial   bool          `json:"serial"`   // lend the address after the last one instead of the lowest one
}

// DockerPool is a network that is cut into pools of one length.
type DockerPool struct {
	Base string `json:"base"`
	Size uint8  `json:"size"`
}

// Default is the configuration of an empty file: the addresses and timings
// with which Contiv-VPP's manifest deploys a cluster.
func Default() *Config {
	r := newReading()
	return r.config()
}
