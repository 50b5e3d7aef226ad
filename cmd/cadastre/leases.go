// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// leaseFilter holds the flags that select leases; an empty field selects all.
type leaseFilter struct{ pool, pod, namespace, state string }

func leaseStates() []string { return []string{"pending", "held", "cooling", "quarantined"} }

func (f *leaseFilter) check() (err error) {
	if f.state != "" && !slices.Contains(leaseStates(), f.state) {
		return usagef("--state: %q is not a state: write one of %s", f.state, strings.Join(leaseStates(), ", "))
	}
	if f.pod != "" {
		f.pod, err = fullPod(f.pod, f.namespace)
		return err
	}
	return checkNamespace(f.namespace)
}

func checkPod(pod string) error {
	namespace, name, ok := strings.Cut(pod, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return usagef("--pod: %q is not a pod: write NAMESPACE/NAME, such as default/web", pod)
	}
	return nil
}

func (f leaseFilter) matches(l localapi.Lease) bool {
	return (f.pool == "" || l.Pool == f.pool) && (f.pod == "" || podOf(l) == f.pod) &&
		inNamespace(podOf(l), f.namespace) && (f.state == "" || l.State == f.state)
}

func podOf(l localapi.Lease) string {
	if l.PodName == "" {
		return ""
	}
	return l.PodNamespace + "/" + l.PodName
}

func (a *app) leasesCmd() *cobra.Command {
	var f leaseFilter
	var l *listing
	cmd := &cobra.Command{
		Use:   "leases",
		Short: "List who holds which address",
		Example: `  cadastre leases
  cadastre leases --pod default/web -o wide
  cadastre leases -n kube-system -o name
  cadastre leases -o jsonpath='{range [*]}{.ip} {.podName}{"\n"}{end}'
  cadastre leases --state quarantined -o json`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			return a.list(ctx, l, func(print bool) (columns.Rows, error) { return a.leases(ctx, f, l, print) })
		}),
	}
	cmd.Flags().StringVar(&f.pool, "pool", "", "only those of this `POOL`")
	cmd.Flags().StringVar(&f.pod, "pod", "", "only those of this pod, `NAMESPACE/NAME`")
	cmd.Flags().StringVar(&f.state, "state", "", "only those in this `STATE`: "+strings.Join(leaseStates(), ", "))
	addNamespace(cmd, &f.namespace, "only those of pods in this `NAMESPACE`")
	completeValues(cmd, "state", leaseStates()...)
	a.completeFlag(cmd, "pool", poolNames)
	a.completeFlag(cmd, "pod", podNames)
	l = listingFor(cmd)
	return cmd
}

// leases reads the leases, prints them if it should, and returns their rows.
func (a *app) leases(ctx context.Context, f leaseFilter, l *listing, print bool) (columns.Rows, error) {
	found, err := a.getLeases(ctx, f.matches)
	if err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	if f.pool != "" && len(found) == 0 {
		if err := a.knownPool(ctx, f.pool); err != nil {
			return nil, fmt.Errorf("leases: %w", err)
		}
	}
	shown := found
	if a.forPeople() && a.output != formatWide && slices.ContainsFunc(found, ofVPP) && a.withoutVPP(ctx) {
		shown = slices.DeleteFunc(slices.Clone(found), ofVPP)
	}
	rows := a.leaseRows(shown, a.output == formatWide)
	switch {
	case !print:
	case a.forPeople() && len(shown) == 0:
		a.note("no leases")
	default:
		err = a.printTable(found, l, rows)
	}
	return rows, err
}

// ofVPP reports whether only VPP uses the address of a lease: the node keeps it all the same.
func ofVPP(l localapi.Lease) bool {
	return l.Purpose == "infra" && (l.Pool == ipam.HostPool || l.IfName == ipam.LoopbackName)
}

// withoutVPP reports whether the agent makes the pods' network without VPP.
func (a *app) withoutVPP(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var s localapi.Status
	return a.client().get(ctx, localapi.PathStatus, &s) == nil && s.Dataplane == string(contivconf.DataplaneLinux)
}

// knownPool fails for a name that --pool cannot select: a lease is of the network of
// its pool in the cluster, which may have another name.
func (a *app) knownPool(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var s localapi.Status
	if err := a.client().get(ctx, localapi.PathStatus, &s); err != nil {
		return err
	}
	var known []string
	for _, b := range s.Blocks {
		known = append(known, b.Pool)
	}
	var pools []localapi.Pool
	var refused *refusedError
	// Docker's plugin has no such pools
	if err := a.client().get(ctx, localapi.PathPools, &pools); err != nil && !errors.As(err, &refused) {
		return err
	}
	for _, p := range pools {
		known = append(known, p.Network)
	}
	if slices.Contains(known, name) {
		return nil
	}
	for _, p := range pools {
		if p.Name == name {
			return fmt.Errorf(
				"--pool: the leases of pool %s are in pool %s, which is named after its network: write --pool %[2]s",
				name,
				p.Network,
			)
		}
	}
	slices.Sort(known)
	return fmt.Errorf(
		"--pool: this node has no pool %q: its pools are %s",
		name,
		cmp.Or(strings.Join(slices.Compact(known), ", "), "none"),
	)
}

// getLeases returns the leases for which keep is true; never nil.
func (a *app) getLeases(ctx context.Context, keep func(localapi.Lease) bool) ([]localapi.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var all []localapi.Lease
	if err := a.client().get(ctx, localapi.PathLeases, &all); err != nil {
		return nil, err
	}
	found := []localapi.Lease{}
	for _, l := range all {
		if keep(l) {
			found = append(found, l)
		}
	}
	return found, nil
}

func (a *app) leasesTable(leases []localapi.Lease, wide bool) string {
	return a.leaseRows(leases, wide).String()
}

func (a *app) leaseRows(leases []localapi.Lease, wide bool) columns.Rows {
	now := a.now()
	head := []string{"ADDRESS", "STATE", "PURPOSE", "POOL", "POD", "NETWORK", "CONTAINER", "IF", "AGE"}
	if wide {
		head = append(head, "SINCE", "BLOCK", "UID", "REASON")
	}
	g := columns.Rows{head}
	for _, l := range leases {
		row := []string{
			l.IP,
			l.State,
			l.Purpose,
			l.Pool,
			podOf(l),
			l.Network,
			container(l, wide),
			l.IfName,
			age(now, l.Since),
		}
		if wide {
			row = append(row, since(l, now), l.Block, l.PodUID, l.Reason)
		}
		g = append(g, row)
	}
	return g
}

// container returns the ID as Docker shortens it.
func container(l localapi.Lease, whole bool) string {
	const short = 12
	if !whole && len(l.ContainerID) > short {
		return l.ContainerID[:short]
	}
	return l.ContainerID
}

func since(l localapi.Lease, now time.Time) string {
	if l.Since.IsZero() {
		return ""
	}
	return l.Since.In(now.Location()).Format(time.RFC3339)
}
