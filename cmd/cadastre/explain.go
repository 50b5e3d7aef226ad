// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/explain"
	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func (a *app) explainCmd() *cobra.Command {
	cmd := group("explain", "Tell why a pod has no address, or which owner an address had",
		a.explainPodCmd(), a.explainContainerCmd(), a.explainAddressCmd(), a.explainNodeCmd(), a.explainPoolCmd())
	cmd.Long = `explain prints the decisions that led to an address, or to none: the pool and its
blocks with the reason why each was not used, what happened when, and a command that
helps. It answers from the state of the node, the events of this run of the agent, and
the history in the node's database, which outlives restarts and releases.

"explain NAME" finds out by itself whether NAME is an address, a pod, a pool or a node.

"kubectl cadastre explain" asks the agent of the pod's node.`
	cmd.Example = `  cadastre explain pod default/web-0
  cadastre explain 10.1.5.7
  cadastre explain address 10.1.5.7 --at 14:05
  kubectl cadastre explain pod default/web-0`
	cmd.PersistentFlags().
		String("zone", "", "print times with this `OFFSET` from UTC, such as +02:00 (default: this machine's)")
	completeValues(cmd, "zone")
	a.guessSubject(cmd)
	return cmd
}

// explainVerb returns a verb below explain. subject checks the argument and names what
// is explained; of are the names that the shell completes.
func (a *app) explainVerb(
	use, short string,
	of func(known) []string,
	subject func(arg string) (url.Values, error),
) *cobra.Command {
	cmd := &cobra.Command{
		Use:               use,
		Short:             short,
		Args:              oneSubject,
		ValidArgsFunction: a.completeKnown(of),
	}
	cmd.RunE = a.verb(func(ctx context.Context, args []string) error {
		arg := ""
		if len(args) > 0 {
			arg = args[0]
		}
		query, err := subject(arg)
		if err != nil {
			return err
		}
		zone, _ := cmd.Flags().GetString("zone") // the flag exists
		if zone == "" {
			zone = a.now().Format("-07:00")
		}
		query.Set("zone", zone)
		return a.explain(ctx, query)
	})
	return cmd
}

// oneSubject wants one argument that is not empty.
func oneSubject(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s takes one name, but was given %d arguments", cmd.CommandPath(), len(args))
	}
	if args[0] == "" {
		return fmt.Errorf("%s: the name is empty", cmd.CommandPath())
	}
	return nil
}

func (a *app) explainPodCmd() *cobra.Command {
	namespace := ""
	cmd := a.explainVerb("pod NAMESPACE/NAME", "Tell which addresses a pod has, or why it has none", podNames,
		func(arg string) (url.Values, error) {
			pod, err := podToExplain(arg, namespace)
			return url.Values{"pod": {pod}}, err
		})
	addNamespace(cmd, &namespace, "the `NAMESPACE` of the pod, whose name is enough then")
	cmd.Example = `  cadastre explain pod default/web-0
  kubectl cadastre explain pod -n default web-0`
	return cmd
}

func podToExplain(arg, namespace string) (string, error) {
	pod, err := fullPod(arg, namespace)
	if err != nil && namespace == "" {
		err = usagef("explain pod: %q is not a pod: write NAMESPACE/NAME, such as default/web", arg)
	}
	return pod, err
}

func (a *app) explainContainerCmd() *cobra.Command {
	return a.explainVerb("container ID", "Tell which addresses a container has, or why it has none", containerNames,
		func(arg string) (url.Values, error) { return url.Values{"container": {arg}}, nil })
}

func (a *app) explainAddressCmd() *cobra.Command {
	var at string
	cmd := a.explainVerb("address ADDRESS", "Tell which owner an address has, or had at a time", leasedAddresses,
		func(arg string) (url.Values, error) {
			addr, err := netip.ParseAddr(arg)
			if err != nil || addr.Zone() != "" {
				return nil, usagef("explain address: %q is not an address: write one such as 10.1.5.2", arg)
			}
			query := url.Values{"address": {addr.Unmap().String()}}
			if at == "" {
				return query, nil
			}
			moment, err := parseMoment(at, a.now())
			if err != nil {
				return nil, err
			}
			query.Set("at", moment.Format(time.RFC3339Nano))
			return query, nil
		})
	cmd.Flags().StringVar(&at, "at", "", "the owner at this `TIME`: 14:05, 14:05:30, \"2006-01-02 15:04\" or RFC 3339")
	completeValues(cmd, "at")
	return cmd
}

func (a *app) explainNodeCmd() *cobra.Command {
	cmd := a.explainVerb("node [NAME]", "Tell whether this node gives addresses to pods", nodeNames,
		func(arg string) (url.Values, error) { return url.Values{"node": {arg}}, nil })
	cmd.Args = cobra.MaximumNArgs(1)
	return cmd
}

func (a *app) explainPoolCmd() *cobra.Command {
	return a.explainVerb("pool NAME", "Tell whether a pool has addresses, and why not", poolNames,
		func(arg string) (url.Values, error) { return url.Values{"pool": {arg}}, nil })
}

// parseMoment reads a time as people write it. A time of day is the last one that has
// passed.
func parseMoment(s string, now time.Time) (time.Time, error) {
	for _, layout := range []string{"15:04", time.TimeOnly} {
		t, err := time.Parse(layout, s)
		if err != nil {
			continue
		}
		at := time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
		if at.After(now) {
			at = at.AddDate(0, 0, -1)
		}
		return at, nil
	}
	for _, layout := range []string{"2006-01-02 15:04", time.DateTime, "2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, usagef("--at: %q is not a time: write 14:05, \"2006-01-02 15:04\" or 2006-01-02T15:04:05Z", s)
	}
	return t, nil
}

func (a *app) explain(ctx context.Context, query url.Values) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var t explain.Tree
	if err := a.client().get(ctx, localapi.PathExplain+"?"+query.Encode(), &t); err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	if err := a.print(t, func(bool) string { return cleanText(t.Text()) }); err != nil {
		return err
	}
	if t.Unknown {
		return &exitError{code: exitFailed}
	}
	return nil
}

// cleanText cleans a text and keeps its lines.
func cleanText(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = columns.Clean(line)
	}
	return strings.Join(lines, "\n")
}
