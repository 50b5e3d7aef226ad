// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func (a *app) checkCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Compare the ledger with itself and with its file",
		Long: `check compares the agent's ledger with itself and with its file. The exit code is
0 where all fits, 4 where there are findings, 5 where it cannot be told, and 3
where no agent answers.`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			return cannotTell(a.check(ctx))
		}),
	}
}

// cannotTell is the exit code of errors that have none of their own.
func cannotTell(err error) error {
	var coded *exitError
	if err == nil || errors.As(err, &coded) {
		return err
	}
	return &exitError{exitCannotTell, err}
}

func (a *app) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	var r localapi.CheckReport
	if err := a.client().get(ctx, localapi.PathCheck, &r); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	if r.Findings == nil {
		r.Findings = []string{}
	}
	if err := a.print(r, func(bool) string { return checkText(r) }); err != nil {
		return err
	}
	if len(r.Findings) > 0 {
		return &exitError{code: exitFindings}
	}
	return nil
}

func checkText(r localapi.CheckReport) string {
	checked := plural(r.Leases, "lease", "leases") + " checked\n"
	if len(r.Findings) == 0 {
		return "clean: " + checked
	}
	text := ""
	for _, f := range r.Findings {
		text += clean(f) + "\n"
	}
	return text + plural(len(r.Findings), "finding", "findings") + ": " + checked
}
