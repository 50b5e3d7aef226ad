// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Buckets of the file.
const (
	fileBucket    = "meta"   // the format number
	JournalBucket = "ledger" // the ledger's records
	StoreBucket   = "kvdb"   // the embedded cluster store
	nodeBucket    = "local"  // what the node remembers of itself
)

// Format is the number of the layout that this program writes.
const Format = 1

var (
	// ErrHeld is returned for a file that another process has open.
	ErrHeld = errors.New("the database is in use")
	// ErrNewer is returned for a file that a newer program has written.
	ErrNewer = errors.New("the database is of a newer version")
	// ErrDamaged is returned for a file that cannot be read.
	ErrDamaged = errors.New("the database is damaged")
)

// File is a node's database file: one process has it open at a time. Use
// OpenFile; any goroutine may call its methods.
type File struct {
	db     *bbolt.DB
	path   string
	level  *level // nil: none is kept
	backup sync.Mutex
}

// FileOptions are the parameters of OpenFile.
type FileOptions struct {
	Holder string        // who opens it, for the error that others get
	Wait   time.Duration // for another process to let go; 0: a second
	// LevelPath and BootID, if set, are where the newest revision is noted
	// outside of the file (see Older).
	LevelPath string
	BootID    string

	migrations []migration // instead of the built-in ones, for tests
	format     uint64
}

// migration makes a file of one format into one of the next.
type migration func(tx *bbolt.Tx) error

// OpenFile opens the database at path, or makes it. A file of an older format
// is copied first and then migrated in one transaction.
func OpenFile(path string, opt FileOptions) (f *File, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("open database %s: %w", path, err)
		}
	}()
	if opt.Wait == 0 {
		opt.Wait = time.Second
	}
	if opt.format == 0 {
		opt.format = Format
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if err := create(path); err != nil {
		return nil, err
	}
	before, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if before.Size() == 0 {
		return nil, damaged(errors.New("it is empty"))
	}
	f = &File{path: path}
	// The list of free pages is kept in the file: bbolt would otherwise collect it
	// in a goroutine of its own, where a damaged file ends the process.
	if err := guard(func() (err error) {
		f.db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: opt.Wait, FreelistType: bbolt.FreelistMapType})
		return err
	}); err != nil {
		if errors.Is(err, bolterrors.ErrTimeout) {
			return nil, fmt.Errorf("%w by %s: stop it, or give this agent a state directory of its own", ErrHeld, readHolder(path))
		}
		return nil, damaged(err)
	}
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		return nil, errors.Join(errors.New("it was replaced while it was opened: try again"), err, f.db.Close())
	}
	if err := f.prepare(opt); err != nil {
		return nil, errors.Join(err, f.db.Close())
	}
	return f, nil
}

// create makes the database at path where there is none. It gets its name when
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

// damaged names what is wrong with the file itself; an error of the system (no
// room, no permission, too many open files) is left as it is.
func damaged(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return err
	}
	return fmt.Errorf("%w: %w: restore it from a backup (cadastre restore FILE)", ErrDamaged, err)
}

func (f *File) prepare(opt FileOptions) error {
	if err := f.checkSize(); err != nil {
		return err
	}
	revision, err := f.revision()
	if err != nil {
		return err
	}
	if err := f.readAll(); err != nil {
		return damaged(err)
	}
	if err := f.checkFormat(opt); err != nil {
		return err
	}
	if opt.Holder != "" { // for the error that others get; a full disk is no reason not to start
		_ = os.WriteFile(holderPath(f.path), fmt.Appendf(nil, "%s (pid %d)", opt.Holder, os.Getpid()), 0o600)
	}
	if opt.LevelPath != "" {
		if f.level, err = openLevel(opt.LevelPath, opt.BootID, revision); err != nil {
			return err
		}
	}
	return nil
}

// revision is the number of the last transaction.
func (f *File) revision() (n int, err error) {
	err = guard(func() error {
		return f.db.View(func(tx *bbolt.Tx) error { n = tx.ID(); return nil })
	})
	return n, err
}

// checkSize refuses a file that was cut off: reading it would end the process.
func (f *File) checkSize() error {
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	return guard(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			if tx.Size() > info.Size() {
				return damaged(fmt.Errorf("it is cut off: %d of %d bytes are there", info.Size(), tx.Size()))
			}
			return nil
		})
	})
}

// readAll reads every page that a record is on, so that damage shows at the
// start and not later.
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
	return guard(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return walk(b) })
		})
	})
}

// checkFormat migrates an older file and refuses a newer one.
func (f *File) checkFormat(opt FileOptions) error {
	var have uint64
	empty := true
	if err := guard(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			k, _ := tx.Cursor().First()
			empty = k == nil
			if b := tx.Bucket([]byte(fileBucket)); b != nil {
				if v := b.Get([]byte("format")); len(v) == 8 {
					have = binary.BigEndian.Uint64(v)
				}
			}
			if !empty && tx.Bucket([]byte(JournalBucket)) == nil {
				return errors.New("it has no journal")
			}
			return nil
		})
	}); err != nil {
		return damaged(err)
	}
	switch {
	case have == opt.format:
		return nil
	case have > opt.format:
		return fmt.Errorf("%w: its format is %d, this program knows %d: install the newer program again, or restore a backup that this one wrote", ErrNewer, have, opt.format)
	case empty:
		have = opt.format
	default:
		if have == 0 || int(opt.format-have) > len(opt.migrations) {
			return damaged(fmt.Errorf("it has no format number that is known (%d)", have))
		}
		if err := f.copyTo(fmt.Sprintf("%s.format-%d", f.path, have)); err != nil {
			return fmt.Errorf("copy it before it is migrated: %w", err)
		}
	}
	return f.db.Update(func(tx *bbolt.Tx) error {
		for v := have; v < opt.format; v++ {
			if err := opt.migrations[uint64(len(opt.migrations))-(opt.format-v)](tx); err != nil {
				return fmt.Errorf("migrate it from format %d: %w", v, err)
			}
		}
		if _, err := tx.CreateBucketIfNotExists([]byte(JournalBucket)); err != nil {
			return err
		}
		b, err := tx.CreateBucketIfNotExists([]byte(fileBucket))
		if err != nil {
			return err
		}
		return b.Put([]byte("format"), binary.BigEndian.AppendUint64(nil, opt.format))
	})
}

// Close lets go of the file.
func (f *File) Close() error {
	err := f.db.Close()
	if f.level != nil {
		err = errors.Join(err, f.level.close())
	}
	if err != nil {
		return fmt.Errorf("close database %s: %w", f.path, err)
	}
	_ = os.Remove(holderPath(f.path))
	return nil
}

// Path is where the file is.
func (f *File) Path() string { return f.path }

// Store is the embedded cluster store. Call it once.
func (f *File) Store() (s *Store, err error) {
	err = guard(func() (err error) {
		s, err = New(f.db, StoreBucket)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", f.path, err)
	}
	return s, nil
}

// Local reads what the node remembers of itself under a name, "" if nothing.
func (f *File) Local(name string) (value string, err error) {
	err = guard(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			if b := tx.Bucket([]byte(nodeBucket)); b != nil {
				value = string(b.Get([]byte(name)))
			}
			return nil
		})
	})
	if err != nil {
		return "", fmt.Errorf("database %s: %w", f.path, err)
	}
	return value, nil
}

// SetLocal remembers value under a name; it is durable when it returns.
func (f *File) SetLocal(name, value string) error {
	err := guard(func() error {
		return f.db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte(nodeBucket))
			if err != nil {
				return err
			}
			return b.Put([]byte(name), []byte(value))
		})
	})
	if err != nil {
		return fmt.Errorf("database %s: remember %s: %w", f.path, name, err)
	}
	return nil
}

// Backup writes a consistent copy of the file to w while it is in use. The copy
// is made on disk first: however slowly w takes it, nobody has to wait.
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
	defer in.Close()
	return io.Copy(w, in)
}

func (f *File) copyTo(path string) error {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = f.db.View(func(tx *bbolt.Tx) error {
		_, err := tx.WriteTo(out)
		return err
	})
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

func holderPath(path string) string { return path + ".holder" }

func readHolder(path string) string {
	if b, err := os.ReadFile(holderPath(path)); err == nil && len(b) > 0 {
		return strings.TrimSpace(string(b))
	}
	return "another process"
}

// guard turns the panics of a damaged file, and the faults of a truncated one,
// into errors.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, v)
		}
	}()
	return f()
}
