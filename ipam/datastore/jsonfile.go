// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// JSONFile is a Checkpointer that writes one JSON object to a file, readable by
// its owner only. What was written is on the disk before it gets the file's
// name: a crash at any instant leaves the old file or the new one. The end of
// the process loses nothing. The loss of power may bring a file back that is
// some seconds old, but then no pod lives that could be in the new one: so the
// directory is not waited for.
//
// PATH.previous is the generation before, where it holds all that the file
// holds: after a release. Where the file turns out to be damaged, Restore takes
// that one if this cannot lead to an address being assigned twice: if the file
// is one that was written here, and the previous one holds all that it held, for
// the same keys. The file's mode says both: it is read-only then.
//
// Any goroutine may call it; no two programs may write one file.
type JSONFile struct {
	path string

	mu        sync.Mutex
	began     bool            // what a crash may have left is gone
	last      *CheckpointData // the last generation; nil where it is not known
	recovered string
	buffer    []byte

	// Generations that were written here, held open: the file, the previous one,
	// and the one that has lost its name. What that one takes on the disk is given
	// back when it is closed, for which nobody waits but the next write but one.
	current, before, nameless *os.File
	closing                   sync.WaitGroup // of the last one
}

// Modes of the file: of one that the previous generation covers, and any other.
const (
	coveredMode = fs.FileMode(0o400)
	plainMode   = fs.FileMode(0o600)
)

// NewJSONFile makes a JSONFile.
func NewJSONFile(path string) *JSONFile { return &JSONFile{path: path} }

// Checkpoint writes data, usually a *CheckpointData, which must not be changed
// afterwards: the next one is compared with it.
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

// write writes data; whole is nil where it is not known what the file has then.
func (c *JSONFile) write(data any) (whole *CheckpointData, err error) {
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
	c.began = false // unless all goes well
	f, err := create(c.temporary(), text, mode)
	if err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := c.publish(mode == coveredMode); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	c.began = true
	c.nameless, c.current = c.current, f
	if mode == coveredMode {
		c.nameless, c.before = c.before, c.nameless
	}
	gone := c.nameless
	c.closing.Wait()
	c.closing.Go(func() { gone.Close() }) // it was synced: nothing can be lost, nor where there is none
	return whole, nil
}

func (c *JSONFile) temporary() string { return c.path + ".tmp" }

func (c *JSONFile) previous() string { return c.path + ".previous" }

// begin removes what a crash, or a write that failed, may have left.
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

// encode makes the text; whole is nil where nobody knows what is in it.
func (c *JSONFile) encode(data any) (whole *CheckpointData, text []byte, err error) {
	whole, ok := data.(*CheckpointData)
	if !ok {
		text, err = json.Marshal(data)
		return nil, text, err
	}
	c.buffer, err = encodeFile(c.buffer[:0], whole)
	return whole, c.buffer, err
}

// covers is true where old holds all that is in young, in the same order.
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

// publish makes the temporary file the file. Where it may be needed, what was
// the file becomes the previous one; otherwise that is of no use to anybody.
func (c *JSONFile) publish(keep bool) error {
	if !keep {
		return os.Rename(c.temporary(), c.path)
	}
	err := unix.Renameat2(unix.AT_FDCWD, c.temporary(), unix.AT_FDCWD, c.path, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return os.Rename(c.temporary(), c.previous())
	case errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, fs.ErrNotExist):
		// The file was removed, or the file system cannot exchange two.
		if err := os.Remove(c.previous()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.Rename(c.temporary(), c.path)
	}
	return fmt.Errorf("exchange %s and %s: %w", c.temporary(), c.path, err)
}

// create writes text to a new file, and has the disk begin with it. Sync waits
// for the disk, and says what has failed.
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

// Restore reads the file. Where it is not there the error wraps fs.ErrNotExist.
// A damaged file is left as it is, unless the previous one can be proved to do.
func (c *JSONFile) Restore(into interface{}) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	text, err := os.ReadFile(c.path)
	if err != nil {
		return fmt.Errorf("read the checkpoint: %w", err)
	}
	if err := decodeFile(text, into); err != nil {
		damage := fmt.Errorf("checkpoint %s cannot be read: %w", c.path, err)
		if err := c.fallBack(into); err != nil {
			return fmt.Errorf("%w; the previous one is not taken: %w; keep pods off the node until the file is put right, or drain the node, remove it and reboot", damage, err)
		}
		c.recovered = damage.Error()
	}
	c.last, _ = into.(*CheckpointData)
	return nil
}

// Recovered is why Restore has taken the previous generation, "" if it has not.
func (c *JSONFile) Recovered() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recovered
}

// fallBack restores the previous generation, where it is proved to hold all
// that the damaged one held.
func (c *JSONFile) fallBack(into any) error {
	info, err := os.Stat(c.path)
	if err != nil {
		return err
	}
	if info.Mode().Perm() != coveredMode {
		return errors.New("the damaged one may hold more, or is of another program")
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
	return os.Rename(c.temporary(), c.path)
}
