// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
)

// Buckets of the file.
const (
	metaBucket    = "meta"    // the format number, the tallies, and the identity of the last commit
	journalBucket = "ledger"  // the ledger's records
	historyBucket = "history" // the ledger's history
	storeBucket   = "kvdb"    // the embedded cluster store
	nodeBucket    = "local"   // what the node remembers of itself
)

var (
	// errHeld is returned for a file that another process has open.
	errHeld = errors.New("the database is in use")
	// errNewer is returned for a file that a newer program has written.
	errNewer = errors.New("the database is of a newer version")
	// ErrDamaged is returned for a file that cannot be read.
	ErrDamaged = errors.New("the database is damaged")
)

// File is a node's database file: one process has it open at a time. Use
// OpenFile; any goroutine may call its methods.
type File struct {
	db      *bbolt.DB
	handle  *os.File // the one that bbolt reads and writes
	path    string
	opt     FileOptions
	commits committer
	trust   trust
	opened  bool  // faults before that are errors of OpenFile
	mirror  error // what is wrong with the mirror, as it was when the file was opened

	failed    atomic.Pointer[error] // why the file cannot be used any more
	told      chan struct{}         // closed when the owner knows that
	unhealthy atomic.Pointer[error] // why a commit failed since the last probe
	doubted   atomic.Pointer[Doubt]
	recent    atomic.Pointer[[2]commitID] // the last commit, and the one under way
	size      atomic.Int64                // of the file, at least
}

// FileOptions are the parameters of OpenFile.
type FileOptions struct {
	Holder string        // who opens it, for the error that others get
	wait   time.Duration // for another process to let go; 0: a second
	// Notes are the paths of files outside of the database that note its newest
	// commit, and BootID is the boot that they are of. With none of them a database
	// is never in doubt.
	Notes  []string
	BootID string
	Now    func() time.Time
	random func() [16]byte
	// Fail, if set, is called once if the open file turns out to be unusable. No
	// caller whose answer depends on the file is answered before it returns. A
	// program ends in it: bbolt may hold its locks for ever.
	Fail func(error)

	lockOnly bool                 // the file is not read
	tune     func(*bbolt.Options) // for tests
	sync     func(*os.File) error // instead of the file's own, for tests
}

// Close awaits the commit that is under way and closes the file. A file that has
// failed is only unlocked.
func (f *File) Close() error {
	f.commits.close()
	var err error
	if f.failed.Load() != nil {
		err = f.handle.Close()
	} else {
		err = guard(f.db.Close)
	}
	if f.trust.notes != nil {
		err = errors.Join(err, f.trust.notes.close())
	}
	if err != nil {
		return fmt.Errorf("close database %s: %w", f.path, err)
	}
	_ = os.Remove(holderPath(f.path))
	return nil
}

// Store returns the embedded cluster store. Call it once.
func (f *File) Store() (*Store, error) {
	s, err := newStore(f, storeBucket)
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", f.path, err)
	}
	return s, nil
}

func holderPath(path string) string { return path + ".holder" }

func readHolder(path string) string {
	if b, err := os.ReadFile(holderPath(path)); err == nil && len(b) > 0 {
		return strings.TrimSpace(string(b))
	}
	return "another process"
}
