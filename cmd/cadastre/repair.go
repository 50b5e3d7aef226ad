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
	"github.com/cadastre/cadastre/witness/findings"
)

// repairFlags are the flags of repair.
type repairFlags struct {
	report     string
	all        bool // every finding of a number
	signatures []string
	dryRun     bool
	yes        bool
	force      bool
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
		Use:   "repair --from-report FILE | repair NUMBER --all",
		Short: "Repair the findings of a report of check, or all of one number",
		Long: `repair reads a report of "cadastre check -o json", shows the change that ends each
finding, and asks before the agent makes it. The agent looks at each finding in a fresh
round of the witnesses, and refuses one that has changed since the report; the age of
the report does not matter. It also refuses to end a lease or a quarantine whose address
is in use, or while a witness cannot be read completely, unless --force is given. For a finding without a safe change repair shows what to do
by hand.

"repair NUMBER --all" runs check, which reads two rounds of the witnesses, lists the
findings of that number, and asks once for all of them. Only so it releases leases whose
address is on no link (C206): on a node without a container runtime, and without a
network namespace at the path of the lease. No witness proves there that the pod has
ended, so a person decides: no program does this by itself.

The exit code is 0 if all selected findings are repaired or have to be repaired by
hand, 4 if one was refused, 1 if one failed, and 3 if no agent answers.`,
		Example: `  cadastre check -o json > report.json
  cadastre repair --from-report report.json --dry-run
  cadastre repair --from-report report.json --finding 1f0c6a1e9d3b5a77 --yes
  cadastre repair C206 --all`,
		Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var numbers []string
			for _, k := range findings.Kinds() {
				numbers = append(numbers, k.Number+"\t"+k.Name)
			}
			return numbers, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: a.verb(func(ctx context.Context, args []string) error {
			if len(args) == 1 || f.all {
				return a.repairNumber(ctx, f, args)
			}
			if f.report == "" {
				return usagef("repair wants findings: write --from-report FILE, with a file that " +
					"\"cadastre check -o json\" printed, or a number and --all, such as C206 --all")
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
	flags.BoolVar(&f.all, "all", false, "all findings of the number that check finds now")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only show the changes")
	flags.BoolVar(&f.force, "force", false, forceInUse)
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
		r, err := a.shown(a.repairOne(ctx, f, finding, answers))
		if err != nil {
			return fmt.Errorf("repair %s %s: %w", finding.Number, finding.Signature, err)
		}
		results = append(results, r)
	}
	return a.repaired(results)
}

// repaired prints the results of a repair, and returns its exit code.
func (a *app) repaired(results []repairResult) error {
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
	would, err := a.change(ctx, localapi.RepairRequest{Finding: finding, DryRun: true, Force: f.force})
	if err != nil || would.Outcome != repairWould || f.dryRun {
		return would, err
	}
	if !f.yes {
		fmt.Fprint(a.stderr, cleanLines(findingText(would.Finding))+"change: "+columns.Clean(would.Text)+"\n")
		if !a.agreed(ctx, answers, "Make this change? [y/N] ") {
			would.Outcome = repairSkipped
			return would, nil
		}
	}
	return a.change(ctx, localapi.RepairRequest{Finding: finding, Force: f.force})
}

// change lets the agent make the change of one finding, or with DryRun describe it.
func (a *app) change(ctx context.Context, req localapi.RepairRequest) (repairResult, error) {
	reply, err := a.askRepair(ctx, req)
	if err != nil {
		return failedRepair(req.Finding, err)
	}
	if r, final := outcomeOf(req.Finding, reply); final {
		return r, nil
	}
	if req.DryRun {
		return repairResult{reply.Finding, repairWould, reply.Change}, nil
	}
	return repairResult{reply.Finding, repairDone, reply.Change}, nil
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
	req localapi.RepairRequest,
) (reply localapi.RepairReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	p := a.progress(ctx, "repair", agentStep())
	defer p.end()
	err = a.client().post(ctx, localapi.PathRepair, req, &reply)
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
