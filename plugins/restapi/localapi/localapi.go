// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package localapi holds the types and paths of the agent's local HTTP API, for both
// ends: the agent's restapi plugin and the command line (or curl). Fields are added,
// never renamed; lists are never null.
package localapi

import (
	"time"

	"github.com/cadastre/cadastre/controller"
)

// Paths of the API. Those that say POST change something; all others are read only.
const (
	PathCNI        = "/v1/cni"         // POST
	PathCNIProcess = "/v1/cni/process" // POST; with cadastre.traces only
	PathStatus     = "/v1/status"
	PathLeases     = "/v1/leases"
	PathRelease    = "/v1/release" // POST ReleaseRequest -> ReleaseReply
	PathEvents     = "/v1/events"  // ?since=SEQ&last=N&follow=true&pod=&container=&address=&failed=true: one controller.Record a line, or as a server-sent event
	PathResync     = "/v1/resync"  // POST; answers when it is done
	PathBackup     = "/v1/backup"  // the database file
	PathAccept     = "/v1/accept"  // what a database in doubt may not know; POST AcceptRequest accepts it: AcceptReport
	PathSink       = "/v1/sink"    // what is wanted southbound, by key
	PathLogs       = "/v1/logs"    // the last lines of the agent's log, as plain text; on the socket only
	PathMetrics    = "/metrics"
	PathHealthz    = "/healthz"
	PathReadyz     = "/readyz"

	PathNodes       = "/v1/nodes"         // every Node of the cluster
	PathNodeRelease = "/v1/nodes/release" // POST NodeReleaseRequest -> NodeReleaseReply
	PathPools       = "/v1/pools"         // every Pool
	PathApply       = "/v1/pools/apply"   // POST ApplyRequest -> ApplyResult, or ApplyRefusal

	PathDockerPools       = "/v1/docker/pools"         // every DockerPool
	PathDockerPoolRelease = "/v1/docker/pools/release" // POST DockerPoolRelease -> DockerPoolReleased
	PathDockerPoolKeep    = "/v1/docker/pools/keep"    // POST DockerPoolKeep -> DockerPoolKeep

	// As Contiv-VPP has published them.
	PathEventHistory = "/controller/event-history" // controller.Records, oldest first; with seq-num one of them
	PathDispatch     = "/controller/resync"        // POST -> Dispatched, before anything is done
	PathIPAM         = "/contiv/v1/ipam"           // ContivIPAM
	PathAllocations  = "/contiv/v1/ipam/allocations"
)

// EventsStarted is the header of the answer to PathEvents that says when the
// agent has started, in RFC 3339. Sequence numbers count within one such run.
const EventsStarted = "X-Agent-Started"

// Trailers of the answer to PathBackup, of which it has one: the copy is whole, or it is not.
const (
	TrailerBytes = "X-Bytes" // the length of the copy
	TrailerError = "X-Error" // why what came is not whole
)

// Lease represents one lease.
type Lease struct {
	IP           string    `json:"ip"`     // without a mask
	Family       string    `json:"family"` // ipv4, ipv6
	Pool         string    `json:"pool"`
	Block        string    `json:"block"`
	State        string    `json:"state"`   // pending, held, cooling, quarantined
	Purpose      string    `json:"purpose"` // pod, docker, infra
	Network      string    `json:"network"`
	ContainerID  string    `json:"containerID"`
	IfName       string    `json:"ifName"`
	PodName      string    `json:"podName"`
	PodNamespace string    `json:"podNamespace"`
	PodUID       string    `json:"podUID,omitempty"`
	NetNS        string    `json:"netns,omitempty"` // path of the network namespace that the first ADD named
	Since        time.Time `json:"since"`
	Reason       string    `json:"reason,omitempty"`
	Generation   uint64    `json:"generation"`
}

// Status describes the agent.
type Status struct {
	Version    string    `json:"version"`
	NodeName   string    `json:"nodeName"`
	NodeID     uint32    `json:"nodeID"`
	Instance   string    `json:"instance"`
	Started    time.Time `json:"started"`
	Live       bool      `json:"live"`
	LiveError  string    `json:"liveError,omitempty"`
	Serving    bool      `json:"serving"` // the DELs that waited are applied, CNI requests are answered
	Ready      bool      `json:"ready"`
	ReadyError string    `json:"readyError,omitempty"`
	// Suspended holds the reason for which the agent allocates no new address, "" if it
	// does.
	Suspended string `json:"suspended,omitempty"`
	KVDB      string `json:"kvdb"`
	// KVDBConnected reports whether the cluster store answers. KVDBError holds the reason
	// if it does not, KVDBRevision the revision of the state that the agent follows.
	KVDBConnected bool   `json:"kvdbConnected"`
	KVDBError     string `json:"kvdbError,omitempty"`
	KVDBRevision  int64  `json:"kvdbRevision"`
	// KVDBAway holds the time since when the store does not answer. AllocatesUntil holds the
	// time at which the agent stops to allocate new addresses if the store does not answer
	// again. After that time another node may have the node ID or a block. Both are missing
	// while the store answers.
	KVDBAway       time.Time `json:"kvdbAway,omitzero"`
	AllocatesUntil time.Time `json:"allocatesUntil,omitzero"`
	// StateFrom names the source of that state: remote (the cluster store), mirror
	// (this node's copy of it), or "" as long as there is none.
	StateFrom        string `json:"stateFrom"`
	NodeIDGeneration uint64 `json:"nodeIDGeneration"` // of the claim of NodeID
	// NodeIDProblem holds the reason for which NodeID may belong to another node, "" if it
	// does not.
	NodeIDProblem string `json:"nodeIDProblem,omitempty"`
	// Claims are those of podCIDRs, static blocks and pinned node addresses.
	Claims []Claim `json:"claims"`
	// ConfigProblem describes how contiv.conf differs from the pools that the cluster uses, "" if it does not.
	ConfigProblem string   `json:"configProblem,omitempty"`
	Notes         []string `json:"notes"` // differences that harm nothing: node ID and Node object
	StateDir      string   `json:"stateDir"`
	ConfigFile    string   `json:"configFile"` // as the agent has read it at its start
	// DatabaseError is the error of a failed commit to the database, "" if none failed.
	DatabaseError string `json:"databaseError,omitempty"`
	PodBlocks     string `json:"podBlocks"`
	// Dataplane and Transport are those of contiv.conf.
	Dataplane string    `json:"dataplane"`
	Transport string    `json:"transport"`
	Rebooted  int       `json:"endedByReboot"` // leases that the last reboot ended
	Waiting   int       `json:"waitingDELs"`
	Blocks    []Block   `json:"blocks"`
	Witnesses []Witness `json:"witnesses"`
	// Interfaces is missing if the pod blocks are not those of the machine's interfaces.
	Interfaces *Interfaces `json:"interfaces,omitempty"`
	// HostPorts is missing if the agent writes no CNI list, or has not written it yet.
	HostPorts *HostPorts `json:"hostPorts,omitempty"`
	// Southbound is missing if the agent changes nothing of the network.
	Southbound *Southbound       `json:"southbound,omitempty"`
	Loop       controller.Status `json:"eventLoop"`
}

// Interfaces counts the interfaces of the machine in its cloud, and their addresses.
type Interfaces struct {
	Cloud         string            `json:"cloud"`
	Instance      string            `json:"instance"` // ID of the machine; "": not known yet
	Interfaces    int               `json:"interfaces"`
	MaxInterfaces int               `json:"maxInterfaces"` // 0: not known yet
	Families      []InterfaceFamily `json:"families"`
	Returning     int               `json:"returning"`          // blocks on their way back to the cloud
	Shortage      string            `json:"shortage,omitempty"` // why the cloud gives no more addresses; "": it gives them
}

// HostPorts tells whether pods get the host ports that they ask for.
type HostPorts struct {
	Versions []string `json:"versions"`         // of the CNI specification, of portmap; empty: no pod gets a host port
	Reason   string   `json:"reason,omitempty"` // why there are none, or why they are assumed
}

// InterfaceFamily counts the addresses of one family.
type InterfaceFamily struct {
	Family   string `json:"family"`
	Total    int    `json:"total"`
	Assigned int    `json:"assigned"`
	Cooling  int    `json:"cooling"`
	Free     int    `json:"free"`
	Prefixes int    `json:"prefixes,omitempty"`
}

// MaxSouthboundValues limits the values that Southbound names.
const MaxSouthboundValues = 100

// Southbound counts the values of the network by state, and names those that are not made:
// first the failed ones.
type Southbound struct {
	Made    int               `json:"made"`
	Pending int               `json:"pending"` // they wait for others
	Failed  int               `json:"failed"`
	Foreign int               `json:"foreign"` // of the failed ones: an object of another program is in the way
	Values  []SouthboundValue `json:"values,omitempty"`
}

// SouthboundValue describes a value that is not made.
type SouthboundValue struct {
	Key      string     `json:"key"`
	WaitsFor []string   `json:"waitsFor,omitempty"` // keys of values that are not made
	Error    string     `json:"error,omitempty"`
	Foreign  bool       `json:"foreign,omitempty"`
	Retry    *time.Time `json:"retry,omitempty"` // of the next attempt; missing: with the next resync
}

// Claim represents the right of this node to a prefix that does not follow from its ID.
type Claim struct {
	Network string    `json:"network"` // default: pods; nodes: node addresses
	Prefix  string    `json:"prefix"`
	Held    bool      `json:"held"`
	Reason  string    `json:"reason,omitempty"` // what it waits for, until when, and what ends that
	Since   time.Time `json:"since"`
}

// Block counts the addresses of one block.
type Block struct {
	Pool        string `json:"pool"`
	Family      string `json:"family"`
	Block       string `json:"block"`
	State       string `json:"state"` // active, draining
	Size        uint64 `json:"size"`
	Free        uint64 `json:"free"`
	Held        int    `json:"held"`
	Infra       int    `json:"infra"`
	Cooling     int    `json:"cooling"`
	Quarantined int    `json:"quarantined"`
	Reserved    uint64 `json:"reserved"`
}

// ReleaseRequest selects leases by exactly one of IP, ContainerID and Pod.
type ReleaseRequest struct {
	IP          string `json:"ip,omitempty"`
	Pool        string `json:"pool,omitempty"` // with IP; "": any
	ContainerID string `json:"containerID,omitempty"`
	IfName      string `json:"ifName,omitempty"` // with ContainerID; "": all
	Pod         string `json:"pod,omitempty"`    // namespace/name
	Quarantined bool   `json:"quarantined,omitempty"`
	// DockerPool is the ID of Docker's pool that IP was requested through. Without
	// it no lease of Docker is freed.
	DockerPool string `json:"dockerPool,omitempty"`
	DryRun     bool   `json:"dryRun,omitempty"` // only say what would be freed
	Force      bool   `json:"force,omitempty"`  // also what is in use, and if a witness cannot be read
	// Only, if not nil, are the generations that may be freed: those that a
	// dry run has shown.
	Only []uint64 `json:"only,omitempty"`
}

// ReleaseReply lists the leases that were freed, or would be.
type ReleaseReply struct {
	Leases  []Lease  `json:"leases"`
	Skipped []string `json:"skipped,omitempty"` // what matches but is not freed, and why
	InUse
}

// Error holds the body of every answer that is not 200, except for CNI.
type Error struct {
	Error string `json:"error"`
}

// StatusError is an error with the HTTP status of its answer.
type StatusError struct {
	Status int // 4xx or 5xx
	Err    error
}

func (e *StatusError) Error() string { return e.Err.Error() }

// Unwrap returns the error without its status.
func (e *StatusError) Unwrap() error { return e.Err }
