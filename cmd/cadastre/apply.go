// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// maxFile is far above any file of pools.
const maxFile = 1 << 20

func (a *app) applyCmd() *cobra.Command {
	var file string
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Make the pools of the cluster those of a file",
		Long: `apply makes the pools of the cluster those of a file, or changes nothing where
something stands in the way, and says what. With --dry-run it only says what
would happen. The exit code is 0 where it is done, or would be, and 4 where it is
refused, or would be.`,
		Example: `  cadastre apply -f pools.yaml --dry-run
  cat pools.yaml | cadastre apply -f -`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if file == "" {
				return usagef("--filename is missing: write -f pools.yaml, or -f - for standard input")
			}
			if err := a.apply(ctx, a.client(), file, dryRun); err != nil {
				return fmt.Errorf("apply: %w", err)
			}
			return nil
		}),
	}
	fileFlag(cmd, &file)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would happen")
	return cmd
}

// fileFlag defines kubectl's flag for a file.
func fileFlag(cmd *cobra.Command, file *string) {
	cmd.Flags().StringVarP(file, "filename", "f", "", "the `FILE` with the pools; - for standard input")
	if err := cmd.MarkFlagFilename("filename", "yaml", "yml", "json"); err != nil {
		panic(err) // the flag does not exist
	}
}

// apply hands a file to an agent and prints what comes of it.
func (a *app) apply(ctx context.Context, c *client, file string, dryRun bool) error {
	text, err := a.readFile(file)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	var answer localapi.ApplyRefusal // what is not refused has no error in it
	p := a.progress(ctx, "apply", agentStep())
	err = c.post(ctx, localapi.PathApply, localapi.ApplyRequest{File: text, DryRun: dryRun}, &answer)
	if p.end(); err != nil {
		var refused *refusedError
		if !errors.As(err, &refused) || json.Unmarshal(refused.body, &answer) != nil {
			return err
		}
		if refused.status != http.StatusConflict || !answer.Refused {
			return withProblems(err, answer.Problems)
		}
	}
	if err := a.print(answer.ApplyResult, func(bool) string { return applyText(answer) }); err != nil {
		return err
	}
	switch {
	case !answer.Refused:
		return nil
	case dryRun:
		return &exitError{exitFindings, errors.New("it would be refused")}
	}
	return &exitError{exitFindings, errors.New("refused: nothing was changed")}
}

// applyText returns the agent's refusal in whole lines.
func applyText(r localapi.ApplyRefusal) string {
	text := strings.TrimSpace(cmp.Or(r.Text, r.Error))
	if text == "" {
		text = plural(r.Changes, "change", "changes")
	}
	return cleanLines(text) + "\n"
}

// withProblems adds what an error does not say itself.
func withProblems(err error, problems []localapi.Problem) error {
	text := err.Error()
	for _, p := range problems {
		if !strings.Contains(text, p.String()) {
			text += "\n" + p.String()
		}
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}

// readFile returns the text of a file, or of standard input.
func (a *app) readFile(file string) (string, error) {
	from, name := a.stdin, "standard input"
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", err
		}
		defer func() { _ = f.Close() }()
		from, name = f, file
	}
	text, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read %s: %w", name, err)
	case len(text) > maxFile:
		return "", fmt.Errorf("%s has more than %d bytes: it is not a file of pools", name, maxFile)
	case strings.TrimSpace(string(text)) == "":
		return "", fmt.Errorf("%s is empty", name)
	}
	return string(text), nil
}
