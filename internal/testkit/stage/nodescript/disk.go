// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodescript

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// runDisk implements the command disk.
func runDisk(ts *testscript.TestScript, neg bool, args []string) {
	m := machineOf(ts)
	filler := filepath.Join(m.State(), "filler")
	switch {
	case neg || len(args) != 1:
		ts.Fatalf("usage: disk small|full|room")
	case args[0] == "small":
		ts.Check(os.MkdirAll(m.State(), 0o700))
		ts.Check(unix.Mount("tmpfs", m.State(), "tmpfs", 0, "size=8m,mode=0700"))
		ts.Defer(func() { _ = unix.Unmount(m.State(), unix.MNT_DETACH) })
	case args[0] == "full":
		f, err := os.Create(filler)
		ts.Check(err)
		page := make([]byte, os.Getpagesize())
		for err == nil {
			_, err = f.Write(page)
		}
		if !errors.Is(err, unix.ENOSPC) {
			ts.Check(err)
		}
		ts.Check(f.Close())
	case args[0] == "room":
		ts.Check(os.Remove(filler))
	default:
		ts.Fatalf("usage: disk small|full|room")
	}
}
