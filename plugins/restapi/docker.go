// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/findings"
)

// withDocker returns h, or an answer that tells how to enable Docker.
func withDocker(given bool, h http.HandlerFunc) http.HandlerFunc {
	if given {
		return h
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		writeError(
			w,
			http.StatusNotImplemented,
			errors.New(
				"Docker is not enabled in this agent: set cadastre.docker.enabled, or name the socket of another agent",
			),
		)
	}
}

func (p *RESTAPI) dockerPools(w http.ResponseWriter, _ *http.Request) {
	found, err := p.Docker.Pools()
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, err)
		return
	}
	all := make([]localapi.DockerPool, 0, len(found))
	for _, x := range found {
		out := localapi.DockerPool{
			ID:           x.ID,
			AddressSpace: x.Space,
			CIDR:         x.Prefix.String(),
			Group:        x.Group,
			Chosen:       x.Chosen,
			FromPods:     x.FromPods,
			Requests:     x.Requests,
			Leases:       x.Leases,
		}
		if x.SubPool.IsValid() {
			out.SubPool = x.SubPool.String()
		}
		if g := x.GivenUp; g != nil {
			out.GivenUp = &localapi.DockerGivenUp{Requests: g.Requests, Since: g.Since, Evidence: g.Evidence}
		}
		all = append(all, out)
	}
	writeJSON(w, http.StatusOK, all)
}

func (p *RESTAPI) keepDockerPool(w http.ResponseWriter, r *http.Request) {
	var req localapi.DockerPoolKeep
	if !readJSON(w, r, &req) {
		return
	}
	err := p.Docker.KeepPool(r.Context(), req.ID)
	switch {
	case errors.Is(err, ipamapi.ErrPoolNotFound):
		writeError(w, http.StatusNotFound, err)
	case errors.Is(err, ipamapi.ErrNotGivenUp):
		writeError(w, http.StatusConflict, err)
	case err != nil:
		writeError(w, http.StatusServiceUnavailable, err)
	default:
		p.Log.Info("Docker pool kept by hand", "pool", req.ID)
		writeJSON(w, http.StatusOK, req)
	}
}

func (p *RESTAPI) releaseDockerPool(w http.ResponseWriter, r *http.Request) {
	var req localapi.DockerPoolRelease
	if !readJSON(w, r, &req) {
		return
	}
	if req.ID == "" {
		writeError(
			w,
			http.StatusBadRequest,
			errors.New("id is empty: want the ID of a pool, such as LocalDefault/10.50.0.0/24"),
		)
		return
	}
	reply := localapi.DockerPoolReleased{ID: req.ID, Leases: []localapi.Lease{}, InUse: nothingInUse()}
	leases, err := p.poolInUse(r.Context(), req.ID, &reply.InUse)
	switch refused := refuseInUse(&reply.InUse, "the pool was not released"); {
	case err != nil:
	case req.DryRun:
		for _, l := range leases {
			reply.Leases = append(reply.Leases, leaseOf(l))
		}
		writeJSON(w, http.StatusOK, reply)
		return
	case refused && !req.Force:
		writeRefused(w, reply)
		return
	default:
		leases, err = p.Docker.EndPool(r.Context(), req.ID, req.Force)
	}
	switch {
	case errors.Is(err, ipamapi.ErrPoolNotFound):
		writeError(w, http.StatusNotFound, err)
		return
	case errors.Is(err, ipamapi.ErrPoolInUse):
		writeError(w, http.StatusConflict, err)
		return
	case err != nil:
		writeError(w, statusOf(err, http.StatusServiceUnavailable), err)
		return
	}
	for _, l := range leases {
		reply.Leases = append(reply.Leases, leaseOf(l))
	}
	reply.Refused = ""
	p.Log.Info("Docker pool released by hand", "pool", req.ID, "leases", len(leases), "force", req.Force)
	writeJSON(w, http.StatusOK, reply)
}

// poolInUse returns the leases of a pool, and sets what a fresh round of the witnesses shows of
// them, and of the pool's network.
func (p *RESTAPI) poolInUse(ctx context.Context, id string, in *localapi.InUse) ([]ledger.Lease, error) {
	pools, err := p.Docker.Pools()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(pools, func(x ipamapi.Pool) bool { return x.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("pool %q: %w", id, ipamapi.ErrPoolNotFound)
	}
	leases := slices.DeleteFunc(p.Ledger.Leases(), func(l ledger.Lease) bool {
		holder, docker := ipamapi.HolderOf(l)
		return !docker || holder.PoolID != id || l.State == ledger.Cooling
	})
	*in, err = p.inUse(ctx, func(book findings.Book, world *witness.World) []findings.Use {
		return findings.UsesOfPool(book, world, pools[i].Prefix, leases)
	})
	return leases, err
}

// refuseDocker returns why a lease of Docker is not released by its address: the
// engine releases it, unless the request names the pool.
func refuseDocker(l ledger.Lease, h ipamapi.Holder, req localapi.ReleaseRequest) string {
	switch {
	case h.Gateway:
		return fmt.Sprintf(
			"Docker holds it as the gateway of pool %s, and releases it with the network (docker network rm); "+
				"if the engine has lost the network: cadastre docker pools release '%[1]s'",
			h.PoolID,
		)
	case req.DockerPool == "":
		return fmt.Sprintf("Docker holds it for %s in pool %s, and releases it when the container stops; "+
			"if the engine has lost the container: cadastre release --ip %s --docker-pool '%[2]s'", h, h.PoolID, l.Addr)
	case req.DockerPool != h.PoolID:
		return fmt.Sprintf("Docker holds it for %s in pool %s, not in pool %s", h, h.PoolID, req.DockerPool)
	}
	return ""
}

// elsewhere names the holder of a lease that Docker has not requested.
func elsewhere(l ledger.Lease) string {
	switch {
	case l.Purpose == ledger.ForInfra:
		return "it is not Docker's: the node itself uses it (" + l.Key.IfName + ")"
	case l.Pod.Name != "":
		return fmt.Sprintf("it is not Docker's: pod %s holds it in pool %q", l.Pod, l.Pool)
	}
	return fmt.Sprintf("it is not Docker's: container %q holds it in pool %q", l.Key.ContainerID, l.Pool)
}
