// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// resyncReport holds the output of resync.
type resyncReport struct {
	Done    bool    `json:"done"`
	Seconds float64 `json:"seconds"`
}

func (a *app) resyncCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "resync",
		Short: "Compare what the agent wants with what exists, and repair it",
		Long: `resync lets the agent compare what it wants with what exists, and repair the difference,
and waits until it has. No lease is lost by it.`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			ctx, cancel := context.WithTimeout(ctx, workTimeout)
			defer cancel()
			began := a.now()
			p := a.progress(ctx, "resync", agentStep())
			err := a.client().post(ctx, localapi.PathResync, nil, nil)
			if p.end(); err != nil {
				return fmt.Errorf("resync: %w", err)
			}
			d := a.now().Sub(began)
			return a.print(
				resyncReport{true, d.Seconds()},
				func(bool) string { return "resync done in " + took(d) + "\n" },
			)
		}),
	}
}
