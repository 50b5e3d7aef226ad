// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
)

// Of format 2 a tally is the plain sum of the checksums, and the journal has no policies
// of pools.

// migrateFrom2 compares each table with its tally of format 2, and gives it one of
// format 3. A damaged mirror is dropped, because it is only a copy.
func migrateFrom2(tx *bbolt.Tx) error {
	names, err := tables(tx)
	if err != nil {
		return err
	}
	dropped := false
	for _, name := range names {
		err := tallyAgain(openTable(tx, name))
		if errors.Is(err, ErrDamaged) && (name == mirrorBucket || name == mirrorMeta) {
			dropped, err = true, nil
		}
		if err != nil {
			return fmt.Errorf("bucket %s: %w", name, err)
		}
	}
	if dropped {
		return dropMirror(tx)
	}
	return nil
}

func tallyAgain(t table) error {
	if err := t.eachBy(stored, func(_, _ []byte) error { return nil }); err != nil {
		return err
	}
	var y tally
	if t.b != nil {
		if err := t.b.ForEach(func(_, raw []byte) error { y.add(raw); return nil }); err != nil {
			return err
		}
	}
	return t.setTally(y)
}
