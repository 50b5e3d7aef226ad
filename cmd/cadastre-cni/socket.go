// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

// socket is a connection to a unix socket, by system calls that block. Package net would
// cost a quarter of the time that this program needs until it has something to do. The
// package costs its own start, and the poller, which hands each answer from one thread
// to another.
type socket struct {
	fd    int
	until time.Time // the end of all calls together
}

// dial connects to the socket at path. No call of the connection lasts longer than until.
func dial(path string, until time.Time) (*socket, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &socket{fd, until}
	err = s.within(syscall.SO_SNDTIMEO, func() error { return syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}) })
	if err != nil {
		s.close()
		return nil, os.NewSyscallError("connect", err)
	}
	return s, nil
}

func (s *socket) close() { _ = syscall.Close(s.fd) } // everything was read, or the call has failed already

// within repeats a system call that a signal interrupts until it succeeds or fails. option
// is the timeout that the kernel has for it.
func (s *socket) within(option int, call func() error) error {
	for {
		left := time.Until(s.until)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		timeout := syscall.NsecToTimeval(int64(max(left, time.Microsecond))) // a zero would be no timeout
		if err := syscall.SetsockoptTimeval(s.fd, syscall.SOL_SOCKET, option, &timeout); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		err := call()
		switch {
		case errors.Is(err, syscall.EAGAIN): // the timeout
			return os.ErrDeadlineExceeded
		case errors.Is(err, syscall.EISCONN): // a connect that was interrupted and went on
			return nil
		case !errors.Is(err, syscall.EINTR):
			return err
		}
	}
}

// Write implements io.Writer. The agent's end of the connection does not raise SIGPIPE.
func (s *socket) Write(p []byte) (written int, err error) {
	for written < len(p) {
		err := s.within(syscall.SO_SNDTIMEO, func() error {
			n, err := syscall.SendmsgN(s.fd, p[written:], nil, nil, syscall.MSG_NOSIGNAL)
			written += max(n, 0)
			return err
		})
		if err != nil {
			return written, os.NewSyscallError("write", err)
		}
	}
	return written, nil
}

// Read implements io.Reader.
func (s *socket) Read(p []byte) (n int, err error) {
	err = s.within(syscall.SO_RCVTIMEO, func() error {
		n, err = syscall.Read(s.fd, p)
		return err
	})
	switch {
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}
