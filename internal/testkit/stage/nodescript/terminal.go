// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodescript

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"
)

// runInTerminal implements the command terminal. Package testscript has ttyin and ttyout, which
// lose what a program prints shortly before it ends: they close the terminal without reading it.
func runInTerminal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: terminal PROGRAM [ARGS]")
	}
	m := machineOf(ts)
	control, terminal, err := pty.Open()
	ts.Check(err)
	defer func() { _ = control.Close() }()
	var out, stderr bytes.Buffer
	cmd := exec.Command(m.Program(args[0]), args[1:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = append(os.Environ(), "CADASTRE_SOCKET="+m.Socket(), "LC_ALL="+ts.Getenv("LC_ALL"))
	cmd.Stdout, cmd.Stderr = terminal, &stderr
	err = cmd.Start()
	_ = terminal.Close() // the program has the only one, so the end of the program is the end of the output
	ts.Check(err)
	_, err = out.ReadFrom(control)
	if !errors.Is(err, syscall.EIO) { // how a terminal ends
		ts.Check(err)
	}
	if err := cmd.Wait(); err != nil {
		ts.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	_, err = ts.Stdout().Write(out.Bytes())
	ts.Check(err)
}
