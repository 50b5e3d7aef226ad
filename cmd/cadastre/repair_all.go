// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness/findings"
)

// repairNumber repairs all findings of a number: it lists what check finds, and asks once.
func (a *app) repairNumber(ctx context.Context, f repairFlags, args []string) error {
	number, err := numberOf(f, args)
	if err != nil {
		return err
	}
	report, err := a.report(ctx, localapi.PathCheck)
	if err != nil {
		return fmt.Errorf("repair %s: %w", number, err)
	}
	selected := slices.DeleteFunc(report.Findings, func(x localapi.Finding) bool { return x.Number != number })
	if len(selected) == 0 {
		what := "nothing to repair: check has no finding " + number
		if report.CannotTell() {
			what += ", but cannot tell"
		}
		return a.print([]repairResult{}, func(bool) string { return what + ": " + comparedText(report) + "\n" })
	}
	results, changes := []repairResult{}, 0
	for _, finding := range selected {
		req := localapi.RepairRequest{Finding: finding, All: true, Force: f.force, DryRun: true}
		r, err := a.shown(a.change(ctx, req))
		if err != nil {
			return fmt.Errorf("repair %s: %w", number, err)
		}
		if results = append(results, r); r.Outcome == repairWould {
			changes++
		}
	}
	if f.dryRun || changes == 0 {
		return a.repaired(results)
	}
	question := fmt.Sprintf("Make %s? [y/N] ", plural(changes, "change", "changes"))
	agreed := f.yes || a.agreed(ctx, bufio.NewReader(a.stdin), question)
	for i, r := range results {
		switch {
		case r.Outcome != repairWould:
		case !agreed:
			results[i].Outcome = repairSkipped
		default:
			req := localapi.RepairRequest{Finding: r.Finding, All: true, Force: f.force}
			if results[i], err = a.shown(a.change(ctx, req)); err != nil {
				results[i] = repairResult{r.Finding, repairFailed, err.Error()}
				return errors.Join(
					a.repaired(results),
					fmt.Errorf("repair %s %s: %w", number, r.Finding.Signature, err),
				)
			}
		}
	}
	return a.repaired(results)
}

// shown prints a result for people.
func (a *app) shown(r repairResult, err error) (repairResult, error) {
	if err == nil && a.forPeople() {
		err = a.write([]byte(resultText(r)))
	}
	return r, err
}

// numberOf returns the number of "repair NUMBER --all".
func numberOf(f repairFlags, args []string) (string, error) {
	switch {
	case len(args) == 0:
		return "", usagef("repair --all wants the number of the findings, such as C206")
	case !f.all:
		return "", usagef(
			"repair %s: add --all: it repairs all findings %s; to choose, write --from-report FILE",
			args[0],
			args[0],
		)
	case f.report != "" || len(f.signatures) > 0:
		return "", usagef("repair %s --all reads no report: leave out --from-report and --finding", args[0])
	}
	number := strings.ToUpper(args[0])
	if !slices.ContainsFunc(findings.Kinds(), func(k findings.Kind) bool { return k.Number == number }) {
		return "", usagef("repair: invalid number %q: want one of docs/findings.md, such as C206", args[0])
	}
	return number, nil
}
