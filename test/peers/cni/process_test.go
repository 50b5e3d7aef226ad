// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cadastre/cadastre/test/peers/workload"
)

// programs are built as they are released: static, without symbols.
type programs struct{ agent, cadastre, hostLocal, hello string }

// repository is the product's main module, seen from this folder.
const repository = "../../.."

func build(tb testing.TB) programs {
	tb.Helper()
	dir := tempDir(tb)
	hello := filepath.Join(dir, "hello.go")
	if err := os.WriteFile(hello, []byte("package main\n\nfunc main() {}\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	one := func(name, from, pkg string) string {
		out := filepath.Join(dir, name)
		c := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)
		c.Dir, c.Env = from, append(os.Environ(), "CGO_ENABLED=0")
		if text, err := c.CombinedOutput(); err != nil {
			tb.Fatalf("build %s: %v\n%s", pkg, err, text)
		}
		return out
	}
	return programs{
		agent:     one("cadastre-agent", repository, "./cmd/cadastre-agent"),
		cadastre:  one("cadastre-cni", repository, "./cmd/cadastre-cni"),
		hostLocal: one("host-local", ".", "github.com/containernetworking/plugins/plugins/ipam/host-local"),
		hello:     one("hello", ".", hello),
	}
}

// plugin is an IPAM plugin with its network configuration.
type plugin struct{ path, conf string }

// call runs the plugin once, as a runtime does.
func (p plugin) call(command, container string) error {
	c := exec.Command(p.path)
	c.Stdin = strings.NewReader(p.conf)
	c.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + container, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent",
		"CNI_NETNS=/proc/self/ns/net", "CNI_NETNS_OVERRIDE=1", // no network namespace of its own is needed
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_UID=8a1c2d3e-4f50-4617-8293-a4b5c6d7e8f9",
	}
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", filepath.Base(p.path), command, err, out.String())
	}
	return nil
}

// pair is an ADD and a DEL of a new container each time.
func (p plugin) pair() func() error {
	i := 0
	return func() error {
		i++
		if err := p.call("ADD", containerID(i)); err != nil {
			return err
		}
		return p.call("DEL", containerID(i))
	}
}

// BenchmarkProcess is an ADD and a DEL, a process each, of ours and of
// host-local in turns, with a number of other leases.
func BenchmarkProcess(b *testing.B) {
	bin := build(b)
	others(b, func(b *testing.B, n int) {
		dir := tempDir(b)
		hostLocalLeases(b, dir, n)
		agent := startAgent(b, bin.agent)
		agent.lease(b, n)
		ours := plugin{bin.cadastre, agent.conf()}
		theirs := plugin{bin.hostLocal, hostLocalConf(dir)}
		workload.Turns(b,
			workload.Step{Name: "cadastre-cni", Run: ours.pair()},
			workload.Step{Name: "host-local", Run: theirs.pair()},
			workload.Step{Name: "socket", Run: func() error { // the agent's part of the first step
				if err := agent.ask("ADD", otherID(n)); err != nil {
					return err
				}
				return agent.ask("DEL", otherID(n))
			}},
		)
	})
}

// atOnce is the number of processes that run at the same time in BenchmarkProcessBurst.
const atOnce = 50

// BenchmarkProcessBurst is an ADD and a DEL of as many containers at once, a process each,
// of ours and of host-local in turns, with a number of other leases. A step is all of them.
func BenchmarkProcessBurst(b *testing.B) {
	bin := build(b)
	others(b, func(b *testing.B, n int) {
		dir := tempDir(b)
		hostLocalLeases(b, dir, n)
		agent := startAgent(b, bin.agent)
		agent.lease(b, n)
		workload.Turns(b,
			workload.Step{Name: "cadastre-cni", Run: plugin{bin.cadastre, agent.conf()}.burst()},
			workload.Step{Name: "host-local", Run: plugin{bin.hostLocal, hostLocalConf(dir)}.burst()},
		)
	})
}

// hostLocalConf is a network configuration for host-local.
func hostLocalConf(dir string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "bench", "type": "none",
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]]}}`, dir, hostLocalRange)
}

// burst adds new containers at once, and deletes them at once.
func (p plugin) burst() func() error {
	first := 0
	return func() error {
		first += atOnce
		for _, command := range []string{"ADD", "DEL"} {
			errs := make(chan error, atOnce)
			for i := range atOnce {
				go func() { errs <- p.call(command, containerID(first+i)) }()
			}
			var err error
			for range atOnce {
				err = errors.Join(err, <-errs)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// BenchmarkStartUp is what a process costs before it does anything, one process each.
func BenchmarkStartUp(b *testing.B) {
	bin := build(b)
	version := func(path string) func() error {
		return func() error { return plugin{path, `{"cniVersion": "1.0.0"}`}.call("VERSION", "") }
	}
	workload.Turns(b,
		workload.Step{Name: "cadastre-cni", Run: version(bin.cadastre)},
		workload.Step{Name: "host-local", Run: version(bin.hostLocal)},
		workload.Step{Name: "go-hello", Run: version(bin.hello)},
		workload.Step{Name: "true", Run: version("/bin/true")},
	)
}
