// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	// current is the network namespace of the calling thread.
	current = "/proc/thread-self/ns/net"
	// nsfs is the magic number of the file system of open namespaces.
	nsfs = 0x6e736673
)

// ErrNone is wrapped by errors about a path that names no network namespace. There is no file,
// or one that stayed when the mount of a namespace ended, or a namespace of another kind.
var ErrNone = errors.New("no network namespace is there")

// Namespace is an open network namespace.
type Namespace struct {
	path string
	fd   int
	id   ID
}

// ID identifies a network namespace while it exists.
type ID struct{ Device, Inode uint64 }

// Open opens the network namespace of a path, such as /run/netns/cni-1; "" is that of the
// calling thread.
func Open(path string) (*Namespace, error) {
	name := path
	if path == "" {
		path, name = current, "of the process"
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		err = os.NewSyscallError("open", err)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			err = fmt.Errorf("%w: %w", ErrNone, err)
		}
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	n := &Namespace{path: name, fd: fd}
	if err := n.check(); err != nil {
		return nil, errors.Join(fmt.Errorf("open network namespace %s: %w", name, err), n.Close())
	}
	return n, nil
}

// check refuses files that are not network namespaces, such as the empty file that is left
// behind when the mount of a namespace is gone.
func (n *Namespace) check() error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(n.fd, &fs); err != nil {
		return os.NewSyscallError("fstatfs", err)
	}
	if fs.Type != nsfs {
		return fmt.Errorf(
			"%w: the file is not a namespace: want one that is mounted, such as `ip netns add` makes",
			ErrNone,
		)
	}
	kind, err := unix.IoctlRetInt(n.fd, unix.NS_GET_NSTYPE)
	if err == nil && kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%w: the file is a namespace of another kind: want a network namespace", ErrNone)
	}
	var st unix.Stat_t
	if err := unix.Fstat(n.fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	n.id = ID{st.Dev, st.Ino}
	return nil
}

// Fd returns the open file.
func (n *Namespace) Fd() int { return n.fd }

// ID returns the identity of the namespace.
func (n *Namespace) ID() ID { return n.id }

// Path returns the path that the namespace was opened by.
func (n *Namespace) Path() string { return n.path }

// Close closes the file.
func (n *Namespace) Close() error { return os.NewSyscallError("close", unix.Close(n.fd)) }

// Dial opens a routing socket in the namespace. It needs CAP_SYS_ADMIN unless the namespace
// is the calling thread's.
func (n *Namespace) Dial() (s *Socket, err error) {
	dial := func() error {
		s, err = Dial(unix.NETLINK_ROUTE)
		return err
	}
	return s, n.visit(dial, true)
}

// Do calls f in the namespace, on a locked thread. If the thread cannot go back, the
// calling goroutine stays locked to it, so that no other goroutine runs there.
func (n *Namespace) Do(f func() error) error { return n.visit(f, false) }

// visit is Do. With stay, a thread that is in the namespace does not enter it, and needs no right.
func (n *Namespace) visit(f func() error, stay bool) (err error) {
	runtime.LockOSThread()
	home, err := unix.Open(current, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the current network namespace: %w", os.NewSyscallError("open", err))
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("close", unix.Close(home))) }()
	var st unix.Stat_t
	if stay && unix.Fstat(home, &st) == nil && n.id == (ID{st.Dev, st.Ino}) {
		defer runtime.UnlockOSThread()
		return f()
	}
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: it needs CAP_SYS_ADMIN", err)
		}
		return fmt.Errorf("enter network namespace %s: %w", n.path, os.NewSyscallError("setns", err))
	}
	defer func() {
		if back := unix.Setns(home, unix.CLONE_NEWNET); back != nil {
			err = errors.Join(err, fmt.Errorf("leave network namespace %s: %w", n.path, back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// Within calls f in the network namespace of a path; "" is that of the calling thread, and needs
// no right.
func Within(path string, f func() error) error {
	if path == "" {
		return f()
	}
	n, err := Open(path)
	if err != nil {
		return err
	}
	return errors.Join(n.Do(f), n.Close())
}

// Apart calls f in a new network namespace, which ends with the sockets that f has opened.
func Apart(f func() error) error {
	n, err := Open("")
	if err != nil {
		return err
	}
	defer func() { _ = n.Close() }()
	return n.Do(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", os.NewSyscallError("unshare", err))
		}
		return f()
	})
}
