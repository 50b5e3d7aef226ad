// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/dist/release/build"
	"github.com/cadastre/cadastre/dist/release/deb"
)

// machine is a root directory with dpkg's database, and busybox as the shell of the
// packages' scripts.
type machine struct {
	*WithT
	t   *testing.T
	dir string
}

// newMachine makes one that is said to run systemd: systemctl writes its arguments down.
func newMachine(t *testing.T) machine {
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: dpkg --root needs root, for chroot")
	}
	for _, program := range []string{"dpkg", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("NOT RUN: %v", err)
		}
	}
	m := machine{WithT: NewWithT(t), t: t, dir: t.TempDir()}
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "bin", "run/systemd/system", "tmp", "usr/bin", "etc"} {
		m.Expect(os.MkdirAll(m.path(dir), 0o755)).To(Succeed())
	}
	m.put("var/lib/dpkg/status", "", 0o644)
	busybox, err := exec.LookPath("busybox")
	m.Expect(err).NotTo(HaveOccurred())
	program, err := os.ReadFile(busybox)
	m.Expect(err).NotTo(HaveOccurred())
	m.put("bin/busybox", string(program), 0o755)
	for _, name := range []string{"sh", "rm"} {
		m.Expect(os.Symlink("busybox", m.path("bin/"+name))).To(Succeed())
	}
	if out, err := exec.CommandContext(t.Context(), "chroot", m.dir, "/bin/sh", "-c", "true").CombinedOutput(); err != nil {
		t.Skipf("NOT RUN: busybox does not run alone, install busybox-static: %v: %s", err, out)
	}
	m.put("usr/bin/systemctl", "#!/bin/sh\necho \"$*\" >>/systemctl.log\n", 0o755)
	return m
}

func (m machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m machine) put(name, text string, mode os.FileMode) {
	m.Expect(os.WriteFile(m.path(name), []byte(text), mode)).To(Succeed())
}

func (m machine) dpkg(args ...string) string {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), "dpkg", append([]string{"--root=" + m.dir, "--force-confold", "--force-bad-path"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=/tmp", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	m.Expect(err).NotTo(HaveOccurred(), "%s", out)
	return string(out)
}

// systemctl returns what the scripts have called since the last time.
func (m machine) systemctl() []string {
	text, err := os.ReadFile(m.path("systemctl.log"))
	if err != nil {
		return nil
	}
	m.Expect(os.Remove(m.path("systemctl.log"))).To(Succeed())
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// testDeb installs the packages in a root directory of their own, upgrades and removes them.
func (r made) testDeb(t *testing.T) {
	m := newMachine(t)
	file := func(name string) string { return filepath.Join(r.dir, name+"_"+tag+"_"+runtime.GOARCH+".deb") }
	m.dpkg("--install", file("cadastre"), file("cadastre-cni"))
	m.Expect(m.systemctl()).To(Equal([]string{"daemon-reload"}), "a new installation starts nothing")
	for _, name := range []string{"usr/bin/cadastre", "usr/bin/cadastre-agent", "usr/bin/kubectl-cadastre", "opt/cni/bin/cadastre-cni"} {
		out, err := exec.CommandContext(t.Context(), m.path(name), "--version").Output()
		m.Expect(err).NotTo(HaveOccurred(), name)
		m.Expect(string(out)).To(ContainSubstring(tag), name)
	}
	m.Expect(os.Readlink(m.path("usr/lib/cni/cadastre-cni"))).To(Equal("/opt/cni/bin/cadastre-cni"))
	m.testUnit()

	m.put("etc/cadastre/contiv.conf", "# mine\n", 0o600)
	m.Expect(os.MkdirAll(m.path("var/lib/cadastre"), 0o700)).To(Succeed())
	m.put("var/lib/cadastre/cadastre.db", "leases", 0o600)
	kept := func() {
		m.t.Helper()
		m.Expect(os.ReadFile(m.path("etc/cadastre/contiv.conf"))).To(Equal([]byte("# mine\n")))
		m.Expect(os.ReadFile(m.path("var/lib/cadastre/cadastre.db"))).To(Equal([]byte("leases")))
	}
	m.dpkg("--install", file("cadastre"))
	m.Expect(m.systemctl()).To(ContainElement("try-restart cadastre-agent.service"), "an upgrade")
	kept()

	m.dpkg("--remove", "cadastre", "cadastre-cni")
	m.Expect(m.systemctl()).To(Equal([]string{"disable --now cadastre-docker.socket", "disable --now cadastre-agent.service", "daemon-reload"}))
	kept()
	for _, name := range []string{"usr/bin/cadastre-agent", "usr/lib/systemd/system/cadastre-agent.service", "opt/cni/bin/cadastre-cni", "usr/lib/cni/cadastre-cni"} {
		m.Expect(m.path(name)).NotTo(BeAnExistingFile())
	}
	m.dpkg("--purge", "cadastre", "cadastre-cni")
	for _, name := range []string{"etc/cadastre", "var/lib/cadastre"} {
		m.Expect(m.path(name)).NotTo(BeAnExistingFile())
	}
}

// testUnit: what the unit names is in the package.
func (m machine) testUnit() {
	text, err := os.ReadFile(m.path("usr/lib/systemd/system/cadastre-agent.service"))
	m.Expect(err).NotTo(HaveOccurred())
	for line := range strings.Lines(string(text)) {
		if command, ok := strings.CutPrefix(line, "ExecStart="); ok {
			words := strings.Fields(command)
			m.Expect(m.path(words[0])).To(BeAnExistingFile())
			config := strings.TrimPrefix(words[1], "--config=")
			m.Expect(m.path(config)).To(BeAnExistingFile())
			return
		}
	}
	m.t.Error("the unit has no ExecStart")
}

// TestPackageOfAnotherMachine: the version of a pre-release sorts before the release, and the
// architecture is the wanted one.
func TestPackageOfAnotherMachine(t *testing.T) {
	g := NewWithT(t)
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skipf("NOT RUN: %v", err)
	}
	dir := t.TempDir()
	root, err := filepath.Abs(repository)
	g.Expect(err).NotTo(HaveOccurred())
	for _, p := range deb.Packages() {
		for _, program := range p.Uses {
			g.Expect(os.WriteFile(filepath.Join(dir, program), []byte("a program"), 0o600)).To(Succeed())
		}
		name, data, err := p.Make(build.Source{Root: root, Version: "1.2.0-rc.1", Time: commitTime()}, "arm64", dir)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(name).To(Equal(p.Name + "_1.2.0~rc.1_arm64.deb"))
		file := filepath.Join(dir, name)
		g.Expect(os.WriteFile(file, data, 0o600)).To(Succeed())
		out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--field", file).CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), "%s", out)
		g.Expect(string(out)).To(And(ContainSubstring("Architecture: arm64\n"), ContainSubstring("Version: 1.2.0~rc.1\n"), Not(ContainSubstring("Depends:"))))
		out, err = exec.CommandContext(t.Context(), "dpkg-deb", "--contents", file).CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), "%s", out)
		g.Expect(string(out)).To(And(MatchRegexp(`-rwxr-xr-x root/root .*/cadastre`), ContainSubstring("./usr/share/doc/"+p.Name+"/copyright")))
	}
}
