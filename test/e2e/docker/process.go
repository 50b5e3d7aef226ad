// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// start starts cmd in the room; its output is appended to a file. (stage.Start
// cannot: what it starts looks for its parent, which is not visible in another
// PID namespace.)
func (r *room) start(cmd *exec.Cmd, log string) (*stage.Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = errors.Join(r.do(cmd.Start), file.Close()) // it has its own
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return stage.Follow(cmd), nil
}
