// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/rebuild"
)

// rebuildTarget is the place of the database that rebuild makes.
type rebuildTarget struct {
	stateDir, runDir string
	bootID           string // the file with the boot ID
	now              func() time.Time
	docker           contivconf.Docker
}

func (t *rebuildTarget) path() string { return filepath.Join(t.stateDir, databaseName) }

// check fails if there is a database, or an agent that runs.
func (t *rebuildTarget) check() error {
	_, err := os.Lstat(t.path())
	switch {
	case err == nil:
		return fmt.Errorf("rebuild: there is a database at %s: if the agent refuses it, move it away first, "+
			"such as mv %s %s.refused", t.path(), t.path(), t.path())
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("rebuild: %w", err)
	}
	unlock, err := t.lock()
	if err != nil {
		return err
	}
	return unlock()
}

// lock takes the lock of the run directory, which an agent holds as long as it runs.
// Without the file no agent has run since the machine was booted.
func (t *rebuildTarget) lock() (unlock func() error, err error) {
	path := filepath.Join(t.runDir, cni.LockFile)
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return func() error { return nil }, nil
	case err != nil:
		return nil, fmt.Errorf("rebuild: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		err = fmt.Errorf("rebuild: the agent runs (it has locked %s): stop it first", path)
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}

// write makes the database under another name first, and gives it its name when it is
// whole. A complete plan is trusted; otherwise the agent finds no note about the database
// and allocates nothing before a person has accepted it.
func (t *rebuildTarget) write(
	ctx context.Context,
	pools []rebuild.Pool,
	p *rebuild.Plan,
	w *witness.World,
) (err error) {
	unlock, err := t.lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	boot, err := os.ReadFile(t.bootID)
	if err != nil {
		return fmt.Errorf("rebuild: read the boot ID: %w", err)
	}
	bootID := strings.TrimSpace(string(boot))
	if err := os.MkdirAll(t.stateDir, 0o700); err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	tmp := t.path() + ".rebuilding"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("rebuild: %w", err)
	}
	defer func() { _ = os.Remove(tmp) }() // it has its own name by then
	opt := bolt.FileOptions{BootID: bootID, Now: t.now}
	if p.Complete() {
		opt.Notes = bolt.Notes(t.runDir, t.path())
	}
	if err := t.fill(ctx, tmp, opt, pools, p, w); err != nil {
		return fmt.Errorf("rebuild: write %s: %w", tmp, err)
	}
	if err := os.Link(tmp, t.path()); err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	return syncFolder(t.stateDir)
}

// fill writes the plan to a new file.
func (t *rebuildTarget) fill(
	ctx context.Context,
	path string,
	opt bolt.FileOptions,
	pools []rebuild.Pool,
	p *rebuild.Plan,
	w *witness.World,
) (err error) {
	file, err := bolt.OpenFile(path, opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	l, err := ledger.Open(ctx, file.Journal(), ledger.Options{Now: t.now, BootID: opt.BootID, Uptime: uptime})
	if err != nil {
		return err
	}
	if err := rebuild.Apply(ctx, l, pools, p); err != nil {
		return err
	}
	if err := restoreDocker(ctx, l, file.Records(dockerRecords), t.docker, w); err != nil {
		return err
	}
	return file.Accept(ctx) // old notes are about the database that is gone
}

// uptime returns the time since boot, asleep or awake.
func uptime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // every Linux since 2.6.39 has it
	return time.Duration(now.Nano())
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}
