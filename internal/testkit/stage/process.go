// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a program that runs beside this one. One that Start has started has
// a process group of its own, so that Ctrl-C ends it no sooner than this program
// wants, and is killed when this program is.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended, with err set
	err  error
}

// Start starts cmd within what within does: on one thread from its start to its
// end, because the kernel kills it when the thread that started it ends.
func Start(cmd *exec.Cmd, within func(func() error) error) (*Process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		p.err = within(func() error {
			err := cmd.Start()
			started <- err
			if err != nil {
				return err
			}
			return cmd.Wait()
		})
		select {
		case started <- p.err: // it did not come to the start
		default:
		}
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// Follow returns the process of a command that was started already. It ends with this
// program only if it was started so.
func Follow(cmd *exec.Cmd) *Process {
	p := &Process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID returns the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Halt is Stop for a process that may not have learnt to stop yet: dying of the
// signal is as good.
func (p *Process) Halt(limit time.Duration) error {
	err := p.Stop(limit)
	if diedOf(err, syscall.SIGTERM) {
		return nil
	}
	return err
}

func diedOf(err error, signal syscall.Signal) bool {
	exit := new(exec.ExitError)
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal
}

// Signal sends a signal and does not wait.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the process with SIGKILL and waits.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", p.cmd.Path, err)
	}
	<-p.done
	if !diedOf(p.err, syscall.SIGKILL) {
		return p.Ended()
	}
	return nil
}

// Stop ends the process in good order; it is killed when that takes too long.
func (p *Process) Stop(limit time.Duration) error {
	select {
	case <-p.done:
		return p.Ended()
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
		return errors.Join(fmt.Errorf("%s did not stop within %v", p.cmd.Path, limit), p.Kill())
	}
}

// Ended is the error of a process that ended by itself.
func (p *Process) Ended() error {
	if p.err == nil {
		return fmt.Errorf("%s ended by itself, with exit code 0", p.cmd.Path)
	}
	return fmt.Errorf("%s ended by itself: %w", p.cmd.Path, p.err)
}
