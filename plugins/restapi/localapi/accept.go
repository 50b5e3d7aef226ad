// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import "time"

// AcceptRequest is the body of a POST to PathAccept, which may be empty.
type AcceptRequest struct {
	Force bool `json:"force,omitempty"` // also with addresses in use, which are quarantined
}

// AcceptReport lists what a database in doubt may not know. InUse has the addresses in use
// that the database does not explain.
type AcceptReport struct {
	Reason      string  `json:"reason"`      // why the database is in doubt, "" if it is not
	Noted       Commit  `json:"noted"`       // the newest commit that was noted
	Opened      Commit  `json:"opened"`      // the last commit of the database when the doubt began
	Database    Commit  `json:"database"`    // the last commit of the database
	Leases      []Lease `json:"leases"`      // in the database
	Accepted    bool    `json:"accepted"`    // with POST: the database is trusted from now on
	Quarantined int     `json:"quarantined"` // addresses that the acceptance has quarantined
	InUse
}

// Commit is a state of a database.
type Commit struct {
	Lineage  string    `json:"lineage"`  // of the database: all states of one lineage come from one creation
	Sequence uint64    `json:"sequence"` // 0: not known, or none
	At       time.Time `json:"at"`
}
