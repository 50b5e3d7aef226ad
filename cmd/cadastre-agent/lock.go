// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockRunDir keeps every other agent out of a run directory, whose socket and
// waiting DELs are those of one agent. Closing the file lets go of it.
func lockRunDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("use run directory %s: %w", dir, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "agent.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("use run directory %s: %w", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 64)
		n, _ := f.ReadAt(holder, 0)
		err = fmt.Errorf("use run directory %s: another agent (%s) has %s: give this one a run directory of its own", dir, holder[:n], filepath.Join(dir, socketName))
		return nil, errors.Join(err, f.Close())
	}
	if err := f.Truncate(0); err == nil {
		_, _ = f.WriteAt(fmt.Appendf(nil, "pid %d", os.Getpid()), 0) // for the error above
	}
	return f, nil
}
