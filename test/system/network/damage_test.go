// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"time"

	"github.com/google/nftables"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// damage is the deletion of one object of the kernel by hand. The packets of pod a to pod b
// and to pod c need the object.
type damage struct {
	name string
	do   func()
}

// damages returns the objects of node 1, one by one.
func (m *bench) damages() (all []damage) {
	link := m.a.hostIf()
	add := func(name, program, args string, names ...any) {
		all = append(all, damage{name, func() { m.run(m.nodes[0].ns, "sh", "-c", program+" "+fmt.Sprintf(args, names...)) }})
	}
	for _, is4 := range m.families() {
		ip, version := "ip -4", "IPv4"
		if !is4 {
			ip, version = "ip -6", "IPv6"
		}
		add("route of a pod, "+version, ip, "route del %s", m.a.addr(is4))
		add("neighbour of a pod, "+version, ip, "neigh del %s dev %s", m.a.addr(is4), link)
		add("address of the gateway, "+version, ip, "address flush dev %s scope global", link)
		add("route to a node, "+version, ip, "route del %s", m.podSubnet(2, is4))
		if m.transport == "vxlan" {
			add("neighbour of a node, "+version, ip, "neigh del %s dev cadvxlan", map[bool]string{true: "192.168.30.2", false: "fd00:4::2"}[is4])
			add("address of cadvxlan, "+version, ip, "address flush dev cadvxlan scope global")
		}
	}
	add("link of a pod, which is set down", "ip", "link set %s down", link)
	add("link of a pod", "ip", "link del %s", link)
	switch m.transport {
	case "vxlan":
		add("forwarding entry of a node", "bridge", "fdb show dev cadvxlan | while read mac rest; do bridge fdb del $mac dev cadvxlan $rest; done")
		add("cadvxlan, which is set down", "ip", "link set cadvxlan down")
		add("cadvxlan", "ip", "link del cadvxlan")
	case "wireguard":
		add("cadwg, which is set down", "ip", "link set cadwg down")
		add("cadwg", "ip", "link del cadwg")
	}
	return all
}

// podSubnet returns the pod subnet of a node.
func (c *cluster) podSubnet(id int, is4 bool) string {
	if is4 {
		return fmt.Sprintf("10.1.%d.0/24", id)
	}
	return fmt.Sprintf("fd00:1:0:%d::/64", id)
}

// damaged deletes each object while packets flow. The agent heals it, and the packets flow
// again.
func (m *bench) damaged() {
	if wide() && (!m.v4 || !m.v6) {
		m.t.Skip("the layout with both families has all objects")
	}
	for i, d := range m.damages() {
		if !wide() && i%4 != 3 {
			continue // a quick run takes some
		}
		flows := []*netlab.Flow{}
		for _, is4 := range m.families() {
			flows = append(flows, m.flow(m.a.place, m.b.place, is4), m.flow(m.a.place, m.c.place, is4))
		}
		before := m.state(m.nodes[0])
		began := time.Now()
		d.do()
		m.Eventually(func() string { return m.state(m.nodes[0]) }, patience, pace).Should(Equal(before), "after deletion of %s", d.name)
		healed := time.Since(began)
		since := time.Now()
		worst := netlab.Loss{}
		for _, f := range flows {
			m.Eventually(func() int { return f.ReceivedSince(since) }, patience, pace).Should(BeNumerically(">=", 20), "%s after deletion of %s", f.Name, d.name)
		}
		for _, f := range netlab.Halted(flows) {
			if l := f.End(); l.Outage >= worst.Outage {
				worst = l
			}
		}
		m.Expect(m.a.check()).To(Succeed(), "after deletion of %s", d.name)
		m.t.Logf("deleted: %s: healed after %d ms; %v", d.name, healed.Milliseconds(), worst)
		m.record("healing", m.transport, d.name, healed.Milliseconds(), worst.Outage.Milliseconds())
	}
	m.withoutTable()
}

// withoutTable deletes the nftables table. New flows to the outside get the node's address
// again.
func (m *bench) withoutTable() {
	one := m.nodes[0]
	tables := func() (ours []*nftables.Table) {
		m.must(one.ns.Do(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			all, err := conn.ListTables()
			ours = slices.DeleteFunc(all, func(t *nftables.Table) bool { return t.Name != "cadastre" })
			return err
		}))
		return ours
	}
	before := tables()
	m.Expect(before).NotTo(BeEmpty())
	m.must(one.ns.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		for _, table := range before {
			conn.DelTable(table)
		}
		return conn.Flush()
	}))
	began := time.Now()
	m.Eventually(func() int { return len(tables()) }, patience, pace).Should(Equal(len(before)))
	m.record("healing", m.transport, "table of nftables", time.Since(began).Milliseconds(), "-")
	for _, is4 := range m.families() {
		server := m.echo(m.router, netip.AddrPortFrom(m.outside().addr(is4), 0))
		m.Eventually(func() error {
			// The kernel does not change the addresses of a flow that has begun, so each try is a new one.
			client := m.dial(m.a.ns, server.At())
			defer client.Close()
			return netlab.Answered(client, 16, 1)
		}, patience, pace).Should(Succeed())
		m.Expect(server.From().Addr()).To(Equal(one.host().addr(is4)))
	}
}

// state returns the objects of a node that belong to the agent, as ip shows them, without
// what differs after an object was made again.
func (m *bench) state(n *node) string {
	const script = `
ip -o link | sed -n 's/^[0-9]*: \(cad[^:@]*\).*<\([A-Z,]*\)>.*/\1 \2/p' | sed 's/,M-DOWN//' | sort
ip -4 route show proto 202; ip -6 route show proto 202
for l in $(ip -o link | sed -n 's/^[0-9]*: \(cad[^:@]*\).*/\1/p' | sort); do
  ip -o address show dev $l scope global | sed 's/^[0-9]*: //' | sort; ip neigh show dev $l nud permanent | sort; ip -6 neigh show dev $l nud permanent | sort
  bridge fdb show dev $l | grep dst | sort
done`
	cmd := exec.Command("sh", "-c", script)
	var out []byte
	m.must(n.ns.Do(func() (err error) {
		out, err = cmd.Output()
		return err
	}))
	return string(out)
}
