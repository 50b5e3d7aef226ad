// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// current is the network namespace of the calling thread.
const current = "/proc/thread-self/ns/net"

// Namespace is a network namespace that an open file holds.
type Namespace struct{ file *os.File }

// New makes a namespace with nothing in it but a loopback interface that is up.
func New() (*Namespace, error) {
	var n *Namespace
	unshare := func() error { return os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET)) }
	err := apart(unshare, func() error {
		file, err := os.Open(current)
		if err != nil {
			return err
		}
		n = &Namespace{file: file}
		return loopback()
	})
	if err != nil {
		err = fmt.Errorf("make a network namespace: %w", err)
		if n != nil {
			err = errors.Join(err, n.Close())
		}
		return nil, err
	}
	return n, nil
}

// Open returns the namespace at a path, such as /proc/PID/ns/net.
func Open(path string) (*Namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open a network namespace: %w", err)
	}
	return &Namespace{file: file}, nil
}

// Path returns the path of the namespace for other processes, as in CNI_NETNS. It is good
// until Close, while this program runs.
func (n *Namespace) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd())
}

// Do calls f inside the namespace, on a thread that nothing else runs on
// meanwhile. The sockets that f opens stay inside for good, and so do the
// processes that f starts. Goroutines that f starts are outside.
//
// If the thread cannot go back, which no known kernel does, Do fails and leaves
// the calling goroutine locked to it, so that nothing else ever runs there.
func (n *Namespace) Do(f func() error) error {
	return apart(func() error { return enter(n.file) }, f)
}

// Close lets go of the namespace: it ends, with all that is in it, when no
// process and no socket is inside any more.
func (n *Namespace) Close() error { return n.file.Close() }

// enter moves the calling thread.
func enter(namespace *os.File) error {
	if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter a network namespace: %w", os.NewSyscallError("setns", err))
	}
	return nil
}

// apart calls leave, which moves the thread away, then f, and brings the thread
// back to where it was.
func apart(leave, f func() error) (err error) {
	runtime.LockOSThread()
	home, err := os.Open(current)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the current network namespace: %w", err)
	}
	if err := leave(); err != nil {
		runtime.UnlockOSThread()
		return errors.Join(err, home.Close())
	}
	defer func() {
		back := enter(home)
		if back == nil {
			runtime.UnlockOSThread()
		}
		err = errors.Join(err, back, home.Close())
	}()
	return f()
}

// loopback sets up lo, which is down at first.
func loopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set up lo: %w", err)
	}
	return nil
}
