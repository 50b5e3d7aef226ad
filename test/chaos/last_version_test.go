// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// lastVersion is the last commit whose agent writes format 1.
const lastVersion = "8b341766ae3eee8e9438fea2e08b09db5b905a97"

// beforeHistory is the last commit whose agent does not know the ledger's history.
const beforeHistory = "8f22743b72e921f09eb00a9e7bcd3cdbfa9bbe75"

// olderAgent begins the name of each agent of an older version.
const olderAgent = "cadastre-agent-"

// buildLastVersion returns the agent of the last version, built from the history
// of this repository by the first test that asks. A test calls it before it runs
// in parallel with others.
func buildLastVersion(t *testing.T) string {
	t.Helper()
	return buildAgent(t, lastVersion)
}

// buildAgent returns the agent of a commit.
func buildAgent(t *testing.T, commit string) string {
	t.Helper()
	g := NewWithT(t)
	path := program(olderAgent + commit[:7])
	if _, err := os.Stat(path); err == nil {
		return path
	}
	dir := t.TempDir()
	archive, err := exec.Command("git", "-C", "../..", "archive", commit).Output()
	if err != nil {
		t.Skipf("SKIPPED, NOT TESTED: the history of the repository has no %s: %v", commit, err)
	}
	unpack := exec.Command("tar", "-x", "-C", dir)
	unpack.Stdin = bytes.NewReader(archive)
	out, err := unpack.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	build := exec.Command("go", "build", "-o", path, "./cmd/cadastre-agent")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	out, err = build.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), "%s", out)
	return path
}

// TestLastVersion upgrades a database, and goes the way back.
func TestLastVersion(t *testing.T) {
	tried := attack.Begin(t, attack.Upgrade)
	old := buildLastVersion(t)
	t.Run("upgrade and way back", func(t *testing.T) { upgradeAndWayBack(t, old) })
	tried.Add(6)
	t.Run("the way back takes the doubt along", func(t *testing.T) { wayBackInDoubt(t, old) })
	tried.Add(2)
}

// upgradeAndWayBack lets the agent of the last version, this one, the last one
// again and this one again use one database: none loses a lease.
func upgradeAndWayBack(t *testing.T, old string) {
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	told := map[string]string{}
	step := func(program, name string) {
		n.program = program
		a := n.start(t)
		for id, was := range told {
			_, still := n.mustAdd(t, id)
			g.Expect(still).To(Equal(was), "%s: %s", name, id)
		}
		for i := range 10 {
			id := fmt.Sprint(name, i)
			_, addr := n.mustAdd(t, id)
			for other, taken := range told {
				g.Expect(addr).NotTo(Equal(taken), "%s has it", other)
			}
			told[id] = addr
		}
		a.kill()
	}
	step(old, "old")
	step("", "new")

	n.program = old
	refused := n.launch(t).mustEnd(t)
	g.Expect(refused).To(ContainSubstring("its format is 3, this program knows 1"))
	out, err := n.cli("database", "downgrade", "--state-dir", n.stateDir, "--run-dir", n.runDir)
	g.Expect(err).NotTo(HaveOccurred(), out)
	step(old, "back")
	step("", "again")

	// What the database was before the way back is an older copy now.
	before, err := os.ReadFile(n.db() + ".format-3")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(n.db(), before, 0o600)).To(Succeed())
	n.expectNothingNew(t)
}

// TestAnOlderProgramLeavesTheHistoryAlone goes back to an agent of format 2 that
// does not know the bucket of the history, and forth again. No agent loses a lease, and
// the history answers for what was leased and released before the way back.
func TestAnOlderProgramLeavesTheHistoryAlone(t *testing.T) {
	tried := attack.Begin(t, attack.Upgrade)
	old := buildAgent(t, beforeHistory)
	g, n := NewWithT(t), newNode(t, roomyConf)
	run := func(program string) *agent {
		n.program = program
		return n.start(t)
	}
	a := run("")
	_, first := n.mustAdd(t, "first")
	gone, addr := n.mustAdd(t, "gone")
	_, f, err := ask(n.socket(), gone.request(Del), leaving{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f).To(Equal(Answered))
	before, err := n.cli("explain", "container", "gone")
	g.Expect(err).NotTo(HaveOccurred(), before)
	g.Expect(before).To(ContainSubstring(strings.Split(addr, "/")[0] + " was released at "))
	a.kill()
	out, err := n.cli("database", "downgrade", "--state-dir", n.stateDir, "--run-dir", n.runDir)
	g.Expect(err).NotTo(HaveOccurred(), out)

	a = run(old)
	_, still := n.mustAdd(t, "first")
	g.Expect(still).To(Equal(first))
	_, middle := n.mustAdd(t, "middle")
	g.Expect(middle).NotTo(Equal(first))
	a.kill()

	a = run("")
	for id, was := range map[string]string{"first": first, "middle": middle} {
		_, still := n.mustAdd(t, id)
		g.Expect(still).To(Equal(was), id)
	}
	after, err := n.cli("explain", "container", "gone")
	g.Expect(err).NotTo(HaveOccurred(), after)
	line, _, _ := strings.Cut(before, "\n")
	g.Expect(after).To(HavePrefix(line))
	var report localapi.CheckReport
	g.Expect(get(n.socket(), localapi.PathCheckLedger, &report)).To(Succeed())
	g.Expect(report.Findings).To(BeEmpty())
	tried.Add(2)
	g.Expect(a.stop()).To(Succeed())
}

// wayBackInDoubt downgrades a database in doubt: the last version allocates nothing
// new from it either.
func wayBackInDoubt(t *testing.T, old string) {
	g := NewWithT(t)
	n := newNode(t, roomyConf)
	a, backup, _ := prepareForeign(t, n)
	a.kill()
	data, err := os.ReadFile(backup)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(os.WriteFile(n.db(), data, 0o600)).To(Succeed())
	n.expectNothingNew(t)
	out, err := n.cli("database", "downgrade", "--state-dir", n.stateDir, "--run-dir", n.runDir)
	g.Expect(err).NotTo(HaveOccurred(), out)
	n.program = old
	n.start(t)
	suspended, err := (&past{node: n}).suspended("new")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(suspended).To(BeTrue())
}
