// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/explain"
)

// habits returns what people type from habit with other tools, under those names. The help
// does not list it: each has a name of its own.
func (a *app) habits() []*cobra.Command {
	named := func(cmd *cobra.Command, use string, aliases ...string) *cobra.Command {
		cmd.Use, cmd.Aliases, cmd.Hidden = use, aliases, true
		return cmd
	}
	get := group("get", "List leases, pools, nodes or events, as kubectl would",
		named(a.leasesCmd(), "leases", "lease", "addresses", "ips"),
		named(a.poolListCmd(), "pools", "pool"),
		named(a.nodeListCmd(), "nodes", "node"),
		named(a.eventsCmd(), "events"),
	)
	get.Hidden = true
	return []*cobra.Command{
		get,
		named(a.leasesCmd(), "lease"),
		named(a.poolListCmd(), "pools"),
		named(a.nodeListCmd(), "nodes"),
	}
}

// guessSubject has "explain NAME" find out what NAME is, and calls that verb.
func (a *app) guessSubject(group *cobra.Command) {
	group.Use = "explain [NAME]"
	group.Args = cobra.MaximumNArgs(1)
	group.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		kind, name, err := a.kindOf(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		for _, verb := range cmd.Commands() {
			if verb.Name() == kind {
				verb.SetContext(cmd.Context())
				_ = verb.InheritedFlags() // the flags of the group are those of the verb
				return verb.RunE(verb, []string{name})
			}
		}
		return fmt.Errorf("explain: %q is a %s", args[0], kind)
	}
}

// kindOf returns what a name stands for, and the name as that verb of explain takes it.
func (a *app) kindOf(ctx context.Context, name string) (kind, full string, err error) {
	if _, err := netip.ParseAddr(name); err == nil {
		return "address", name, nil
	}
	if strings.Contains(name, "/") {
		return "pod", name, nil
	}
	if a.kubectl.plugin {
		return "", "", usagef("explain: %q may be a pod, a node or a pool: write explain pod -n NAMESPACE %[1]s", name)
	}
	a.begun = true
	k, err := a.known(ctx)
	if err != nil {
		return "", "", fmt.Errorf("explain: %w", err)
	}
	var pods []string
	for _, pod := range k.pods {
		if strings.HasSuffix(pod, "/"+name) {
			pods = append(pods, pod)
		}
	}
	switch {
	case len(pods) == 1:
		return "pod", pods[0], nil
	case len(pods) > 1:
		return "", "", usagef(
			"explain: %q is a pod of several namespaces: write one of %s",
			name,
			strings.Join(pods, ", "),
		)
	case slices.Contains(k.pools, name):
		return "pool", name, nil
	case slices.Contains(k.nodes, name):
		return "node", name, nil
	case slices.ContainsFunc(k.containers, func(id string) bool { return explain.NamesContainer(name, id) }):
		return "container", name, nil
	}
	return "", "", fmt.Errorf("explain: no pod, pool, node or container of this node is named %q: "+
		"write explain pod NAMESPACE/%s for a pod that has no address", name, name)
}
