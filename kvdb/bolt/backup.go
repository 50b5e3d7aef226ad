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

// Backup writes a consistent copy of the file to w while it is in use. The copy
// is made on disk first: however slowly w takes it, no commit waits.
func (f *File) Backup(w io.Writer) (n int64, err error) {
	tmp := f.path + ".backup"
	defer func() {
		_ = os.Remove(tmp)
		if err != nil {
			err = fmt.Errorf("back up %s: %w", f.path, err)
		}
	}()
	f.backup.Lock() // there is one such file
	defer f.backup.Unlock()
	if err := f.copyTo(tmp); err != nil {
		return 0, err
	}
	in, err := os.Open(tmp)
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }()
	return io.Copy(w, in)
}

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
