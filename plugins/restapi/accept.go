// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"net/http"

	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// suspendedBy names the database in Ledger.Suspend.
const suspendedBy = "database"

// accept answers with the leases that a database in doubt may lack. Without dryRun it
// also ends the doubt.
func (p *RESTAPI) accept(dryRun bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		report, err := p.acceptDatabase(r.Context(), dryRun)
		if err != nil {
			writeError(w, statusOf(err, http.StatusInternalServerError), err)
			return
		}
		_ = writeJSON(w, http.StatusOK, report)
	}
}

func (p *RESTAPI) acceptDatabase(ctx context.Context, dryRun bool) (localapi.AcceptReport, error) {
	r := localapi.AcceptReport{
		Database: commitOf(p.Doubt.Last()),
		Leases:   []localapi.Lease{},
		Unleased: []localapi.Lease{},
	}
	for _, l := range p.Ledger.Leases() {
		switch {
		case l.Purpose == ledger.ForInfra:
		case l.State == ledger.Quarantined:
			r.Unleased = append(r.Unleased, leaseOf(l))
		default:
			r.Leases = append(r.Leases, leaseOf(l))
		}
	}
	d := p.Doubt.Doubt()
	if d == nil {
		return r, nil
	}
	r.Reason, r.Noted = d.Reason, commitOf(d.Known)
	if dryRun {
		return r, nil
	}
	if err := p.Doubt.Accept(ctx); err != nil {
		return r, err
	}
	p.Ledger.Suspend(suspendedBy, "")
	r.Accepted, r.Database = true, commitOf(p.Doubt.Last())
	p.Log.Warn("a database in doubt was accepted by hand", "reason", d.Reason)
	return r, nil
}

func commitOf(c bolt.Commit) localapi.Commit {
	return localapi.Commit{Lineage: c.Lineage, Sequence: c.Sequence, At: c.At}
}
