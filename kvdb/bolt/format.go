// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"go.etcd.io/bbolt"
)

// Format is the number of the layout that this program writes.
const Format = 3

// The format number is a bare one, so that programs of every format can read it.
// Its checksum, which format 1 does not have, is a record beside it.
const (
	formatKey         = "format"
	formatChecksumKey = "format-checksum"
)

// migration makes a file of one format into one of the next.
type migration func(tx *bbolt.Tx) error

// checkFormat returns the format of the file, 0 for an empty one. It refuses a
// newer one, and one that cannot be migrated.
func (f *File) checkFormat() (uint64, error) {
	have, empty, err := f.readFormat()
	switch {
	case err != nil:
		return 0, damaged(err)
	case have > f.opt.format:
		return 0, fmt.Errorf(
			"%w: its format is %d, this program knows %d: install the newer program again, or restore a backup that this one wrote",
			errNewer,
			have,
			f.opt.format,
		)
	case have == 0 && !empty || have > 0 && int(f.opt.format-have) > len(f.opt.migrations):
		return 0, damaged(fmt.Errorf("its format number %d is not known", have))
	}
	return have, nil
}

// reachFormat migrates a file from the format that it has, or makes an empty file a
// database.
func (f *File) reachFormat(have uint64) error {
	opt := f.opt
	switch have {
	case opt.format:
		return nil
	case 0:
		have = opt.format
	default:
		if err := f.copyTo(fmt.Sprintf("%s.format-%d", f.path, have)); err != nil {
			return fmt.Errorf("copy it before it is migrated: %w", err)
		}
	}
	err := f.commits.commit(context.Background(), func(tx *bbolt.Tx) (bool, error) {
		for v := have; v < opt.format; v++ {
			if err := opt.migrations[uint64(len(opt.migrations))-(opt.format-v)](tx); err != nil {
				return true, fmt.Errorf("migrate it from format %d: %w", v, err)
			}
		}
		if _, err := createTable(tx, journalBucket); err != nil {
			return true, err
		}
		return true, writeFormat(tx, opt.format)
	})
	if err == nil && opt.Level1 != "" {
		_ = os.Remove(opt.Level1) // its word is in the notes now
	}
	return err
}

// readFormat returns the format number, 0 for none, and whether the file is empty.
func (f *File) readFormat() (have uint64, empty bool, err error) {
	err = f.view(func(tx *bbolt.Tx) error {
		k, _ := tx.Cursor().First()
		empty = k == nil
		b := tx.Bucket([]byte(metaBucket))
		if b == nil {
			have = 0
		} else if have, err = formatOf(b); err != nil {
			return err
		}
		if !empty && tx.Bucket([]byte(journalBucket)) == nil {
			return errors.New("it has no journal")
		}
		return nil
	})
	return have, empty, err
}

func formatOf(meta *bbolt.Bucket) (uint64, error) {
	v := meta.Get([]byte(formatKey))
	if len(v) != 8 {
		return 0, nil
	}
	number, sum := binary.BigEndian.Uint64(v), meta.Get([]byte(formatChecksumKey))
	if (number > 1 || sum != nil) &&
		(len(sum) != checksumLen || binary.BigEndian.Uint32(sum) != checksum([]byte(formatKey), v)) {
		return 0, fmt.Errorf("its format number %d does not fit its checksum", number)
	}
	return number, nil
}

func writeFormat(tx *bbolt.Tx, number uint64) error {
	b, err := tx.CreateBucketIfNotExists([]byte(metaBucket))
	if err != nil {
		return err
	}
	v := binary.BigEndian.AppendUint64(nil, number)
	if err := b.Put([]byte(formatKey), v); err != nil {
		return err
	}
	return b.Put([]byte(formatChecksumKey), binary.BigEndian.AppendUint32(nil, checksum([]byte(formatKey), v)))
}
