// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
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
	ns, err := rtnl.Open(path)
	if err != nil {
		return id, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	id = kv.NetNSID{Boot: boot, Dev: ns.ID().Device, Inode: ns.ID().Inode}
	if err := t.enter(ns.Fd()); err != nil {
		if errors.Is(err, unix.EPERM) { // the cookie needs CAP_SYS_ADMIN
			return id, nil
		}
		return id, err
	}
	c, err := dial()
	if err != nil {
		return id, err
	}
	id.Cookie = c.Cookie()
	return id, c.Close()
}
