// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// reclaimCmd groups the verbs for leases whose owners are gone.
func (a *app) reclaimCmd() *cobra.Command {
	return group("reclaim", "Show and undo the end of leases whose owners are gone",
		a.reclaimListCmd(), a.reclaimUndoCmd(), a.reclaimRunCmd())
}

const reclaimListHelp = `list shows the leases whose owners are gone, with the evidence, and until when the
end of each can be undone. Below are those that have ended since the agent started.`

func (a *app) reclaimListCmd() *cobra.Command {
	namespace := ""
	cmd := &cobra.Command{
		Use:               "list",
		Short:             "List the reclaims that can be undone, and those that have ended",
		Long:              reclaimListHelp,
		Example:           `  cadastre reclaim list`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			ctx, cancel := context.WithTimeout(ctx, readTimeout)
			defer cancel()
			if err := checkNamespace(namespace); err != nil {
				return err
			}
			var all localapi.Reclaims
			if err := a.client().get(ctx, localapi.PathReclaims, &all); err != nil {
				return fmt.Errorf("reclaim list: %w", err)
			}
			all.Pending, all.Ended = ofNamespace(all.Pending, namespace), ofNamespace(all.Ended, namespace)
			return a.print(all, func(bool) string { return reclaimsText(all, a.now()) })
		}),
	}
	addNamespace(cmd, &namespace, "only those of pods in this `NAMESPACE`")
	return cmd
}

// ofNamespace returns the reclaims of pods of a namespace.
func ofNamespace(all []localapi.Reclaim, namespace string) []localapi.Reclaim {
	return slices.DeleteFunc(all, func(r localapi.Reclaim) bool { return !inNamespace(r.Pod, namespace) })
}

func reclaimsText(all localapi.Reclaims, now time.Time) string {
	if len(all.Pending)+len(all.Ended) == 0 {
		return noReclaims(all.Enabled)
	}
	g := columns.Rows{{"STATE", "ADDRESS", "POOL", "OWNER", "AGE", "UNTIL", "EVIDENCE"}}
	for _, r := range append(all.Pending, all.Ended...) {
		until := ""
		if !r.Until.IsZero() {
			until = r.Until.In(now.Location()).Format(time.TimeOnly)
		}
		owner := r.Pod
		if owner == "" {
			owner = r.Network + "/" + r.ContainerID + "/" + r.IfName
		}
		g.Add(r.State, addressesText(r.IP), r.Pool, owner, age(now, r.At), until, r.Reason)
	}
	return g.String()
}

func noReclaims(enabled bool) string {
	if !enabled {
		return "no reclaims: cadastre.reclaim.enabled is false\n"
	}
	return "no reclaims\n"
}

func addressesText(all []netip.Addr) string {
	var parts []string
	for _, ip := range all {
		parts = append(parts, ip.String())
	}
	return strings.Join(parts, ",")
}

const reclaimUndoHelp = `undo makes a lease held again whose reclaim is pending. The agent does not reclaim it
again until a witness has shown it in use, or until the agent is started again. Release
it by hand with "cadastre release" if it is to end after all.`

func (a *app) reclaimUndoCmd() *cobra.Command {
	var pool string
	cmd := &cobra.Command{
		Use:   "undo ADDRESS",
		Short: "Undo the pending reclaim of an address",
		Long:  reclaimUndoHelp,
		Example: `  cadastre reclaim undo 10.1.5.7
  cadastre reclaim undo 10.1.5.7 --pool blue`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("%s takes one ADDRESS, but was given %d arguments", cmd.Name(), len(args))
			}
			if _, err := netip.ParseAddr(args[0]); err != nil {
				return fmt.Errorf("%q is not an IP address", args[0])
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			ctx, cancel := context.WithTimeout(ctx, workTimeout)
			defer cancel()
			var done localapi.ReclaimUndone
			req := localapi.ReclaimUndo{IP: args[0], Pool: pool}
			if err := a.client().post(ctx, localapi.PathReclaimUndo, req, &done); err != nil {
				return fmt.Errorf("reclaim undo: %w", err)
			}
			return a.print(done, func(bool) string { return undoneText(done) })
		}),
	}
	cmd.Flags().StringVar(&pool, "pool", "", "only in this pool")
	return cmd
}

func undoneText(done localapi.ReclaimUndone) string {
	var b strings.Builder
	for _, l := range done.Leases {
		owner := l.PodNamespace + "/" + l.PodName
		if l.PodName == "" {
			owner = l.Network + "/" + l.ContainerID + "/" + l.IfName
		}
		fmt.Fprintf(&b, "%s of pool %s is held again by %s\n", l.IP, columns.Clean(l.Pool), columns.Clean(owner))
	}
	return b.String()
}

const reclaimRunHelp = `run reads the witnesses now and prints what the agent would do with each lease that is
not in use, and what it waits for. It changes nothing: the agent itself runs a round in
each interval (cadastre.witnesses.interval).`

func (a *app) reclaimRunCmd() *cobra.Command {
	var dryRun, all bool
	cmd := &cobra.Command{
		Use:   "run --dry-run",
		Short: "Show what the next round would do, and what it waits for",
		Long:  reclaimRunHelp,
		Example: `  cadastre reclaim run --dry-run
  cadastre reclaim run --dry-run --all`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if !dryRun {
				return &exitError{
					exitUsage,
					errors.New("reclaim run: give --dry-run: the agent runs the rounds itself"),
				}
			}
			ctx, cancel := context.WithTimeout(ctx, workTimeout)
			defer cancel()
			var run localapi.ReclaimRun
			p := a.progress(ctx, "reclaim run", agentStep())
			err := a.client().post(ctx, localapi.PathReclaimRun, nil, &run)
			if p.end(); err != nil {
				return fmt.Errorf("reclaim run: %w", err)
			}
			return a.print(run, func(wide bool) string { return a.runText(run, all || wide) })
		}),
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show it")
	cmd.Flags().BoolVar(&all, "all", false, "also the leases that are in use")
	return cmd
}

func (a *app) runText(run localapi.ReclaimRun, all bool) string {
	var witnesses columns.Rows
	for _, w := range run.Witnesses {
		witnesses.Add("witness", witnessText(w, a.now(), false))
	}
	g := columns.Rows{{"ADDRESS", "POOL", "OWNER", "NEXT", "WHY"}}
	used := 0
	for _, s := range run.Steps {
		next, why := s.Action, firstText(s.Reason, s.Waits)
		if s.Action == "keep" && s.Waits != "" {
			next = "wait"
		}
		if s.Action == "keep" && s.Conclusion == "alive" {
			used++
			if !all {
				continue
			}
			why = "in use: " + strings.Join(s.Evidence, "; ")
		}
		g.Add(addressesText(s.IP), s.Pool, firstText(s.Pod, s.Key), next, why)
	}
	text := witnesses.String()
	if !run.Enabled {
		text += "nothing is reclaimed: cadastre.reclaim.enabled is false\n"
	}
	if len(g) > 1 {
		text += g.String()
	}
	return text + fmt.Sprintf("%s in use\n", plural(used, "claim is", "claims are"))
}

func firstText(texts ...string) string {
	for _, s := range texts {
		if s != "" {
			return s
		}
	}
	return ""
}

// witnessText describes a witness in one line.
func witnessText(w localapi.Witness, now time.Time, wide bool) string {
	text := w.Name + " is " + w.State
	if w.State != "present" {
		text += ": " + w.Reason
		if !w.Read.IsZero() {
			text += ", last read " + age(now, w.Read) + " ago"
		}
		return text
	}
	text += fmt.Sprintf(": %s, %s, read %s ago", w.Source, objectsText(w), age(now, w.Read))
	if w.Limits != "" && (wide || w.Name == "kernel") {
		text += "; " + w.Limits
	}
	return text
}

// objectsText counts what a witness has shown.
func objectsText(w localapi.Witness) string {
	switch w.Name {
	case "kernel":
		return plural(w.Objects, "network namespace", "network namespaces")
	case "runtime":
		return plural(w.Objects, "sandbox", "sandboxes")
	case "engine":
		return plural(w.Objects, "endpoint", "endpoints")
	}
	return plural(w.Objects, "pod", "pods")
}
