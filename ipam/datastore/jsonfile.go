// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// JSONFile is a Checkpointer that writes one JSON object to a file, readable by its
// owner only. The data is on the disk before it gets the file's name: a crash
// leaves the old file or the new one, and the end of the process loses nothing. A
// loss of power may restore a file that is some seconds old, but no pod of the new
// one survives it, so a write does not sync the directory.
//
// PATH.previous is the previous generation, kept after a release if it has all
// entries of the file. If the file is damaged, Restore reads the previous one, but only
// if no address can be assigned twice. So this program must have written the file, and
// the previous one must have all its entries under the same keys. The mode of the file
// records both: it is read-only then.
//
// Any goroutine may call its methods. Only one program may write a file: PATH.lock is locked
// during a write, and a write over a file of another writer fails. A DataStore writes no file
// that it has not read.
type JSONFile struct {
	path string

	mu        sync.Mutex
	known     bool            // seen is
	seen      fs.FileInfo     // of the file that was read or written last; nil: there was none
	began     bool            // the leftovers of a crash are removed
	last      *CheckpointData // the last generation; nil: not known
	recovered string
	buffer    []byte

	// Open generations that this JSONFile has written: the file, the previous one,
	// and one without a name. Closing the last frees its space on the disk, which
	// takes long: only the next write but one waits for it.
	current, before, nameless *os.File
	closing                   sync.WaitGroup // of nameless
}

// Modes of the file: of one that the previous generation covers, and of any other.
const (
	coveredMode = fs.FileMode(0o400)
	plainMode   = fs.FileMode(0o600)
)

// NewJSONFile returns a JSONFile at path.
func NewJSONFile(path string) *JSONFile { return &JSONFile{path: path} }

// ofStore returns the JSONFile of one store: another store with the same file is another
// writer. It takes the file for a missing one until it has read it.
func (c *JSONFile) ofStore() *JSONFile { return &JSONFile{path: c.path, known: true} }

// Checkpoint writes data, usually a *CheckpointData. The caller must not change it
// afterwards, since the next one is compared with it. If the file has changed since this
// JSONFile read or wrote it, Checkpoint fails and the file stays.
func (c *JSONFile) Checkpoint(data interface{}) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	whole, err := c.write(data)
	c.last = whole
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", c.path, err)
	}
	return nil
}

// write writes data; whole is nil if the contents of the file are not known.
func (c *JSONFile) write(data any) (whole *CheckpointData, err error) {
	unlock, err := c.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := c.unchanged(); err != nil {
		return nil, err
	}
	if err := c.begin(); err != nil {
		return nil, err
	}
	whole, text, err := c.encode(data)
	if err != nil {
		return nil, err
	}
	mode := plainMode
	if covers(c.last, whole) {
		mode = coveredMode
	}
	c.began = false // until the write has succeeded
	f, err := create(c.temporary(), text, mode)
	if err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	err = c.publish(mode == coveredMode)
	c.note(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	c.began = true
	c.nameless, c.current = c.current, f
	if mode == coveredMode {
		c.nameless, c.before = c.before, c.nameless
	}
	gone := c.nameless
	c.closing.Wait()
	c.closing.Go(func() { _ = gone.Close() }) // it was synced, or is nil
	return whole, nil
}

// lock locks the file for writers, and returns the function that unlocks it. It does not
// wait: the file of a store that has to wait is not as it was.
func (c *JSONFile) lock() (unlock func(), err error) {
	f, err := os.OpenFile(c.path+".lock", os.O_RDWR|os.O_CREATE, plainMode)
	if err != nil {
		return nil, err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, errors.Join(fmt.Errorf("another store writes it now: %s", oneStore), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return func() {
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN) // a process that is being started may have f
		_ = f.Close()
	}, nil
}

const oneStore = "only one store may have a checkpoint; end one of the two, then ReadBackingStore reads the file again"

// unchanged returns an error if the file is not the one that was read or written last. A
// file that was removed has no assignment to lose.
func (c *JSONFile) unchanged() error {
	now, err := os.Stat(c.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !c.known || sameFile(c.seen, now):
		return nil
	case c.seen == nil:
		return fmt.Errorf("it has assignments that this store has not read: %s", oneStore)
	}
	return fmt.Errorf("it has changed since this store read or wrote it: %s", oneStore)
}

// sameFile reports whether no program has replaced or changed a file. A change of its mode or of
// its number of links does not count.
func sameFile(was, now fs.FileInfo) bool {
	return was != nil && os.SameFile(was, now) && was.Size() == now.Size() && was.ModTime().Equal(now.ModTime())
}

// note records f as the file that was written last, if it has the file's name.
func (c *JSONFile) note(f *os.File) {
	written, err := f.Stat()
	if err != nil {
		return
	}
	if now, err := os.Stat(c.path); err == nil && os.SameFile(written, now) {
		c.seen, c.known = now, true
	}
}

func (c *JSONFile) temporary() string { return c.path + ".tmp" }

func (c *JSONFile) previous() string { return c.path + ".previous" }

// begin removes the leftovers of a crash or a failed write.
func (c *JSONFile) begin() error {
	if c.began {
		return nil
	}
	if err := os.Remove(c.temporary()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	c.began = true
	return nil
}

// encode returns the text of data; whole is nil if it is not a *CheckpointData.
func (c *JSONFile) encode(data any) (whole *CheckpointData, text []byte, err error) {
	whole, ok := data.(*CheckpointData)
	if !ok {
		text, err = json.Marshal(data)
		return nil, text, err
	}
	c.buffer, err = encodeFile(c.buffer[:0], whole)
	return whole, c.buffer, err
}

// covers reports whether old has all assignments of young, in the same order.
func covers(old, young *CheckpointData) bool {
	if old == nil || young == nil {
		return false
	}
	i := 0
	for _, e := range young.Allocations {
		for ; ; i++ {
			if i == len(old.Allocations) {
				return false
			}
			if o := &old.Allocations[i]; o.IPv4 == e.IPv4 && o.IPv6 == e.IPv6 && o.IPAMKey == e.IPAMKey {
				break
			}
		}
	}
	return true
}

// publish renames the temporary file to the file. With keep the old file becomes
// the previous one.
func (c *JSONFile) publish(keep bool) error {
	if !keep {
		return os.Rename(c.temporary(), c.path)
	}
	err := unix.Renameat2(unix.AT_FDCWD, c.temporary(), unix.AT_FDCWD, c.path, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return os.Rename(c.temporary(), c.previous())
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, fs.ErrNotExist):
		// The file was removed, or the file system cannot exchange two files.
		if err := os.Remove(c.previous()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.Rename(c.temporary(), c.path)
	}
	return fmt.Errorf("exchange %s and %s: %w", c.temporary(), c.path, err)
}

// create writes text to a new file, and starts its writing to the disk. Sync waits
// for the disk and returns its error.
func create(path string, text []byte, mode fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(text); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	return f, nil
}

// Restore reads the file. If there is none, the error wraps fs.ErrNotExist. A
// damaged file stays, unless the previous one is proved to have all its entries.
func (c *JSONFile) Restore(into interface{}) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	text, seen, err := c.read()
	if err != nil {
		return fmt.Errorf("read the checkpoint: %w", err)
	}
	if err := decodeFile(text, into); err != nil {
		damage := fmt.Errorf("checkpoint %s cannot be read: %w", c.path, err)
		if err := c.fallBack(into); err != nil {
			return fmt.Errorf(
				"%w; the previous one was not restored: %w; keep pods off the node until the file is repaired, or drain the node, remove it and reboot",
				damage,
				err,
			)
		}
		c.recovered = damage.Error()
	} else {
		c.seen, c.known = seen, true
	}
	c.last, _ = into.(*CheckpointData)
	return nil
}

// read returns the text of the file, and which file it was.
func (c *JSONFile) read() (text []byte, seen fs.FileInfo, err error) {
	f, err := os.Open(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		c.seen, c.known = nil, true
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	if seen, err = f.Stat(); err != nil {
		return nil, nil, err
	}
	text, err = io.ReadAll(f)
	return text, seen, err
}

// Recovered returns the damage for which Restore has read the previous generation;
// "": it has not.
func (c *JSONFile) Recovered() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recovered
}

// fallBack restores the previous generation, if it is proved to have all entries
// of the damaged one.
func (c *JSONFile) fallBack(into any) error {
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	info, err := os.Stat(c.path)
	if err != nil {
		return err
	}
	if info.Mode().Perm() != coveredMode {
		return errors.New("the damaged one may have more entries, or is of another program")
	}
	if _, err := os.Lstat(c.temporary()); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("a write was not completed, see %s", c.temporary())
	}
	text, err := os.ReadFile(c.previous())
	if err != nil {
		return err
	}
	if err := decodeFile(text, into); err != nil {
		return fmt.Errorf("%s: %w", c.previous(), err)
	}
	f, err := create(c.temporary(), text, plainMode)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(c.temporary(), c.path); err != nil {
		return err
	}
	c.seen, err = os.Stat(c.path)
	c.known = true
	return err
}
