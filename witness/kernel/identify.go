// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
)

// Identify returns the identity of the network namespace that a file names now, in a boot.
// It fails if the file is not a network namespace that this process can see.
func Identify(path, boot string) (id kv.NetNSID, err error) {
	err = onThread(func(t *thread) error {
		id, err = t.identify(path, boot)
		return err
	})
	if err != nil {
		return kv.NetNSID{}, fmt.Errorf("identify network namespace %s: %w", path, err)
	}
	return id, nil
}

func (t *thread) identify(path, boot string) (id kv.NetNSID, err error) {
	file, err := identify(path)
	if err != nil {
		return id, err
	}
	fd, is, err := openNamespace(path, file)
	switch {
	case err != nil:
		return id, err
	case !is:
		return id, errors.New("the file is not a network namespace: want one that is mounted there")
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd))) }()
	id = kv.NetNSID{Boot: boot, Dev: file.Dev, Inode: file.Inode}
	if err := t.enter(fd); err != nil {
		if errors.Is(err, unix.EPERM) { // the cookie needs CAP_SYS_ADMIN
			return id, nil
		}
		return id, err
	}
	c, err := dial(newBuffers())
	if err != nil {
		return id, err
	}
	id.Cookie = c.cookie()
	return id, c.close()
}

// cookie returns the cookie of the network namespace that the socket belongs to, 0 before
// Linux 5.14.
func (c *conn) cookie() uint64 {
	cookie, err := unix.GetsockoptUint64(c.fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0
	}
	return cookie
}
