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
	"golang.org/x/sys/unix"
)

// RestoreReport holds the result of a restore.
type RestoreReport struct {
	Kept   string // where the database that was replaced is now, "" if there was none
	Leases int    // of the restored one, as verify counted them
	// Older says that the restored one lacks commits that were noted, or is another database;
	// without a note beside it, that it lacks some of the one that was replaced.
	Older bool
}

// Restore puts a backup in the place of the database at path, which no process may
// have open. A copy of the backup is opened and verified first; nothing is replaced
// before that has succeeded. verify counts its leases.
func Restore(
	ctx context.Context,
	backup, path string,
	verify func(context.Context, *File) (int, error),
) (RestoreReport, error) {
	report, err := restore(ctx, backup, path, verify)
	if err != nil {
		return report, fmt.Errorf("restore %s to %s: %w", backup, path, err)
	}
	return report, nil
}

func restore(
	ctx context.Context,
	backup, path string,
	verify func(context.Context, *File) (int, error),
) (report RestoreReport, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return report, err
	}
	// No process may open the old one until the new one is in its place.
	old, have, err := holdOld(path)
	if err != nil {
		return report, err
	}
	if old != nil {
		defer func() { err = errors.Join(err, old.Close()) }()
	}
	tmp := path + ".restoring"
	defer func() { _ = os.Remove(tmp) }()
	if err := copyBackup(backup, tmp); err != nil {
		return report, err
	}
	f, err := OpenFile(tmp, FileOptions{})
	if err != nil {
		return report, err
	}
	report.Leases, err = verify(ctx, f)
	new := f.trust.last
	if err = errors.Join(err, f.Close()); err != nil {
		return report, err
	}
	report.Older = have.present && (new.lineage != have.commit.lineage || new.sequence < have.commit.sequence)
	if n, ok := readNote(beside(path)); ok {
		why, _ := judge([]note{n}, new, n.Boot)
		report.Older = why != ""
	}
	if have.present {
		if report.Kept, err = keep(path, have.revision); err != nil {
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

// replaced describes a database that is about to be replaced.
type replaced struct {
	present  bool
	revision int
	commit   commitID
}

// holdOld opens the database at path, if it can be, so that no other process does.
// It is neither verified nor written to.
func holdOld(path string) (f *File, have replaced, err error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, have, nil
	}
	have.present = true
	f, err = OpenFile(path, FileOptions{lockOnly: true})
	if errors.Is(err, errHeld) {
		return nil, have, err
	}
	if err != nil {
		return nil, have, nil //nolint:nilerr // a damaged database is kept all the same
	}
	_ = f.view(func(tx *bbolt.Tx) (err error) { // likewise
		have.revision = tx.ID()
		have.commit, err = readCommit(tx)
		return err
	})
	return f, have, nil
}

// copyBackup copies a regular file for which there is room. It reads
// as many bytes as the file had at the begin.
func copyBackup(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("it is of type %s: want a file, such as one of cadastre backup", info.Mode().Type())
	}
	var room unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(to), &room); err != nil {
		return fmt.Errorf("find the room in %s: %w", filepath.Dir(to), err)
	}
	if free := room.Bavail * uint64(room.Bsize); uint64(info.Size()) > free {
		return fmt.Errorf("it has %d bytes, and %s has room for %d", info.Size(), filepath.Dir(to), free)
	}
	return copyFile(from, to, info.Size())
}

// copyFile copies the first bytes of a file.
func copyFile(from, to string, size int64) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.Copy(out, io.LimitReader(in, size)); err == nil {
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
