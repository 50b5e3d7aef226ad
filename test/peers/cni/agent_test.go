// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// agent is a running cadastre-agent.
type agent struct {
	socket string
	client *http.Client
}

// connect returns the agent that serves a socket.
func connect(socket string) *agent {
	return &agent{socket, &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}}
}

// startAgent starts an agent with a state directory of its own and a /16 of
// pods, without cool-down, and waits until it serves.
func startAgent(tb testing.TB, path string) *agent {
	tb.Helper()
	dir, run := tempDir(tb), runDir(tb)
	conf := filepath.Join(dir, "contiv.conf")
	if err := os.WriteFile(conf, []byte(`
ipamConfig: {podSubnetCIDR: 10.0.0.0/11, podSubnetOneNodePrefixLen: 16}
cadastre: {coolDown: 0s}
`), 0o600); err != nil {
		tb.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "agent.log")) // a file: a pipe would keep this process busy, too
	if err != nil {
		tb.Fatal(err)
	}
	c := exec.Command(path, "--config", conf, "--node-name", "bench", "--state-dir", filepath.Join(dir, "state"), "--run-dir", run)
	c.Stderr = log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // it must not outlive an interrupted benchmark
	if err := c.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			tb.Error(err)
		}
		if err := c.Wait(); err != nil {
			text, _ := os.ReadFile(log.Name())
			tb.Errorf("agent: %v\n%s", err, text)
		}
		if err := log.Close(); err != nil {
			tb.Error(err)
		}
	})
	a := connect(filepath.Join(run, "agent.sock"))
	tb.Cleanup(a.client.CloseIdleConnections)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := a.ask("STATUS", "")
		if err == nil {
			return a
		}
		if time.Now().After(deadline) {
			tb.Fatalf("the agent does not serve: %v", err)
		}
	}
}

// runDir stands for the agent's run directory, which is in memory (/run).
func runDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cadastre-bench")
	if err != nil {
		return tempDir(tb)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

// ask sends a CNI request to the agent's socket, as cadastre-cni does.
func (a *agent) ask(command, container string) error {
	var body bytes.Buffer // the environment and the configuration, as cadastre-cni passes them on
	for name, value := range map[string]string{
		"CNI_COMMAND": command, "CNI_CONTAINERID": container, "CNI_IFNAME": "eth0", "CNI_NETNS": "/run/netns/bench", "CNI_PATH": "/opt/cni/bin",
		"CNI_ARGS": "K8S_POD_NAMESPACE=default;K8S_POD_NAME=other-" + container[max(0, len(container)-8):],
	} {
		fmt.Fprintf(&body, "%s=%s\x00", name, value)
	}
	fmt.Fprintf(&body, "\x00%s", `{"cniVersion": "1.1.0", "name": "bench", "type": "none", "ipam": {"type": "cadastre-cni"}}`)
	resp, err := a.client.Post("http://cadastre/v1/cni", "application/octet-stream", &body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.Header.Get("Cni-Exit") != "0" {
		return fmt.Errorf("%s: %s: %s", command, resp.Status, answer)
	}
	return nil
}

// lease adds n other containers.
func (a *agent) lease(tb testing.TB, n int) {
	tb.Helper()
	for i := range n {
		if err := a.ask("ADD", otherID(i)); err != nil {
			tb.Fatal(err)
		}
	}
}

// conf is a network configuration for cadastre-cni.
func (a *agent) conf() string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bench", "type": "none", "ipam": {"type": "cadastre-cni", "socket": %q}}`, a.socket)
}
