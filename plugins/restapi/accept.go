// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"errors"
	"net/http"

	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// suspendedBy names the database in Ledger.Suspend.
const suspendedBy = "database"

// errNoBlocks is the error of an acceptance before the agent knows its blocks. No address
// could be quarantined.
var errNoBlocks = errors.New("the agent does not know the address blocks of this node yet: " +
	"wait until cadastre status shows a resync that has succeeded")

// accept answers with what a database in doubt may lack: its leases, and the addresses in
// use that it does not explain. Without dryRun it also ends the doubt. It refuses to if an
// address is in use, or a witness cannot be read completely, unless the request has force.
func (p *RESTAPI) accept(dryRun bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var req localapi.AcceptRequest
		if !dryRun && r.ContentLength != 0 && !readJSON(w, r, &req) {
			return
		}
		report, err := p.acceptDatabase(r.Context(), dryRun, req.Force)
		switch {
		case err != nil:
			writeError(w, statusOf(err, http.StatusInternalServerError), err)
		case !dryRun && report.Refused != "":
			writeRefused(w, report)
		default:
			writeJSON(w, http.StatusOK, report)
		}
	}
}

func (p *RESTAPI) acceptDatabase(ctx context.Context, dryRun, force bool) (localapi.AcceptReport, error) {
	r := localapi.AcceptReport{Database: commitOf(p.Doubt.Last()), Leases: []localapi.Lease{}, InUse: nothingInUse()}
	for _, l := range p.Ledger.Leases() {
		if l.Purpose != ledger.ForInfra && l.State != ledger.Quarantined {
			r.Leases = append(r.Leases, leaseOf(l))
		}
	}
	d := p.Doubt.Doubt()
	if d == nil {
		return r, nil
	}
	r.Reason, r.Noted, r.Opened = d.Reason, commitOf(d.Known), commitOf(d.Opened)
	if !p.Agent.Status().Loop.Resynced {
		return r, &localapi.StatusError{Status: http.StatusServiceUnavailable, Err: errNoBlocks}
	}
	var used []ledger.Unleased
	var err error
	r.InUse, err = p.inUse(ctx, func(book findings.Book, world *witness.World) []findings.Use {
		used, _ = findings.Quarantines(book, world)
		return findings.UsesWithoutLease(book, world)
	})
	if err != nil {
		return r, err
	}
	if refused := refuseInUse(&r.InUse, "the database is not accepted"); dryRun || refused && !force {
		return r, nil
	}
	fresh, err := p.Ledger.Accept(ctx, used)
	if err != nil {
		return r, err
	}
	p.Ledger.Suspend(suspendedBy, "")
	r.Refused, r.Accepted, r.Database, r.Quarantined = "", true, commitOf(p.Doubt.Last()), len(fresh)
	p.Log.Warn("a database in doubt was accepted by hand", "reason", d.Reason,
		"force", force, "used", len(r.Uses), "addresses", fresh)
	return r, nil
}

func commitOf(c bolt.Commit) localapi.Commit {
	return localapi.Commit{Lineage: c.Lineage, Sequence: c.Sequence, At: c.At}
}
