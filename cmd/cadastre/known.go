// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// known holds the names that an agent knows.
type known struct{ pods, pools, nodes, addresses, containers []string }

// known asks the agent for what it knows. A program without pools or nodes, such as the
// Docker driver, has none.
func (a *app) known(ctx context.Context) (k known, err error) {
	leases, err := a.getLeases(ctx, func(localapi.Lease) bool { return true })
	if err != nil {
		return k, err
	}
	for _, l := range leases {
		k.addresses = append(k.addresses, l.IP)
		k.pools = append(k.pools, l.Pool)
		if pod := podOf(l); pod != "" {
			k.pods = append(k.pods, pod)
		}
		if l.ContainerID != "" && l.Purpose != "infra" {
			k.containers = append(k.containers, l.ContainerID)
		}
	}
	var pools []localapi.Pool
	if a.client().get(ctx, localapi.PathPools, &pools) == nil {
		for _, p := range pools {
			k.pools = append(k.pools, p.Name, p.Network)
		}
	}
	var nodes []localapi.Node
	if a.client().get(ctx, localapi.PathNodes, &nodes) == nil {
		for _, n := range nodes {
			k.nodes = append(k.nodes, n.Name)
		}
	}
	for _, names := range []*[]string{&k.pods, &k.pools, &k.nodes, &k.addresses, &k.containers} {
		*names = slices.DeleteFunc(*names, func(s string) bool { return s == "" })
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	return k, nil
}

// completeLimit is the longest time that Tab waits for the agent.
const completeLimit = 2 * time.Second

// completeKnown lets the shell complete the first argument of a verb with names that the
// agent knows.
func (a *app) completeKnown(of func(known) []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 || a.kubectl.plugin {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmp.Or(cmd.Context(), context.Background()), completeLimit)
		defer cancel()
		k, err := a.known(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found := slices.DeleteFunc(of(k), func(s string) bool { return !strings.HasPrefix(s, start) })
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag is completeKnown for the value of a flag.
func (a *app) completeFlag(cmd *cobra.Command, flag string, of func(known) []string) {
	complete := a.completeKnown(of)
	err := cmd.RegisterFlagCompletionFunc(flag,
		func(cmd *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
			return complete(cmd, nil, start)
		})
	if err != nil {
		panic(err) // the flag does not exist
	}
}

func podNames(k known) []string        { return k.pods }
func poolNames(k known) []string       { return k.pools }
func nodeNames(k known) []string       { return k.nodes }
func leasedAddresses(k known) []string { return k.addresses }
func containerNames(k known) []string  { return k.containers }
