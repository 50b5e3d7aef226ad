// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/stage"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// Configurations of agents. Their pods are only names, and the kernel of the machine shows the
// addresses of other tests: nothing is reclaimed or quarantined.
const (
	// roomyConf has 4094 addresses a node, which are used one after the other.
	roomyConf = `
ipamConfig: {podSubnetCIDR: 100.64.0.0/10, podSubnetOneNodePrefixLen: 20} # no other test of this machine uses it
cadastre: {reclaim: {enabled: false}}
`
	// smallConf has 28 addresses for pods.
	smallConf = `
ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 27}
cadastre: {reclaim: {enabled: false}}
`
	// tightConf has 4, and allocates them again at once.
	tightConf = `
ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 29}
cadastre: {coolDown: 0s, reclaim: {enabled: false}}
`
	// dualConf has 28 of IPv4 and many of IPv6, and allocates them again at once.
	dualConf = `
ipamConfig:
  podSubnetCIDR: 10.1.0.0/16,fd01::/48
  podSubnetOneNodePrefixLen: 27
  vppHostSubnetCIDR: 172.30.0.0/16,fd02::/48
  nodeInterconnectCIDR: 192.168.16.0/24,fd03::/64
  vxlanCIDR: 192.168.30.0/24,fd04::/64
  serviceCIDR: 10.96.0.0/12,fd05::/112
cadastre: {coolDown: 0s, reclaim: {enabled: false}}
`
)

// patience ends the wait for what should happen soon: it is the limit of a hang, not of a slow machine.
const patience = 2 * time.Minute

// node holds the directories of an agent, which outlive its processes.
type node struct {
	name     string
	dir      string
	stateDir string
	runDir   string
	conf     string
	program  string   // "": the agent as it is
	env      []string // beside that of the test
	flags    []string // of the agent, beside those that each one has
}

// newNode makes the directories in one whose name is short, since the path of
// a unix socket is.
func newNode(t *testing.T, conf string) *node {
	t.Helper()
	g := NewWithT(t)
	g.Expect(stage.LookAtSources("../..")).To(Succeed())
	dir, err := os.MkdirTemp("", "cc")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what is left of the node is in %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	n := &node{name: "n1", dir: dir, stateDir: filepath.Join(dir, "s"), runDir: filepath.Join(dir, "r"), conf: filepath.Join(dir, "c.conf")}
	g.Expect(len(n.socket())).To(BeNumerically("<", 104), "the path of the socket is too long for the system: set TMPDIR to a shorter one")
	g.Expect(os.WriteFile(n.conf, []byte(conf), 0o600)).To(Succeed())
	return n
}

func (n *node) socket() string    { return filepath.Join(n.runDir, "agent.sock") }
func (n *node) db() string        { return filepath.Join(n.stateDir, "cadastre.db") }
func (n *node) intentDir() string { return filepath.Join(n.runDir, "del") }
func (n *node) logPath() string   { return filepath.Join(n.dir, "log") }

// agent is a running agent.
type agent struct {
	*node
	cmd   *exec.Cmd
	began int64         // where its part of the log begins
	ended chan struct{} // closed when the process has ended
}

// launch starts an agent and does not wait for it to serve.
func (n *node) launch(t *testing.T, flags ...string) *agent {
	t.Helper()
	g := NewWithT(t)
	log, err := os.OpenFile(n.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	g.Expect(err).NotTo(HaveOccurred())
	defer log.Close()
	info, err := log.Stat()
	g.Expect(err).NotTo(HaveOccurred())
	args := append([]string{"--config", n.conf, "--node-name", n.name, "--state-dir", n.stateDir, "--run-dir", n.runDir}, append(n.flags, flags...)...)
	a := &agent{node: n, cmd: exec.Command(cmp.Or(n.program, program("cadastre-agent")), args...), began: info.Size(), ended: make(chan struct{})}
	a.cmd.Env = append(os.Environ(), n.env...)
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // it does not outlive a test that panics
	a.cmd.Stderr = log
	g.Expect(a.cmd.Start()).To(Succeed())
	go func() {
		_ = a.cmd.Wait() // how it ended is in ProcessState
		close(a.ended)
	}()
	t.Cleanup(a.kill)
	return a
}

// start starts an agent and waits until it serves.
func (n *node) start(t *testing.T, flags ...string) *agent {
	t.Helper()
	a := n.launch(t, flags...)
	if err := a.awaitServing(); err != nil {
		t.Fatal(err)
	}
	return a
}

// awaitServing waits until CNI requests are answered on the socket.
func (a *agent) awaitServing() error {
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(500 * time.Microsecond) {
		if a.hasEnded() {
			return fmt.Errorf("the agent has ended (%s) instead of serving:\n%s", a.cmd.ProcessState, a.log())
		}
		if serves(a.socket()) {
			return nil
		}
	}
	return fmt.Errorf("the agent does not serve after %s:\n%s", patience, a.log())
}

// serves asks the status whether CNI requests are answered.
func serves(socket string) bool {
	c := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	answer, err := c.Get("http://agent" + localapi.PathStatus)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	var s localapi.Status
	return json.NewDecoder(answer.Body).Decode(&s) == nil && s.Serving
}

// awaitDELs waits until the agent has applied the DELs that found none.
func (n *node) awaitDELs() error {
	var s localapi.Status
	for limit := time.Now().Add(patience); time.Now().Before(limit); time.Sleep(500 * time.Microsecond) {
		if err := get(n.socket(), localapi.PathStatus, &s); err != nil || s.Waiting == 0 {
			return err
		}
	}
	return fmt.Errorf("%d DELs still wait after %s", s.Waiting, patience)
}

func (a *agent) hasEnded() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}

// kill ends the agent at once.
func (a *agent) kill() {
	_ = a.cmd.Process.Kill()
	<-a.ended
}

// stop asks the agent to end and waits.
func (a *agent) stop() error {
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	return a.await()
}

// await waits until the agent has ended by itself.
func (a *agent) await() error {
	select {
	case <-a.ended:
	case <-time.After(patience):
		return fmt.Errorf("the agent has not ended after %s:\n%s", patience, a.log())
	}
	if !a.cmd.ProcessState.Success() {
		return fmt.Errorf("%s:\n%s", a.cmd.ProcessState, a.log())
	}
	return nil
}

// log is the end of what the agent has said.
func (a *agent) log() string {
	data, err := os.ReadFile(a.logPath())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(bytes.TrimSpace(data[a.began:])), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}
