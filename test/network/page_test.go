// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// record adds a row to a section of the page: a file in the folder of the programs.
func (c *cluster) record(section, format string, values ...any) {
	c.t.Helper()
	f, err := os.OpenFile(filepath.Join(os.Getenv(binEnv), section+".rows"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	c.must(err)
	_, err = fmt.Fprintf(f, format+"\n", values...)
	c.must(errors.Join(err, f.Close()))
}

const pageHead = `# The network, measured

    make e2e-network    # writes this page; needs root

Two nodes are network namespaces with a real agent each; a router stands between them. With ` + "`vxlan` and `wireguard`" + ` each
node has a network of its own, with ` + "`hostgw` and `nodeip`" + ` they share a segment. WireGuard is the one in the agent. The numbers are
of one run on a shared machine.
`

// writePage writes the rows of the run.
func writePage(path, dir string) error {
	var b strings.Builder
	b.WriteString(pageHead)
	for _, s := range []struct{ key, title, header string }{
		{"throughput", "Throughput", "TCP, one connection, IPv4, beside a plain bridge between two namespaces (1.00).\n\n" +
			"| transport | pods on one node | pods on two nodes |\n|---|--:|--:|"},
		{"kill", "An agent is killed", "Each agent is killed with SIGKILL and started again, while a packet goes every 2 ms from pod to pod on one node and across nodes.\n\n" +
			"| transport | packets lost | longest outage, ms |\n|---|--:|--:|"},
		{"resync", "Many pods", "| event | outcome |\n|---|---|"},
		{"healing", "An object is deleted by hand", "The agent makes it again. Changes are gathered for 100 ms.\n\n" +
			"| transport | object | made again after, ms | longest outage, ms |\n|---|---|--:|--:|"},
	} {
		if rows, err := os.ReadFile(filepath.Join(dir, s.key+".rows")); err == nil {
			fmt.Fprintf(&b, "\n## %s\n\n%s\n%s", s.title, s.header, rows)
		}
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
