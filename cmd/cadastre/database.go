// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/kvdb/bolt"
)

const defaultRunDir = "/run/cadastre"

// downgraded holds the output of database downgrade.
type downgraded struct {
	Database string `json:"database"`
	Format   int    `json:"format"`
	Kept     string `json:"kept"` // a copy of the database as it was
}

func (a *app) databaseCmd() *cobra.Command {
	return group("database", "Work on the database file of an agent that does not run", a.downgradeCmd())
}

func (a *app) downgradeCmd() *cobra.Command {
	var stateDir, runDir string
	cmd := &cobra.Command{
		Use:   "downgrade",
		Short: "Write the database in the format of the last version",
		Long: `downgrade writes the agent's database in format 1, which all older agents
read, in one transaction, and keeps a copy as it was. No lease is lost. What the
notes of the newest commit say goes over into the note that those agents keep.
The agent must not run. It works on files and asks no agent.`,
		Example: `  systemctl stop cadastre-agent
  cadastre database downgrade
  # install the older version, then
  systemctl start cadastre-agent`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, _ []string) error {
			d := downgraded{Database: filepath.Join(stateDir, databaseName), Format: 1}
			copied := fmt.Sprintf("%s.format-%d", d.Database, bolt.Format)
			p := a.progress(ctx, "downgrade", copyStep(d.Database, copied))
			var err error
			d.Kept, err = downgradeFile(ctx, d.Database, runDir)
			if p.end(); err != nil {
				return err // it names the file
			}
			return a.print(d, func(bool) string {
				return cleanLines(
					fmt.Sprintf("%s is of format %d now; as it was it is %s\n", d.Database, d.Format, d.Kept),
				)
			})
		}),
	}
	cmd.Flags().StringVar(&stateDir, "state-dir", defaultStateDir, "the agent's state `DIRECTORY`")
	cmd.Flags().StringVar(&runDir, "run-dir", defaultRunDir, "the agent's run `DIRECTORY`")
	for _, flag := range []string{"state-dir", "run-dir"} {
		if err := cmd.MarkFlagDirname(flag); err != nil {
			panic(err) // the flag does not exist
		}
	}
	return cmd
}

func downgradeFile(ctx context.Context, path, runDir string) (kept string, err error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("downgrade database %s: read the boot ID: %w", path, err)
	}
	return bolt.Downgrade(ctx, path, bolt.FileOptions{
		Notes:  bolt.Notes(runDir, path),
		Level1: filepath.Join(runDir, "db.level"),
		BootID: strings.TrimSpace(string(boot)),
	})
}
