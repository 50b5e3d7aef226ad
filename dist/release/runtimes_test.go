// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/dist/release/build"
	"github.com/cadastre/cadastre/dist/release/images"
	"github.com/cadastre/cadastre/internal/testkit/engines/containerd"
	"github.com/cadastre/cadastre/internal/testkit/engines/dockertest"
)

// testDocker: an engine loads the images and runs their programs.
func (r made) testDocker(t *testing.T) {
	g := NewWithT(t)
	engine := dockertest.Start(t)
	for name, program := range map[string]string{
		"cadastre-agent": "/cadastre-agent", "cadastre-operator": "/cadastre-operator", "cadastre-cni": "/cni-installer",
	} {
		engine.Docker("load", "--input", filepath.Join(r.dir, name+"_"+tag+".oci.tar"))
		image := name + ":" + tag
		g.Expect(engine.Docker("run", "--rm", "--network=none", image, "--version")).To(HavePrefix(filepath.Base(program) + " " + tag + ", "))
		health := "null"
		if name == "cadastre-agent" {
			health = `{"Test":["CMD","/cadastre","status","--live"],"Interval":10000000000,"Timeout":5000000000,"StartPeriod":30000000000}`
		}
		g.Expect(engine.Docker("inspect", "--format", "{{json .Config.Healthcheck}}", image)).To(Equal(health))
	}
}

// TestContainerd: containerd imports an image of both architectures under its name.
func TestContainerd(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: containerd needs root")
	}
	g := NewWithT(t)
	dir, err := os.MkdirTemp("", "c") // a short path: those of sockets are limited
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	arches := []string{"amd64", "arm64"}
	for _, arch := range arches {
		g.Expect(os.MkdirAll(filepath.Join(dir, arch), 0o755)).To(Succeed())
		g.Expect(os.WriteFile(filepath.Join(dir, arch, "cadastre-operator"), []byte(arch), 0o600)).To(Succeed())
	}
	in := images.Inputs{Programs: func(arch string) string { return filepath.Join(dir, arch) }, Time: commitTime()}
	all := images.For(build.Group{Name: build.Main, Packages: []string{"./cmd/cadastre-operator"}})
	g.Expect(all).To(HaveLen(1))
	file := filepath.Join(dir, "image.tar")
	g.Expect(in.Write(file, all[0], build.Source{Version: "1.0.0"}, arches, "docker.io/library/cadastre-operator:1.0.0")).To(Succeed())

	server, err := containerd.New(dir)
	g.Expect(err).NotTo(HaveOccurred())
	if err := server.Start(); err != nil {
		t.Skipf("NOT RUN: this machine has no containerd (apt-get install containerd): %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(server.Log())
		}
		g.Expect(server.Stop()).To(Succeed())
	})
	ctr := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "ctr", append([]string{"--address", server.Socket(), "--namespace", "k8s.io", "images"}, args...)...).CombinedOutput()
		return string(out), err
	}
	g.Eventually(func(g Gomega) {
		out, err := ctr("import", "--snapshotter", "native", file)
		g.Expect(err).NotTo(HaveOccurred(), out)
	}, 2*time.Minute, 100*time.Millisecond).Should(Succeed())
	out, err := ctr("list")
	g.Expect(err).NotTo(HaveOccurred(), out)
	g.Expect(out).To(MatchRegexp(`docker\.io/library/cadastre-operator:1\.0\.0 +application/vnd\.oci\.image\.index\.v1\+json .*linux/amd64,linux/arm64`))
	out, err = ctr("check", "--snapshotter", "native", "name==docker.io/library/cadastre-operator:1.0.0")
	g.Expect(err).NotTo(HaveOccurred(), out)
	g.Expect(out).To(ContainSubstring("complete"), runtime.GOARCH)
}
