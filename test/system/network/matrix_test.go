// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// matrix returns the layouts: all of them, or those of a quick run.
func matrix() (all []layout) {
	if !wide() {
		return []layout{{transport: "vxlan", v4: true, v6: true, nodes: 2}, {transport: "hostgw", v4: true, nodes: 2}}
	}
	for _, transport := range []string{"nodeip", "hostgw", "vxlan", "wireguard"} {
		all = append(all,
			layout{transport: transport, v4: true, nodes: 2},
			layout{transport: transport, v6: true, nodes: 2},
			layout{transport: transport, v4: true, v6: true, nodes: 2})
	}
	return all
}

// Pods reach all that they have to, whatever connects the nodes.
func TestMatrix(t *testing.T) {
	for _, l := range matrix() {
		t.Run(l.String(), func(t *testing.T) {
			m := newBench(t, l)
			t.Run("reach", m.inside(m.reachAll))
			t.Run("mtu", m.inside(m.fullSize))
			t.Run("tcp", m.inside(m.streams))
			t.Run("hairpin", m.inside(m.hairpin))
			t.Run("kill", m.inside(m.killed))
			t.Run("damage", m.inside(m.damaged))
			t.Run("throughput", m.inside(m.speed))
			m.strays.expectNone(m.cluster)
		})
	}
}

// bench is a cluster with pods a and b on node 1 and c on node 2.
type bench struct {
	*cluster
	a, b, c *pod
}

func newBench(t *testing.T, l layout) *bench {
	c := newCluster(t, l)
	m := &bench{cluster: c}
	m.a, m.b, m.c = c.nodes[0].pod("a"), c.nodes[0].pod("b"), c.nodes[1].pod("c")
	for _, is4 := range l.families() {
		// a tunnel may be made after the agents are ready
		c.Eventually(func() error { _, err := c.reach(m.a.place, m.c.place, is4); return err }, patience, pace).Should(Succeed())
	}
	return m
}

// inside returns a test whose failures are its own.
func (m *bench) inside(f func()) func(t *testing.T) {
	return func(t *testing.T) {
		before, with := m.t, m.WithT
		m.t, m.WithT = t, NewWithT(t)
		defer func() { m.t, m.WithT = before, with }()
		f()
	}
}

// reachAll sends packets between all kinds of places. The receiver sees the sender's own
// address, except outside, where it is that of the node.
func (m *bench) reachAll() {
	one, two := m.nodes[0].host(), m.nodes[1].host()
	for _, is4 := range m.families() {
		for _, x := range []struct {
			from, to place
		}{
			{m.a.place, m.b.place}, {m.b.place, m.a.place}, {m.a.place, m.c.place}, {m.c.place, m.a.place},
			{one, m.a.place}, {one, m.c.place}, {two, m.a.place}, {m.a.place, one}, {m.a.place, two}, {m.c.place, one},
		} {
			seen, err := m.reach(x.from, x.to, is4)
			m.Expect(err).NotTo(HaveOccurred())
			if pod := x.from.ns != one.ns && x.from.ns != two.ns; pod && x.to.ns != one.ns && x.to.ns != two.ns {
				m.Expect(seen).To(Equal(x.from.addr(is4)), "%s to %s", x.from.name, x.to.name)
			}
		}
		seen, err := m.reach(m.a.place, m.outside(), is4)
		m.Expect(err).NotTo(HaveOccurred())
		m.Expect(seen).To(Equal(one.addr(is4)), "the node's address is seen outside")
	}
}

// fullSize sends packets as large as the pod's link, which nothing may divide.
func (m *bench) fullSize() {
	mtu := m.mtu(m.a)
	for _, is4 := range m.families() {
		for _, to := range []*pod{m.b, m.c} {
			m.Expect(m.whole(m.a.place, to.place, is4, mtu)).To(Succeed(), "to %s with %d bytes", to.name, mtu)
			m.Expect(m.whole(m.a.place, to.place, is4, mtu+1)).To(MatchError(syscall.EMSGSIZE))
		}
	}
}

func (m *bench) mtu(p *pod) (mtu int) {
	m.must(p.ns.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			mtu = link.Attrs().MTU
		}
		return err
	}))
	return mtu
}

// streams sends by TCP with the offloads that a new link has.
func (m *bench) streams() {
	const size = 8 << 20
	for _, is4 := range m.families() {
		m.Expect(m.transfer(m.a.place, m.b.place, is4, size)).To(Succeed())
		m.Expect(m.transfer(m.a.place, m.c.place, is4, size)).To(Succeed())
		m.Expect(m.transfer(m.c.place, m.a.place, is4, size)).To(Succeed())
		m.Expect(m.transfer(m.nodes[0].host(), m.c.place, is4, size)).To(Succeed())
	}
}

// hairpin lets a pod call a service whose only member it is. The rules are those of
// kube-proxy.
func (m *bench) hairpin() {
	for _, is4 := range m.families() {
		program, service := "iptables", netip.MustParseAddr("10.96.0.10")
		if !is4 {
			program, service = "ip6tables", netip.MustParseAddr("fd00:5::10")
		}
		own := m.a.addr(is4)
		server := m.echo(m.a.ns, netip.AddrPortFrom(own, 0))
		m.run(m.nodes[0].ns, program, "-t", "nat", "-A", "PREROUTING", "-d", service.String(), "-p", "udp", "--dport", "80",
			"-j", "DNAT", "--to-destination", server.At().String())
		m.run(m.nodes[0].ns, program, "-t", "nat", "-A", "POSTROUTING", "-s", own.String(), "-d", own.String(), "-j", "MASQUERADE")
		for _, from := range []*pod{m.a, m.b} {
			_, err := m.call(from.place, netip.AddrPortFrom(service, 80), server)
			m.Expect(err).NotTo(HaveOccurred(), "pod %s", from.name)
		}
	}
}

// killed kills both agents one after the other and starts them again, while packets flow.
func (m *bench) killed() {
	for _, n := range m.nodes {
		var near, far []*netlab.Flow
		for _, is4 := range m.families() {
			near = append(near, m.flow(m.a.place, m.b.place, is4))
			far = append(far, m.flow(m.a.place, m.c.place, is4))
		}
		flows := append(slices.Clone(near), far...)
		n.kill()
		n.launch()
		n.await()
		since := time.Now()
		for _, f := range flows {
			m.Eventually(func() int { return f.ReceivedSince(since) }, patience, pace).Should(BeNumerically(">=", 50), f.Name)
		}
		for _, f := range netlab.Halted(flows) {
			l := f.End()
			m.t.Logf("%s killed, %s: %v", n.Node, f.Name, l)
			m.record("kill", m.transport, l.Sent, l.Lost, l.Outage.Milliseconds())
			if m.transport != "wireguard" || slices.Contains(near, f) {
				m.Expect(l.Lost).To(BeNumerically("<=", l.Dropped), "%s: %v", f.Name, l)
			}
		}
	}
}

// speed measures the throughput beside that of a plain bridge between two namespaces.
func (m *bench) speed() {
	if !wide() || !m.v4 || m.v6 {
		m.t.Skip("NOT RUN: make ci SUITE=e2e-network runs it, for IPv4 alone")
	}
	x, y, bridge := m.namespace(), m.namespace(), m.namespace()
	m.ip(bridge, "link add br0 type bridge", "link set br0 up")
	ends := []place{{name: "x", ns: x}, {name: "y", ns: y}}
	for i := range ends {
		m.ip(bridge, fmt.Sprintf("link add p%d type veth peer name eth0 netns %s", i, ends[i].ns.Path()), fmt.Sprintf("link set p%d master br0 up", i))
		ends[i].addresses = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}
		m.ip(ends[i].ns, "address add "+ends[i].addresses[0].String()+"/24 dev eth0", "link set eth0 up")
	}
	const rounds, slice = 9, 300 * time.Millisecond
	var near, far []float64
	for range rounds { // one after the other, so that all meet the same noise
		plain := m.throughput(ends[0], ends[1], true, slice)
		near = append(near, m.throughput(m.a.place, m.b.place, true, slice)/plain)
		far = append(far, m.throughput(m.a.place, m.c.place, true, slice)/plain)
	}
	slices.Sort(near)
	slices.Sort(far)
	m.record("throughput", m.transport, fmt.Sprintf("%.2f", near[rounds/2]), fmt.Sprintf("%.2f", far[rounds/2]))
}
