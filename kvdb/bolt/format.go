// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
)

// Format is the number of the layout of a database. A program opens databases of its own
// format only. The first release with another one brings the way from this one.
const Format = 1

// The format number is a bare one, so that programs of every format can read it.
// Its checksum is a record beside it.
const (
	formatKey         = "format"
	formatChecksumKey = "format-checksum"
)

// checkFormat reports whether the file is empty. It refuses a file of another format.
func (f *File) checkFormat() (empty bool, err error) {
	have, empty, err := f.readFormat()
	switch {
	case err != nil:
		return false, damaged(err)
	case have > Format:
		return false, fmt.Errorf(
			"%w: its format is %d, this program knows %d: install the newer program again, or restore a backup that this one wrote",
			errNewer,
			have,
			Format,
		)
	case have != Format && !empty:
		return false, damaged(fmt.Errorf("its format number %d is not known", have))
	}
	return empty, nil
}

// lay makes an empty file a database.
func (f *File) lay() error {
	return f.commits.commit(context.Background(), func(tx *bbolt.Tx) (bool, error) {
		if _, err := createTable(tx, journalBucket); err != nil {
			return true, err
		}
		return true, writeFormat(tx, Format)
	})
}

// readFormat returns the format number, 0 for none, and whether the file is empty.
func (f *File) readFormat() (have uint64, empty bool, err error) {
	err = f.view(func(tx *bbolt.Tx) error {
		k, _ := tx.Cursor().First()
		if empty = k == nil; empty {
			return nil
		}
		if b := tx.Bucket([]byte(metaBucket)); b != nil {
			if have, err = formatOf(b); err != nil {
				return err
			}
		}
		if tx.Bucket([]byte(journalBucket)) == nil {
			return errors.New("it has no journal")
		}
		return nil
	})
	return have, empty, err
}

func formatOf(meta *bbolt.Bucket) (uint64, error) {
	v, sum := meta.Get([]byte(formatKey)), meta.Get([]byte(formatChecksumKey))
	if len(v) != 8 {
		return 0, nil
	}
	number := binary.BigEndian.Uint64(v)
	if len(sum) != checksumLen || binary.BigEndian.Uint32(sum) != checksum([]byte(formatKey), v) {
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
