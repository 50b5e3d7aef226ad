// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// SocketName names the socket of the local API in the run directory.
const SocketName = "agent.sock"

// lockRunDir keeps every other agent out of a run directory, and makes the place for DELs
// that found no agent. Closing the file lets go of the directory.
func lockRunDir(dir string) (*os.File, error) {
	fail := func(err error) (*os.File, error) {
		return nil, fmt.Errorf("use run directory %s: %w", dir, err)
	}
	if err := makeOwn(dir); err != nil {
		return fail(err)
	}
	flags := os.O_CREATE | os.O_RDWR | unix.O_NOFOLLOW | unix.O_NONBLOCK
	f, err := os.OpenFile(filepath.Join(dir, cni.LockFile), flags, 0o600)
	if err != nil {
		return fail(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = fmt.Errorf("another agent has %s: give this one a run directory of its own: %w", f.Name(), err)
		return fail(errors.Join(err, f.Close()))
	}
	if err := makeOwn(cni.IntentDir(filepath.Join(dir, SocketName))); err != nil {
		return fail(errors.Join(err, f.Close()))
	}
	return f, nil
}

func makeOwn(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return cni.CheckDir(dir, os.Geteuid())
}
