// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	. "github.com/onsi/gomega"
)

// process is a program that runs beside the test, and not longer.
type process struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
}

// startProcess starts a program; what it says goes to a file, whose end a failed
// test shows.
func startProcess(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	g := NewWithT(t)
	p := &process{name: name, log: filepath.Join(t.TempDir(), "log"), cmd: cmd, ended: make(chan struct{})}
	log, err := os.Create(p.log)
	g.Expect(err).NotTo(HaveOccurred())
	defer log.Close() // the process has its own
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		defer close(p.ended)
		runtime.LockOSThread() // the process is killed when the thread ends that has started it
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in ProcessState
		}
	}()
	g.Expect(<-started).To(Succeed(), name)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s %v, its log ends with:\n%s", name, cmd.Args[1:], p.said())
		}
	})
	return p
}

// said is the end of its log.
func (p *process) said() string {
	data, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return tail(data, 30)
}

// signal sends a signal, to a process that runs.
func (p *process) signal(g Gomega, s syscall.Signal) {
	g.Expect(p.hasEnded()).To(Succeed())
	g.Expect(p.cmd.Process.Signal(s)).To(Succeed())
}

// kill ends it with SIGKILL, if it runs.
func (p *process) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	<-p.ended
}

// stop ends it in good order.
func (p *process) stop(g Gomega) {
	p.signal(g, syscall.SIGTERM)
	g.Eventually(p.ended, patience).Should(BeClosed(), "%s does not end", p.name)
	g.Expect(p.cmd.ProcessState.ExitCode()).To(BeZero(), "%s: %s", p.name, p.said())
}

// hasEnded is an error where it has.
func (p *process) hasEnded() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s has ended: %s", p.name, p.cmd.ProcessState)
	default:
		return nil
	}
}
