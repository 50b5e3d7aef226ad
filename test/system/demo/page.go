// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// stayVariable is set by "make demo STAY=1": the map stays open until Enter or Ctrl-C.
const stayVariable = "CADASTRE_DEMO_STAY"

// showPage opens the map, prints its address, and waits if a person is there to look.
func (d *demo) showPage(ctx context.Context) (err error) {
	d.Step("Open the map of the addresses.")
	if confined() {
		d.Say("This demo runs in a user namespace, which no browser reaches. In another terminal:")
		d.Say("$ %s --socket %s page", d.Program("cadastre"), d.Socket())
		return d.stay(ctx)
	}
	cmd := exec.Command(d.Program("cadastre"), "--socket", d.Socket(), "page")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("run cadastre page: %w", err)
	}
	page, err := stage.Start(cmd, func(f func() error) error { return f() })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, page.Halt(10*time.Second)) }()
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read the address that cadastre page prints: %w", errors.Join(err, page.Ended()))
	}
	d.Say("%s", strings.TrimSpace(address))
	return d.stay(ctx)
}

// confined reports whether the demo is in a user namespace of its own, and so in a network
// namespace that the machine's browsers do not reach.
func confined() bool {
	text, err := os.ReadFile("/proc/self/uid_map")
	fields := strings.Fields(string(text))
	return err == nil && (len(fields) != 3 || fields[2] != "4294967295")
}

// stay waits for Enter if the demo has a terminal, and with STAY=1 also without one.
func (d *demo) stay(ctx context.Context) error {
	_, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), unix.TCGETS)
	terminal := err == nil
	switch {
	case terminal:
		d.Say("It is open until you press Enter.")
	case os.Getenv(stayVariable) != "":
		d.Say("It is open until Ctrl-C.")
	default:
		d.Say("\"make demo STAY=1\" keeps it open.")
		return nil
	}
	pressed := make(chan struct{})
	if terminal {
		go func() { // a read from a terminal cannot be cancelled; it ends with the process
			_, _ = io.ReadAtLeast(os.Stdin, make([]byte, 1), 1)
			close(pressed)
		}()
	}
	select {
	case <-pressed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
