// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// current is the network namespace of the calling thread.
const current = "/proc/thread-self/ns/net"

// within calls f in a network namespace ("": the current one) on a locked thread. If the
// thread cannot go back, the calling goroutine stays locked to it, so that no other
// goroutine runs there.
func within(path string, f func() error) (err error) {
	if path == "" {
		return f()
	}
	runtime.LockOSThread()
	home, err := os.Open(current)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open the current network namespace: %w", err)
	}
	defer func() { err = errors.Join(err, home.Close()) }()
	if err := enter(path); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() {
		if back := setns(home); back != nil {
			err = errors.Join(err, fmt.Errorf("leave network namespace %s: %w", path, back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return f()
}

// enter moves the calling thread.
func enter(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	if err := errors.Join(setns(file), file.Close()); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nil
}

func setns(file *os.File) error {
	return os.NewSyscallError("setns", unix.Setns(int(file.Fd()), unix.CLONE_NEWNET))
}
