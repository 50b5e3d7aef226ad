// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// process is a program that runs in a room. (A stage.Process cannot: it looks
// for its parent, which nobody sees from another PID namespace.)
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended, with err set
	err  error
}

// start starts cmd in the room; its output is appended to a file.
func (r *room) start(cmd *exec.Cmd, log string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p := &process{cmd: cmd, done: make(chan struct{})}
	err = errors.Join(r.do(cmd.Start), file.Close()) // it has its own
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// kill ends it with SIGKILL.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", p.cmd.Path, err)
	}
	<-p.done
	var exit *exec.ExitError
	if errors.As(p.err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
		return nil
	}
	return p.ended()
}

// stop ends it in good order; it is killed when that takes too long.
func (p *process) stop(limit time.Duration) error {
	select {
	case <-p.done:
		return p.ended()
	default:
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", p.cmd.Path, err)
	}
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("%s ended badly: %w", p.cmd.Path, p.err)
		}
		return nil
	case <-time.After(limit):
		return errors.Join(fmt.Errorf("%s did not stop within %v", p.cmd.Path, limit), p.kill())
	}
}

// ended is the error of a process that ended by itself.
func (p *process) ended() error {
	if p.err == nil {
		return fmt.Errorf("%s ended by itself, with exit code 0", p.cmd.Path)
	}
	return fmt.Errorf("%s ended by itself: %w", p.cmd.Path, p.err)
}
