// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// kubectlCluster is a program kubectl that knows a pod and an agent on node-1. It writes
// its arguments and its input to files.
const kubectlCluster = `#!/bin/sh
case "$*" in
*"{.spec.nodeName}"*) printf node-1; exit;;
*".status.phase"*) echo "Running agent-x"; exit;;
esac
printf '%%s\n' "$@" > %[1]s/args
cat > %[1]s/input
`

// plugin calls kubectl cadastre, and returns the outcome with what the agent's program
// would get.
func plugin(t *testing.T, input string, args ...string) (got outcome, command []string, read string) {
	t.Helper()
	g, dir := NewWithT(t), t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(dir, "kubectl"), fmt.Appendf(nil, kubectlCluster, dir), 0o700)).To(Succeed()) //nolint:gosec // a program
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	var out, errs bytes.Buffer
	a := newApp(strings.NewReader(input), &out, &errs, func(string) string { return "" })
	a.kubectl.plugin, a.now = true, noon
	got = outcome{a.run(t.Context(), args), out.String(), errs.String()}
	text, _ := os.ReadFile(filepath.Join(dir, "args"))
	_, rest, _ := strings.Cut(string(text), "\n"+agentCLI+"\n")
	content, _ := os.ReadFile(filepath.Join(dir, "input"))
	return got, strings.Split(strings.TrimSuffix(rest, "\n"), "\n"), string(content)
}

// TestKubectlArgumentsStayArguments: an argument that begins with a dash, and a flag that is
// given several times, reach the agent's program as they were meant.
func TestKubectlArgumentsStayArguments(t *testing.T) {
	g := NewWithT(t)
	got, command, _ := plugin(t, "", "--node", "node-1", "explain", "container", "--zone=+00:00", "--", "--socket=/x y")
	g.Expect(got.code).To(Equal(0), got.err)
	g.Expect(command).To(Equal([]string{"explain", "container", "--zone=+00:00", "--", "--socket=/x y"}))

	got, command, read := plugin(t, "report", "--node", "node-1", "repair", "--from-report", "-", "--yes", "--finding", "a,b", "--finding", "c d")
	g.Expect(got.code).To(Equal(0), got.err)
	g.Expect(command).To(Equal([]string{"repair", "--finding=a,b", "--finding=c d", "--from-report=-", "--yes=true", "--"}))
	g.Expect(read).To(Equal("report"))

	for _, node := range []string{"a,metadata.namespace!=b", "-a=b"} {
		got, _, _ = plugin(t, "", "leases", "--node="+node)
		g.Expect(got.code).To(Equal(exitUsage), node)
	}
}

// TestKubectlLeavesTheInputOfALoop: only a verb that asks or reads gets standard input.
func TestKubectlLeavesTheInputOfALoop(t *testing.T) {
	g := NewWithT(t)
	for _, c := range []struct{ args, read string }{
		{"explain pod default/web", ""},
		{"leases --node node-1", ""},
		{"release --pod default/web --node node-1", "y\n"},
		{"release --pod default/web --yes --node node-1", ""},
	} {
		got, _, read := plugin(t, "y\n", strings.Fields(c.args)...)
		g.Expect(got.code).To(Equal(0), got.err)
		g.Expect(read).To(Equal(c.read), c.args)
	}
}

// TestKubectlRefusesFilesOfThePod: a file that a user names is not that of the agent's pod.
func TestKubectlRefusesFilesOfThePod(t *testing.T) {
	g := NewWithT(t)
	for _, args := range []string{
		"doctor", "doctor -f bundle.tar.gz", "doctor -f - --config contiv.conf", "repair --from-report report.json", "rebuild",
		"backup copy.db",
	} {
		got, _, _ := plugin(t, "", append(strings.Fields(args), "--node", "node-1")...)
		g.Expect(got.code).To(Equal(exitUsage), args)
	}
	got, command, _ := plugin(t, "", "doctor", "-f", "-", "--node", "node-1")
	g.Expect(got.code).To(Equal(0), got.err)
	g.Expect(command).To(Equal([]string{"doctor", "--file=-", "--"}))
}
