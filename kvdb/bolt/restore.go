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
	// Nobody may open the old one until the new one is in its place.
	old, have, err := holdOld(path)
	if err != nil {
		return report, err
	}
	if old != nil {
		defer func() { err = errors.Join(err, old.Close()) }()
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
	revision, rerr := f.revision()
	if err = errors.Join(err, rerr, f.Close()); err != nil {
		return report, err
	}
	report.Older = revision < have
	if have > 0 {
		if report.Kept, err = keep(path, have); err != nil {
			return report, err
		}
	}
	if err := os.Rename(tmp, path); err != nil {
		return report, err
	}
	return report, syncDir(filepath.Dir(path))
}

// keep gives the old file a second name that is not taken.
func keep(path string, revision int) (string, error) {
	for n := 0; ; n++ {
		name := fmt.Sprintf("%s.replaced-%d", path, revision)
		if n > 0 {
			name += fmt.Sprintf("-%d", n)
		}
		if err := os.Link(path, name); !errors.Is(err, fs.ErrExist) {
			return name, err
		}
	}
}

// holdOld opens the database at path, if it can be, so that nobody else does.
// revision is 0 where there is none.
func holdOld(path string) (f *File, revision int, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	f, err = OpenFile(path, FileOptions{})
	if errors.Is(err, ErrHeld) {
		return nil, 0, err
	}
	if err != nil {
		return nil, 1, nil // damaged: it is kept all the same
	}
	revision, err = f.revision()
	return f, max(revision, 1), err
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
