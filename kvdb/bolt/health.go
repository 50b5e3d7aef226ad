// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package bolt

import (
	"context"
	"errors"
	"fmt"
	"os"

	"go.etcd.io/bbolt"
)

// Health returns why a commit failed, nil if none has failed since the last Probe
// that succeeded. A commit that succeeds is not enough: on a full disk one that
// finds room in the file succeeds, and the next one, which does not, fails.
func (f *File) Health() error {
	if failed := f.failed.Load(); failed != nil {
		return *failed
	}
	if err := f.unhealthy.Load(); err != nil {
		return *err
	}
	return nil
}

// Probe makes a commit of its own, after it has seen that the disk has room for
// others. Its outcome is the file's health.
func (f *File) Probe(ctx context.Context) error {
	err := f.room()
	if err == nil {
		// The identity of the commit is what is written.
		err = f.commits.commit(ctx, func(*bbolt.Tx) (bool, error) { return true, nil })
	}
	switch {
	case err == nil:
		f.unhealthy.Store(nil)
	case ctx.Err() == nil:
		f.unhealthy.Store(&err)
	}
	return err
}

// probeLen is more than a commit of a group of leases adds to the file.
const probeLen = 64 << 10

// room writes a file beside the database and removes it. The database itself may
// have free pages, which say nothing of the disk.
func (f *File) room() error {
	path := f.path + ".probe"
	defer func() { _ = os.Remove(path) }()
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = out.Write(make([]byte, probeLen))
		err = errors.Join(err, out.Sync(), out.Close())
	}
	if err != nil {
		return fmt.Errorf("write %d bytes beside the database: %w", probeLen, err)
	}
	return nil
}
