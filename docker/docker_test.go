// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package docker tests what is beside it: the Dockerfile, the compose file and
// the managed plugin's configuration, with what is at hand everywhere, and with
// the linters that are installed.
package docker

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func read(g Gomega, path string) string {
	text, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// instructions returns those of a Dockerfile, without comments.
func instructions(text string) (all [][]string) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(fields[0], "#") {
			all = append(all, fields)
		}
	}
	return all
}

// made are the programs that make dist puts into bin/dist, with each ONLY.
func made(g Gomega) []string {
	names := []string{"cni-installer"}
	all, err := filepath.Glob("../cmd/*")
	g.Expect(err).NotTo(HaveOccurred())
	for _, modules := range []string{"../providers/*/cmd/*", "../vpp/cmd/*"} {
		more, err := filepath.Glob(modules)
		g.Expect(err).NotTo(HaveOccurred())
		all = append(all, more...)
	}
	for _, dir := range all {
		names = append(names, filepath.Base(dir))
	}
	return names
}

// clouds returns the names of the modules that have programs with a cloud.
func clouds(g Gomega) (names []string) {
	all, err := filepath.Glob("../providers/*/cmd")
	g.Expect(err).NotTo(HaveOccurred())
	for _, dir := range all {
		names = append(names, filepath.Base(filepath.Dir(dir)))
	}
	g.Expect(names).NotTo(BeEmpty())
	return names
}

// certificates is the file with the authorities of TLS in the image that builds.
const certificates = "/etc/ssl/certs/ca-certificates.crt"

// TestDockerfile: stages that build do it with make; those of images have programs alone, and
// say who runs them.
func TestDockerfile(t *testing.T) {
	g := NewWithT(t)
	gomod := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(g, "../go.mod"))[1]
	var stage string
	var order []string
	from, last := map[string]string{}, map[string]map[string][]string{}
	for _, f := range instructions(read(g, "Dockerfile")) {
		if f[0] == "FROM" {
			g.Expect(f[2]).To(Equal("AS"))
			stage = f[3]
			order = append(order, stage)
			from[stage], last[stage] = f[1], map[string][]string{}
			continue
		}
		last[stage][f[0]] = f
		switch {
		case f[0] == "RUN":
			g.Expect(strings.Join(f, " ")).To(BeElementOf("RUN go mod download", "RUN make dist", "RUN make dist ONLY=vpp", "RUN make dist ONLY=${CLOUD}"))
		case f[0] == "COPY" && from[stage] == "scratch":
			g.Expect(f[1]).To(HavePrefix("--from=build"))
			for _, path := range f[2 : len(f)-1] {
				if path == certificates && strings.HasSuffix(stage, "-cloud") {
					continue
				}
				program, ok := strings.CutPrefix(path, "/src/bin/dist/")
				g.Expect(ok).To(BeTrue(), path)
				for _, cloud := range clouds(g) {
					g.Expect(made(g)).To(ContainElement(strings.ReplaceAll(program, "${CLOUD}", cloud)))
				}
			}
		}
	}
	g.Expect(order).To(Equal([]string{"build", "build-cloud", "build-vpp", "cni", "operator", "operator-cloud", "agent-cloud", "agent-vpp", "agent"}))
	g.Expect(from["build"]).To(MatchRegexp(`^golang:`+regexp.QuoteMeta(gomod)+`\.\d+-`), "pinned, and as new as go.mod")
	for _, name := range order[3:] {
		g.Expect(from[name]).To(Equal("scratch"), name)
		g.Expect(last[name]["USER"]).To(HaveLen(2), "who runs it is said")
		g.Expect(last[name]["ENTRYPOINT"][1]).To(HavePrefix(`["/`), "without a shell, which is not there")
	}
	g.Expect(read(g, "../Makefile")).To(ContainSubstring("CGO_ENABLED=0 $(GO) build -trimpath"), "static")
	if hadolint, err := exec.LookPath("hadolint"); err == nil {
		out, err := exec.CommandContext(t.Context(), hadolint, "--failure-threshold=warning", "Dockerfile").CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	}
}

func TestCompose(t *testing.T) {
	g := NewWithT(t)
	type service struct {
		Image   string
		Build   struct{ Context, Dockerfile, Target string }
		Volumes []any
		CapAdd  []string `json:"cap_add"`
		CapDrop []string `json:"cap_drop"`
	}
	var file struct {
		Services map[string]service
		Networks map[string]struct {
			IPAM struct{ Driver string }
		}
	}
	g.Expect(yaml.Unmarshal([]byte(read(g, "compose.yaml")), &file)).To(Succeed())
	g.Expect(file.Services).To(HaveKey("agent"))
	for name, s := range file.Services {
		g.Expect(s.Image).To(MatchRegexp(`:\d`), "%s: pinned", name)
	}
	agent := file.Services["agent"]
	g.Expect(filepath.Join(agent.Build.Context, agent.Build.Dockerfile)).To(BeAnExistingFile())
	g.Expect(agent.Build.Target).To(Equal("agent"))
	g.Expect(agent.CapDrop).To(Equal([]string{"ALL"}))
	g.Expect(agent.CapAdd).To(Equal([]string{"NET_ADMIN"}))
	g.Expect("compose.conf").To(BeAnExistingFile())
	g.Expect(file.Networks["blue"].IPAM.Driver).To(Equal("cadastre"))
	if exec.CommandContext(t.Context(), "docker", "compose", "version").Run() == nil {
		out, err := exec.CommandContext(t.Context(), "docker", "compose", "-f", "compose.yaml", "config", "--quiet").CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	}
}

func TestPluginConfiguration(t *testing.T) {
	g := NewWithT(t)
	var config struct {
		Description, Documentation, Workdir, PropagatedMount string

		Entrypoint []string
		Interface  struct {
			Types  []string
			Socket string
		}
		Network struct{ Type string }
		Mounts  []struct {
			Name, Description, Source, Destination, Type string
			Options, Settable                            []string
		}
		Env []struct {
			Name, Description, Value string
			Settable                 []string
		}
		Linux struct {
			Capabilities    []string
			AllowAllDevices bool
			Devices         []any
		}
	}
	d := json.NewDecoder(bytes.NewReader([]byte(read(g, "plugin/config.json"))))
	d.DisallowUnknownFields() // as an engine, which would ignore a slip of the pen
	g.Expect(d.Decode(&config)).To(Succeed())
	g.Expect(config.Interface.Types).To(Equal([]string{"docker.ipamdriver/1.0"}))
	g.Expect(config.Linux.Capabilities).To(BeEmpty(), "it reads routes, and changes none")
	g.Expect(config.Mounts).To(HaveLen(2))
	g.Expect(config.Env).To(HaveLen(2))
	g.Expect(config.Env[1].Name).To(Equal("ENGINE"))
	g.Expect(config.Env[1].Value).To(Equal("unix://" + config.Mounts[1].Destination))
	g.Expect(config.Env[0].Value).To(HavePrefix(config.Mounts[0].Destination + "/"))
	makefile := read(g, "../Makefile")
	for _, dir := range []string{config.PropagatedMount, config.Mounts[0].Destination, config.Mounts[1].Destination} { // an engine does not make them
		g.Expect(makefile).To(ContainSubstring("$(BIN)/dist/plugin/rootfs" + dir))
	}
	g.Expect(config.Entrypoint).To(Equal([]string{"/cadastre-docker-plugin"}))
	g.Expect("../cmd" + config.Entrypoint[0]).To(BeADirectory())
}
