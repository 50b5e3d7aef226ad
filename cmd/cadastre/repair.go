// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// repairFlags are the flags of repair.
type repairFlags struct {
	report     string
	signatures []string
	dryRun     bool
	yes        bool
}

// Outcomes of a repair.
const (
	repairDone    = "repaired"
	repairWould   = "would repair"
	repairByHand  = "by hand"
	repairRefused = "refused"
	repairSkipped = "skipped"
	repairFailed  = "failed"
)

// repairResult is the outcome of one finding.
type repairResult struct {
	Finding localapi.Finding `json:"finding"`
	Outcome string           `json:"outcome"`
	Text    string           `json:"text"`
}

func (a *app) repairCmd() *cobra.Command {
	var f repairFlags
	cmd := &cobra.Command{
		Use:   "repair --from-report FILE",
		Short: "Repair the findings of a report of check",
		Long: `repair reads a report of "cadastre check -o json", shows the change that ends each
finding, and asks before the agent makes it. The agent looks at each finding in a fresh
round of the witnesses, and refuses one that has changed since the report; the age of
the report does not matter. For a finding without a safe change repair shows what to do
by hand.

The exit code is 0 if all selected findings are repaired or have to be repaired by
hand, 4 if one was refused, 1 if one failed, and 3 if no agent answers.`,
		Example: `  cadastre check -o json > report.json
  cadastre repair --from-report report.json --dry-run
  cadastre repair --from-report report.json --finding 1f0c6a1e9d3b5a77 --yes`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if f.report == "" {
				return usagef(
					"repair wants a report: write --from-report FILE, with a file that \"cadastre check -o json\" printed",
				)
			}
			return a.repair(ctx, f)
		}),
	}
	flags := cmd.Flags()
	flags.StringVar(
		&f.report,
		"from-report",
		"",
		"the `FILE` that \"cadastre check -o json\" printed; -: standard input",
	)
	flags.StringArrayVar(
		&f.signatures,
		"finding",
		nil,
		"only the finding with this `SIGNATURE`; may be given several times",
	)
	flags.BoolVar(&f.dryRun, "dry-run", false, "only show the changes")
	flags.BoolVarP(&f.yes, "yes", "y", false, "do not ask")
	completeValues(cmd, "finding")
	return cmd
}

func (a *app) repair(ctx context.Context, f repairFlags) error {
	report, err := a.readReport(f.report)
	if err != nil {
		return fmt.Errorf("repair: %w", err)
	}
	selected, err := selectFindings(report, f.signatures)
	if err != nil {
		return err
	}
	if f.report == "-" && !f.yes && !f.dryRun {
		return usagef(
			"--from-report -: the answers cannot be read from standard input too: add --yes or --dry-run, or name a file",
		)
	}
	results := []repairResult{}
	answers := bufio.NewReader(a.stdin)
	for _, finding := range selected {
		r, err := a.repairOne(ctx, f, finding, answers)
		if err != nil {
			return fmt.Errorf("repair %s %s: %w", finding.Number, finding.Signature, err)
		}
		results = append(results, r)
		if a.forPeople() {
			if err := a.write([]byte(resultText(r))); err != nil {
				return err
			}
		}
	}
	if err := a.print(results, func(bool) string { return resultsText(results) }); err != nil {
		return err
	}
	return exitOf(results)
}

// exitOf returns the exit code of the results.
func exitOf(results []repairResult) error {
	has := func(outcome string) bool {
		return slices.ContainsFunc(results, func(r repairResult) bool { return r.Outcome == outcome })
	}
	switch {
	case has(repairFailed):
		return &exitError{code: exitFailed}
	case has(repairRefused):
		return &exitError{code: exitFindings}
	}
	return nil
}

// readReport reads the report of a check.
func (a *app) readReport(name string) (report localapi.CheckReport, err error) {
	var content []byte
	if name == "-" {
		content, err = io.ReadAll(a.stdin)
	} else {
		content, err = os.ReadFile(name)
	}
	if err != nil {
		return report, fmt.Errorf("read the report: %w", err)
	}
	if err := json.Unmarshal(content, &report); err != nil {
		return report, fmt.Errorf("read the report %s: %w: want the output of \"cadastre check -o json\"", name, err)
	}
	if report.Findings == nil {
		return report, fmt.Errorf(
			"read the report %s: it has no field findings: want the output of \"cadastre check -o json\"",
			name,
		)
	}
	return report, nil
}

// selectFindings returns the findings with the given signatures, or all of them.
func selectFindings(report localapi.CheckReport, signatures []string) ([]localapi.Finding, error) {
	if len(signatures) == 0 {
		return report.Findings, nil
	}
	var selected []localapi.Finding
	for _, s := range signatures {
		i := slices.IndexFunc(report.Findings, func(f localapi.Finding) bool { return f.Signature == s })
		if i < 0 {
			return nil, usagef("--finding: the report has no finding with signature %q", s)
		}
		selected = append(selected, report.Findings[i])
	}
	return selected, nil
}

// repairOne shows the change of one finding, asks, and lets the agent make it.
func (a *app) repairOne(
	ctx context.Context,
	f repairFlags,
	finding localapi.Finding,
	answers *bufio.Reader,
) (repairResult, error) {
	would, err := a.askRepair(ctx, finding, true)
	if err != nil {
		return failedRepair(finding, err)
	}
	if r, final := outcomeOf(finding, would); final {
		return r, nil
	}
	if f.dryRun {
		return repairResult{would.Finding, repairWould, would.Change}, nil
	}
	if !f.yes {
		fmt.Fprint(a.stderr, cleanLines(findingText(would.Finding))+"change: "+columns.Clean(would.Change)+"\n")
		if !a.agreed(ctx, answers, "Make this change? [y/N] ") {
			return repairResult{would.Finding, repairSkipped, would.Change}, nil
		}
	}
	done, err := a.askRepair(ctx, finding, false)
	if err != nil {
		return failedRepair(finding, err)
	}
	if r, final := outcomeOf(finding, done); final {
		return r, nil
	}
	return repairResult{done.Finding, repairDone, done.Change}, nil
}

// failedRepair returns the result of an error; without an agent it returns the error.
func failedRepair(finding localapi.Finding, err error) (repairResult, error) {
	var refused *refusedError
	if !errors.As(err, &refused) {
		return repairResult{}, err
	}
	return repairResult{finding, repairFailed, err.Error()}, nil
}

// outcomeOf returns the result of a finding that the agent does not repair.
func outcomeOf(finding localapi.Finding, reply localapi.RepairReply) (r repairResult, final bool) {
	switch {
	case reply.Refused != "":
		return repairResult{finding, repairRefused, reply.Refused}, true
	case reply.Change == "":
		return repairResult{reply.Finding, repairByHand, reply.Finding.Fix}, true
	}
	return repairResult{}, false
}

func (a *app) askRepair(
	ctx context.Context,
	finding localapi.Finding,
	dryRun bool,
) (reply localapi.RepairReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	p := a.progress(ctx, "repair", agentStep())
	defer p.end()
	err = a.client().post(ctx, localapi.PathRepair, localapi.RepairRequest{Finding: finding, DryRun: dryRun}, &reply)
	return reply, err
}

func resultText(r repairResult) string {
	return columns.Clean(
		r.Outcome+": "+r.Finding.Number+" "+r.Finding.Name+": "+r.Finding.Text,
	) + "\n     " + columns.Clean(
		r.Text,
	) + "\n"
}

// resultsText counts the results by outcome.
func resultsText(results []repairResult) string {
	var parts []string
	for _, outcome := range []string{repairDone, repairWould, repairByHand, repairRefused, repairSkipped, repairFailed} {
		n := 0
		for _, r := range results {
			if r.Outcome == outcome {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, outcome))
		}
	}
	if len(parts) == 0 {
		return "nothing to repair: the report has no findings\n"
	}
	return strings.Join(parts, ", ") + "\n"
}
