// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

func (p *RESTAPI) release(w http.ResponseWriter, r *http.Request) {
	var req localapi.ReleaseRequest
	if !readJSON(w, r, &req) {
		return
	}
	match, err := matcher(req)
	if err != nil {
		writeError(w, http.StatusBadRequest, err)
		return
	}
	reply := localapi.ReleaseReply{Leases: []localapi.Lease{}, InUse: nothingInUse()}
	var leases []ledger.Lease
	for _, l := range p.selected(match) {
		if why := refuse(l, req); why != "" {
			reply.Skipped = append(reply.Skipped, l.Addr.String()+": "+why)
			continue
		}
		leases = append(leases, l)
	}
	if reply.InUse, err = p.leasesInUse(r.Context(), leases); err != nil {
		writeError(w, statusOf(err, http.StatusInternalServerError), err)
		return
	}
	if refuseInUse(&reply.InUse, "nothing was released") && !req.DryRun && !req.Force {
		writeRefused(w, reply)
		return
	}
	var failed error
	freed := map[uint64]error{} // by claim: all addresses of one go together
	for _, l := range leases {
		if !req.DryRun {
			err, done := freed[l.Generation]
			if !done || l.Purpose != ledger.ForPod {
				err = p.releaseOne(r.Context(), l)
				freed[l.Generation] = err
			}
			if err != nil {
				failed = errors.Join(failed, err)
				reply.Skipped = append(reply.Skipped, l.Addr.String()+": "+err.Error())
				continue
			}
			p.Log.Info("released by hand", ledger.DecisionOn([]ledger.Lease{l}, l.Reason).Attributes()...)
		}
		reply.Leases = append(reply.Leases, leaseOf(l))
	}
	if failed != nil && len(reply.Leases) == 0 {
		writeError(w, http.StatusInternalServerError, failed)
		return
	}
	if !req.DryRun {
		reply.Refused = ""
	}
	writeJSON(w, http.StatusOK, reply)
}

// leasesInUse returns the leases that a fresh round of the witnesses shows in use, with what
// their users lose.
func (p *RESTAPI) leasesInUse(ctx context.Context, leases []ledger.Lease) (localapi.InUse, error) {
	if len(leases) == 0 {
		return nothingInUse(), nil
	}
	return p.inUse(ctx, func(book findings.Book, world *witness.World) []findings.Use {
		uses := findings.UsesOf(book, world, leases)
		for i := range uses {
			loss := "another one may get the address"
			wired := func(l ledger.Lease) bool { return l.Wired && l.Addr == uses[i].Addr && l.InUse() }
			if slices.ContainsFunc(leases, wired) {
				loss = "the pod loses its network"
			}
			uses[i].Text += ": " + loss
		}
		return uses
	})
}

// selected are the leases that match, and those that were claimed with one
// that does: they go together.
func (p *RESTAPI) selected(match func(ledger.Lease) bool) []ledger.Lease {
	all := p.Ledger.Leases()
	claims := map[uint64]bool{}
	for _, l := range all {
		if match(l) && l.InUse() && l.Purpose == ledger.ForPod {
			claims[l.Generation] = true
		}
	}
	return slices.DeleteFunc(all, func(l ledger.Lease) bool {
		return !match(l) && (!claims[l.Generation] || !l.InUse() || l.Purpose != ledger.ForPod)
	})
}

// matcher is the selection that a request makes.
func matcher(req localapi.ReleaseRequest) (func(ledger.Lease) bool, error) {
	given := 0
	for _, s := range []string{req.IP, req.ContainerID, req.Pod} {
		if s != "" {
			given++
		}
	}
	if given != 1 {
		return nil, errors.New("give exactly one of ip, containerID and pod")
	}
	if req.DockerPool != "" && req.IP == "" {
		return nil, fmt.Errorf("dockerPool: %q goes with ip only", req.DockerPool)
	}
	switch {
	case req.IP != "":
		a, err := netip.ParseAddr(req.IP)
		if err != nil {
			return nil, fmt.Errorf("ip: %q is not an IP address", req.IP)
		}
		return func(l ledger.Lease) bool { return l.Addr == a.Unmap() && (req.Pool == "" || req.Pool == l.Pool) }, nil
	case req.ContainerID != "":
		return func(l ledger.Lease) bool {
			return l.Purpose != ledger.ForInfra && l.Key.ContainerID == req.ContainerID &&
				(req.IfName == "" || req.IfName == l.Key.IfName)
		}, nil
	}
	namespace, name, ok := strings.Cut(req.Pod, "/")
	if !ok || namespace == "" || name == "" {
		return nil, fmt.Errorf("pod: %q is not of the form namespace/name", req.Pod)
	}
	return func(l ledger.Lease) bool { return l.Pod.Namespace == namespace && l.Pod.Name == name }, nil
}

// refuse returns why a lease that matches is not released.
func refuse(l ledger.Lease, req localapi.ReleaseRequest) string {
	holder, docker := ipamapi.HolderOf(l)
	switch {
	case l.State == ledger.Cooling:
		return "it is released already and cools down"
	case docker && refuseDocker(l, holder, req) != "":
		return refuseDocker(l, holder, req)
	case !docker && req.DockerPool != "":
		return elsewhere(l)
	case l.Purpose == ledger.ForInfra:
		return "the node itself uses it (" + l.Key.IfName + ")"
	case l.State == ledger.Quarantined && !req.Quarantined:
		return "it is quarantined (" + l.Reason + "): say quarantined to release it"
	case req.Only != nil && !slices.Contains(req.Only, l.Generation):
		return "it was not there before"
	}
	return ""
}

// releaseOne releases a lease that was found, if it is still the same one.
func (p *RESTAPI) releaseOne(ctx context.Context, l ledger.Lease) error {
	const byHand = "released by hand"
	if l.Purpose == ledger.ForPod && l.InUse() && p.Pods != nil {
		l.Reason = byHand
		return p.Pods.Delete(ctx, l)
	}
	_, err := p.Ledger.Release(ctx, ledger.Selector{
		Addr:        l.Addr,
		Pool:        l.Pool,
		Purpose:     l.Purpose,
		Generation:  l.Generation,
		Quarantined: l.State == ledger.Quarantined,
		Reason:      byHand,
	})
	return err
}
