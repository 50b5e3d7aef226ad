// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/reclaim"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
)

// Reclaims reads the witnesses, and shows and undoes reclaims. *reclaim.Plugin implements
// it.
type Reclaims interface {
	Round(ctx context.Context) (*witness.World, error)
	Reports() []witness.Report
	Enabled() bool
	Pending() []reclaim.Pending
	Ended() []reclaim.Ended
	Preview(ctx context.Context) ([]reclaim.Assessment, *witness.World, error)
	Undo(ctx context.Context, a netip.Addr, pool string) ([]ledger.Lease, error)
}

// WitnessOf returns a report as the API shows it.
func WitnessOf(r witness.Report) localapi.Witness {
	return localapi.Witness{
		Name:    string(r.Name),
		State:   r.State.String(),
		Reason:  r.Reason,
		Source:  r.Source,
		Limits:  r.Limits,
		Read:    r.Read.UTC(),
		Objects: r.Objects,
	}
}

// WitnessesOf returns reports as the API shows them.
func WitnessesOf(reports []witness.Report) []localapi.Witness {
	all := []localapi.Witness{}
	for _, r := range reports {
		all = append(all, WitnessOf(r))
	}
	return all
}

func (p *RESTAPI) reclaims(w http.ResponseWriter, _ *http.Request) {
	all := localapi.Reclaims{
		Enabled: p.Reclaims.Enabled(),
		Pending: []localapi.Reclaim{},
		Ended:   []localapi.Reclaim{},
	}
	at := map[uint64]int{} // of the claim: its addresses are one reclaim
	for _, x := range p.Reclaims.Pending() {
		if i, ok := at[x.Lease.Generation]; ok {
			all.Pending[i].IP = append(all.Pending[i].IP, x.Lease.Addr)
			continue
		}
		at[x.Lease.Generation] = len(all.Pending)
		r := reclaimOf("pending", []ledger.Lease{x.Lease}, x.Lease.Reason)
		r.At, r.Until = x.Lease.Since, x.Until
		all.Pending = append(all.Pending, r)
	}
	for _, x := range p.Reclaims.Ended() {
		r := reclaimOf(string(x.Outcome), x.Leases, x.Reason)
		r.At = x.At
		all.Ended = append(all.Ended, r)
	}
	writeJSON(w, http.StatusOK, all)
}

func reclaimOf(state string, leases []ledger.Lease, reason string) localapi.Reclaim {
	l := leases[0]
	return localapi.Reclaim{
		State:       state,
		IP:          addrsOf(leases),
		Pool:        l.Pool,
		Network:     l.Key.Network,
		ContainerID: l.Key.ContainerID,
		IfName:      l.Key.IfName,
		Pod:         l.Pod.String(),
		Generation:  l.Generation,
		Reason:      reason,
	}
}

func addrsOf(leases []ledger.Lease) []netip.Addr {
	all := []netip.Addr{}
	for _, l := range leases {
		all = append(all, l.Addr)
	}
	return all
}

func (p *RESTAPI) runReclaim(w http.ResponseWriter, r *http.Request) {
	steps, world, err := p.Reclaims.Preview(r.Context())
	if err != nil {
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	run := localapi.ReclaimRun{
		Enabled:   p.Reclaims.Enabled(),
		Witnesses: []localapi.Witness{},
		Steps:     []localapi.ReclaimStep{},
	}
	for _, name := range witness.Names() {
		run.Witnesses = append(run.Witnesses, WitnessOf(world.Report(name)))
	}
	for _, a := range steps {
		l := a.Leases[0]
		step := localapi.ReclaimStep{
			Action:     a.Action.String(),
			IP:         addrsOf(a.Leases),
			Pool:       l.Pool,
			Key:        l.Key.String(),
			Pod:        l.Pod.String(),
			Conclusion: a.Verdict.Conclusion.String(),
			Evidence:   []string{},
			Reason:     a.Reason,
			Waits:      a.Waits,
		}
		for _, e := range a.Verdict.Evidence {
			step.Evidence = append(step.Evidence, e.String())
		}
		run.Steps = append(run.Steps, step)
	}
	writeJSON(w, http.StatusOK, run)
}

func (p *RESTAPI) undoReclaim(w http.ResponseWriter, r *http.Request) {
	var req localapi.ReclaimUndo
	if !readJSON(w, r, &req) {
		return
	}
	a, err := netip.ParseAddr(req.IP)
	if err != nil {
		writeError(w, http.StatusBadRequest, fmt.Errorf("ip: %q is not an IP address", req.IP))
		return
	}
	leases, err := p.Reclaims.Undo(r.Context(), a.Unmap(), req.Pool)
	switch {
	case errors.Is(err, reclaim.ErrNotReclaiming):
		writeError(w, http.StatusNotFound, err)
		return
	case err != nil:
		writeError(w, http.StatusInternalServerError, err)
		return
	}
	reply := localapi.ReclaimUndone{Leases: []localapi.Lease{}}
	for _, l := range leases {
		reply.Leases = append(reply.Leases, leaseOf(l))
	}
	writeJSON(w, http.StatusOK, reply)
}
