// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// lockRunDir keeps every other agent out of a run directory, whose socket and
// waiting DELs are those of one agent, and makes the place for these DELs. Closing
// the file lets go of it; the file stays and marks the directory as an agent's.
// Only the agent's user uid may write there: a file in it frees leases, and the
// socket is trusted by every program that asks the agent.
func lockRunDir(dir string, uid int) (*os.File, error) {
	fail := func(err error) (*os.File, error) {
		return nil, fmt.Errorf("use run directory %s: %w", dir, err)
	}
	if err := makeOwn(dir, uid); err != nil {
		return fail(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, cni.LockFile), os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return fail(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 64)
		n, _ := f.ReadAt(holder, 0)
		err = fmt.Errorf("another agent (%s) has %s: give this one a run directory of its own", holder[:n], filepath.Join(dir, socketName))
		return fail(errors.Join(err, f.Close()))
	}
	if err := makeOwn(cni.IntentDir(filepath.Join(dir, socketName)), uid); err != nil {
		return fail(errors.Join(err, f.Close()))
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt(fmt.Appendf(nil, "pid %d", os.Getpid()), 0) // for the error above
	}
	return f, nil
}

// makeOwn makes a directory if there is none, and fails if another user may write
// to it.
func makeOwn(dir string, uid int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return cni.CheckDir(dir, uid)
}
