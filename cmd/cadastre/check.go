// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func (a *app) checkCmd() *cobra.Command {
	path, ledgerOnly, cluster := localapi.PathCheck, false, false
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare the ledger with its file, the kernel, the runtime, the engine and the cluster",
		Long: `check compares the agent's ledger with itself and its file, and with a fresh round of
the witnesses: the network namespaces of the kernel, the sandboxes of the container
runtime, the networks of the Docker engine, and the pods of the cluster. A difference
is a finding if two rounds show it. docs/findings.md explains each number.

With --ledger no witness is asked.

"clean" lists the witnesses that agree, and those that do not apply to this node. If a
witness is missing that the leases need, check cannot tell.

The exit code is 0 if there are no findings, 4 if there are, 5 if check cannot tell,
and 3 if no agent answers.

With --cluster it shows what the operator has found by comparing the objects of the
cluster with each other: blocks, claims, node IDs, NetResourceSets, pools, services and
Docker's subnets of all nodes. Each node's agent can show it.`,
		Example: `  cadastre check
  cadastre check --cluster
  cadastre check -o json > report.json && cadastre repair --from-report report.json`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if cluster {
				return cannotTell(a.checkCluster(ctx))
			}
			if ledgerOnly {
				path = localapi.PathCheckLedger
			}
			return cannotTell(a.check(ctx, path))
		}),
	}
	cmd.Flags().BoolVar(&ledgerOnly, "ledger", false, "compare the ledger with itself and its file only")
	cmd.Flags().BoolVar(&cluster, clusterFlag, false, "show the operator's comparison of the objects of the cluster")
	cmd.MarkFlagsMutuallyExclusive("ledger", clusterFlag)
	return cmd
}

// cannotTell gives errors without an exit code that of "cannot tell".
func cannotTell(err error) error {
	var coded *exitError
	if err == nil || errors.As(err, &coded) {
		return err
	}
	return &exitError{exitCannotTell, err}
}

func (a *app) check(ctx context.Context, path string) error {
	r, err := a.report(ctx, path)
	if err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if err := a.print(r, func(bool) string { return checkText(r) }); err != nil {
		return err
	}
	switch {
	case r.Differences() > 0:
		return &exitError{code: exitFindings}
	case r.CannotTell():
		return &exitError{code: exitCannotTell}
	}
	return nil
}

// report lets the agent compare, and returns its report.
func (a *app) report(ctx context.Context, path string) (r localapi.CheckReport, err error) {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	first := step{name: "read the ledger and its file"}
	if path == localapi.PathCheck {
		first = a.checkStep()
	}
	p := a.progress(ctx, "check", first)
	err = a.client().get(ctx, path, &r)
	p.end()
	if r.Findings == nil {
		r.Findings = []localapi.Finding{}
	}
	if r.Witnesses == nil {
		r.Witnesses = []localapi.Witness{}
	}
	return r, err
}

// checkRounds is the number of rounds of the witnesses that show a finding. A clean check
// ends after the first one.
const checkRounds = 2

// checkStep returns the step of a check. A round has ended if the agent shows a later time
// of its witnesses.
func (a *app) checkStep() step {
	last, rounds := a.now(), uint64(0)
	count := func(ctx context.Context) uint64 {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		var s localapi.Status
		if a.client().get(ctx, localapi.PathStatus, &s) != nil {
			return rounds
		}
		before := last
		for _, w := range s.Witnesses {
			if w.Read.After(last) {
				last = w.Read
			}
		}
		if last.After(before) && rounds < checkRounds {
			rounds++
		}
		return rounds
	}
	return step{name: "read", unit: "rounds of the witnesses", total: checkRounds, count: count}
}

// checkText describes a report: each finding with its evidence, and a last line with what
// was compared.
func checkText(r localapi.CheckReport) string {
	var b strings.Builder
	for _, f := range r.Findings {
		b.WriteString(findingText(f))
	}
	verdict := "clean"
	switch n := r.Differences(); {
	case n > 0:
		verdict = plural(n, "finding", "findings")
		if r.CannotTell() {
			verdict += ", and there may be more"
		}
	case r.CannotTell():
		verdict = "cannot tell"
	}
	b.WriteString(verdict + ": " + comparedText(r) + "\n")
	return b.String()
}

// findingText describes a finding.
func findingText(f localapi.Finding) string {
	text := columns.Clean(f.Number+" "+f.Name+": "+f.Text) + "\n"
	for _, e := range f.Evidence {
		text += "     " + columns.Clean(e.Witness+": "+e.Text) + "\n"
	}
	if f.Repair != "" {
		text += "     repair: " + columns.Clean(f.Repair) + "\n"
	}
	return text + "     fix: " + columns.Clean(f.Fix) + "\n"
}

// comparedText lists the leases and the witnesses of a report: those that were compared,
// those that are missing, and those that do not apply.
func comparedText(r localapi.CheckReport) string {
	leases := plural(r.Leases, "lease", "leases")
	if r.LedgerOnly {
		return leases + " in the ledger and its file; no witness was asked"
	}
	var notes []string
	if r.Young > 0 {
		notes = append(notes, fmt.Sprintf("%d too young to compare", r.Young))
	}
	if r.Pending > 0 {
		notes = append(notes, fmt.Sprintf("%d pending", r.Pending))
	}
	if len(notes) > 0 {
		leases += " (" + strings.Join(notes, ", ") + ")"
	}
	parts := []string{leases}
	var missing, not []string
	for _, w := range r.Witnesses {
		switch w.State {
		case "present":
			parts = append(parts, presentText(w))
		case "missing":
			missing = append(missing, columns.Clean(w.Name+" ("+w.Reason+")"))
		default:
			not = append(not, columns.Clean(w.Name))
		}
	}
	text := strings.Join(parts, ", ")
	if len(missing) > 0 {
		text += "; missing: " + strings.Join(missing, ", ")
	}
	if len(not) > 0 {
		text += "; not applicable: " + strings.Join(not, ", ")
	}
	return text
}

// presentText names a witness with what it has shown.
func presentText(w localapi.Witness) string {
	objects := map[string][2]string{
		"kernel":  {"namespace", "namespaces"},
		"runtime": {"sandbox", "sandboxes"},
		"engine":  {"endpoint", "endpoints"},
		"cluster": {"pod", "pods"},
	}[w.Name]
	if objects[0] == "" {
		objects = [2]string{"object", "objects"}
	}
	text := plural(w.Objects, objects[0], objects[1])
	if w.Source != "" && w.Name != "kernel" {
		text = w.Source + ", " + text
	}
	return columns.Clean(w.Name + " (" + text + ")")
}
