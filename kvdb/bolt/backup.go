// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"errors"
	"fmt"
	"io"
	"os"

	"go.etcd.io/bbolt"
)

// mapped is the least size that bbolt maps of a file. A file that grows beyond what is
// mapped is mapped again, for which a commit waits until no transaction reads.
const mapped = 256 << 20

// growth is the size by which a file grows at a time. backupRoom is the most that it may grow
// during a backup: the pages that a slow reader sees are not used again before the backup ends.
const (
	growth     = 1 << 20
	backupRoom = 64 << 20
)

// Backup writes a consistent copy of the file to w while it is in use. It reads in one
// transaction and needs no disk: a full or dead one cannot prevent it. No commit waits,
// however slowly w takes the copy. After an error w has a part of the copy, of n bytes.
func (f *File) Backup(w io.Writer) (n int64, err error) {
	err = f.view(func(tx *bbolt.Tx) error {
		n, err = tx.WriteTo(&backupWriter{w, f, f.size.Load()})
		return err
	})
	if err != nil {
		return n, fmt.Errorf("back up %s: %w", f.path, err)
	}
	return n, nil
}

// backupWriter ends a backup that keeps too many pages from being used again.
type backupWriter struct {
	w     io.Writer
	f     *File
	began int64 // size of the file
}

// Write writes a part of the copy.
func (w *backupWriter) Write(p []byte) (int, error) {
	if grown := w.f.size.Load() - w.began; grown > backupRoom {
		return 0, fmt.Errorf("the database has grown by %d bytes meanwhile: want a faster reader", grown)
	}
	return w.w.Write(p)
}

// copyTo writes a copy of the file to path.
func (f *File) copyTo(path string) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = f.view(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(out)
		return err
	})
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}
