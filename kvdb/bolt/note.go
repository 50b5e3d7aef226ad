// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// note holds what the agent knows of a database outside of the database file.
type note struct {
	Count    uint64   `json:"n"` // of the notes written about this database: the newest has the highest
	Lineage  identity `json:"lineage"`
	Sequence uint64   `json:"seq"` // 0: nothing was committed yet
	ID       identity `json:"id"`
	At       int64    `json:"at"` // of the commit, Unix time in ns
	Boot     string   `json:"boot"`
	Doubt    doubt    `json:"doubt,omitempty"` // "": the database is trusted
	Known    *known   `json:"known,omitempty"` // with a doubt: the newest commit that was noted before it
	// Opened is, with a doubt, the last commit that the database had when the doubt began. The
	// agent commits to a database in doubt too.
	Opened *known `json:"opened,omitempty"`
}

// known names a commit of a database in doubt.
type known struct {
	Lineage  identity `json:"lineage"`
	Sequence uint64   `json:"seq"`
	At       int64    `json:"at"`
	ID       identity `json:"id,omitzero"` // of Known only
}

// is reports whether a database has this commit as its last one, or one commit more: that
// one was not answered. Nothing that was answered is missing from such a database.
func (k *known) is(db commitID) bool {
	if k == nil || k.ID == (identity{}) || db.lineage != k.Lineage {
		return false
	}
	return db.sequence == k.Sequence && db.id == k.ID || db.sequence == k.Sequence+1 && db.previous == k.ID
}

// about reports whether the note says anything of a database. One that was written
// before the first commit speaks of its own lineage alone.
func (n note) about(db commitID) bool {
	return n.Sequence > 0 || n.Doubt != "" || n.Lineage == db.lineage
}

// Notes returns the paths of the notes about the database at path. One is in the run
// directory, which a loss of the state directory does not reach, and one is beside the
// database.
func Notes(runDir, path string) []string {
	return []string{filepath.Join(runDir, "db.note"), beside(path)}
}

func beside(path string) string { return path + ".note" }

// Sizes of a note file. It has two slots, which are written in turn: a write that
// is torn leaves the note before it readable.
const (
	noteSlot  = 512
	noteSlots = 2
)

// encode returns a slot: a checksum in hex, the note as JSON, spaces, a newline.
func (n note) encode() ([]byte, error) {
	text, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	const frame = 8 + 1 + 1
	if len(text) > noteSlot-frame {
		return nil, fmt.Errorf("a note of %d bytes does not fit a slot of %d", len(text), noteSlot)
	}
	text = append(text, bytes.Repeat([]byte{' '}, noteSlot-frame-len(text))...)
	return fmt.Appendf(nil, "%08x %s\n", crc32.ChecksumIEEE(text), text), nil
}

// decodeNote returns the note in a slot, if it is a whole one.
func decodeNote(slot []byte) (n note, ok bool) {
	if len(slot) != noteSlot || slot[8] != ' ' || slot[noteSlot-1] != '\n' {
		return n, false
	}
	text := slot[9 : noteSlot-1]
	if string(slot[:8]) != fmt.Sprintf("%08x", crc32.ChecksumIEEE(text)) {
		return n, false
	}
	return n, json.Unmarshal(text, &n) == nil
}

// readNote returns the newest note in the file at path, if one is readable.
func readNote(path string) (newest note, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return note{}, false
	}
	defer func() { _ = f.Close() }()
	slot := make([]byte, noteSlot)
	for i := range int64(noteSlots) {
		if _, err := f.ReadAt(slot, i*noteSlot); err != nil && !errors.Is(err, io.EOF) {
			continue
		}
		if n, whole := decodeNote(slot); whole && (!ok || n.Count > newest.Count) {
			newest, ok = n, true
		}
		clear(slot)
	}
	return newest, ok
}

// notes are the note files of an open database.
type notes struct {
	files []*os.File
	count uint64
}

// readNotes returns the newest note of each file that has one.
func readNotes(paths []string) (found []note) {
	for _, path := range paths {
		if n, ok := readNote(path); ok {
			found = append(found, n)
		}
	}
	return found
}

// openNotes opens the files, which get their whole size and are made durable. One
// that cannot be opened is left out, as long as there is another one.
func openNotes(paths []string, found []note) (*notes, error) {
	s := &notes{}
	for _, n := range found {
		s.count = max(s.count, n.Count)
	}
	var errs []error
	for _, path := range paths {
		f, err := openNote(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.files = append(s.files, f)
	}
	if len(paths) > 0 && len(s.files) == 0 {
		return nil, errors.Join(errs...)
	}
	return s, nil
}

func openNote(path string) (*os.File, error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && info.Size() < noteSlot*noteSlots {
		_, err = f.WriteAt(make([]byte, noteSlot*noteSlots-info.Size()), info.Size())
		err = errors.Join(err, f.Sync(), syncDir(dir))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// write writes n to every file; one that succeeds is enough. Nothing is synced:
// what a loss of power takes away is as old as the boot that it ends.
func (s *notes) write(n note) error {
	if len(s.files) == 0 {
		return nil
	}
	s.count++
	n.Count = s.count
	slot, err := n.encode()
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range s.files {
		if _, err := f.WriteAt(slot, int64(s.count%noteSlots)*noteSlot); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == len(s.files) {
		return fmt.Errorf("note the commit: %w", errors.Join(errs...))
	}
	return nil
}

// close makes the notes durable, for a boot that is ended in good order.
func (s *notes) close() error {
	var errs []error
	for _, f := range s.files {
		_ = f.Sync()
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
