// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// level notes the newest revision of a file in another place, one that is
// emptied by a reboot (the run directory). If the file then comes back older
// within the same boot, somebody has put an old copy there, and what was lent
// since is not known any more.
type level struct {
	f       *os.File
	boot    string
	found   int  // when it was opened
	suspect bool // an older file was found; it stays so until it is accepted, or a reboot
}

// suspectMark is the third word of the note of a suspect file.
const suspectMark = "suspect"

func openLevel(path, boot string, revision int) (*level, error) {
	l := &level{boot: boot}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var noted, mark string
	if n, _ := fmt.Sscanf(string(data), "%d %s %s", &l.found, &noted, &mark); n < 3 || noted != boot {
		l.found = 0 // of another boot: no sandbox has survived either
	}
	l.suspect = l.found > 0 && mark == suspectMark
	if l.f, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return nil, err
	}
	if revision < l.found { // marked before anybody can commit
		l.suspect = true
		l.note(l.found)
	}
	return l, nil
}

// note is called after each commit. It is not durable and need not be: a note
// that is lost only makes Older less strict.
func (l *level) note(revision int) {
	if l == nil {
		return
	}
	mark := "trusted"
	if l.suspect {
		mark = suspectMark
	}
	_, _ = l.f.WriteAt(fmt.Appendf(nil, "%020d %s %s\n", revision, l.boot, mark), 0)
}

func (l *level) close() error { return l.f.Close() }

// Older is true where the file was, when it was opened, older than a process of
// this boot had left it: an old copy was put in its place. It stays so until it
// is accepted, or a reboot.
func (f *File) Older() (older bool, want int) {
	if f.level == nil {
		return false, 0
	}
	return f.level.suspect, f.level.found
}

// AcceptOlder makes the file as it is the newest there is.
func (f *File) AcceptOlder() error {
	if f.level == nil {
		return nil
	}
	if err := f.level.f.Truncate(0); err != nil {
		return fmt.Errorf("accept the older database: %w", err)
	}
	f.level.found, f.level.suspect = 0, false
	return nil
}
