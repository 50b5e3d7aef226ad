// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// transports returns those of the page, in its order.
func transports() []string { return []string{"nodeip", "hostgw", "vxlan", "wireguard"} }

// record adds a measurement to a section of the page: a file in the folder of the programs.
func (c *cluster) record(section string, values ...any) {
	c.t.Helper()
	f, err := os.OpenFile(filepath.Join(os.Getenv(binEnv), section+".rows"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	c.must(err)
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = fmt.Sprint(v)
	}
	_, err = fmt.Fprintln(f, strings.Join(texts, "\t"))
	c.must(errors.Join(err, f.Close()))
}

// rows returns the measurements of a section.
func rows(dir, section string) (all [][]string) {
	text, err := os.ReadFile(filepath.Join(dir, section+".rows"))
	if err != nil {
		return nil // the tests of the section have not run
	}
	for line := range strings.Lines(string(text)) {
		all = append(all, strings.Split(strings.TrimSpace(line), "\t"))
	}
	return all
}

// of returns a column of the rows of a transport.
func of(all [][]string, transport string, column int) (values []int) {
	for _, row := range all {
		if row[0] == transport {
			n, _ := strconv.Atoi(row[column])
			values = append(values, n)
		}
	}
	return values
}

func sum(values []int) (n int) {
	for _, v := range values {
		n += v
	}
	return n
}

// peak returns the largest value.
func peak(values []int) int { return slices.Max(append(values, 0)) }

// median returns the value in the middle.
func median(values []int) int {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)/2]
}

const pageHead = `# The network, measured

    make ci SUITE=e2e-network    # writes this page; needs root

Two nodes are network namespaces with a real agent each. A router stands between them. With ` + "`vxlan` and `wireguard`" + ` each node has
a network of its own, with ` + "`nodeip` and `hostgw`" + ` they share a segment. Each transport runs with IPv4, IPv6 and both. The numbers are
those of one run on a machine of two cores with other work on it: compare them with each other.

## Transports

- *Throughput*: one TCP connection over IPv4, as a ratio to a plain bridge between two namespaces, which is measured in turns with it
  (median of 9 turns).
- *Kill*: each agent is killed with SIGKILL and started again. Meanwhile a packet goes every 2 ms from pod to pod, on one node and across
  nodes, with each family. The outage is the longest time in which all packets of a pair of pods were lost.
- *Healing*: the time until the agent has made an object again that was deleted by hand, see below.

| transport | throughput on one node | throughput across nodes | packets lost by kills | outage by a kill, ms | healing: median, ms | healing: longest, ms |
|---|--:|--:|--:|--:|--:|--:|
`

const pageMiddle = `
WireGuard runs in the agent if the kernel has none ([ADR 51](adr/0051-wireguard-runs-in-the-agent-if-the-kernel-lacks-it.md)): then it ends with
the agent, and packets across nodes are lost until the agent is back. All other transports are the kernel's, and go on without the agent.

## A node with many pods

An agent with many pods on its node is killed and started again. It compares all objects of the kernel, and makes none again.

| pods | ready after the kill, ms | of which resync, ms | packets lost |
|--:|--:|--:|--:|
`

const pageDamage = `
## An object is deleted by hand

Node 1 has both families. A cell has two times in milliseconds: until the object was made again, and the longest outage of four flows
that need it. Changes of the kernel are gathered for 100 ms. A dash: the transport has no such object, or its outage was not measured.

`

// writePage writes the measurements of the run. It leaves the page alone if tests were
// skipped.
func writePage(path, dir string) error {
	for _, section := range []string{"throughput", "kill", "resync", "healing"} {
		if len(rows(dir, section)) == 0 {
			fmt.Fprintf(os.Stderr, "NOT WRITTEN: %s: there is no measurement of %s\n", path, section)
			return nil
		}
	}
	var b strings.Builder
	b.WriteString(pageHead)
	kill, healing := rows(dir, "kill"), rows(dir, "healing")
	for _, transport := range transports() {
		near, far := "", ""
		for _, row := range rows(dir, "throughput") {
			if row[0] == transport {
				near, far = row[1], row[2]
			}
		}
		healed := of(healing, transport, 2)
		fmt.Fprintf(&b, "| %s | %s | %s | %d of %d | %d | %d | %d |\n", transport, near, far, sum(of(kill, transport, 2)),
			sum(of(kill, transport, 1)), peak(of(kill, transport, 3)), median(healed), peak(healed))
	}
	b.WriteString(pageMiddle)
	for _, row := range rows(dir, "resync") {
		fmt.Fprintf(&b, "| %s | %s | %s | %s of %s |\n", row[0], row[1], row[2], row[3], row[4])
	}
	b.WriteString(pageDamage)
	fmt.Fprintf(&b, "| object | %s |\n|---|%s\n", strings.Join(transports(), " | "), strings.Repeat("--:|", len(transports())))
	cells, objects := map[string]string{}, []string{}
	for _, row := range healing {
		if !slices.Contains(objects, row[1]) {
			objects = append(objects, row[1])
		}
		cells[row[0]+row[1]] = row[2] + ", " + row[3]
	}
	for _, object := range objects {
		fmt.Fprintf(&b, "| %s |", object)
		for _, transport := range transports() {
			if cell := cells[transport+object]; cell != "" {
				fmt.Fprintf(&b, " %s |", cell)
			} else {
				b.WriteString(" - |")
			}
		}
		b.WriteString("\n")
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
