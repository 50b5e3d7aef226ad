// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
)

// RestoreReport is what a restore has done.
type RestoreReport struct {
	Kept   string // where the database that was replaced is now, "" if there was none
	Leases int    // of the restored one, as verify counted them
	Older  bool   // the restored one is older than the one that was replaced
}

// Restore puts a backup in the place of the database at path, which nobody may
// have open. The backup is opened, migrated if need be, and verified as a copy
// first; nothing is replaced before that has succeeded. verify counts its leases.
func Restore(ctx context.Context, backup, path string, verify func(context.Context, *File) (int, error)) (RestoreReport, error) {
	report, err := restore(ctx, backup, path, verify)
	if err != nil {
		return report, fmt.Errorf("restore %s to %s: %w", backup, path, err)
	}
	return report, nil
}

func restore(ctx context.Context, backup, path string, verify func(context.Context, *File) (int, error)) (report RestoreReport, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return report, err
	}
	have, err := lockRevision(path)
	if err != nil {
		return report, err
	}
	tmp := path + ".restoring"
	defer func() { _ = os.Remove(tmp) }()
	if err := copyFile(backup, tmp); err != nil {
		return report, err
	}
	f, err := OpenFile(tmp, FileOptions{})
	if err != nil {
		return report, err
	}
	report.Leases, err = verify(ctx, f)
	revision := 0
	if err == nil {
		err = f.db.View(func(tx *bbolt.Tx) error { revision = tx.ID(); return nil })
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return report, err
	}
	report.Older = revision < have
	if have > 0 {
		report.Kept = fmt.Sprintf("%s.replaced-%d", path, have)
		if err := os.Rename(path, report.Kept); err != nil {
			return report, err
		}
	}
	if err := os.Rename(tmp, path); err != nil {
		return report, err
	}
	return report, syncDir(filepath.Dir(path))
}

// lockRevision is the revision of the database at path, 0 where there is none
// that can be read. It fails where somebody has it open.
func lockRevision(path string) (int, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	f, err := OpenFile(path, FileOptions{})
	if errors.Is(err, ErrHeld) {
		return 0, err
	}
	if err != nil {
		return 1, nil // damaged: it is kept all the same
	}
	revision := 0
	err = f.db.View(func(tx *bbolt.Tx) error { revision = tx.ID(); return nil })
	return max(revision, 1), errors.Join(err, f.Close())
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, in); err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
