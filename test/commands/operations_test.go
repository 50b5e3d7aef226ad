// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// example is the first example of a section of docs/operations.md: a file, and the
// commands that use it.
type example struct {
	file, text string
	commands   [][]string
}

// operationsExample reads the example below a heading.
func (m *machine) operationsExample(heading string) (x example) {
	page, err := os.ReadFile("../../docs/operations.md")
	m.Expect(err).NotTo(HaveOccurred())
	_, section, found := strings.Cut(string(page), "\n## "+heading+"\n")
	m.Expect(found).To(BeTrue(), "docs/operations.md has no heading %q", heading)
	section, _, _ = strings.Cut(section, "\n## ")
	for _, line := range strings.Split(section, "\n") {
		code, indented := strings.CutPrefix(line, "    ")
		name, isFile := strings.CutPrefix(code, "# ")
		switch {
		case !indented:
		case isFile && x.file == "":
			x.file = name
		case strings.HasPrefix(code, "cadastre "):
			x.commands = append(x.commands, strings.Fields(strings.ReplaceAll(code, "/run/cadastre/agent.sock", m.socket))[1:])
		case x.file != "":
			x.text += code + "\n"
		}
	}
	m.Expect(x.text).NotTo(BeEmpty())
	m.Expect(x.commands).NotTo(BeEmpty())
	return x
}

// fill adds pods until one is refused, and returns the refusal.
func (m *machine) fill() outcome {
	const most = 300 // more than a /24 has
	for n := range most {
		if got := m.pod("ADD", fmt.Sprintf("filler-%d", n)); got.Code != 0 {
			return got
		}
	}
	m.t.Fatalf("%d pods have not filled the node", most)
	return outcome{}
}

// fullConf has blocks with 12 addresses for pods.
const fullConf = "ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 28}"

func (m *machine) leases() (all []localapi.Lease) {
	m.Expect(json.Unmarshal([]byte(m.cadastre("leases", "-o", "json").Out), &all)).To(Succeed())
	return all
}

// The page's example for a full node is run as it is printed: after it the next pod
// gets an address of the second pool, and no pod has lost its own.
func TestTheExampleForAFullNode(t *testing.T) {
	m := newMachine(t, fullConf)
	m.startAgent()
	full := m.fill()
	m.Expect(full.Out+full.Err).To(ContainSubstring("no IP address is free in pool"), "the message of the page's table")
	before := m.leases()

	x := m.operationsExample("A node is full")
	m.write(x.file, x.text)
	for _, args := range x.commands {
		m.Expect(m.cadastre(args...)).To(HaveField("Code", 0), "%s", args)
	}
	m.Eventually(func() outcome { return m.pod("ADD", "next") }, awaited).Should(And(HaveField("Code", 0), HaveField("Out", ContainSubstring(`"10.2.1.`))))
	m.Expect(m.leases()).To(ContainElements(before))
	m.Expect(m.cadastre("status").Out).NotTo(ContainSubstring("problem "), "contiv.conf stays as it is")
}

// Another podSubnetOneNodePrefixLen is without effect on a cluster, as the page says.
func TestALiveClusterKeepsItsPrefixLength(t *testing.T) {
	for _, length := range []string{"27", "29"} {
		m := newMachine(t, fullConf)
		stop := m.startAgent()
		m.fill()
		stop()
		m.write("contiv.conf", strings.Replace(fullConf, "28", length, 1))
		m.startAgent()
		m.Expect(m.pod("ADD", "next").Code).NotTo(BeZero())
		m.Expect(m.cadastre("status").Out).To(And(ContainSubstring("problem "), ContainSubstring("10.1.0.16/28 active")))
	}
}
