// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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
	f, err := os.OpenFile(
		filepath.Join(dir, cni.LockFile),
		os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK,
		0o600,
	)
	if err != nil {
		return fail(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder := make([]byte, 64)
		n, _ := f.ReadAt(holder, 0)
		err = fmt.Errorf(
			"another agent (%s) has %s: give this one a run directory of its own",
			holder[:n],
			filepath.Join(dir, socketName),
		)
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

// runDirKey names the record of the run directory of the last start.
const runDirKey = "run directory"

// localValues are the values that the database has of this agent alone.
type localValues interface {
	Local(key string) (string, error)
	SetLocal(key, value string) error
}

// leaveRunDir notes which run directory this agent has. If it had another one
// before, the DELs that wait there are moved, and it is no longer marked: a DEL with
// the old socket path would not be read. What fails is tried again at the next start.
func leaveRunDir(values localValues, dir string, uid int, log *slog.Logger) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	was, err := values.Local(runDirKey)
	if err != nil || was == dir {
		return err
	}
	if was != "" {
		err = abandonRunDir(was, dir, uid)
	}
	if err == nil {
		err = values.SetLocal(runDirKey, dir)
	}
	if err != nil {
		log.Warn("DELs may wait in the run directory that this agent had before", "directory", was, "error", err)
	}
	return nil
}

// abandonRunDir leaves alone what another agent has by now, or a reboot has emptied.
func abandonRunDir(was, now string, uid int) error {
	mark := filepath.Join(was, cni.LockFile)
	f, err := os.OpenFile(mark, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		return nil
	} else if err != nil {
		return err
	}
	if err := copyIntents(was, now, uid); err != nil {
		return err
	}
	if err := os.Remove(mark); err != nil { // DELs with the old path fail from here on
		return err
	}
	return copyIntents(was, now, uid) // those that came in the meantime
}

// copyIntents copies the DELs that wait in one run directory into another.
func copyIntents(was, now string, uid int) error {
	intents, _, err := cni.ReadIntents(cni.IntentDir(filepath.Join(was, socketName)), uid)
	if err != nil {
		return err
	}
	for _, in := range intents {
		if err := in.Write(cni.IntentDir(filepath.Join(now, socketName))); err != nil {
			return err
		}
	}
	return nil
}

// makeOwn makes a directory if there is none, and fails if another user may write
// to it.
func makeOwn(dir string, uid int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return cni.CheckDir(dir, uid)
}
