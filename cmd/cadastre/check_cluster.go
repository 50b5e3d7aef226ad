// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// clusterFlag selects the comparison of the cluster's objects.
const clusterFlag = "cluster"

// checkCluster prints the operator's last comparison of the cluster's objects.
func (a *app) checkCluster(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var c localapi.ClusterCheck
	if err := a.client().get(ctx, localapi.PathClusterCheck, &c); err != nil {
		return fmt.Errorf("check --cluster: %w", err)
	}
	if err := a.print(c, func(bool) string { return a.clusterCheckText(c) }); err != nil {
		return err
	}
	switch {
	case c.State == localapi.ClusterCheckNotApplicable:
		return nil
	case c.State != localapi.ClusterCheckCurrent:
		return &exitError{code: exitCannotTell}
	case c.Total > 0:
		return &exitError{code: exitFindings}
	}
	return nil
}

func (a *app) clusterCheckText(c localapi.ClusterCheck) string {
	var b strings.Builder
	switch c.State {
	case localapi.ClusterCheckCurrent, localapi.ClusterCheckOutdated:
	case localapi.ClusterCheckNotApplicable:
		return "not applicable: " + columns.Clean(c.Problem) + "\n"
	default:
		return "cannot tell: " + columns.Clean(c.Problem) + "\n"
	}
	for _, f := range c.Findings {
		fmt.Fprintf(&b, "%s     since: %s\n", findingText(f.Finding), age(a.now(), f.Since))
	}
	if more := c.Total - uint64(len(c.Findings)); more > 0 {
		fmt.Fprintf(&b, "%d further findings, which are too many to be listed\n", more)
	}
	for _, what := range c.LeftOut {
		fmt.Fprintf(&b, "not compared: %s\n", columns.Clean(what))
	}
	verdict := "clean"
	switch {
	case c.State == localapi.ClusterCheckOutdated:
		verdict = "cannot tell: " + columns.Clean(
			c.Problem,
		) + "\nat that time " + plural(
			int(c.Total),
			"finding",
			"findings",
		)
	case c.Total > 0:
		verdict = plural(int(c.Total), "finding", "findings")
	}
	fmt.Fprintf(&b, "%s: %s compared %s ago by operator %s\n",
		verdict, columns.Clean(strings.Join(c.Compared, ", ")), age(a.now(), c.At), columns.Clean(c.Instance))
	return b.String()
}
