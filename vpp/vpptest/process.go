// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.fd.io/govpp"
	"go.fd.io/govpp/api"
	"go.fd.io/govpp/binapi/vlib"
	"go.fd.io/govpp/binapi/vpe"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/internal/testkit/stage"
)

// The environment of the tests.
const (
	BinEnv     = "VPP_BIN"
	PluginsEnv = "VPP_PLUGIN_PATH"
	SocketEnv  = "VPP_API_SOCKET"
)

// plugins are those that a node needs.
var plugins = []string{"af_packet", "arping", "dhcp", "nat", "ping", "vxlan"}

// Process is a VPP in a network namespace, with a folder for its files.
type Process struct {
	dir     string
	ns      *netlab.Namespace
	process *stage.Process
}

// New returns a VPP that is not started. It skips the test if VPP is not installed.
func New(t testing.TB, ns *netlab.Namespace, dir string) *Process {
	t.Helper()
	if os.Getenv(BinEnv) == "" {
		t.Skipf("NOT RUN: %s is not set: want the path of the program vpp 25.10", BinEnv)
	}
	p := &Process{dir: dir, ns: ns}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.config(), []byte(p.configuration()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.process != nil {
			_ = p.process.Kill() // it may have ended
		}
		for _, name := range []string{p.log(), p.output()} {
			if text, err := os.ReadFile(name); err == nil && t.Failed() {
				t.Logf("%s:\n%s", name, text)
			}
		}
	})
	return p
}

func (p *Process) config() string { return filepath.Join(p.dir, "startup.conf") }

func (p *Process) log() string { return filepath.Join(p.dir, "vpp.log") }

func (p *Process) output() string { return filepath.Join(p.dir, "output") }

// Socket returns the path of the API socket.
func (p *Process) Socket() string { return filepath.Join(p.dir, "api.sock") }

// configuration returns startup.conf. Pages are small, so that no huge pages are needed.
func (p *Process) configuration() string {
	var b strings.Builder
	cli := filepath.Join(p.dir, "cli.sock")
	fmt.Fprintf(&b, "unix { nodaemon log %s runtime-dir %s cli-listen %s }\n", p.log(), p.dir, cli)
	fmt.Fprintf(&b, "socksvr { socket-name %s }\n", p.Socket())
	fmt.Fprintf(&b, "statseg { socket-name %s size 128m page-size 4k }\n", filepath.Join(p.dir, "stats.sock"))
	b.WriteString("memory { main-heap-size 1g main-heap-page-size 4k }\n")
	b.WriteString("buffers { buffers-per-numa 65536 page-size 4k }\nplugins {\n")
	if path := os.Getenv(PluginsEnv); path != "" {
		fmt.Fprintf(&b, "  path %s\n", path)
	}
	b.WriteString("  plugin default { disable }\n")
	for _, name := range plugins {
		fmt.Fprintf(&b, "  plugin %s_plugin.so { enable }\n", name)
	}
	b.WriteString("}\n")
	return b.String()
}

// Start starts VPP and waits until its API answers.
func (p *Process) Start(ctx context.Context) error {
	// a socket of the VPP before would refuse connections
	if err := os.RemoveAll(p.Socket()); err != nil {
		return fmt.Errorf("start VPP: %w", err)
	}
	cmd := exec.Command(os.Getenv(BinEnv), "-c", p.config())
	output, err := os.OpenFile(p.output(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start VPP: %w", err)
	}
	cmd.Stdout, cmd.Stderr = output, output
	p.process, err = stage.Start(cmd, p.ns.Do)
	if err = errors.Join(err, output.Close()); err != nil {
		return fmt.Errorf("start VPP: %w", err)
	}
	return p.await(ctx)
}

func (p *Process) await(ctx context.Context) error {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		_, err := p.Version(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.process.Done():
			return p.process.Ended()
		case <-ctx.Done():
			return fmt.Errorf("VPP does not answer on %s: %w", p.Socket(), err)
		case <-again.C:
		}
	}
}

// Kill ends VPP with SIGKILL.
func (p *Process) Kill() error {
	process := p.process
	p.process = nil
	return process.Kill()
}

// Signal sends a signal to VPP, such as one that stops it until another one comes.
func (p *Process) Signal(s syscall.Signal) error { return syscall.Kill(p.process.PID(), s) }

// Version returns the version that VPP reports.
func (p *Process) Version(ctx context.Context) (string, error) { return Version(ctx, p.Socket()) }

// CLI runs a command of VPP's command line and returns its output.
func (p *Process) CLI(ctx context.Context, command string) (string, error) {
	var reply *vlib.CliInbandReply
	err := call(p.Socket(), func(conn api.Connection) (err error) {
		reply, err = vlib.NewServiceClient(conn).CliInband(ctx, &vlib.CliInband{Cmd: command})
		return err
	})
	if err != nil {
		return "", fmt.Errorf("vppctl %s: %w", command, err)
	}
	return reply.Reply, nil
}

// Version returns the version of the VPP behind an API socket.
func Version(ctx context.Context, socket string) (version string, err error) {
	err = call(socket, func(conn api.Connection) error {
		reply, err := vpe.NewServiceClient(conn).ShowVersion(ctx, &vpe.ShowVersion{})
		if err == nil {
			version = reply.Version
		}
		return err
	})
	return version, err
}

// call connects for one request.
func call(socket string, f func(api.Connection) error) error {
	if _, err := os.Stat(socket); err != nil {
		return err // the adapter would wait for it
	}
	conn, err := govpp.Connect(socket)
	if err != nil {
		return err
	}
	defer conn.Disconnect()
	return f(conn)
}
