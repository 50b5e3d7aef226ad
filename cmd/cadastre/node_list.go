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

// nodeCmd returns the commands about nodes.
func (a *app) nodeCmd() *cobra.Command {
	return group(
		"node",
		"Show the nodes of the cluster, release the IDs of those that are gone",
		a.nodeListCmd(),
		a.nodeReleaseCmd(),
	)
}

func (a *app) nodeListCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List which node has which ID, addresses and pod subnets",
		Long: `list shows which node has which ID, addresses and pod subnets. In a terminal the bar
of a node shows the leases of its last report, and the addresses that pods can have. Of
a node with IPv4 and IPv6 it shows the fuller family.`,
		Example: `  cadastre node list
  cadastre node list -o wide`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	b, l := a.barsFor(cmd), listingFor(cmd)
	cmd.RunE = a.verb(func(ctx context.Context, _ []string) error {
		return a.list(ctx, l, func(print bool) (columns.Rows, error) { return a.nodes(ctx, b, l, print) })
	})
	return cmd
}

// nodes reads the nodes, prints them if it should, and returns their rows.
func (a *app) nodes(ctx context.Context, b *bars, l *listing, print bool) (columns.Rows, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	nodes := []localapi.Node{}
	if err := a.client().get(ctx, localapi.PathNodes, &nodes); err != nil {
		return nil, fmt.Errorf("node list: %w", err)
	}
	rows := a.nodeRows(nodes, a.output == formatWide, b)
	switch {
	case !print:
		return rows, nil
	case len(nodes) == 0 && a.forPeople():
		return rows, a.print(nodes, func(bool) string { return "no nodes\n" })
	}
	return rows, a.printTable(nodes, l, rows)
}

func (a *app) nodeRows(nodes []localapi.Node, wide bool, b *bars) columns.Rows {
	head := []string{"ID", "NAME", "STATE", "ADDRESSES", "PODS", "SEEN"}
	drawn := a.draws(b)
	if drawn {
		head = append(head, "USED")
	}
	if wide {
		head = append(head, "GENERATION", "INSTANCE", "POOLS")
	}
	g := columns.Rows{head}
	for _, n := range nodes {
		row := []string{
			fmt.Sprint(n.ID),
			n.Name,
			nodeState(n),
			strings.Join(n.Addresses, ","),
			strings.Join(n.PodCIDRs, ","),
			a.seen(n),
		}
		if drawn {
			row = append(row, b.text(usageOfNode(n)))
		}
		if wide {
			row = append(row, fmt.Sprint(n.Generation), n.Instance, poolUses(n.Pools))
		}
		g = append(g, row)
	}
	return g
}

func nodeState(n localapi.Node) string {
	switch {
	case n.Problem != "":
		return "unreadable"
	case n.Released:
		return "released"
	case n.Self:
		return "self"
	}
	return "held"
}

// seen returns the time since a node was last alive.
func (a *app) seen(n localapi.Node) string {
	if n.LastSeen == nil {
		return "never"
	}
	return age(a.now(), *n.LastSeen)
}

// poolUses returns "default@3: 12 leases, blue@1: closed, 2 leases".
func poolUses(uses []localapi.PoolUse) string {
	all := make([]string, len(uses))
	for i, u := range uses {
		all[i] = fmt.Sprintf("%s@%d: ", u.Pool, u.Generation)
		if !u.Open {
			all[i] += "closed, "
		}
		all[i] += plural(u.Leases, "lease", "leases")
	}
	return strings.Join(all, "; ")
}
