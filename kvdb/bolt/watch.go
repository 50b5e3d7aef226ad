// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// errForeign is returned for a file that another program has changed, replaced,
// cut off or removed while it was open here.
var errForeign = errors.New("it was changed by another program while it was open")

// foreign returns an error that says what another program did.
func foreign(format string, args ...any) error {
	return fmt.Errorf(
		"%w: %s: start the agent again, it compares the database with its notes",
		errForeign,
		fmt.Sprintf(format, args...),
	)
}

// samePath returns an error if the path does not name the open file any more, or
// if the file is shorter than the last commit has left it.
func (f *File) samePath() error {
	open, err := f.handle.Stat()
	if err != nil {
		return err
	}
	now, err := os.Stat(f.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return foreign("it was removed or renamed")
	case err != nil:
		return err
	case !os.SameFile(open, now):
		return foreign("another file has its path")
	case open.Size() < f.size.Load():
		return foreign("it was cut off: %d of %d bytes are left", open.Size(), f.size.Load())
	}
	return nil
}

// recognize returns an error unless the transaction sees what was committed last. It
// belongs to the committing goroutine.
func (f *File) recognize(tx *bbolt.Tx) error {
	found, err := readCommit(tx)
	t := &f.trust
	switch {
	case err != nil:
		return foreign("%v", err)
	case found == t.last || found.sequence == 0 && t.last.sequence == 0:
		return nil
	case t.attempted != nil && found == *t.attempted: // it was only reported failed
		t.last, t.attempted = found, nil
		f.publish(found, found)
		return f.note()
	}
	return foreign(
		"its last commit is %d of lineage %s, this process wrote %d of lineage %s",
		found.sequence,
		found.lineage,
		t.last.sequence,
		t.last.lineage,
	)
}

// publish tells readers which commits they may find in the file.
func (f *File) publish(last, next commitID) { f.recent.Store(&[2]commitID{last, next}) }

// view runs read on one state of the database. All reads go through it. It returns
// nothing that was read from a file that another program has changed.
func (f *File) view(read func(tx *bbolt.Tx) error) error {
	return f.guard(func() error {
		for {
			before, again := f.recent.Load(), false
			err := f.db.View(func(tx *bbolt.Tx) (err error) {
				if !f.opened {
					return read(tx)
				}
				again, err = f.readOwn(tx, before, read)
				return err
			})
			if !again {
				return err
			}
		}
	})
}

// readOwn runs read if the transaction sees a commit of this process, and is sure
// that it still does so at the end. again is set if several commits were made since
// the transaction began.
func (f *File) readOwn(tx *bbolt.Tx, before *[2]commitID, read func(tx *bbolt.Tx) error) (again bool, err error) {
	found, err := readCommit(tx)
	if err != nil {
		return false, foreign("%v", err)
	}
	now := f.recent.Load()
	if !slices.Contains(before[:], found) && !slices.Contains(now[:], found) {
		if now != before {
			return true, nil
		}
		return false, foreign("its last commit is %d, this process wrote %d", found.sequence, now[0].sequence)
	}
	err = read(tx)
	if still, serr := readCommit(tx); serr != nil || still != found {
		return false, foreign("it changed while it was read")
	}
	return false, err
}

// check ends the use of the file if another program has changed or removed it.
func (f *File) check() error {
	return f.guard(func() error {
		if err := f.samePath(); err != nil {
			return err
		}
		return f.view(func(*bbolt.Tx) error { return nil })
	})
}

// Watch checks the file every interval until ctx ends. After a commit that has
// failed it probes, so that Health recovers without other traffic; as long as
// commits succeed it writes nothing.
func (f *File) Watch(ctx context.Context, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := f.check(); errors.Is(err, errForeign) || errors.Is(err, ErrDamaged) {
			return err
		}
		if f.Health() != nil {
			_ = f.Probe(ctx) // Health has its outcome
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
