// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/podmanager/conflist"
)

// uninstallNode holds the folders of a node from which an agent is to be removed.
type uninstallNode struct {
	*WithT
	dir    string
	kernel int // calls that remove what is in the kernel
	err    error
	uses   []string // pods that run
}

func newUninstallNode(t *testing.T) *uninstallNode {
	n := &uninstallNode{WithT: NewWithT(t), dir: t.TempDir()}
	for _, dir := range []string{"net.d", "bin", "run", "state"} {
		n.Expect(os.Mkdir(filepath.Join(n.dir, dir), 0o700)).To(Succeed())
	}
	return n
}

func (n *uninstallNode) path(parts ...string) string {
	return filepath.Join(append([]string{n.dir}, parts...)...)
}

// uninstall runs the command with a kernel that is not this machine's.
func (n *uninstallNode) uninstall(args ...string) (code int, out string) {
	var stdout, stderr bytes.Buffer
	a := newApp(nil, &stdout, &stderr, func(string) string { return "" })
	a.uninstallKernel = func(context.Context) ([]string, error) {
		n.kernel++
		return nil, n.err
	}
	a.usesOfKernel = func() ([]string, error) { return n.uses, nil }
	code = a.run(context.Background(), append([]string{"uninstall", "--config", "", "--run-dir", n.path("run"), "--state-dir", n.path("state"),
		"--cni-conf-dir", n.path("net.d"), "--cni-bin-dir", n.path("bin")}, args...))
	return code, stdout.String() + stderr.String()
}

// Files under our names that are another program's stay, and are named.
func TestUninstallLeavesForeignFiles(t *testing.T) {
	n := newUninstallNode(t)
	list, plugin := n.path("net.d", conflist.FileName), n.path("bin", cni.PluginType)
	n.Expect(os.WriteFile(list, []byte(`{"plugins": [{"type": "bridge", "ipam": {"type": "cadastre-cni"}}]}`), 0o600)).To(Succeed())
	n.Expect(os.WriteFile(plugin, []byte("#!/bin/sh\n"), 0o700)).To(Succeed())
	code, out := n.uninstall("--yes")
	n.Expect(code).To(BeZero(), out)
	n.Expect(out).To(And(ContainSubstring(list+", the list of another plugin"), ContainSubstring(plugin+", which is not a program of this project")))
	n.Expect(list).To(BeAnExistingFile())
	n.Expect(plugin).To(BeAnExistingFile())
	n.Expect(n.kernel).To(Equal(1))

	self, err := os.Executable() // another Go program
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(os.Remove(plugin)).To(Succeed())
	n.Expect(os.Symlink(self, plugin)).To(Succeed())
	code, out = n.uninstall("--yes")
	n.Expect(code).To(BeZero(), out)
	n.Expect(plugin).To(BeAnExistingFile())
}

// A part that fails does not stop the others, and the command fails.
func TestUninstallGoesOn(t *testing.T) {
	n := newUninstallNode(t)
	n.err = errors.New("no right to do that")
	data, err := conflist.List{Network: "pods"}.Render()
	n.Expect(err).NotTo(HaveOccurred())
	_, err = conflist.Write(n.path("net.d"), data)
	n.Expect(err).NotTo(HaveOccurred())
	code, out := n.uninstall("--yes")
	n.Expect(code).To(Equal(exitFailed))
	n.Expect(out).To(ContainSubstring("no right to do that"))
	n.Expect(n.path("net.d", conflist.FileName)).NotTo(BeAnExistingFile())
}

// A running agent holds the lock of its run directory, and would heal what is removed.
func TestUninstallBesideAnAgent(t *testing.T) {
	n := newUninstallNode(t)
	lock, err := os.Create(n.path("run", cni.LockFile))
	n.Expect(err).NotTo(HaveOccurred())
	defer lock.Close()
	n.Expect(unix.Flock(int(lock.Fd()), unix.LOCK_EX)).To(Succeed())
	code, out := n.uninstall("--yes")
	n.Expect(code).To(Equal(exitFailed))
	n.Expect(out).To(ContainSubstring("an agent runs on this node"))
	n.Expect(n.kernel).To(BeZero())
	code, out = n.uninstall("--dry-run")
	n.Expect(code).To(BeZero(), out)
	n.Expect(n.kernel).To(BeZero())
	code, out = n.uninstall("--yes", "--force")
	n.Expect(code).To(BeZero(), out)
	n.Expect(n.kernel).To(Equal(1))
}

// Pods that run lose their network: that needs force.
func TestUninstallWithPodsThatRun(t *testing.T) {
	n := newUninstallNode(t)
	n.uses = []string{"10.1.0.22 is used by k8s/3f1c/eth0 through link cad1: the pod loses its network"}
	for _, c := range []struct {
		args   []string
		code   int
		kernel int
	}{
		{nil, exitFailed, 0},
		{[]string{"--dry-run"}, exitFindings, 0},
		{[]string{"--dry-run", "--force"}, 0, 0},
		{[]string{"--yes"}, exitFindings, 0},
		{[]string{"--yes", "--force"}, 0, 1},
	} {
		code, out := n.uninstall(c.args...)
		n.Expect(code).To(Equal(c.code), out)
		n.Expect(out).To(ContainSubstring("in use now:\n  " + n.uses[0] + "\n"))
		n.Expect(n.kernel).To(Equal(c.kernel))
	}
	code, out := n.uninstall("--yes", "-o", "json")
	n.Expect(code).To(Equal(exitFindings))
	n.Expect(out).To(And(ContainSubstring(`"removed": false`), ContainSubstring("10.1.0.22 is used by")))
}

func TestUninstallAndItsConfiguration(t *testing.T) {
	n := newUninstallNode(t)
	code, out := n.uninstall("--config", n.path("none.conf"))
	n.Expect(code).To(Equal(exitFailed), out)
	n.Expect(out).To(ContainSubstring("nothing was changed"))
	n.Expect(os.WriteFile(n.path("bad.conf"), []byte("cadastre: {x: 1}"), 0o600)).To(Succeed())
	code, out = n.uninstall("--yes", "--config", n.path("bad.conf"))
	n.Expect(code).To(Equal(exitFailed))
	n.Expect(out).To(And(ContainSubstring("bad.conf"), ContainSubstring("--cni-conf-dir")))
	n.Expect(n.kernel).To(BeZero(), "the list may be in another folder")
	code, _ = n.uninstall("--yes", "--dry-run")
	n.Expect(code).To(Equal(exitUsage))
}
