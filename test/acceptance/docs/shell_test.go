// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/stage/nodescript"
)

// installPages are pages that tests of their own run: test/e2e/kube, and those of dist/release.
const installPages = "docs/install/"

func TestMain(m *testing.M) { os.Exit(nodescript.Main(m)) }

// notRun returns the reasons of commands that do not run here, by the begin of the command.
// The longest begin counts.
func notRun() map[string]string {
	const (
		cluster = "needs a cluster: make ci SUITE=e2e-node and test/e2e/kubernetes apply the manifests to one"
		engine  = "needs a Docker engine: make ci SUITE=e2e-docker runs one"
		kernel  = "shows objects that an agent with a data plane makes: test/system/network and test/system/cni look at them"
		long    = "is a target of its own of make ci, or takes longer"
		stopped = "needs an agent that has stopped: test/acceptance/commands stops it for rebuild, test/chaos for restore and older programs"
		finding = "needs a finding: test/chaos repairs findings from a report"
		dockers = "needs pools of Docker: testdata/docker of test/acceptance/commands has them"
	)
	return map[string]string{
		"kubectl":               cluster,
		"docker":                engine,
		"tar -xf cadastre_":     "needs the files of a release: make ci SUITE=e2e-release makes them, and runs the pages that need no cluster",
		"make":                  long,
		"CADASTRE_PLOTS":        long,
		"helm":                  "needs a cluster: make ci SUITE=e2e-chart installs, upgrades and rolls back the charts",
		"systemctl":             "needs systemd and installed units",
		"crictl":                "is a program of another project, and needs a container runtime",
		"sysctl":                "changes the machine: test/acceptance/migration takes these steps on a node of its own",
		"mv /var/lib/cadastre":  stopped,
		"cadastre restore":      stopped,
		"cadastre rebuild":      stopped,
		"cadastre uninstall":    "removes files of the machine: test/system/cni runs it on a node of its own",
		"cadastre page":         "serves until it is interrupted: test/system/page opens it in a browser",
		"cadastre events -f":    "goes on until it is interrupted: test/system/page and cmd/cadastre follow the stream",
		"cadastre top":          "is live until it is interrupted: cmd/cadastre tests it",
		"cadastre node release": "NAME stands for another node: test/system/democluster releases one",
		"cadastre repair":       finding,
		"cadastre reclaim undo": "needs a lease that is being reclaimed: test/system/reclaim undoes one",
		"cadastre release --ip": "needs a quarantined address, or one of Docker: test/system/reclaim and testdata/docker of test/acceptance/commands have them",
		"cadastre docker":       dockers,
		"cadastre-operator":     "needs an API server: test/e2e/kubernetes runs the operator with one",
		"CNI_COMMAND":           "the dots stand for the environment of a runtime: test/acceptance/commands calls the plugin for each pod",
		"echo $?":               "shows the exit code of the command before it",
		"ip -d link":            kernel,
		"ip rule":               kernel,
		"ip route":              kernel,
		"ip neighbour":          kernel,
		"curl --unix-socket /run/cadastre/agent.sock http://localhost/v1/sink": kernel,
	}
}

// exits returns further exit codes that mean success, by the begin of the command.
func exits() map[string]string {
	const shows = "4|5" // findings, or a witness is missing: the kernel shows the namespaces of the whole machine
	return map[string]string{
		"cadastre check": shows,
		"cadastre explain address 10.1.5.7 --at 14:05":                         "1", // the history of the page's node begins later
		"cadastre explain address 10.231.0.18":                                 "1", // the page's address is of another node's block
		"curl -s http://127.0.0.1:10262/metrics | grep -e cadastre_interfaces": "1", // a node without a cloud has none
	}
}

// longest returns the entry with the longest key that a command begins with.
func longest(of map[string]string, text string) (key, value string) {
	for k, v := range of {
		if strings.HasPrefix(text, k) && len(k) > len(key) {
			key, value = k, v
		}
	}
	return key, value
}

// node is the begin of every script: node 5 with the addresses of the pages' examples, and pods
// of the pages' names.
const node = `agent start
pod ADD web
pod ADD web-0
pod ADD web-7
pod ADD web-9
pod ADD hello
pod ADD late
`

const configuration = `ipamConfig: {podSubnetCIDR: 10.1.0.0/16}
cadastre:
  nodeID: 5
  witnesses: {runtime: none, engine: none}
`

// script returns the script that runs the commands of a page, "" if there is none. used gets
// the entries of the lists that were needed.
func script(page string, blocks []block, used map[string]bool) string {
	var b strings.Builder
	files := map[string]string{}
	for _, x := range blocks {
		if name, text, ok := strings.Cut(x.text, "\n"); ok && x.language == "yaml" && strings.HasPrefix(name, "# ") {
			files[strings.TrimPrefix(name, "# ")] = text
		}
		for _, c := range x.commands() {
			if key, reason := longest(notRun(), c.text); reason != "" {
				used[key] = true
				b.WriteString(help(c))
				continue
			}
			if !strings.HasPrefix(c.text, "cadastre ") && !strings.HasPrefix(c.text, "curl ") {
				used["not allowed: "+c.text] = true
				continue
			}
			key, codes := longest(exits(), c.text)
			used[key] = true
			line := strings.NewReplacer(
				"-s http://127.0.0.1:10262", "-s --unix-socket $CADASTRE_SOCKET http://localhost", // another agent may have the port
				"/run/cadastre/agent.sock", "$CADASTRE_SOCKET",
				"--config conf/contiv.conf", "--config contiv.conf",
				"/backups/", "$WORK/", "/tmp/node-1", "$WORK/node-1",
			).Replace(comment(c.text))
			if codes != "" {
				line += "; case $? in 0|" + codes + ") ;; *) exit 1 ;; esac"
			}
			fmt.Fprintf(&b, "# %s:%d\nexec sh -c '%s'\n", page, c.line, strings.ReplaceAll("echo y | { "+line+"\n}", "'", "''"))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	text := node + strings.ReplaceAll(b.String(), "\n}", "; }") + "-- contiv.conf --\n" + configuration
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text += "-- " + name + " --\n" + files[name]
	}
	return text
}

// help returns the lines of a script that compare a command of Cadastre with its help: its
// verb and its flags exist.
func help(c command) string {
	words := strings.Fields(comment(c.text))
	if words[0] != "cadastre" {
		return ""
	}
	verb := regexp.MustCompile(`^(?:cadastre)(?: [a-z]+)+`).FindString(strings.Join(words, " "))
	text := fmt.Sprintf("# %s:%d\nexec %s --help\nstdout '^  %s( |$)'\n", c.page, c.line, verb, verb)
	for _, w := range words {
		if flag, _, _ := strings.Cut(w, "="); strings.HasPrefix(flag, "-") && flag != "-" {
			text += fmt.Sprintf("stdout '(^| )%s[ ,]'\n", flag)
		}
	}
	return text
}

// comment removes the comment of a command.
func comment(line string) string {
	text, _, _ := strings.Cut(line, "  #")
	return strings.TrimSpace(text)
}

func TestEveryBlockOfAShellRuns(t *testing.T) {
	g := NewWithT(t)
	pages, order := map[string][]block{}, []string(nil)
	for _, b := range markdown(t) {
		if strings.HasPrefix(b.page, installPages) {
			continue
		}
		if pages[b.page] == nil {
			order = append(order, b.page)
		}
		pages[b.page] = append(pages[b.page], b)
		for _, c := range b.commands() {
			if _, reason := longest(notRun(), c.text); reason != "" {
				t.Logf("not run: %s:%d: %s: %s", c.page, c.line, comment(c.text), reason)
			}
		}
	}
	dir, used := t.TempDir(), map[string]bool{}
	for _, page := range order {
		if text := script(page, pages[page], used); text != "" {
			name := strings.NewReplacer("/", "-", ".md", ".txtar").Replace(page)
			g.Expect(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)).To(Succeed())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(used)) {
		if strings.HasPrefix(key, "not allowed: ") {
			t.Errorf("%s: only cadastre and curl run here: give the reason in notRun()", key)
		}
	}
	for _, list := range []map[string]string{notRun(), exits()} {
		for key := range list {
			g.Expect(used).To(HaveKey(key), "no page has a command that begins so: remove the entry")
		}
	}
	scripts, err := os.ReadDir(dir)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(len(scripts)).To(BeNumerically(">", 10))
	nodescript.Run(t, dir, map[string]string{"DRIVER": "agent"})
}

func TestCommandsOfPagesAreFound(t *testing.T) {
	g := NewWithT(t)
	var all []string
	for _, b := range blocksOf("a.md", "text\n\n    $ cadastre status   # x\n    ready\n    ip, which only begins so\n\n    $ curl x\n\ntext\n\n    cadastre leases\n    ADDRESS\n"+
		"\n```sh\nkubectl a \\\n    b\nls\n```\n\n```text\ncadastre x\n```\n\n- item\n      $ not indented alone\n\n    # cadastre accept\n    why cadastre\n") {
		for _, c := range b.commands() {
			all = append(all, fmt.Sprintf("%d %s", c.line, c.text))
		}
	}
	g.Expect(all).To(Equal([]string{"3 cadastre status   # x", "7 curl x", "11 cadastre leases", "15 kubectl a      b", "17 ls", "27 cadastre accept"}))
	used := map[string]bool{}
	text := script("a.md", blocksOf("a.md", "    $ cadastre status   # x\n    $ kubectl get\n    $ cadastre check   # compares\n"), used)
	g.Expect(text).To(ContainSubstring("# a.md:1\nexec sh -c 'echo y | { cadastre status; }'\n# a.md:3\nexec sh -c 'echo y | { cadastre check; case"))
	g.Expect(text).NotTo(ContainSubstring("kubectl"))
	g.Expect(used).To(HaveKey("kubectl"))
}
