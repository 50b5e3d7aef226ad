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
bar of a pool shows the leases of this node's active blocks, and the addresses that pods
can have: of IPv4 or IPv6, whichever is fuller.`,
		Example: `  cadastre pool list
  cadastre pool list -o wide`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	b, l := a.barsFor(cmd), listingFor(cmd)
	cmd.RunE = a.verb(func(ctx context.Context, _ []string) error {
		return a.list(ctx, l, func(print bool) (columns.Rows, error) { return a.pools(ctx, b, l, print) })
	})
	return cmd
}

// pools reads the pools, prints them if it should, and returns their rows.
func (a *app) pools(ctx context.Context, b *bars, l *listing, print bool) (columns.Rows, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pools := []localapi.Pool{}
	if err := a.client().get(ctx, localapi.PathPools, &pools); err != nil {
		return nil, fmt.Errorf("pool list: %w", err)
	}
	rows := a.poolRows(pools, a.output == formatWide, b)
	switch {
	case !print:
		return rows, nil
	case len(pools) == 0 && a.forPeople():
		return rows, a.print(pools, func(bool) string { return "no pools\n" })
	}
	if err := a.printTable(pools, l, rows); err != nil || !a.forPeople() {
		return rows, err
	}
	return rows, a.write([]byte(problemsOf(pools)))
}

// problemsOf has a line for each pool with a problem.
func problemsOf(pools []localapi.Pool) (text string) {
	for _, p := range pools {
		if p.Problem != "" {
			text += columns.Clean(p.Name+": "+p.Problem) + "\n"
		}
	}
	return text
}

// poolRows has a row for each pool; what it has of addresses is this node's.
func (a *app) poolRows(pools []localapi.Pool, wide bool, b *bars) columns.Rows {
	head := []string{"NAME", "NETWORK", "RANGES", "STATE", "HELD", "FREE"}
	drawn := a.draws(b)
	if drawn {
		head = append(head, "USED")
	}
	if wide {
		head = append(head, "GENERATION", "ORIGIN", "BLOCKS")
	}
	g := columns.Rows{head}
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
	}
	return g
}

// sum returns x+y, or the largest number where that is more: a /64 is as large.
func sum(x, y uint64) uint64 {
	if x+y < x {
		return ^uint64(0)
	}
	return x + y
}
