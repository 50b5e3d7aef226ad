// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// poolCmd returns the commands about pools.
func (a *app) poolCmd() *cobra.Command {
	return group("pool", "Show the pools of the cluster", a.poolListCmd())
}

func (a *app) poolListCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the pools of the cluster, and what this node has of them",
		Long: `list shows the pools of the cluster, and what this node has of them. In a terminal the
bar of a pool shows the used addresses of this node's active blocks, and their number:
of IPv4 or IPv6, whichever is fuller.`,
		Example: `  cadastre pool list
  cadastre pool list -o wide`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	b := a.barsFor(cmd)
	cmd.RunE = a.verb(func(ctx context.Context, _ []string) error {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		pools := []localapi.Pool{}
		if err := a.client().get(ctx, localapi.PathPools, &pools); err != nil {
			return fmt.Errorf("pool list: %w", err)
		}
		return a.print(pools, func(wide bool) string { return a.poolsTable(pools, wide, b) })
	})
	return cmd
}

// poolsTable has a row for each pool; what it has of addresses is this node's.
func (a *app) poolsTable(pools []localapi.Pool, wide bool, b *bars) string {
	if len(pools) == 0 {
		return "no pools\n"
	}
	head := []string{"NAME", "NETWORK", "RANGES", "STATE", "HELD", "FREE"}
	drawn := a.draws(b)
	if drawn {
		head = append(head, "USED")
	}
	if wide {
		head = append(head, "GENERATION", "ORIGIN", "BLOCKS")
	}
	g := columns.Rows{head}
	problems := ""
	for _, p := range pools {
		var ranges, blocks []string
		for _, r := range p.Ranges {
			ranges = append(ranges, fmt.Sprintf("%s /%d", r.CIDR, r.OneNodePrefixLen))
		}
		held, free := 0, uint64(0)
		for _, b := range p.Blocks {
			held, free = held+b.Held, sum(free, b.Free)
			blocks = append(blocks, b.Block+" "+b.State)
		}
		row := []string{p.Name, p.Network, strings.Join(ranges, ", "), p.State, fmt.Sprint(held), fmt.Sprint(free)}
		if drawn {
			row = append(row, b.text(usageOf(p.Blocks)))
		}
		if wide {
			row = append(row, fmt.Sprint(p.Generation), p.Origin, strings.Join(blocks, ", "))
		}
		g = append(g, row)
		if p.Problem != "" {
			problems += columns.Clean(p.Name+": "+p.Problem) + "\n"
		}
	}
	return g.String() + problems
}

// sum returns x+y, or the largest number where that is more: a /64 is as large.
func sum(x, y uint64) uint64 {
	if x+y < x {
		return ^uint64(0)
	}
	return x + y
}
