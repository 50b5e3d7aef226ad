// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import (
	"net/netip"
	"time"
)

// Paths of reclaims.
const (
	PathReclaims    = "/v1/reclaims"      // Reclaims
	PathReclaimRun  = "/v1/reclaims/run"  // POST -> ReclaimRun: reads the witnesses and changes nothing
	PathReclaimUndo = "/v1/reclaims/undo" // POST ReclaimUndo -> ReclaimUndone
)

// Witness describes a source of evidence outside the ledger.
type Witness struct {
	Name    string    `json:"name"`             // kernel, runtime, engine, cluster
	State   string    `json:"state"`            // present, missing, not applicable
	Reason  string    `json:"reason,omitempty"` // of a state other than present
	Source  string    `json:"source,omitempty"` // such as "containerd 2.1.4"
	Limits  string    `json:"limits,omitempty"` // what it cannot prove here
	Read    time.Time `json:"read,omitzero"`    // time of its last view
	Objects int       `json:"objects"`          // namespaces, sandboxes, endpoints or pods in it
}

// Reclaim describes the end of a lease whose owner is gone.
type Reclaim struct {
	State       string       `json:"state"` // pending, reclaimed, undone
	IP          []netip.Addr `json:"ip"`    // of one claim
	Pool        string       `json:"pool"`
	Network     string       `json:"network"`
	ContainerID string       `json:"containerID"`
	IfName      string       `json:"ifName"`
	Pod         string       `json:"pod,omitempty"` // namespace/name
	Generation  uint64       `json:"generation"`
	Reason      string       `json:"reason"`         // with the evidence
	At          time.Time    `json:"at"`             // when it began, or ended
	Until       time.Time    `json:"until,omitzero"` // pending: it is released then
}

// Reclaims lists the pending reclaims, and those that have ended since the agent started.
type Reclaims struct {
	Enabled bool      `json:"enabled"`
	Pending []Reclaim `json:"pending"`
	Ended   []Reclaim `json:"ended"` // the newest first
}

// ReclaimStep describes what the next round does with the leases of one claim.
type ReclaimStep struct {
	Action     string       `json:"action"` // keep, begin, undo, release
	IP         []netip.Addr `json:"ip"`
	Pool       string       `json:"pool"`
	Key        string       `json:"key"`
	Pod        string       `json:"pod,omitempty"`
	Conclusion string       `json:"conclusion"` // alive, gone, unproven
	Evidence   []string     `json:"evidence"`
	Reason     string       `json:"reason,omitempty"` // of an action other than keep
	Waits      string       `json:"waits,omitempty"`  // keep: what a reclaim waits for
}

// ReclaimRun lists the steps for all leases that witnesses can judge.
type ReclaimRun struct {
	Enabled   bool          `json:"enabled"`
	Witnesses []Witness     `json:"witnesses"`
	Steps     []ReclaimStep `json:"steps"`
}

// ReclaimUndo selects the pending reclaim of an address.
type ReclaimUndo struct {
	IP   string `json:"ip"`
	Pool string `json:"pool,omitempty"` // "": any
}

// ReclaimUndone lists the leases that are held again.
type ReclaimUndone struct {
	Leases []Lease `json:"leases"`
}
