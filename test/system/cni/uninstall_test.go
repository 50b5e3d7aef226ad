// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// What an agent leaves on its node is removed once it does not run any more, and nothing
// else.
func TestUninstall(t *testing.T) {
	l := newLab(t, "")
	installed := filepath.Join(l.dir, "opt")
	l.Expect(os.MkdirAll(installed, 0o700)).To(Succeed())
	for _, name := range []string{"cadastre-cni", "portmap"} {
		data, err := os.ReadFile(filepath.Join(l.bin, name))
		l.Expect(err).NotTo(HaveOccurred())
		l.Expect(os.WriteFile(filepath.Join(installed, name), data, 0o700)).To(Succeed())
	}
	other := filepath.Join(filepath.Dir(l.listPath()), "87-other.conflist")
	l.Expect(os.WriteFile(other, []byte("{}"), 0o600)).To(Succeed())
	foreign := []string{"route add 198.51.100.0/24 via 192.0.2.1 proto static", "link add other type veth peer name other2"}
	for _, args := range foreign {
		l.mustIP(l.host, strings.Fields(args)...)
	}
	r := l.runtime()
	r.add("web")
	uninstall := func(args ...string) (string, error) {
		return l.cadastre(append([]string{"uninstall", "--config", filepath.Join(l.dir, "contiv.conf"), "--run-dir", filepath.Join(l.dir, "run"),
			"--state-dir", filepath.Join(l.dir, "state"), "--cni-bin-dir", installed}, args...)...)
	}
	out, err := uninstall("--yes")
	l.Expect(err).To(HaveOccurred())
	l.Expect(out).To(And(ContainSubstring("an agent runs on this node"), ContainSubstring("agent.lock")))
	l.Expect(l.listPath()).To(BeAnExistingFile())
	l.Expect(l.links()).NotTo(BeEmpty())

	l.Expect(l.process.Kill()).To(Succeed())
	for _, args := range [][]string{nil, {"--dry-run"}, {"--dry-run", "--force"}} {
		out, err = uninstall(args...)
		l.Expect(err != nil).To(Equal(len(args) < 2), out)
		l.Expect(out).To(And(ContainSubstring(l.listPath()), ContainSubstring(filepath.Join(installed, "cadastre-cni")), ContainSubstring("nothing was changed")))
		l.Expect(l.listPath()).To(BeAnExistingFile())
		l.Expect(l.links()).NotTo(BeEmpty())
	}
	out, err = uninstall("--yes")
	l.Expect(err).To(HaveOccurred(), "a pod runs")
	l.Expect(out).To(And(ContainSubstring("is used by"), ContainSubstring("eth0"), ContainSubstring("the pod loses its network")))
	l.Expect(l.listPath()).To(BeAnExistingFile())
	l.Expect(l.links()).NotTo(BeEmpty())
	out, err = uninstall("--yes", "--force")
	l.Expect(err).NotTo(HaveOccurred(), out)
	l.Expect(out).To(And(ContainSubstring("removed"), ContainSubstring("link cad"), ContainSubstring("stays")))
	l.Expect(l.listPath()).NotTo(BeAnExistingFile())
	l.Expect(filepath.Join(installed, "cadastre-cni")).NotTo(BeAnExistingFile())
	l.Expect(l.links()).To(BeEmpty())
	l.Expect(l.mustIP(l.host, "route", "show", "table", "all", "proto", "202")).To(BeEmpty())
	l.Expect(l.mustIP(l.host, "-6", "route", "show", "table", "all", "proto", "202")).To(BeEmpty())

	l.Expect(filepath.Join(installed, "portmap")).To(BeAnExistingFile())
	l.Expect(other).To(BeAnExistingFile())
	l.Expect(filepath.Join(l.dir, "state", "cadastre.db")).To(BeAnExistingFile())
	l.Expect(l.mustIP(l.host, "route", "show", "198.51.100.0/24")).NotTo(BeEmpty())
	l.mustIP(l.host, "link", "show", "other")

	out, err = uninstall("--yes")
	l.Expect(err).NotTo(HaveOccurred(), "a repetition removes nothing: %s", out)
	l.Expect(out).To(ContainSubstring("nothing of an agent"))
	l.start()
	l.Eventually(l.links, patience, pace).Should(HaveLen(1), "the leases are still there")
}
