// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// peerAllowed is true where the process at the other end is root's or this user's.
func peerAllowed(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	allowed := false
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		allowed = err == nil && (cred.Uid == 0 || int(cred.Uid) == os.Getuid())
	})
	return err == nil && allowed
}

// hungUp returns a function that reports whether the other end of a connection is closed.
// A caller that has only closed its sending half still reads the answer.
func hungUp(c net.Conn) func() bool {
	never := func() bool { return false }
	u, ok := c.(*net.UnixConn)
	if !ok {
		return never
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return never
	}
	return func() bool {
		gone := true // this end is closed
		_ = raw.Control(func(fd uintptr) {
			poll := []unix.PollFd{{Fd: int32(fd)}}
			n, err := unix.Poll(poll, 0)
			gone = err == nil && n == 1 && poll[0].Revents&unix.POLLHUP != 0
		})
		return gone
	}
}
