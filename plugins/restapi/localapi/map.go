// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import (
	"net/netip"
	"time"
)

// Paths of the map of addresses.
const (
	PathMap         = "/v1/map"          // Map; with pool=NAME and prefix=CIDR: MapPart
	PathMapSearch   = "/v1/map/search"   // ?q=TEXT: MapHits
	PathMapChanges  = "/v1/map/changes"  // MapChanges
	PathMapFindings = "/v1/map/findings" // MapFindings
)

// Limits of the answers about the map, whatever the number of nodes and leases.
const (
	MapCellBits  = 10 // a MapPart has at most 1024 cells
	MapMaxBlocks = 64 // that a MapPart names
	MapMaxPools  = 256
	MapMaxHits   = 20
	MapMinutes   = 60 // that MapChanges covers
	MapMaxRecent = 50 // changes that MapChanges names
)

// AddressCounts counts addresses by state. An IPv6 count that is too large for 64 bits is
// the largest one.
type AddressCounts struct {
	Held        uint64 `json:"held,omitempty"`  // of pods and containers, pending ones included
	Infra       uint64 `json:"infra,omitempty"` // of the node itself, such as gateways
	Cooling     uint64 `json:"cooling,omitempty"`
	Quarantined uint64 `json:"quarantined,omitempty"`
	Reserved    uint64 `json:"reserved,omitempty"` // by the policy of the pool, without a lease
	Excluded    uint64 `json:"excluded,omitempty"` // one by one, without a lease
	Free        uint64 `json:"free,omitempty"`
	Draining    uint64 `json:"draining,omitempty"` // of a block that allocates nothing, without a lease
	// Other counts the addresses of other nodes' blocks, OtherHeld those of them that are
	// in use by the nodes' last reports, OtherUnknown those of which no report tells that.
	Other        uint64 `json:"other,omitempty"`
	OtherHeld    uint64 `json:"otherHeld,omitempty"`
	OtherUnknown uint64 `json:"otherUnknown,omitempty"`
	Recent       uint64 `json:"recent,omitempty"` // leases whose state began in the last hour
}

// Map holds the address space of a node or of the cluster, by pool.
type Map struct {
	Scope string    `json:"scope"` // node, cluster
	Node  string    `json:"node"`  // that answers; "": the operator
	Taken time.Time `json:"taken"`
	Pools []MapPool `json:"pools"`
	More  int       `json:"more,omitempty"` // pools that are left out
}

// MapPool holds the prefixes of one pool.
type MapPool struct {
	Name   string        `json:"name"`
	Counts AddressCounts `json:"counts"`
	Roots  []MapRoot     `json:"roots"`
}

// MapRoot is a prefix from which a pool's blocks are taken, or a block outside of these.
type MapRoot struct {
	Prefix netip.Prefix  `json:"prefix"`
	Blocks int           `json:"blocks"`
	Counts AddressCounts `json:"counts"`
}

// MapPart holds the addresses of one prefix, in cells of equal size.
type MapPart struct {
	Pool     string        `json:"pool"`
	Prefix   netip.Prefix  `json:"prefix"`
	Taken    time.Time     `json:"taken"`
	CellLen  int           `json:"cellLen"` // prefix length of a cell
	Counts   AddressCounts `json:"counts"`
	Cells    []MapCell     `json:"cells"` // ascending, without those in which no node has a block
	Blocks   []MapBlock    `json:"blocks"`
	More     int           `json:"more,omitempty"`     // blocks that are left out
	Occupied *netip.Prefix `json:"occupied,omitempty"` // the longest prefix that has all leases
}

// MapCell counts the addresses of one cell.
type MapCell struct {
	Cell int `json:"cell"` // number in the prefix, from 0 on
	AddressCounts
	Node   string    `json:"node,omitempty"`   // of the cell's block; "": this node's, or of several nodes
	Blocks int       `json:"blocks,omitempty"` // in the cell, if more than one
	Lease  *MapLease `json:"lease,omitempty"`  // of a cell that is one address
}

// MapLease describes the lease or the exclusion of one address.
type MapLease struct {
	IP        netip.Addr `json:"ip"`
	State     string     `json:"state"` // held, pending, cooling, quarantined, excluded
	Purpose   string     `json:"purpose,omitempty"`
	Pod       string     `json:"pod,omitempty"` // namespace/name
	Container string     `json:"container,omitempty"`
	IfName    string     `json:"ifName,omitempty"`
	Since     *time.Time `json:"since,omitempty"`
	Reason    string     `json:"reason,omitempty"`
}

// MapBlock is a block of a pool.
type MapBlock struct {
	Prefix netip.Prefix  `json:"prefix"`
	Node   string        `json:"node"`
	Own    bool          `json:"own"`   // of the node that answers
	State  string        `json:"state"` // active, draining; "": not known here
	Counts AddressCounts `json:"counts"`
}

// MapHits lists the results of a search.
type MapHits struct {
	Hits []MapHit `json:"hits"`
	More bool     `json:"more"` // there are further ones
	// Problem tells what was not searched; "": all was.
	Problem string `json:"problem,omitempty"`
}

// MapHit is a place on the map.
type MapHit struct {
	Kind   string       `json:"kind"` // address, pod, container, node, pool, prefix
	Text   string       `json:"text"`
	Pool   string       `json:"pool"`
	Prefix netip.Prefix `json:"prefix"` // an address has the prefix of a single one
	State  string       `json:"state,omitempty"`
	Pod    string       `json:"pod,omitempty"`  // namespace/name, of a pod or a container
	Node   string       `json:"node,omitempty"` // of a node
}

// MapChanges counts the recorded changes of the last hour. Of an operator these are the
// decisions of its process: Minutes has them as Other, and Recent is empty.
type MapChanges struct {
	Until     time.Time      `json:"until"`
	Minutes   []MapMinute    `json:"minutes"` // MapMinutes of them, the oldest first
	Recent    []HistoryEntry `json:"recent"`  // the newest first
	Decisions []MapDecision  `json:"decisions,omitempty"`
	Cut       bool           `json:"cut"` // there are more changes than an answer counts
	Recorded  bool           `json:"recorded"`
}

// MapDecision counts the decisions of an operator that have the same text.
type MapDecision struct {
	By     string    `json:"by"` // the package that decides
	Name   string    `json:"name"`
	Count  int       `json:"count"`
	Failed int       `json:"failed"`
	Last   time.Time `json:"last"`
}

// MapMinute counts the changes of one minute.
type MapMinute struct {
	Claimed  int `json:"claimed"`
	Released int `json:"released"` // ended or expired
	Other    int `json:"other"`
}

// MapFindings holds the last comparison of the ledger with the witnesses. It is not older
// than half a minute.
type MapFindings struct {
	Report  *CheckReport  `json:"report,omitempty"`  // of the node
	Cluster *ClusterCheck `json:"cluster,omitempty"` // of the operator
	Error   string        `json:"error,omitempty"`
}

// OperatorStatus is the status of an operator.
type OperatorStatus struct {
	Version    string `json:"version"`
	Leading    bool   `json:"leading"` // it decides; false: it waits to lead
	Ready      bool   `json:"ready"`
	ReadyError string `json:"readyError,omitempty"`
}
