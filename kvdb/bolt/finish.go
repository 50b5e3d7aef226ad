// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import "go.etcd.io/bbolt"

// finish gives a transaction its identity, commits it, and notes the commit outside
// of the file before a caller learns of it.
func (f *File) finish(tx *bbolt.Tx) error {
	if err := f.commit(tx); err != nil {
		return err
	}
	return f.note()
}

func (f *File) commit(tx *bbolt.Tx) error {
	t := &f.trust
	next := commitID{
		lineage:  t.last.lineage,
		sequence: t.last.sequence + 1,
		id:       f.opt.random(),
		previous: t.last.id,
		at:       f.opt.Now().UnixNano(),
	}
	if t.accepting {
		next.lineage = f.opt.random()
	}
	f.publish(t.last, next)
	err := next.write(tx)
	size := tx.Size()
	if err == nil {
		err = tx.Commit()
	}
	if err != nil {
		t.attempted = &next
		_ = tx.Rollback() // bbolt has done so in most cases
		return err
	}
	t.last, t.attempted = next, nil
	if t.accepting {
		t.why, t.known, t.opened = "", nil, nil
	}
	f.size.Store(size)
	f.publish(next, next)
	return nil
}
