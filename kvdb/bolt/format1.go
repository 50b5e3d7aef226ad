// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/bbolt"
)

// policyPrefix begins the keys of the ledger's records of policies, which programs of
// format 1 refuse.
const policyPrefix = "P"

// Of format 1 the journal, the mirror and the records of parts have checksums; the
// store, local values, revisions and the format number have none. There are no
// tallies.

// bareIn1 reports whether the records of a table have no checksums in format 1.
func bareIn1(name string) bool {
	return name == nodeBucket || name == mirrorMeta || strings.HasPrefix(name, storeBucket+"/")
}

// migrateFrom1 adds the checksums and tallies that format 1 does not have. A
// record that does not fit the checksum that it has is refused; a mirror with such
// a record is dropped, because it is only a copy.
func migrateFrom1(tx *bbolt.Tx) error {
	names, err := tables(tx)
	if err != nil {
		return err
	}
	dropped := false
	for _, name := range names {
		err := reseal(tx, name)
		if errors.Is(err, ErrDamaged) && name == mirrorBucket {
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

func reseal(tx *bbolt.Tx, name string) error {
	t, err := createTable(tx, name)
	if err != nil {
		return err
	}
	records, err := raws(t)
	if err != nil {
		return err
	}
	var y tally
	for _, r := range records {
		raw := r.v
		if bareIn1(name) {
			raw = seal(r.k, r.v)
			if err := t.b.Put(r.k, raw); err != nil {
				return err
			}
		} else if _, err := unseal(name, r.k, raw); err != nil {
			return err
		}
		y = tally{y.count + 1, y.sum + stored(raw)} // as format 2 has it
	}
	return t.setTally(y)
}

// downgradeTo1 makes the file one of format 1, with nothing lost that format 1
// can hold. It refuses a file with a damaged record; a damaged mirror is dropped.
func downgradeTo1(tx *bbolt.Tx) error {
	if openTable(tx, mirrorBucket).verify() != nil || openTable(tx, mirrorMeta).verify() != nil {
		if err := dropMirror(tx); err != nil {
			return err
		}
	}
	names, err := tables(tx)
	if err != nil {
		return err
	}
	for _, name := range names {
		t := openTable(tx, name)
		if err := t.verify(); err != nil {
			return err
		}
		records, err := raws(t)
		if err != nil {
			return err
		}
		if name == journalBucket {
			for _, r := range records {
				if strings.HasPrefix(string(r.k), policyPrefix) {
					err = errors.Join(err, t.b.Delete(r.k))
				}
			}
		}
		if err != nil {
			return err
		}
		if !bareIn1(name) {
			continue
		}
		for _, r := range records {
			if err := t.b.Put(r.k, r.v[checksumLen:]); err != nil {
				return err
			}
		}
	}
	if err := tx.DeleteBucket([]byte(metaBucket)); err != nil {
		return err
	}
	meta, err := tx.CreateBucket([]byte(metaBucket))
	if err != nil {
		return err
	}
	return meta.Put([]byte(formatKey), binary.BigEndian.AppendUint64(nil, 1))
}

type rawRecord struct{ k, v []byte }

// raws returns copies of the records of a table as they are stored: bbolt's
// cursors do not survive a write.
func raws(t table) (all []rawRecord, err error) {
	if t.b == nil {
		return nil, nil
	}
	err = t.b.ForEach(func(k, v []byte) error {
		if v == nil {
			return damaged(fmt.Errorf("bucket %s holds a bucket %q", t.name, k))
		}
		all = append(all, rawRecord{bytes.Clone(k), bytes.Clone(v)})
		return nil
	})
	return all, err
}

// Downgrade makes the database at path, which no process may have open, one of
// format 1 in one transaction, and keeps a copy of it as it was at the path that
// it returns. What the notes of opt say goes over into the note of format 1.
func Downgrade(ctx context.Context, path string, opt FileOptions) (kept string, err error) {
	if kept, err = downgrade(ctx, path, opt); err != nil {
		return "", fmt.Errorf("downgrade database %s to format 1: %w", path, err)
	}
	return kept, nil
}

func downgrade(ctx context.Context, path string, opt FileOptions) (kept string, err error) {
	opt.existing = true
	if err := refuse1(path); err != nil {
		return "", err
	}
	f, err := openPath(path, opt)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	kept = fmt.Sprintf("%s.format-%d", path, Format)
	if err := f.copyTo(kept); err != nil {
		return "", err
	}
	if err := f.writeLevel1(); err != nil {
		return "", err
	}
	if err := f.commits.commit(ctx, func(tx *bbolt.Tx) (bool, error) {
		f.trust.leaving = true
		return true, downgradeTo1(tx)
	}); err != nil {
		return "", err
	}
	for _, note := range opt.Notes {
		if rerr := os.Remove(note); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return kept, err
}

// refuse1 returns an error for a file that is of format 1.
func refuse1(path string) error {
	f, err := openPath(path, FileOptions{existing: true, lockOnly: true})
	if err != nil {
		return err
	}
	have, _, err := f.readFormat()
	if err == nil && have == 1 {
		err = errors.New("it is of format 1 already")
	}
	return errors.Join(err, f.Close())
}

// writeLevel1 writes db.level, in which a program of format 1 finds the newest
// revision of this boot, and that the database is in doubt.
func (f *File) writeLevel1() error {
	if f.opt.Level1 == "" {
		return nil
	}
	revision, err := f.revision()
	if err != nil {
		return err
	}
	mark := "trusted"
	if f.Doubt() != nil {
		mark = suspect1
	}
	if err := os.MkdirAll(filepath.Dir(f.opt.Level1), 0o700); err != nil {
		return err
	}
	return os.WriteFile(f.opt.Level1, fmt.Appendf(nil, "%020d %s %s\n", revision+1, f.opt.BootID, mark), 0o600)
}
