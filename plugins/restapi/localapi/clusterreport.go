// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package localapi

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/cadastre/cadastre/api/kv"
)

// startOperator is the way to get comparisons.
const startOperator = `start cadastre-operator with its controller audit, which needs --kvdb-endpoints or --kvdb-type=kubernetes ` +
	`(in Kubernetes: kubectl -n cadastre-system rollout status deployment/cadastre-operator)`

// Intervals after which a report is outdated, and the least time for that.
const (
	outdatedAfter = 3
	outdatedLeast = 30 * time.Second
	outdatedMost  = time.Hour // whatever the report says
)

// NoClusterCheck returns what is shown if no operator has reported.
func NoClusterCheck() ClusterCheck {
	return ClusterCheck{
		State:   ClusterCheckNone,
		Problem: "no operator has compared the objects of the cluster: " + startOperator,
	}
}

// ClusterCheckOf returns a report as the API shows it at a time. One that is too old, or from a
// clock that is ahead, is outdated.
func ClusterCheckOf(m *kv.ClusterCheck, now time.Time) ClusterCheck {
	c := ClusterCheck{
		State:    ClusterCheckCurrent,
		Instance: m.Instance,
		At:       time.Unix(0, m.At).UTC(),
		Total:    max(m.Total, uint64(len(m.Findings))),
		Compared: m.Compared,
		LeftOut:  m.LeftOut,
	}
	for _, f := range m.Findings {
		c.Findings = append(c.Findings, clusterFindingOf(f))
	}
	limit := min(max(outdatedAfter*min(time.Duration(m.Every), outdatedMost), outdatedLeast), outdatedMost)
	switch age := now.Sub(c.At); {
	case age < -limit: // it would count as current for as long after the operator has ended
		c.State = ClusterCheckOutdated
		c.Problem = fmt.Sprintf(
			"the last comparison, by operator %s, is from %s, which is %s ahead of this node's clock: set the clocks",
			m.Instance,
			c.At.Format(time.RFC3339),
			-age.Round(time.Second),
		)
	case age > limit:
		c.State = ClusterCheckOutdated
		c.Problem = fmt.Sprintf(
			"the last comparison is from %s, by operator %s: %s",
			c.At.Format(time.RFC3339),
			m.Instance,
			startOperator,
		)
	}
	return c
}

func clusterFindingOf(f *kv.ClusterFinding) ClusterFinding {
	prefix, _ := netip.ParsePrefix(f.Prefix) // the zero value if it has none
	address, _ := netip.ParseAddr(f.Address)
	found := Finding{
		Number: f.Number,
		Name:   f.Name,
		Subject: Subject{
			Node:    f.Node,
			Pool:    f.Pool,
			Addr:    address,
			Prefix:  prefix,
			Network: f.Network,
			Object:  f.Object,
		},
		Text:      f.Text,
		Evidence:  []Evidence{},
		Fix:       f.Fix,
		Facts:     []string{},
		Signature: f.Signature,
	}
	for _, text := range f.Evidence {
		found.Evidence = append(found.Evidence, Evidence{Witness: "cluster", Text: text})
	}
	return ClusterFinding{Finding: found, Since: time.Unix(0, f.Since).UTC()}
}
