// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"cmp"
	"encoding/binary"
	"errors"
	"strings"

	"go.etcd.io/bbolt"
)

// readAll checks every page in use, and reads every record, so that damage shows at
// the start and not later. Then it compares the pages with the list of free ones.
func (f *File) readAll() error {
	var walk func(b *bbolt.Bucket) error
	walk = func(b *bbolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			if v != nil {
				return nil
			}
			return walk(b.Bucket(k))
		})
	}
	return f.view(func(tx *bbolt.Tx) error {
		if err := f.checkBounds(tx); err != nil {
			return err
		}
		if err := tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return walk(b) }); err != nil {
			return err
		}
		return f.checkFree(tx)
	})
}

// checkFree returns an error if a page that is in use is on the list of free pages:
// it would be overwritten. bbolt checks that in a goroutine of its own, in which a
// fault of the mapped file would end the process; checkBounds has found that there
// is nothing to read outside of the file.
func (f *File) checkFree(tx *bbolt.Tx) error {
	if !f.metasWhole() {
		return nil
	}
	var first error
	for err := range tx.Check() {
		first = cmp.Or(first, err)
	}
	if first == nil {
		return nil
	}
	return errors.New(strings.TrimPrefix(first.Error(), "panic: "))
}

// metasWhole reports whether both of bbolt's meta pages have their number and their
// flag. If one was torn by a crash, the other one counts, and the database is good;
// but bbolt's check would stop at the torn one.
func (f *File) metasWhole() bool {
	const metaFlag, header = 4, 16
	for i := range uint64(2) {
		page := make([]byte, header)
		if _, err := f.handle.ReadAt(page, int64(i)*int64(f.db.Info().PageSize)); err != nil {
			return false
		}
		if binary.NativeEndian.Uint64(page) != i || binary.NativeEndian.Uint16(page[8:])&metaFlag == 0 {
			return false
		}
	}
	return true
}
