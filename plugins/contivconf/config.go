// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package contivconf turns contiv.conf into a typed, validated configuration.
//
// Parse accepts the file of a Contiv-VPP cluster without changes: keys keep their places,
// match in any case, and are known by their former names as well. Keys that only a
// vswitch needs are accepted; Config.Notes says what happens instead. Cadastre's own keys
// are under "cadastre:". Parse reports every other unknown key and every value that could not work at once, each as a
// yamldoc.Problem. A Config that Parse returned gives a plan for node ID 1 and for a
// pinned node ID.
//
// A Config does not change while the agent runs; any goroutine may read it.
package contivconf

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// Config holds the values of a contiv.conf, and defaults for the missing ones.
type Config struct {
	IPAM     *IPAMConfig
	Cadastre Cadastre
	// NodeConfigs holds Contiv's settings for single nodes. The node publishes the main
	// interface's address. No other address follows from them: with a gateway here the
	// nodes would derive different addresses of each other.
	NodeConfigs []NodeConfig
	// Notes says what happens with the keys of the file that change nothing, or that have
	// another name now.
	Notes []Note
	// Tolerated lists the problems that LoadInUse accepts and Load refuses.
	Tolerated yamldoc.Problems
}

// Cadastre holds the section "cadastre".
type Cadastre struct {
	NodeID         uint32 // 0: claim one
	InstanceID     string // of this machine in its cloud; "": that of Node.spec.providerID, or of the cloud
	PodBlocks      PodBlocks
	StaticPodCIDRs []netip.Prefix // the blocks of this node if PodBlocks is static
	WaitForPodCIDR bool           // with podcidr: serve no pod before the Node object has its podCIDRs
	CoolDown       time.Duration  // between the release of an address and its next allocation
	AllowOverlap   []NetworkPair
	KVDB           KVDB
	NetResource    NetResource
	Interfaces     Interfaces
	NodeIDs        NodeIDs
	Dataplane      Dataplane
	Transport      Transport
	Underlay       Underlay
	MTU            int // of the pods' links; 0: it follows from the underlay
	Masquerade     bool
	AllowForward   bool
	VNI            uint32
	PodTable       uint32 // routing table of the pods of network default; 0: the main table
	CNI            CNI
	VPP            VPP // of dataplane vpp
	REST           REST
	Metrics        Metrics
	Log            Log
	Traces         Traces
	Docker         Docker
	Witnesses      Witnesses
	Reclaim        Reclaim
	Controller     Controller
	History        History

	// MasqueradeUplinks is true if the configuration has masquerade: true. The default does
	// not count: pods with an address of an interface leave with their own.
	MasqueradeUplinks bool
}

// History limits the record of the changes of leases and blocks.
type History struct {
	Entries int           `json:"entries"`
	Age     time.Duration `json:"age"`
}

// PodBlocks selects the source of a node's blocks of pod addresses.
type PodBlocks string

// The sources of blocks.
const (
	PodBlocksNodeID      PodBlocks = "nodeid"      // computed from the node ID
	PodBlocksPodCIDR     PodBlocks = "podcidr"     // Node.spec.podCIDRs: external IPAM
	PodBlocksNetResource PodBlocks = "netresource" // NetResourceSet.spec.ipam
	PodBlocksInterfaces  PodBlocks = "interfaces"  // the interfaces of this machine in its cloud
	PodBlocksStatic      PodBlocks = "static"      // staticPodCIDRs
)

// KVDBType selects the kind of cluster store.
type KVDBType string

// The cluster stores.
const (
	KVDBBolt       KVDBType = "bolt" // embedded, for one node
	KVDBEtcd       KVDBType = "etcd"
	KVDBKubernetes KVDBType = "kubernetes" // the API server: objects of group cadastre.dev
)

// KVDB holds the address of the cluster store and the credentials for it.
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

// NetResource holds the watermarks that an agent writes into its NetResourceSet when
// it creates it. Afterwards the object holds them.
type NetResource struct {
	MinAllocate       int `json:"minAllocate"`       // the least addresses that the node has
	MaxAllocate       int `json:"maxAllocate"`       // the most; 0: as many as the provider can
	PreAllocate       int `json:"preAllocate"`       // free at all times; 0: the provider's own value, -1: none
	MaxAboveWatermark int `json:"maxAboveWatermark"` // further addresses that are taken at once and kept
}

// NodeIDs holds the timing of claims to node IDs.
type NodeIDs struct {
	Refresh time.Duration `json:"refresh"` // period in which an agent writes its beat
	Fresh   time.Duration `json:"fresh"`   // how long a node counts as alive after a beat
	Expire  time.Duration `json:"expire"`  // time without a beat after which its ID and claims may go to another node
	// Quarantine delays the first allocation of a node that claimed its ID in a new or
	// wiped store; 0: no delay.
	Quarantine time.Duration `json:"quarantine"`
}

// REST configures the read-only HTTPS listener; there is none if Listen is empty.
type REST struct {
	Listen   string `json:"listen"`
	Cert     string `json:"cert"`
	Key      string `json:"key"`
	ClientCA string `json:"clientCA"`
}

// Metrics configures the listener for metrics and probes. It serves plain text on a
// loopback address, and TLS on all others.
type Metrics struct {
	Enabled  bool   `json:"enabled"`
	Listen   string `json:"listen"`
	Cert     string `json:"cert"`
	Key      string `json:"key"`
	ClientCA string `json:"clientCA"`
}

// LogFormat selects the format of log lines.
type LogFormat string

// The log formats.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// LogLevel selects the lowest level that is logged.
type LogLevel string

// The log levels.
const (
	LogDebug LogLevel = "debug"
	LogInfo  LogLevel = "info"
	LogWarn  LogLevel = "warn"
	LogError LogLevel = "error"
)

// Slog returns the level for log/slog; info if l is not one of the levels.
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

// Log holds the settings of the log.
type Log struct {
	Level  LogLevel  `json:"level"`
	Format LogFormat `json:"format"`
}

// Docker configures Docker's IPAM driver.
type Docker struct {
	Enabled  bool          `json:"enabled"`
	Socket   string        `json:"socket"`
	FromPods bool          `json:"fromPods"` // requests without a pool get a part of this node's pod block
	Pools    []DockerPool  `json:"pools"`    // the source of other such pools; none: Docker's own list
	CoolDown time.Duration `json:"coolDown"` // the cool-down of a container's address
	Serial   bool          `json:"serial"`   // allocate the address after the last one instead of the lowest one
}

// DockerPool holds a network whose parts of one length are pools.
type DockerPool struct {
	Base string `json:"base"`
	Size uint8  `json:"size"`
}

// Default returns the configuration of an empty file: the addresses and timings with
// which Contiv-VPP's manifest deploys a cluster.
func Default() *Config { return newReading(defaultRaw()).config() }
