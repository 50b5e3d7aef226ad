// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
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
	_ = writeJSON(w, http.StatusOK, c)
}

// startOperator is the way to get comparisons.
const startOperator = `start cadastre-operator with its controller audit, which needs --kvdb-endpoints or --kvdb-type=kubernetes ` +
	`(in Kubernetes: kubectl -n cadastre-system rollout status deployment/cadastre-operator)`

// Intervals after which a report is outdated, and the least time for that.
const (
	outdatedAfter = 3
	outdatedLeast = 30 * time.Second
	outdatedMost  = time.Hour // whatever the report says
)

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
		c.State, c.Problem = localapi.ClusterCheckNone, "no operator has compared the objects of the cluster: "+startOperator
		return c, nil
	}
	m := &kv.ClusterCheck{}
	if err := proto.Unmarshal(x.Value, m); err != nil {
		return c, fmt.Errorf("read the value of %s in the cluster store: %w", kv.ClusterCheckKey, err)
	}
	c = clusterCheckOf(m)
	limit := min(max(outdatedAfter*min(time.Duration(m.Every), outdatedMost), outdatedLeast), outdatedMost)
	switch age := v.Now().Sub(c.At); {
	case age < -limit: // it would count as current for as long after the operator has ended
		c.State = localapi.ClusterCheckOutdated
		c.Problem = fmt.Sprintf(
			"the last comparison, by operator %s, is from %s, which is %s ahead of this node's clock: set the clocks",
			m.Instance,
			c.At.Format(time.RFC3339),
			-age.Round(time.Second),
		)
	case age > limit:
		c.State = localapi.ClusterCheckOutdated
		c.Problem = fmt.Sprintf(
			"the last comparison is from %s, by operator %s: %s",
			c.At.Format(time.RFC3339),
			m.Instance,
			startOperator,
		)
	}
	return c, nil
}

// clusterCheckOf returns a report as the API shows it.
func clusterCheckOf(m *kv.ClusterCheck) localapi.ClusterCheck {
	c := localapi.ClusterCheck{
		State:    localapi.ClusterCheckCurrent,
		Instance: m.Instance,
		At:       time.Unix(0, m.At).UTC(),
		Total:    max(m.Total, uint64(len(m.Findings))),
		Compared: m.Compared,
		LeftOut:  m.LeftOut,
	}
	for _, f := range m.Findings {
		c.Findings = append(c.Findings, clusterFindingOf(f))
	}
	return c
}

func clusterFindingOf(f *kv.ClusterFinding) localapi.ClusterFinding {
	prefix, _ := netip.ParsePrefix(f.Prefix) // the zero value if it has none
	address, _ := netip.ParseAddr(f.Address)
	found := localapi.Finding{
		Number: f.Number,
		Name:   f.Name,
		Subject: localapi.Subject{
			Node:    f.Node,
			Pool:    f.Pool,
			Addr:    address,
			Prefix:  prefix,
			Network: f.Network,
			Object:  f.Object,
		},
		Text:      f.Text,
		Evidence:  []localapi.Evidence{},
		Fix:       f.Fix,
		Facts:     []string{},
		Signature: f.Signature,
	}
	for _, text := range f.Evidence {
		found.Evidence = append(found.Evidence, localapi.Evidence{Witness: string(witness.Cluster), Text: text})
	}
	return localapi.ClusterFinding{Finding: found, Since: time.Unix(0, f.Since).UTC()}
}
