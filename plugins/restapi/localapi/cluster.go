// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import (
	"strconv"
	"time"
)

// Node represents a node of the cluster, as the cluster store knows it.
type Node struct {
	ID         uint32     `json:"id"`
	Name       string     `json:"name"`
	Instance   string     `json:"instance"`
	Generation uint64     `json:"generation"` // of the claim of ID
	Addresses  []string   `json:"addresses"`  // of the vswitch, with their length
	PodCIDRs   []string   `json:"podCIDRs"`
	Released   bool       `json:"released"` // ID may be claimed by another node
	Self       bool       `json:"self"`     // it is the node that answers
	LastSeen   *time.Time `json:"lastSeen"` // by the store; null: never
	Pools      []PoolUse  `json:"pools"`
	Problem    string     `json:"problem,omitempty"` // why the record cannot be read; nothing but ID is known then
}

// PoolUse counts what a node has of a pool, as of its last report.
type PoolUse struct {
	Pool       string `json:"pool"`
	Generation uint64 `json:"generation"` // of the pool that the node has followed
	Open       bool   `json:"open"`       // it may allocate new addresses of it
	Leases     uint64 `json:"leases"`
	// Blocks are at most 64; none: the node does not report them.
	Blocks []BlockUse `json:"blocks,omitempty"`
}

// BlockUse counts the leases of one block of a node, as of its last report.
type BlockUse struct {
	Block    string `json:"block"`
	Leases   uint64 `json:"leases"`
	Draining bool   `json:"draining,omitempty"`
	Reserved uint64 `json:"reserved,omitempty"` // addresses that no pod can have
}

// NodeReleaseRequest names a node that is gone for good. Force releases also
// one that was there a moment ago.
type NodeReleaseRequest struct {
	Name   string `json:"name"`
	Force  bool   `json:"force,omitempty"`
	DryRun bool   `json:"dryRun,omitempty"` // only say whether it would be released
}

// NodeReleaseReply holds the ID that was released.
type NodeReleaseReply struct {
	ID uint32 `json:"id"`
	// Until holds the time when the node's agent stops allocating by itself, if that may still
	// run. Before that no other node is given the ID or what the node claimed.
	Until *time.Time `json:"until,omitempty"`
}

// Pool represents an address space of the cluster, with this node's blocks of it.
type Pool struct {
	Name       string      `json:"name"`
	Network    string      `json:"network"`
	Ranges     []PoolRange `json:"ranges"`
	State      string      `json:"state"`
	Generation uint64      `json:"generation"`
	Origin     string      `json:"origin"`            // what gave it its first value
	Problem    string      `json:"problem,omitempty"` // why this node does not follow it, if so
	Blocks     []Block     `json:"blocks"`
}

// PoolRange holds the prefix of the blocks of one family.
type PoolRange struct {
	CIDR             string `json:"cidr"`
	OneNodePrefixLen uint32 `json:"oneNodePrefixLen"`
}

// ApplyRequest holds a file of pools that are to be those of the cluster.
type ApplyRequest struct {
	File   string `json:"file"`             // the text, not its name
	DryRun bool   `json:"dryRun,omitempty"` // only say what would happen
}

// ApplyResult lists the changes, or those that would be made.
type ApplyResult struct {
	Text     string    `json:"text"` // all of this for people
	Changes  int       `json:"changes"`
	Refused  bool      `json:"refused"`  // nothing was changed, or would be
	Problems []Problem `json:"problems"` // of the file
	Blocks   []Blocker `json:"blocks"`   // what stands in the way
	Moves    []Move    `json:"moves"`
}

// ApplyRefusal holds the body of a refusal: the Error, and the whole result.
type ApplyRefusal struct {
	Error string `json:"error"`
	ApplyResult
}

// Problem describes an error of a file.
type Problem struct {
	Field   string `json:"field"`   // the full path of the key: pools[0].ranges[0].cidr
	Value   string `json:"value"`   // as written, or empty where there is none to show
	Problem string `json:"problem"` // what is wrong, and what would be right
}

// String returns the field, the value and the problem in one line.
func (p Problem) String() string {
	if p.Value == "" {
		return p.Field + ": " + p.Problem
	}
	return p.Field + ": " + strconv.Quote(p.Value) + " " + p.Problem
}

// Blocker describes a reason for which a pool cannot be changed.
type Blocker struct {
	Pool   string `json:"pool"`
	Node   string `json:"node"` // that still uses it; "": no single one
	Leases uint64 `json:"leases"`
	Reason string `json:"reason"` // a sentence that names them
}

// Move describes a node that gets another block.
type Move struct {
	Pool string `json:"pool"`
	Node string `json:"node"`
	From string `json:"from"` // "": it had none
	To   string `json:"to"`   // "": it will have none
}
