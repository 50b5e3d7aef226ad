// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package docker tests what is beside it: the Dockerfiles, the compose file and
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

// instructions are a Dockerfile's, without comments.
func instructions(text string) (all [][]string) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(fields[0], "#") {
			all = append(all, fields)
		}
	}
	return all
}

// made are the programs that make dist, dist-providers and dist-vpp put into bin/dist.
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

func TestDockerfiles(t *testing.T) {
	files, err := filepath.Glob("*.Dockerfile")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(files).To(Equal([]string{"agent-cloud.Dockerfile", "agent-vpp.Dockerfile", "agent.Dockerfile", "cni.Dockerfile", "operator-cloud.Dockerfile", "operator.Dockerfile"}))
	gomod := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(NewWithT(t), "../go.mod"))[1]
	for _, name := range files {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(name + ".dockerignore").To(BeAnExistingFile())
			g.Expect(read(g, name+".dockerignore")).To(Equal(read(g, "agent.Dockerfile.dockerignore")))
			var stages [][]string
			last := map[string][]string{}
			for _, f := range instructions(read(g, name)) {
				if f[0] == "FROM" {
					stages, last = append(stages, f), map[string][]string{}
				}
				last[f[0]] = f
				if f[0] == "COPY" && len(stages) == 2 {
					g.Expect(f[1]).To(Equal("--from=build"))
					for _, path := range f[2 : len(f)-1] {
						if path == certificates && strings.Contains(name, "-cloud.") {
							continue
						}
						program, ok := strings.CutPrefix(path, "/src/bin/dist/")
						g.Expect(ok).To(BeTrue(), path)
						for _, cloud := range clouds(g) {
							g.Expect(made(g)).To(ContainElement(strings.ReplaceAll(program, "${CLOUD}", cloud)))
						}
					}
				}
				if f[0] == "RUN" {
					g.Expect(strings.Join(f, " ")).To(Or(Equal("RUN make dist"), Equal("RUN make dist dist-vpp"), Equal("RUN go mod download"),
						Equal("RUN make dist-providers PROVIDERS=${CLOUD}"), Equal("RUN make dist dist-providers PROVIDERS=${CLOUD}")), "a step that make has not")
				}
			}
			g.Expect(stages).To(HaveLen(2))
			g.Expect(stages[0][1]).To(MatchRegexp(`^golang:`+regexp.QuoteMeta(gomod)+`\.\d+-`), "pinned, and as new as go.mod")
			g.Expect(stages[1]).To(Equal([]string{"FROM", "scratch"}))
			g.Expect(last["USER"]).To(HaveLen(2), "who runs it is said")
			g.Expect(last["ENTRYPOINT"][1]).To(HavePrefix(`["/`), "without a shell, which is not there")
		})
	}
	g := NewWithT(t)
	g.Expect(read(g, "../Makefile")).To(ContainSubstring("CGO_ENABLED=0 $(GO) build -trimpath"), "static")
	if hadolint, err := exec.LookPath("hadolint"); err == nil {
		out, err := exec.CommandContext(t.Context(), hadolint, append([]string{"--failure-threshold=warning"}, files...)...).CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	}
}

func TestCompose(t *testing.T) {
	g := NewWithT(t)
	type service struct {
		Image   string
		Build   struct{ Context, Dockerfile string }
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
