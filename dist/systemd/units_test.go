// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package systemd tests the units beside it. They say what the programs expect, and
// systemd reports nothing against them. An agent that is started as systemd starts
// it uses the socket that it is handed.
package systemd

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"

	"github.com/cadastre/cadastre/internal/testkit/stage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	service = "cadastre-agent.service"
	socket  = "cadastre-docker.socket"
)

// unit is a unit's settings, by section and key.
type unit map[string][]string

func (u unit) one(g Gomega, key string) string {
	g.ExpectWithOffset(1, u[key]).To(HaveLen(1), key)
	return u[key][0]
}

func read(g Gomega, name string) unit {
	text, err := os.ReadFile(name)
	g.Expect(err).NotTo(HaveOccurred())
	u, section := unit{}, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch key, value, ok := strings.Cut(line, "="); {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		default:
			g.Expect(ok).To(BeTrue(), "%s: %q", name, line)
			u[section+"."+key] = append(u[section+"."+key], value)
		}
	}
	return u
}

func TestUnitsFitTogether(t *testing.T) {
	g := NewWithT(t)
	agent, docker := read(g, service), read(g, socket)
	g.Expect(docker.one(g, "Socket.Service")).To(Equal(service))
	g.Expect(docker.one(g, "Socket.FileDescriptorName")).To(Equal("docker"))
	g.Expect(docker.one(g, "Socket.SocketMode")).To(Equal("0600"), "as the agent's own")
	g.Expect(docker.one(g, "Socket.ListenStream")).To(HavePrefix("/run/docker/plugins/"), "where engines look")
	for _, u := range []unit{agent, docker} {
		g.Expect(strings.Fields(u.one(g, "Unit.Before"))).To(ContainElement("docker.service"))
	}
	command := strings.Fields(agent.one(g, "Service.ExecStart"))
	g.Expect(command).To(ContainElements(
		"--state-dir=/var/lib/"+agent.one(g, "Service.StateDirectory"), "--run-dir=/run/"+agent.one(g, "Service.RuntimeDirectory")))
	g.Expect(agent.one(g, "Service.RuntimeDirectoryPreserve")).To(Equal("yes"), "DELs wait in it")
}

// TestWithPrograms has what needs the agent.
func TestWithPrograms(t *testing.T) {
	bin := t.TempDir()
	if err := stage.Build(t.Context(), "../..", bin, "./cmd/cadastre-agent"); err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(bin, "cadastre-agent")
	t.Run("defaults", func(t *testing.T) { testDefaults(t, agent) })
	t.Run("verify", func(t *testing.T) { testVerify(t, agent) })
	t.Run("sockets", func(t *testing.T) { testSockets(t, agent) })
	t.Run("a socket that is none", func(t *testing.T) { testNoSocket(t, agent) })
}

// testDefaults: what the units say is what the programs do without them.
func testDefaults(t *testing.T, agent string) {
	g := NewWithT(t)
	command := strings.Fields(read(g, service).one(g, "Service.ExecStart"))
	help, err := exec.CommandContext(t.Context(), agent, "--help").CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", help)
	for _, arg := range command[1:] {
		_, value, _ := strings.Cut(arg, "=")
		g.Expect(string(help)).To(ContainSubstring(`(default "`+value+`")`), arg)
	}
	reference, err := os.ReadFile("../../conf/reference.conf")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(reference)).To(ContainSubstring("socket: " + read(g, socket).one(g, "Socket.ListenStream")))
}

// testVerify asks systemd, with programs that are there.
func testVerify(t *testing.T, agent string) {
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	g := NewWithT(t)
	dir := t.TempDir()
	var paths []string
	for _, name := range []string{service, socket} {
		text, err := os.ReadFile(name)
		g.Expect(err).NotTo(HaveOccurred())
		text = []byte(strings.ReplaceAll(string(text), "/usr/bin/cadastre-agent", agent))
		paths = append(paths, filepath.Join(dir, name))
		g.Expect(os.WriteFile(paths[len(paths)-1], text, 0o644)).To(Succeed())
	}
	out, err := exec.CommandContext(t.Context(), verify, append([]string{"verify", "--man=no"}, paths...)...).CombinedOutput()
	var ours []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "cadastre") { // the machine's units may have more lines
			ours = append(ours, line)
		}
	}
	g.Expect(ours).To(BeEmpty())
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
}
