// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import "time"

// AcceptReport lists what a database in doubt may not know.
type AcceptReport struct {
	Reason   string  `json:"reason"`   // why the database is in doubt, "" if it is not
	Noted    Commit  `json:"noted"`    // the newest commit that was noted
	Database Commit  `json:"database"` // the last commit of the database
	Leases   []Lease `json:"leases"`   // in the database
	Unleased []Lease `json:"unleased"` // addresses that pods of this node report, and that are not leased to these pods
	Accepted bool    `json:"accepted"` // with POST: the database is trusted from now on
}

// Commit is a state of a database.
type Commit struct {
	Lineage  string    `json:"lineage"`  // of the database: all states of one lineage come from one creation
	Sequence uint64    `json:"sequence"` // 0: not known
	At       time.Time `json:"at"`
}
