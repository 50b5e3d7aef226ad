// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/witness"
)

// candidate holds a file that may be a network namespace, under all of its names.
type candidate struct {
	id    witness.NamespaceID
	named bool // a file of it says that it counts
	files []string
	pids  []int // processes that are in it, in the order of the procfs
	proc  string
}

// paths returns the files of a namespace: of the processes only the first.
func (c *candidate) paths() []string {
	paths := slices.Clone(c.files)
	if len(c.pids) > 0 {
		paths = append(paths, processFile(c.proc, slices.Min(c.pids)))
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// processFile returns the file of the network namespace of a process.
func processFile(proc string, pid int) string {
	return filepath.Join(proc, strconv.Itoa(pid), "ns", "net")
}

// findings holds the candidates of a round and the reasons why others are hidden.
type findings struct {
	byID   map[witness.NamespaceID]*candidate
	known  map[string]bool // paths that were looked at, and whether they were named
	hidden hidden
}

// find looks for namespaces in all places. It opens none.
func (r *Reader) find(paths []string) *findings {
	f := &findings{byID: map[witness.NamespaceID]*candidate{}, known: map[string]bool{}}
	for _, dir := range r.dirs {
		f.folder(dir)
	}
	for _, path := range paths {
		f.file(path, true)
	}
	if r.proc != "" {
		f.processes(r.proc)
	}
	return f
}

// take removes a namespace from the candidates and returns its files.
func (f *findings) take(id witness.NamespaceID) []string {
	c := f.byID[id]
	if c == nil {
		return nil
	}
	delete(f.byID, id)
	return c.paths()
}

// candidates returns the candidates in the order of their inodes.
func (f *findings) candidates() []*candidate {
	all := make([]*candidate, 0, len(f.byID))
	for _, c := range f.byID {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(a.id.Dev, b.id.Dev), cmp.Compare(a.id.Inode, b.id.Inode))
	})
	return all
}

// folder adds the files of a folder. A folder that does not exist has none.
func (f *findings) folder(dir string) {
	entries, err := os.ReadDir(dir)
	switch {
	case err == nil:
	case vanished(err):
		return
	default:
		f.hidden.add(dir, err)
		return
	}
	named := !slices.Contains(SharedDirs(), filepath.Clean(dir))
	for _, e := range entries {
		f.file(filepath.Join(dir, e.Name()), named)
	}
}

// file adds the namespace that a file may be. A file that is named makes the namespace count.
func (f *findings) file(path string, named bool) {
	if before, known := f.known[path]; path == "" || known && (before || !named) {
		return
	}
	f.known[path] = named
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		if !vanished(err) {
			f.hidden.add(path, err)
		}
		return
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG { // as the files of namespaces show themselves
		c := f.add(&st)
		c.named = c.named || named
		c.files = append(c.files, path)
	}
}

func (f *findings) add(st *unix.Stat_t) *candidate {
	id := witness.NamespaceID{Dev: st.Dev, Inode: st.Ino}
	c := f.byID[id]
	if c == nil {
		c = &candidate{id: id}
		f.byID[id] = c
	}
	return c
}

// processes adds the namespaces of all processes of a procfs.
func (f *findings) processes(proc string) {
	dir, err := os.Open(proc)
	if err != nil {
		f.hidden.add(proc, err)
		return
	}
	defer func() { _ = dir.Close() }() // a file that was only read
	names, err := dir.Readdirnames(-1)
	if err != nil {
		f.hidden.add(proc, err)
		return
	}
	var unreadable []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		err = unix.Fstatat(int(dir.Fd()), name+"/ns/net", &st, 0)
		switch {
		case err == nil:
			c := f.add(&st)
			c.pids, c.proc = append(c.pids, pid), proc
		case !vanished(err) && exists(filepath.Join(proc, name)):
			unreadable = append(unreadable, pid)
		}
	}
	f.unreadable(proc, unreadable)
}

// unreadable hides the namespaces of processes that this one may not look into, unless
// they are in the same namespace as a process that it may. The kernel gives each
// namespace files of its own below /proc/PID/net, and shows them to all.
func (f *findings) unreadable(proc string, pids []int) {
	why := errors.New("its network namespace cannot be seen: CAP_SYS_PTRACE is needed")
	known := map[uint64]bool{}
	if len(pids) > 0 {
		for _, c := range f.byID {
			for _, pid := range c.pids {
				if inode, err := netInode(proc, pid); err == nil {
					known[inode] = true
					break
				}
			}
		}
	}
	for _, pid := range pids {
		inode, err := netInode(proc, pid)
		switch {
		case err != nil && vanished(err), err == nil && known[inode]:
		default:
			f.hidden.add(fmt.Sprintf("process %d", pid), why)
		}
	}
}

// netInode returns the inode of a file that a process shares with the processes of the
// same network namespace only.
func netInode(proc string, pid int) (uint64, error) {
	id, err := identify(filepath.Join(proc, strconv.Itoa(pid), "net", "dev"))
	return id.Inode, err
}

// vanished reports whether an error says that a file or process does not exist. No file
// has a path that is too long for the kernel.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOTDIR) ||
		errors.Is(err, unix.ENAMETOOLONG)
}

func exists(path string) bool {
	var st unix.Stat_t
	return !vanished(unix.Lstat(path, &st))
}

// identify returns the identity of the namespace that a file names.
func identify(path string) (witness.NamespaceID, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return witness.NamespaceID{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return witness.NamespaceID{Dev: st.Dev, Inode: st.Ino}, nil
}
