// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// The status names a firewall that drops the pods' packets, with a command that helps.
func TestAFirewallThatDropsIsNamed(t *testing.T) {
	if version, err := exec.Command("iptables", "-V").Output(); err != nil || !strings.Contains(string(version), "nf_tables") {
		t.Skipf("NOT RUN: iptables -V does not name nf_tables (Debian: iptables): %s", version)
	}
	l := newLab(t, "")
	shell := func(line string) {
		t.Helper()
		var out []byte
		l.Expect(l.host.Do(func() (err error) {
			out, err = exec.Command("sh", "-ec", line).CombinedOutput()
			return err
		})).To(Succeed(), "%s: %s", line, out)
	}
	status := func() string {
		text, err := l.cadastre("status", "-o", "wide")
		l.Expect(err).NotTo(HaveOccurred(), text)
		return text
	}
	for _, program := range []string{"iptables", "ip6tables"} {
		note := regexp.MustCompile("the policy of chain FORWARD of " + program + " is DROP .*, or run (" + program + " .*)")
		l.Expect(status()).NotTo(MatchRegexp(note.String()))
		shell(program + " -P FORWARD DROP")
		l.Eventually(status, patience, pace).Should(MatchRegexp(note.String()))
		shell(note.FindStringSubmatch(status())[1])
		l.Eventually(status, patience, pace).ShouldNot(MatchRegexp(note.String()))
	}
}

// STATUS tells the runtime that pods cannot be connected while the node's own network is
// not made.
func TestStatusWhileTheNodeIsNotConnected(t *testing.T) {
	l := newLab(t, ", transport: vxlan")
	r := l.runtime()
	status := func() error {
		return r.within(func(ctx context.Context) error { return r.cni.GetStatusNetworkList(ctx, r.list) })
	}
	l.Expect(status()).To(Succeed())
	l.mustIP(l.host, "link", "add", "stranger", "type", "bridge")
	batch := filepath.Join(l.dir, "batch") // one process: the agent makes its link again soon
	l.Expect(os.WriteFile(batch, []byte("link delete cadvxlan\nlink set stranger name cadvxlan\n"), 0o600)).To(Succeed())
	l.Eventually(func() error { _, err := l.ip(l.host, "-batch", batch); return err }, patience, pace).Should(Succeed(), "faster than the agent")
	l.Eventually(func() uint { return code(status()) }, patience, pace).Should(BeEquivalentTo(50))
	l.Expect(status()).To(MatchError(And(ContainSubstring("node is not made"), ContainSubstring("cadvxlan"))))
	l.mustIP(l.host, "link", "delete", "cadvxlan")
	l.Eventually(status, patience, pace).Should(Succeed())
}
