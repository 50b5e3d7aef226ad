// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// suspendInDoubt allocates no new address from a database that is in doubt.
func (a *assembly) suspendInDoubt() {
	d := a.file.Doubt()
	if d == nil {
		return
	}
	a.ledger.Suspend("database", fmt.Sprintf("%s; addresses may be in use that it does not know: see what would be forgotten with cadastre accept", d.Reason))
	a.log.Error("no new address is allocated", "reason", a.ledger.Suspended())
}

// accept returns what a database in doubt may not know and, unless dryRun is set,
// trusts it from now on.
func (a *assembly) accept(ctx context.Context, dryRun bool) (localapi.AcceptReport, error) {
	r := localapi.AcceptReport{Database: toCommit(a.file.Last()), Leases: []localapi.Lease{}, Unleased: []localapi.Lease{}}
	for _, l := range a.ledger.Leases() {
		switch {
		case l.Purpose == ledger.ForInfra:
		case l.State == ledger.Quarantined:
			r.Unleased = append(r.Unleased, restapi.LeaseOf(l))
		default:
			r.Leases = append(r.Leases, restapi.LeaseOf(l))
		}
	}
	d := a.file.Doubt()
	if d == nil {
		return r, nil
	}
	r.Reason, r.Noted = d.Reason, toCommit(d.Known)
	if dryRun {
		return r, nil
	}
	if err := a.file.Accept(ctx); err != nil {
		return r, err
	}
	a.ledger.Suspend("database", "")
	r.Accepted, r.Database = true, toCommit(a.file.Last())
	a.log.Warn("a database in doubt was accepted by hand", "reason", d.Reason)
	return r, nil
}

func toCommit(c bolt.Commit) localapi.Commit {
	return localapi.Commit{Lineage: c.Lineage, Sequence: c.Sequence, At: c.At}
}
