// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"

	"github.com/cadastre/cadastre/kvdb"
)

// AcceptKey is the key of the op by which a Commit also ends a doubt about the journal: see
// Ledger.Accept. It names no record. A journal that is never in doubt is given none.
const AcceptKey = "accept"

// Journal stores the ledger's records. Only the ledger writes to it, one Commit
// at a time.
type Journal interface {
	// Load calls f for every record, in the order of their keys.
	Load(ctx context.Context, f func(kvdb.KeyValue) error) error
	// Commit applies all ops or none, and returns when they are durable. After an
	// error the outcome is unknown: the next Commit writes the same records again.
	// The ledger reuses ops after Commit has returned.
	Commit(ctx context.Context, ops []kvdb.Op) error
}

// NullJournal stores nothing. A ledger with this journal starts empty and commits
// like every other ledger; its leases end with the process.
type NullJournal struct{}

// Load returns no record.
func (NullJournal) Load(context.Context, func(kvdb.KeyValue) error) error { return nil }

// Commit discards ops.
func (NullJournal) Commit(context.Context, []kvdb.Op) error { return nil }
