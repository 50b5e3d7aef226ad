// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package findings compares the ledger and the configuration with the views of the
// witnesses, and describes each difference. It is pure: the same inputs give the same
// findings in the same order, and nothing is changed.
package findings

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"

	"github.com/cadastre/cadastre/witness"
)

// Finding is one difference between the ledger and the world. Number and Name stay the
// same in all later versions.
type Finding struct {
	Number    string             `json:"number"` // such as C101
	Name      string             `json:"name"`   // such as leaked-lease
	Subject   Subject            `json:"subject"`
	Text      string             `json:"text"`      // one sentence
	Evidence  []witness.Evidence `json:"evidence"`  // statements of the witnesses that show it
	Repair    string             `json:"repair"`    // action of "cadastre repair"; "": by hand, as Fix says
	Fix       string             `json:"fix"`       // the nearest command or change that ends the finding
	Facts     []string           `json:"facts"`     // what the signature covers besides the subject: see Sign
	Signature string             `json:"signature"` // differs as soon as one of the facts differs: see Sign
}

// Subject names what a finding is about. Fields that do not apply are empty.
type Subject struct {
	Node        string       `json:"node,omitempty"`
	Pool        string       `json:"pool,omitempty"`
	Addr        netip.Addr   `json:"addr,omitzero"`
	Prefix      netip.Prefix `json:"prefix,omitzero"`
	Pod         string       `json:"pod,omitempty"` // namespace/name
	ContainerID string       `json:"containerID,omitempty"`
	IfName      string       `json:"ifName,omitempty"`
	Network     string       `json:"network,omitempty"`
	Generation  uint64       `json:"generation,omitempty"` // of the lease
	Object      string       `json:"object,omitempty"`     // anything else, such as a link or a route
}

// Sign sets the facts and the signature: a digest of the number, the subject and the
// facts. The facts leave out what changes without changing the finding, such as a count.
// The signature leaves out the generation, which a restart of the agent changes.
func (f *Finding) Sign(facts ...string) {
	f.Facts = facts
	raw, _ := json.Marshal(struct {
		About
		Facts []string
	}{f.About(), facts}) // never fails
	sum := sha256.Sum256(raw)
	f.Signature = hex.EncodeToString(sum[:8])
}

// About names what a finding is about. It stays the same if a fact differs, and over a restart.
type About struct {
	Number  string
	Subject Subject // without the generation
}

// About returns what the finding is about.
func (f *Finding) About() About {
	about := About{f.Number, f.Subject}
	about.Subject.Generation = 0
	return about
}
