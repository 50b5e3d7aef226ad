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
