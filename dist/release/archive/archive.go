// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package archive writes tar archives whose bytes follow from the names and contents of the
// files alone: all have the same time and belong to root, and their order is that of the
// caller.
package archive

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Entry describes a file, a folder or a symbolic link of an archive.
type Entry struct {
	Name string // a slash at its end: a folder
	Mode int64
	Path string // of the file on this machine; "": Data
	Data []byte
	Link string // the target of a symbolic link; "": no link
}

// File returns the entry of a file of this machine.
func File(name string, mode int64, path string) Entry {
	return Entry{Name: name, Mode: mode, Path: path}
}

// Folder returns the entry of a folder.
func Folder(name string) Entry { return Entry{Name: strings.TrimSuffix(name, "/") + "/", Mode: 0o755} }

// Tree returns the entries of all files below a folder that keep reports true for, in
// lexical order. The names begin with prefix.
func Tree(dir, prefix string, keep func(name string) bool) (all []Entry, err error) {
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		if name := filepath.ToSlash(rel); keep(name) {
			all = append(all, File(path.Join(prefix, name), 0o644, file))
		}
		return nil
	})
	return all, err
}

// Tar writes the entries to w.
func Tar(w io.Writer, entries []Entry, at time.Time) error {
	t := tar.NewWriter(w)
	for _, e := range entries {
		if err := e.write(t, at); err != nil {
			return fmt.Errorf("write %s into an archive: %w", e.Name, err)
		}
	}
	return t.Close()
}

func (e Entry) write(t *tar.Writer, at time.Time) error {
	h := &tar.Header{Name: e.Name, Mode: e.Mode, ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	switch {
	case e.Link != "":
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Link
		return t.WriteHeader(h)
	case strings.HasSuffix(e.Name, "/"):
		h.Typeflag = tar.TypeDir
		return t.WriteHeader(h)
	case e.Path == "":
		h.Size = int64(len(e.Data))
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err := t.Write(e.Data)
		return err
	}
	f, err := os.Open(e.Path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h.Size = info.Size()
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}

// WriteFile writes the entries into a file, which is compressed if its name ends in .gz or .tgz.
func WriteFile(file string, entries []Entry, at time.Time) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	err = write(f, strings.HasSuffix(file, "gz"), entries, at)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func write(w io.Writer, compress bool, entries []Entry, at time.Time) error {
	if !compress {
		return Tar(w, entries, at)
	}
	z := gzip.NewWriter(w)
	if err := Tar(z, entries, at); err != nil {
		return err
	}
	return z.Close()
}
