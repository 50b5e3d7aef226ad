// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// OpenFile opens the database at path, or makes it.
func OpenFile(path string, opt FileOptions) (*File, error) {
	f, err := openPath(path, opt)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	return f, nil
}

func openPath(path string, opt FileOptions) (*File, error) {
	if opt.wait == 0 {
		opt.wait = time.Second
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.random == nil {
		opt.random = func() (x [16]byte) {
			_, _ = rand.Read(x[:]) // never fails
			return x
		}
	}
	if opt.sync == nil {
		opt.sync = (*os.File).Sync
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := create(path); err != nil {
		return nil, err
	}
	f := &File{path: path, opt: opt, told: make(chan struct{})}
	f.commits.f = f
	if err := f.open(); err != nil {
		return nil, err
	}
	if err := f.prepare(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f.opened = !opt.lockOnly
	return f, nil
}

// open opens the file at the path with bbolt, and is sure that it is that file.
func (f *File) open() error {
	before, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if before.Size() == 0 {
		return damaged(errors.New("it is empty"))
	}
	// The list of free pages is kept in the file: bbolt would otherwise collect it
	// in a goroutine of its own, where a damaged file ends the process.
	options := &bbolt.Options{
		Timeout:         f.opt.wait,
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: mapped,
	}
	if f.opt.tune != nil {
		f.opt.tune(options)
	}
	system := options.OpenFile
	if system == nil {
		system = os.OpenFile
	}
	options.OpenFile = func(name string, flag int, mode os.FileMode) (_ *os.File, err error) {
		f.handle, err = system(name, flag, mode)
		return f.handle, err
	}
	if err := guard(func() (err error) {
		f.db, err = bbolt.Open(f.path, 0o600, options)
		return err
	}); err != nil {
		if f.handle != nil {
			_ = f.handle.Close() // bbolt closes it, too, unless it has panicked
		}
		if errors.Is(err, berrors.ErrTimeout) {
			return fmt.Errorf(
				"%w by %s: stop it, or give this agent a state directory of its own",
				errHeld,
				readHolder(f.path),
			)
		}
		return damaged(err)
	}
	f.db.AllocSize = growth
	if after, err := os.Stat(f.path); err != nil || !os.SameFile(before, after) {
		return errors.Join(errors.New("it was replaced while it was opened: try again"), err, f.db.Close())
	}
	return nil
}

// onDisk makes what was read durable. A process that was killed in the middle of a commit
// leaves pages that only the system's cache has. An answer from them could be lost with the
// power, as one from a commit that failed.
func (f *File) onDisk() error {
	if err := f.opt.sync(f.handle); err != nil {
		return fmt.Errorf("make it durable before it is used: %w", err)
	}
	return nil
}

// create makes the database at path if the file does not exist. It gets its name when
// it is whole: an empty file is a damaged one.
func create(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	tmp := fmt.Sprintf("%s.new-%d", path, os.Getpid())
	defer func() { _ = os.Remove(tmp) }()
	_ = os.Remove(tmp)
	db, err := bbolt.Open(tmp, 0o600, nil)
	if err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	if err := os.Link(tmp, path); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// damagedCures says what a person does about a database that is damaged, in the order of
// preference. The agent does not run meanwhile, and pods keep their network.
const damagedCures = "restore it from a backup (cadastre restore FILE), " +
	"or else move it away and make a database from what runs (cadastre rebuild); both are safe while pods run"

// damaged names what is wrong with the file itself; an error of the system (no
// room, no permission, too many open files) is left as it is.
func damaged(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return err
	}
	if !errors.Is(err, ErrDamaged) {
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("%w: %s", err, damagedCures)
}

func (f *File) prepare() error {
	if err := f.checkSize(); err != nil {
		return err
	}
	if f.opt.lockOnly {
		return nil
	}
	if err := f.onDisk(); err != nil {
		return err
	}
	if err := f.view(f.checkPages); err != nil {
		return damaged(err)
	}
	empty, err := f.checkFormat()
	if err != nil {
		return err
	}
	if err := f.assess(empty); err != nil {
		return err
	}
	if empty {
		if err := f.lay(); err != nil {
			return err
		}
	}
	if err := f.verify(); err != nil {
		return err
	}
	if f.opt.Holder != "" { // for the error of other processes; a full disk does not prevent a start
		_ = os.WriteFile(holderPath(f.path), fmt.Appendf(nil, "%s (pid %d)", f.opt.Holder, os.Getpid()), 0o600)
	}
	return nil
}

// revision is the number of the last transaction.
func (f *File) revision() (n int, err error) {
	err = f.view(func(tx *bbolt.Tx) error { n = tx.ID(); return nil })
	return n, err
}

// checkSize refuses a file that was cut off: reading it would end the process.
func (f *File) checkSize() error {
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	return f.view(func(tx *bbolt.Tx) error {
		f.size.Store(tx.Size())
		if tx.Size() > info.Size() {
			return damaged(fmt.Errorf("it is cut off: %d of %d bytes are there", info.Size(), tx.Size()))
		}
		return nil
	})
}

// verify compares every record with its checksum, and every table with its tally.
// A damaged mirror refuses no file, because it is only a copy: Mirror.Damage tells.
func (f *File) verify() error {
	return f.view(func(tx *bbolt.Tx) error {
		names, err := tables(tx)
		if err != nil {
			return err
		}
		for _, name := range names {
			err := openTable(tx, name).verify()
			if errors.Is(err, ErrDamaged) && (name == mirrorBucket || name == mirrorMeta) {
				f.mirror, err = err, nil
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}
