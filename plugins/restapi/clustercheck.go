// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"fmt"
	"net/http"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// ClusterChecks returns the last comparison of the cluster's objects. ClusterViews
// implements it.
type ClusterChecks interface {
	ClusterCheck(ctx context.Context) (localapi.ClusterCheck, error)
}

func (p *RESTAPI) clusterCheck(w http.ResponseWriter, r *http.Request) {
	c, err := p.Cluster.ClusterCheck(r.Context())
	if err != nil {
		writeError(w, statusOf(err, http.StatusInternalServerError), err)
		return
	}
	c.Findings, c.Compared, c.LeftOut = present(c.Findings), present(c.Compared), present(c.LeftOut)
	writeJSON(w, http.StatusOK, c)
}

// ClusterCheck reads the report of the operator that leads.
func (v *ClusterViews) ClusterCheck(ctx context.Context) (c localapi.ClusterCheck, err error) {
	if v.Config.KVDB.Type == contivconf.KVDBBolt {
		c.State = localapi.ClusterCheckNotApplicable
		c.Problem = "the cluster store is embedded, so there is no other node: cadastre check compares this one"
		return c, nil
	}
	x, found, err := v.Store.Get(ctx, kv.ClusterCheckKey)
	if err != nil {
		return c, &localapi.StatusError{
			Status: http.StatusServiceUnavailable,
			Err:    fmt.Errorf("read the comparison of the cluster's objects from the cluster store: %w", err),
		}
	}
	if !found {
		return localapi.NoClusterCheck(), nil
	}
	m := &kv.ClusterCheck{}
	if err := proto.Unmarshal(x.Value, m); err != nil {
		return c, fmt.Errorf("read the value of %s in the cluster store: %w", kv.ClusterCheckKey, err)
	}
	return localapi.ClusterCheckOf(m, v.Now()), nil
}
