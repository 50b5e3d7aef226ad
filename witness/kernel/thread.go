// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/witness"
)

// current is the network namespace of the calling thread.
const current = "/proc/thread-self/ns/net"

// thread is an OS thread that may enter network namespaces.
type thread struct {
	home  *os.File // its own namespace
	moved bool
	// confined is set if the thread may not enter another namespace.
	confined bool
}

// onThread calls f on a locked thread that is not the first one of the process, and
// brings the thread home. A thread that cannot go home stays locked: Go ends it with its
// goroutine. The first thread never ends, and /proc/self shows its namespace as that of
// the process.
func onThread(f func(*thread) error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			result <- onThread(f) // on another one, since this one is taken
			runtime.UnlockOSThread()
			return
		}
		t := &thread{}
		err := t.run(f)
		if !t.moved {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

func (t *thread) run(f func(*thread) error) (err error) {
	t.home, err = os.Open(current)
	if err != nil {
		return err
	}
	defer func() {
		if t.moved {
			// An error here affects only this thread, which then ends.
			t.moved = unix.Setns(int(t.home.Fd()), unix.CLONE_NEWNET) != nil
		}
		err = errors.Join(err, t.home.Close())
	}()
	return f(t)
}

// enter moves the thread.
func (t *thread) enter(fd int) error {
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the namespace: %w", os.NewSyscallError("setns", err))
	}
	t.moved = true
	return nil
}

// enterFile moves the thread into the namespace that a file names.
func (t *thread) enterFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(t.enter(int(file.Fd())), file.Close())
}

// inside enters a namespace and reads its routes and its cookie, into the memory of host. RoutesHidden means that the
// thread may not enter namespaces (CAP_SYS_ADMIN).
func (t *thread) inside(fd int, host *conn, ns *witness.Namespace) error {
	if ns.RoutesHidden = t.confined; t.confined {
		return nil
	}
	switch err := t.enter(fd); {
	case errors.Is(err, unix.EPERM):
		t.confined, ns.RoutesHidden = true, true
		return nil
	case err != nil:
		return err
	}
	c, err := dial()
	if err != nil {
		return err
	}
	c.Share(host.Socket)
	ns.Cookie = c.Cookie()
	ns.Routes, err = c.routes()
	return errors.Join(err, c.Close())
}
