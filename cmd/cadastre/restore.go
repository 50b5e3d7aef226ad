// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
)

const (
	defaultStateDir = "/var/lib/cadastre"
	defaultRunDir   = "/run/cadastre"
	databaseName    = "cadastre.db"
)

// restoreReport holds the result of a restore.
type restoreReport struct {
	Kept   string `json:"kept"`   // where the replaced database is now, "" if there was none
	Leases int    `json:"leases"` // in the restored one
	Older  bool   `json:"older"`  // than the replaced one, or another database
}

// restoreFunc puts the backup in file into the place of the database at path.
// Its error names both.
type restoreFunc func(ctx context.Context, file, path string) (restoreReport, error)

// restored holds the output of restore.
type restored struct {
	File     string `json:"file"`
	Database string `json:"database"`
	restoreReport
}

func (a *app) restoreCmd() *cobra.Command {
	var stateDir string
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Put a backup in the place of the agent's database",
		Long: `restore puts a backup in the place of the agent's database and keeps the one that
was there. The agent must not run. It works on files only.

The agent does not know what was allocated after the backup was made. It serves
the leases in the backup, and allocates no new address. If pods run that a backup
does not know, cadastre rebuild makes a better database, and is safe while they run.
Otherwise cadastre accept ends the doubt.`,
		Example: `  cadastre restore /var/backups/cadastre.db`,
		Args:    oneFile,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			r := restored{File: args[0], Database: filepath.Join(stateDir, databaseName)}
			p := a.progress(ctx, "restore", copyStep(r.File, r.Database+".restoring"))
			var err error
			r.restoreReport, err = a.restore(ctx, r.File, r.Database)
			if p.end(); err != nil {
				return err // it names both files
			}
			return a.print(r, func(bool) string { return cleanLines(restoredText(r)) })
		}),
	}
	cmd.Flags().StringVar(&stateDir, "state-dir", defaultStateDir, "the agent's state `DIRECTORY`")
	if err := cmd.MarkFlagDirname("state-dir"); err != nil {
		panic(err) // the flag does not exist
	}
	return cmd
}

// copyStep returns the step of a copy that another package makes of a file.
func copyStep(from, to string) step {
	return step{
		name:  "copy and verify",
		unit:  bytesUnit,
		total: sizeOf(from),
		count: func(context.Context) uint64 { return sizeOf(to) },
	}
}

func restoredText(r restored) string {
	text := fmt.Sprintf("restored %s from %s: %s\n", r.Database, r.File, plural(r.Leases, "lease", "leases"))
	if r.Kept != "" {
		text += fmt.Sprintf("the database that was there is now %s\n", r.Kept)
	}
	if r.Older {
		text += `
The backup lacks what the database that was there knew: addresses may have been
allocated since. The agent will serve the leases in the backup, and allocate no
new addresses. If there is a newer copy, restore that one. If pods run that the
backup does not know, make a database from what runs instead, which is safe:
    cadastre rebuild
Otherwise start the agent, see what is forgotten and what is in use, and accept it:
    cadastre accept
`
	}
	return text
}

// restoreFile restores, after the ledger of the backup was loaded to prove that
// it can be.
func restoreFile(ctx context.Context, file, path string) (restoreReport, error) {
	r, err := bolt.Restore(ctx, file, path, func(ctx context.Context, f *bolt.File) (int, error) {
		l, err := ledger.Open(ctx, f.Journal(), ledger.Options{})
		if err != nil {
			return 0, err
		}
		return len(l.Leases()), nil
	})
	return restoreReport(r), err
}
