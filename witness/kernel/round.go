// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/witness"
)

// round reads the namespaces of one view, one after the other, through the socket of
// the host's namespace. At most one namespace is open at a time.
type round struct {
	host   *conn
	thread *thread
	hidden *hidden
	ids    map[int32]bool // of the namespaces that were read
	plain  []string       // files that are not namespaces
}

// candidate reads the namespace that a candidate is; nil if it has vanished, is not a
// network namespace, or is hidden.
func (r *round) candidate(c *candidate) *witness.Namespace {
	fd, name := r.open(c)
	if fd < 0 {
		return nil
	}
	ns := &witness.Namespace{ID: c.id, Counts: c.named, Paths: c.paths()}
	nsid, err := r.host.id(fd)
	if err == nil {
		r.ids[nsid] = true
		ns.NSID = int(nsid)
		ns.Links, err = r.host.links(nsid)
	}
	if err == nil {
		err = r.thread.inside(fd, r.host.buffers, ns)
	}
	if closed := unix.Close(fd); err == nil {
		err = os.NewSyscallError("close", closed)
	}
	if err != nil {
		r.hide(name, err)
		return nil
	}
	return ns
}

// open opens a candidate by the first of its names that still leads to it. fd is -1 if
// there is none, or if the candidate is not a network namespace.
func (r *round) open(c *candidate) (fd int, name string) {
	names := slices.Clone(c.files)
	for _, pid := range c.pids {
		names = append(names, processFile(c.proc, pid))
	}
	for i, name := range names {
		fd, is, err := openNamespace(name, c.id)
		switch {
		case err == nil && is:
			return fd, name
		case err == nil:
			if i < len(c.files) {
				r.plain = append(r.plain, c.files...)
			}
			return -1, ""
		case !vanished(err) && exists(name):
			r.hide(name, err)
			return -1, ""
		}
	}
	return -1, ""
}

// nsGetType is the ioctl NS_GET_NSTYPE.
const nsGetType = 0xb703

// openNamespace opens a file if it is the namespace with an identity. It fails with
// ErrNotExist if the path leads elsewhere by now.
func openNamespace(path string, id witness.NamespaceID) (fd int, is bool, err error) {
	fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, false, os.NewSyscallError("open", err)
	}
	defer func() {
		if !is {
			err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
			fd = -1
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fd, false, os.NewSyscallError("fstat", err)
	}
	if (witness.NamespaceID{Dev: st.Dev, Inode: st.Ino}) != id {
		return fd, false, os.ErrNotExist
	}
	var sf unix.Statfs_t
	if err := unix.Fstatfs(fd, &sf); err != nil {
		return fd, false, os.NewSyscallError("fstatfs", err)
	}
	if sf.Type != unix.NSFS_MAGIC {
		return fd, false, nil
	}
	kind, err := unix.IoctlRetInt(fd, nsGetType)
	if err != nil {
		return fd, false, os.NewSyscallError("ioctl NS_GET_NSTYPE", err)
	}
	return fd, kind == unix.CLONE_NEWNET, nil
}

// linked reads the namespaces that the host's namespace has an ID for and that no file
// and no process has shown. The other end of a link of the host leads to them.
func (r *round) linked(ctx context.Context) (all []witness.Namespace, err error) {
	ids, err := r.host.ids()
	if err != nil {
		return nil, err
	}
	for _, nsid := range ids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if r.ids[nsid] {
			continue
		}
		ns := witness.Namespace{NSID: int(nsid), RoutesHidden: true}
		ns.Links, err = r.host.links(nsid)
		switch {
		case err == nil:
			all = append(all, ns)
		case !errors.Is(err, unix.EINVAL): // the answer for a namespace that ends
			r.hide(fmt.Sprintf("nsid %d", nsid), err)
		}
	}
	return all, nil
}

// hide records a namespace that exists and cannot be read.
func (r *round) hide(name string, err error) {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		err = fmt.Errorf("%w: CAP_NET_ADMIN is needed", err)
	}
	r.hidden.add(name, err)
}
