// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// cures names what a person does about a lost or older database, in the order of preference.
const cures = `  1. bring the newest copy of the file back: cadastre restore FILE. Safe while pods run.
  2. make a database from what runs: cadastre rebuild. Safe while pods run.
  3. accept this one: cadastre accept. Only if nothing that it lacks is in use.
The agent is stopped for 1 and 2; pods keep their network meanwhile.
`

func (a *app) acceptCmd() *cobra.Command {
	var yes, force bool
	cmd := &cobra.Command{
		Use:   "accept",
		Short: "Allocate again after the database was lost or replaced",
		Long: `accept ends the suspension of an agent whose database is not the one that it
wrote last: a restored backup, a disk that was set back, a file that was removed.
Addresses that were allocated since may be in use, and the agent does not know
them. The cures, in this order:
` + cures + `
accept reads all witnesses, and shows what would be forgotten, and each address in
use with its pod. It changes nothing without --yes. If an address is in use, or a
witness cannot be read completely, --yes is refused. With --force the addresses in
use are quarantined: no other pod gets them, and their pods keep their network
until they end. The agent goes on without a restart. The database that is given up
cannot come back unnoticed.

Exit codes: 0 accepted, or there was nothing to accept; 1 shown, or failed; 4
refused.`,
		Example: `  cadastre accept          # shows what would be forgotten
  cadastre accept --yes
  cadastre accept --yes --force`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			if force && !yes {
				return usagef("--force goes with --yes only")
			}
			return a.accept(ctx, yes, force)
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "accept, after showing what is forgotten")
	cmd.Flags().BoolVar(&force, "force", false, "with --yes: also with addresses in use, which are quarantined")
	return cmd
}

func (a *app) accept(ctx context.Context, yes, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, workTimeout)
	defer cancel()
	var r localapi.AcceptReport
	var err error
	p := a.progress(ctx, "accept", agentStep())
	if yes {
		err = a.client().postInUse(ctx, localapi.PathAccept, localapi.AcceptRequest{Force: force}, &r)
	} else {
		err = a.client().get(ctx, localapi.PathAccept, &r)
	}
	if p.end(); err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	if err := a.print(r, func(wide bool) string { return a.acceptText(r, wide) }); err != nil {
		return err
	}
	switch {
	case r.Reason == "" || r.Accepted:
		return nil
	case yes:
		return &exitError{exitFindings, errors.New("refused: nothing was changed")}
	}
	return &exitError{code: exitFailed}
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
	text := g.String() + forgottenText(r) + inUseText(r.InUse)
	switch {
	case r.Accepted && r.Quarantined > 0:
		return text + fmt.Sprintf("accepted: new addresses are allocated again; quarantined: %s\n",
			plural(r.Quarantined, "address", "addresses"))
	case r.Accepted:
		return text + "accepted: new addresses are allocated again\n"
	case r.Refused != "":
		return text + "nothing was changed. The cures, in this order:\n" + cures +
			"To accept with these addresses in use, which are quarantined then: cadastre accept --yes --force\n"
	}
	return text + "nothing was changed: to accept this database, repeat with --yes\n"
}

// forgottenText says how many commits the database lacks. The agent commits to a database in
// doubt too, so the last commit when the doubt began counts.
func forgottenText(r localapi.AcceptReport) string {
	switch {
	case r.Noted.Sequence == 0:
		return ""
	case r.Noted.Lineage != r.Opened.Lineage || r.Opened.Sequence == 0:
		return fmt.Sprintf("forgotten: all that %s changed, unless this database has it too\n",
			plural(int(r.Noted.Sequence), "commit", "commits"))
	case r.Noted.Sequence > r.Opened.Sequence:
		return fmt.Sprintf("forgotten: what %s after commit %d changed\n",
			plural(int(r.Noted.Sequence-r.Opened.Sequence), "commit", "commits"), r.Opened.Sequence)
	}
	return ""
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
