// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"fmt"
	"syscall"
)

// The descriptors of a process, and how many of them are not for connections of
// callers. Those are for its files, and for its own connections to the cluster store,
// to the API server and to the kernel.
const (
	leastFiles = 192
	reserved   = 96
)

// Shares holds the limits of connections of one program's listeners.
type Shares struct {
	Local int // of the socket that the node's pods depend on
	Other int // of each other listener; there are at most three
}

// Share divides the descriptors that a process may have open among its listeners.
// All of them together leave a reserve, so that a program whose listeners are all
// full still opens its files, and the local socket still accepts.
func Share(files uint64) (Shares, error) {
	if files < leastFiles {
		return Shares{}, fmt.Errorf(
			"share %d file descriptors (RLIMIT_NOFILE) among the listeners: want at least %d, such as LimitNOFILE=65536 in a systemd unit",
			files,
			leastFiles,
		)
	}
	room := int(min(files, 4096)) - reserved
	return Shares{Local: min(room/2, 1024), Other: min(room/6, 256)}, nil
}

// ShareOfProcess divides the descriptors that this process may have open.
func ShareOfProcess() (Shares, error) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return Shares{}, fmt.Errorf("read the limit of file descriptors (RLIMIT_NOFILE): %w", err)
	}
	return Share(limit.Cur)
}
