// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"cmp"
	"errors"
	"net/http"
	"strings"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func (p *RESTAPI) nodes(w http.ResponseWriter, r *http.Request) {
	found, err := p.Cluster.Nodes(r.Context())
	if err != nil {
		writeError(w, statusOf(err, http.StatusInternalServerError), err)
		return
	}
	all := make([]localapi.Node, 0, len(found))
	for _, n := range found {
		n.Addresses, n.PodCIDRs, n.Pools = present(n.Addresses), present(n.PodCIDRs), present(n.Pools)
		all = append(all, n)
	}
	writeJSON(w, http.StatusOK, all)
}

// releaseNode makes the ID of a node free that is gone. The errors of ReleaseNode have
// the status of the answer.
func (p *RESTAPI) releaseNode(w http.ResponseWriter, r *http.Request) {
	var req localapi.NodeReleaseRequest
	if !readJSON(w, r, &req) {
		return
	}
	if req.Name == "" {
		writeError(w, http.StatusBadRequest, errors.New("name: is empty: give the name of a node"))
		return
	}
	reply, err := p.Cluster.ReleaseNode(r.Context(), req)
	if err != nil {
		writeError(w, statusOf(err, http.StatusInternalServerError), err)
		return
	}
	if !req.DryRun {
		p.Log.Info("node ID released by hand", "node", req.Name, "nodeID", reply.ID, "force", req.Force)
	}
	writeJSON(w, http.StatusOK, reply)
}

func (p *RESTAPI) pools(w http.ResponseWriter, r *http.Request) {
	found, err := p.Cluster.Pools(r.Context())
	if err != nil {
		writeError(w, statusOf(err, http.StatusInternalServerError), err)
		return
	}
	all := make([]localapi.Pool, 0, len(found))
	for _, pool := range found {
		pool.Ranges, pool.Blocks = present(pool.Ranges), present(pool.Blocks)
		all = append(all, pool)
	}
	writeJSON(w, http.StatusOK, all)
}

// apply answers 200 with what has changed or, for a dry run, would or would not.
// Everything else has the result too, with the error.
func (p *RESTAPI) apply(w http.ResponseWriter, r *http.Request) {
	var req localapi.ApplyRequest
	if !readJSON(w, r, &req) {
		return
	}
	if strings.TrimSpace(req.File) == "" {
		writeError(w, http.StatusBadRequest, errors.New("file: is empty: give the text of a file of pools"))
		return
	}
	result, err := p.Cluster.Apply(r.Context(), []byte(req.File), req.DryRun)
	result.Problems = present(result.Problems)
	result.Blocks = present(result.Blocks)
	result.Moves = present(result.Moves)
	switch {
	case err != nil:
		writeJSON(
			w,
			statusOf(err, http.StatusInternalServerError),
			localapi.ApplyRefusal{Error: err.Error(), ApplyResult: result},
		)
	case result.Refused && !req.DryRun:
		writeJSON(w, http.StatusConflict, localapi.ApplyRefusal{Error: whyRefused(result), ApplyResult: result})
	default:
		if !req.DryRun {
			p.Log.Info("pools applied by hand", "changes", result.Changes)
		}
		writeJSON(w, http.StatusOK, result)
	}
}

// whyRefused returns all reasons of a refusal in one text.
func whyRefused(result localapi.ApplyResult) string {
	var all []string
	for _, problem := range result.Problems {
		all = append(all, problem.String())
	}
	for _, b := range result.Blocks {
		all = append(all, b.Reason)
	}
	if len(all) == 0 {
		all = append(all, cmp.Or(strings.TrimSpace(result.Text), "the agent gives no reason"))
	}
	return "nothing was changed: " + strings.Join(all, "\n")
}
