// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import (
	"net/netip"
	"time"
)

// Paths of check and repair.
const (
	PathCheck       = "/v1/check"        // CheckReport
	PathCheckLedger = "/v1/check/ledger" // CheckReport without the witnesses
	PathRepair      = "/v1/repair"       // POST RepairRequest -> RepairReply
)

// CheckReport compares the ledger with itself and with the witnesses.
type CheckReport struct {
	Node    string    `json:"node"`
	Taken   time.Time `json:"taken,omitzero"` // the time of the last round of the witnesses
	Leases  int       `json:"leases"`
	Young   int       `json:"young"`   // leases that were not compared: their ADD may be in progress
	Pending int       `json:"pending"` // leases that end unless they are confirmed, such as those being reclaimed
	// LedgerOnly means that the ledger was compared with itself and its file only.
	LedgerOnly bool      `json:"ledgerOnly,omitempty"`
	Findings   []Finding `json:"findings"`
	Witnesses  []Witness `json:"witnesses"` // at that round
}

// CannotTell reports whether a witness is missing that the leases of the node need, or
// the agent names no witness at all, as an older one does. Then the absence of other
// findings proves nothing.
func (r *CheckReport) CannotTell() bool {
	if r.LedgerOnly {
		return false
	}
	if len(r.Witnesses) == 0 {
		return true
	}
	for _, f := range r.Findings {
		if f.Name == FindingWitnessMissing {
			return true
		}
	}
	return false
}

// Differences returns the number of findings that are a difference, and not a missing
// witness.
func (r *CheckReport) Differences() (n int) {
	for _, f := range r.Findings {
		if f.Name != FindingWitnessMissing {
			n++
		}
	}
	return n
}

// FindingWitnessMissing is the name of the finding about a missing witness.
const FindingWitnessMissing = "witness-missing"

// Finding is one difference between the ledger and the world. docs/findings.md lists the
// numbers and names, which never change.
type Finding struct {
	Number    string     `json:"number"`
	Name      string     `json:"name"`
	Subject   Subject    `json:"subject"`
	Text      string     `json:"text"`
	Evidence  []Evidence `json:"evidence"`
	Repair    string     `json:"repair"` // action of "cadastre repair"; "": by hand
	Fix       string     `json:"fix"`
	Facts     []string   `json:"facts"`
	Signature string     `json:"signature"`
}

// Subject names what a finding is about.
type Subject struct {
	Node        string       `json:"node,omitempty"`
	Pool        string       `json:"pool,omitempty"`
	Addr        netip.Addr   `json:"addr,omitzero"`
	Prefix      netip.Prefix `json:"prefix,omitzero"`
	Pod         string       `json:"pod,omitempty"`
	ContainerID string       `json:"containerID,omitempty"`
	IfName      string       `json:"ifName,omitempty"`
	Network     string       `json:"network,omitempty"`
	Generation  uint64       `json:"generation,omitempty"`
	Object      string       `json:"object,omitempty"`
}

// Evidence is a statement of a witness.
type Evidence struct {
	Witness string `json:"witness"`
	Text    string `json:"text"`
}

// RepairRequest asks to repair one finding of a report. The agent looks for it in a fresh
// round of the witnesses and refuses it if its signature has changed.
type RepairRequest struct {
	Finding Finding `json:"finding"`
	DryRun  bool    `json:"dryRun,omitempty"` // only describe the change
	// All is set for each finding of "cadastre repair C206 --all": release a lease whose address
	// and namespace are gone, on a node without a runtime that would prove it.
	All   bool `json:"all,omitempty"`
	Force bool `json:"force,omitempty"` // also if the lease is in use, or a witness cannot be read completely
}

// RepairReply describes a repair, or the reason why there is none.
type RepairReply struct {
	Finding Finding `json:"finding"`           // as it is now
	Change  string  `json:"change,omitempty"`  // what the repair does; "": it is by hand, as Finding.Fix says
	Done    bool    `json:"done"`              // the change is made and durable
	Refused string  `json:"refused,omitempty"` // how the finding has changed since the report, or who uses the address
}
