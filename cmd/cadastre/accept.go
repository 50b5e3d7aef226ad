// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

func (a *app) acceptCmd() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "accept",
		Short: "Allocate again from a database that came back older, or another one",
		Long: `accept ends the suspension of an agent whose database is not the one that it
wrote last: a restored backup, a disk that was set back, a file that was removed.
Addresses that were allocated since may be in use, and the agent does not know
them. accept shows what would be forgotten, and changes nothing without --yes.

Accept only if no pod or container of this node uses an address that the
database does not have. The agent goes on without a restart. The database that
is given up cannot come back unnoticed.

Exit codes: 0 accepted, or there was nothing to accept; 1 shown, or failed.`,
		Example: `  cadastre accept          # shows what would be forgotten
  cadastre accept --yes`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.verb(func(ctx context.Context, _ []string) error { return a.accept(ctx, yes) }),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "accept, after showing what is forgotten")
	return cmd
}

func (a *app) accept(ctx context.Context, yes bool) error {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	method := http.MethodGet
	if yes {
		method = http.MethodPost
	}
	var r localapi.AcceptReport
	if err := a.client().exchange(ctx, method, localapi.PathAccept, nil, &r); err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	if err := a.print(r, func(wide bool) string { return a.acceptText(r, wide) }); err != nil {
		return err
	}
	if r.Reason != "" && !r.Accepted {
		return &exitError{code: exitFailed}
	}
	return nil
}

func (a *app) acceptText(r localapi.AcceptReport, wide bool) string {
	if r.Reason == "" {
		return fmt.Sprintf(
			"nothing to accept: the database is the one that this agent wrote, at commit %d\n",
			r.Database.Sequence,
		)
	}
	var g columns.Rows
	g.Add("why", r.Reason)
	g.Add("noted", a.commitText(r.Noted, wide))
	g.Add("database", a.commitText(r.Database, wide))
	g.Add("", plural(len(r.Leases), "lease", "leases")+" in it")
	text := g.String()
	if r.Noted.Lineage == r.Database.Lineage && r.Noted.Sequence > r.Database.Sequence {
		text += fmt.Sprintf(
			"forgotten: what %s after commit %d changed\n",
			plural(int(r.Noted.Sequence-r.Database.Sequence), "commit", "commits"),
			r.Database.Sequence,
		)
	}
	if len(r.Unleased) > 0 {
		text += "in use, and not leased to the pod that reports it:\n"
	}
	for _, l := range r.Unleased {
		text += "  " + columns.Clean(strings.TrimSpace(l.IP+" "+strings.Trim(l.PodNamespace+"/"+l.PodName, "/"))) + "\n"
	}
	if r.Accepted {
		return text + "accepted: new addresses are allocated again\n"
	}
	return text + "nothing was changed: to accept this database, repeat with --yes\n"
}

func (a *app) commitText(c localapi.Commit, wide bool) string {
	if c.Sequence == 0 {
		return "not known"
	}
	text := fmt.Sprintf("commit %d of %s", c.Sequence, c.At.In(a.now().Location()).Format(time.DateTime))
	if wide {
		text += ", lineage " + c.Lineage
	}
	return text
}
