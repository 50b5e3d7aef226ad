// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/cadastre/cadastre/internal/columns"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// backupReport holds the output of backup.
type backupReport struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
}

func (a *app) backupCmd() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the agent's database while it runs",
		Long: `backup writes a copy of the agent's database, as it is at this moment, to FILE, or
to standard output where FILE is "-". FILE is there whole or not at all.`,
		Example: `  cadastre backup /var/backups/cadastre.db
  cadastre backup - | ssh backup-host 'cat > node-1.db'`,
		Args: oneFile,
		RunE: a.verb(func(ctx context.Context, args []string) error {
			if err := a.backup(ctx, args[0], force); err != nil {
				return fmt.Errorf("backup: %w", err)
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "overwrite FILE")
	return cmd
}

func (a *app) backup(ctx context.Context, file string, force bool) error {
	c := a.client()
	if file == "-" {
		return a.backupOut(ctx, c)
	}
	switch info, err := os.Lstat(file); {
	case err == nil && info.IsDir():
		return fmt.Errorf("FILE: %q is a directory: name a file in it", file)
	case err == nil && !force:
		return fmt.Errorf("FILE: %q exists: name another file, or overwrite it with --force", file)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	p := a.progress(ctx, "backup", a.backupStep(ctx, c))
	n, err := c.backupTo(ctx, file, p)
	p.end()
	if err != nil {
		return err
	}
	return a.print(
		backupReport{file, n},
		func(bool) string { return fmt.Sprintf("wrote %s, %d bytes\n", columns.Clean(file), n) },
	)
}

// backupOut writes a backup to standard output.
func (a *app) backupOut(ctx context.Context, c *client) error {
	p := a.progress(ctx, "backup", a.backupStep(ctx, c))
	defer p.end()
	_, err := c.backup(ctx, a.stdout, p)
	return err
}

// backupStep returns the step of a copy, whose size is known if this program can read the
// agent's state directory.
func (a *app) backupStep(ctx context.Context, c *client) step {
	s := step{name: "copy", unit: bytesUnit}
	if !a.terminal(a.stderr).is {
		return s
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var status localapi.Status
	if c.get(ctx, localapi.PathStatus, &status) == nil { // otherwise the backup tells why
		s.total = sizeOf(filepath.Join(status.StateDir, databaseName))
	}
	return s
}

// backupTo writes beside file and renames, so that file is never half of one.
// The name in between is not always the same, as two backups may run at once.
func (c *client) backupTo(ctx context.Context, file string, p *progress) (int64, error) {
	tmp, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".tmp") // 0600
	if err != nil {
		return 0, err
	}
	n, err := c.backup(ctx, tmp, p)
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return 0, errors.Join(err, os.Remove(tmp.Name()))
	}
	return n, syncDir(filepath.Dir(file))
}

// backup copies the database to w, and is sure that it is the whole of it.
func (c *client) backup(ctx context.Context, w io.Writer, p *progress) (int64, error) {
	resp, err := c.send(ctx, http.MethodGet, localapi.PathBackup, nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	n, err := io.Copy(countingWriter{w, p}, resp.Body)
	if err != nil {
		return n, fmt.Errorf("after %d bytes: %w", n, c.plain(ctx, err))
	}
	if why := resp.Trailer.Get(localapi.TrailerError); why != "" {
		return n, fmt.Errorf("the agent failed after %d bytes: %s", n, why)
	}
	sent := resp.Trailer.Get(localapi.TrailerBytes)
	if want, err := strconv.ParseInt(sent, 10, 64); n == 0 || err != nil || want != n {
		return n, fmt.Errorf("the agent sent %d bytes, but says that the database has %q: try again", n, sent)
	}
	return n, nil
}

// syncDir makes a rename durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
