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

// stdinTimeout is far above the time that a runtime takes to write a configuration.
const stdinTimeout = 10 * time.Second

// timed reads a file by system calls until a time. Package os has no deadline for a pipe that
// blocks, which is what runtimes pass on: one that is never closed would keep this program
// for ever.
type timed struct {
	file  *os.File
	until time.Time
}

// Read implements io.Reader.
func (t timed) Read(p []byte) (int, error) {
	fd := int(t.file.Fd())
	for {
		if err := readable(fd, t.until); err != nil {
			return 0, err
		}
		n, err := syscall.Read(fd, p)
		switch {
		case errors.Is(err, syscall.EINTR), errors.Is(err, syscall.EAGAIN):
			continue
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

// readable waits until a file can be read, or has ended.
func readable(fd int, until time.Time) error {
	const most = 1024 // FD_SETSIZE
	for {
		left := time.Until(until)
		switch {
		case left <= 0:
			return os.ErrDeadlineExceeded
		case fd >= most:
			return nil
		}
		set := syscall.FdSet{}
		width := most / len(set.Bits)
		set.Bits[fd/width] |= 1 << (fd % width)
		timeout := syscall.NsecToTimeval(int64(max(left, time.Microsecond)))
		n, err := syscall.Select(fd+1, &set, nil, nil, &timeout)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return os.NewSyscallError("select", err)
		case n > 0:
			return nil
		}
	}
}
