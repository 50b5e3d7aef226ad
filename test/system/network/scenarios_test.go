// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// An agent that has not published its address has no tunnel. The packets to its pods do not
// leave by the default route.
func TestNoPacketLeavesBeforeTheTunnelIsThere(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"vxlan", "wireguard"} {
		t.Run(transport, func(t *testing.T) {
			c := emptyCluster(t, layout{transport: transport, v4: true, v6: true, nodes: 3})
			one, two := c.nodes[0], c.nodes[1]
			// Node 2 claims its ID and finds no underlay, so its route stays pending.
			two.keys = `, underlay: {interface: "eth9"}`
			for _, n := range c.nodes[:2] {
				n.launch()
			}
			one.await()
			a := one.pod("a")
			c.Eventually(func() (string, error) { return one.CLI(t.Context(), "node", "list") }, patience, pace).Should(ContainSubstring("node-2"))
			unanswered := func() {
				for _, is4 := range c.families() {
					for _, from := range []place{a.place, one.host()} {
						for _, to := range []string{"10.1.2.9", "10.1.3.9", "fd00:1:0:2::9", "fd00:1:0:3::9"} { // node 3 has no agent
							if at := netip.MustParseAddr(to); at.Is4() == is4 {
								c.tryTo(from, netip.AddrPortFrom(at, 9))
							}
						}
					}
				}
			}
			unanswered()
			c.strays.expectNone(c)
			// With its address it is reached.
			two.kill()
			two.keys = ""
			two.launch()
			two.await()
			b := two.pod("b")
			for _, is4 := range c.families() {
				c.Eventually(func() error { _, err := c.reach(a.place, b.place, is4); return err }, patience, pace).Should(Succeed())
			}
			c.strays.expectNone(c)
		})
	}
}

// tryTo sends some packets to an address that does not answer.
func (c *cluster) tryTo(from place, at netip.AddrPort) {
	c.t.Helper()
	err := from.ns.Do(func() error {
		conn, err := net.Dial("udp", at.String())
		if err != nil {
			return err
		}
		defer conn.Close()
		return netlab.Answered(conn.(*net.UDPConn), 16, 2)
	})
	c.Expect(err).To(HaveOccurred(), "from %s to %s", from.name, at)
	c.Expect(err).NotTo(MatchError(syscall.EINVAL), "from %s to %s", from.name, at)
}

// A pod goes on sending after its DEL, while its address goes to another pod: nothing of it
// arrives, and nothing for the other one arrives there.
func TestAnOldPodKeepsSending(t *testing.T) {
	t.Parallel()
	c := newCluster(t, layout{transport: "vxlan", v4: true, v6: true, nodes: 2})
	one := c.nodes[0]
	near, far := one.pod("near"), c.nodes[1].pod("far")
	for _, is4 := range c.families() {
		c.Eventually(func() error { _, err := c.reach(near.place, far.place, is4); return err }, patience, pace).Should(Succeed())
	}
	old := one.newPod("old")
	c.must(old.add())
	var conns []*net.UDPConn
	var echoes []*netlab.Echo
	for _, is4 := range c.families() {
		for _, to := range []place{near.place, far.place, c.nodes[1].host(), one.host()} {
			e := c.echo(to.ns, netip.AddrPortFrom(to.addr(is4), 0))
			conn := c.dial(old.ns, e.At())
			c.must(netlab.Answered(conn, 16, 50))
			echoes, conns = append(echoes, e), append(conns, conn)
		}
	}
	stop, all := make(chan struct{}), sync.WaitGroup{}
	halt := sync.OnceFunc(func() { close(stop); all.Wait() })
	defer halt()
	for _, conn := range conns {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					_, _ = conn.Write(make([]byte, 16)) // the pod has no network any more
				}
			}
		})
	}
	c.must(old.del())
	before := make([]uint64, len(echoes))
	awaitQuiet(echoes, before)
	fresh := one.newPod("fresh")
	// the addresses of the old one, at once: the runtime asks for them
	fresh.Runtime.CapabilityArgs = map[string]any{"ips": []string{old.addr(true).String(), old.addr(false).String()}}
	c.must(fresh.add())
	c.Expect(fresh.addresses).To(ConsistOf(old.addresses))
	for _, is4 := range c.families() {
		for _, from := range []place{near.place, far.place} {
			_, err := c.reach(from, fresh.place, is4)
			c.Expect(err).NotTo(HaveOccurred())
			_, err = c.reach(fresh.place, from, is4)
			c.Expect(err).NotTo(HaveOccurred())
		}
	}
	halt()
	for i, e := range echoes {
		c.Expect(e.Heard()).To(Equal(before[i]), "packets of the old pod to %s after DEL", e.At())
	}
}

// awaitQuiet reads the counts after what was under way when DEL returned has arrived: the
// echoes are goroutines, and read from queues.
func awaitQuiet(echoes []*netlab.Echo, counts []uint64) {
	for same := 0; same < 20; {
		<-time.After(pace)
		same++
		for i, e := range echoes {
			if n := e.Heard(); n != counts[i] {
				counts[i], same = n, 0
			}
		}
	}
}

// A node has two NICs and no address of nodeInterconnectCIDR: the one that is named is the
// underlay.
func TestTwoNICs(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t, layout{transport: "vxlan", v4: true, v6: true, nodes: 2})
	for _, n := range c.nodes {
		// the second NICs are on a segment of their own, with a smaller MTU
		port := fmt.Sprint("second", n.id)
		if n.id == 1 {
			c.ip(c.router, "link add storage type bridge", "link set storage up")
		}
		c.ip(c.router, fmt.Sprintf("link add %s mtu 1400 type veth peer name eth1 mtu 1400 netns %s", port, n.ns.Path()), "link set "+port+" master storage up")
		c.ip(n.ns, fmt.Sprintf("address add 172.21.0.%d/24 dev eth1", n.id), fmt.Sprintf("address add fd21::%d/64 dev eth1 nodad", n.id), "link set eth1 up")
		n.keys = `, underlay: {interface: eth1}`
		n.launch()
	}
	for _, n := range c.nodes {
		n.await()
	}
	m := &bench{cluster: c, a: c.nodes[0].pod("a"), b: c.nodes[0].pod("b"), c: c.nodes[1].pod("c")}
	for _, is4 := range c.families() {
		c.Eventually(func() error { _, err := c.reach(m.a.place, m.c.place, is4); return err }, patience, pace).Should(Succeed())
	}
	c.Expect(m.mtu(m.a)).To(Equal(1400-70), "the second NIC's, less what VXLAN adds over IPv6")
	m.fullSize()
	c.Expect(c.show(c.nodes[0].ns, "-d link show cadvxlan")).To(ContainSubstring("local 172.21.0.1"))
	c.strays.expectNone(c)
}

// Docker sets FORWARD to DROP: packets do not pass, the status names the command that
// helps, and allowForward helps too.
func TestAllowForward(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t, layout{transport: "vxlan", v4: true, v6: true, nodes: 2})
	one := c.nodes[0]
	c.run(one.ns, "iptables", "-P", "FORWARD", "DROP")
	c.run(one.ns, "ip6tables", "-P", "FORWARD", "DROP")
	for _, n := range c.nodes {
		n.launch()
	}
	for _, n := range c.nodes {
		n.await()
	}
	a, b, far := one.pod("a"), one.pod("b"), c.nodes[1].pod("c")
	for _, is4 := range c.families() {
		for _, to := range []*pod{b, far} {
			server := c.echo(to.ns, netip.AddrPortFrom(to.addr(is4), 0))
			c.Expect(netlab.Answered(c.dial(a.ns, server.At()), 16, 3)).NotTo(Succeed())
		}
	}
	text, err := one.CLI(t.Context(), "status")
	c.must(err)
	c.Expect(text).To(ContainSubstring("iptables"), "the command that helps")
	one.kill()
	one.keys = ", allowForward: true"
	one.launch()
	one.await()
	for _, is4 := range c.families() {
		for _, to := range []*pod{b, far} {
			_, err := c.reach(a.place, to.place, is4)
			c.Expect(err).NotTo(HaveOccurred())
		}
	}
	c.Expect(c.run(one.ns, "iptables", "-S")).To(ContainSubstring("-P FORWARD DROP"))
}

// Links, routes and tables of another program are in the way: they are named and stay, and
// what they are in the way of is made when they go.
func TestForeignObjectsInTheWay(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t, layout{transport: "vxlan", v4: true, nodes: 2})
	one := c.nodes[0]
	c.ip(one.ns, "link add cadvxlan type bridge", "link set cadvxlan up", "route add 10.1.2.0/24 dev cadvxlan proto static metric 7")
	for _, n := range c.nodes {
		n.launch()
	}
	c.nodes[1].await()
	status := func() string {
		text, err := one.CLI(t.Context(), "status")
		if err != nil {
			return err.Error()
		}
		return text
	}
	c.Eventually(status, patience, pace).Should(ContainSubstring("link cadvxlan"))
	c.Expect(c.show(one.ns, "-d link show cadvxlan")).To(ContainSubstring(" bridge "))
	c.Expect(c.show(one.ns, "route show 10.1.2.0/24")).To(ContainSubstring("metric 7"))
	c.ip(one.ns, "link del cadvxlan")
	one.await()
	a, far := one.pod("a"), c.nodes[1].pod("c")
	c.Eventually(func() error { _, err := c.reach(a.place, far.place, true); return err }, patience, pace).Should(Succeed())

	c.ip(one.ns, "route add 10.1.2.0/24 via 172.20.1.1 proto static metric 7")
	c.Eventually(status, patience, pace).Should(ContainSubstring("10.1.2.0/24"))
	c.ip(one.ns, "route del 10.1.2.0/24 via 172.20.1.1 proto static metric 7")
	c.Eventually(status, patience, pace).ShouldNot(ContainSubstring("10.1.2.0/24"))
	_, err := c.reach(a.place, far.place, true)
	c.Expect(err).NotTo(HaveOccurred())
}

// Both agents start again with another transport: nothing of the old one stays, and the
// pods reach each other.
func TestTheTransportChanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t, layout{transport: "hostgw", v4: true, v6: true, nodes: 2})
	m := &bench{cluster: c, a: c.nodes[0].pod("a"), b: c.nodes[0].pod("b"), c: c.nodes[1].pod("c")}
	for _, transport := range []string{"vxlan", "hostgw", "wireguard", "nodeip"} {
		c.transport = transport
		for _, n := range c.nodes {
			n.kill()
			n.launch()
		}
		for _, n := range c.nodes {
			n.await()
		}
		for _, is4 := range c.families() {
			c.Eventually(func() error { _, err := c.reach(m.a.place, m.c.place, is4); return err }, patience, pace).Should(Succeed(), transport)
			_, err := c.reach(m.b.place, m.a.place, is4)
			c.Expect(err).NotTo(HaveOccurred(), transport)
		}
		for _, n := range c.nodes {
			links := c.show(n.ns, "-br link")
			c.Expect(strings.Contains(links, "cadvxlan")).To(Equal(transport == "vxlan"), "%s: %s", transport, links)
			c.Expect(strings.Contains(links, "cadwg")).To(Equal(transport == "wireguard"), "%s: %s", transport, links)
		}
	}
}

// After a kill of the agent the wires of 250 pods are compared and nothing is made again.
func TestAResyncOf250Pods(t *testing.T) {
	if !wide() {
		t.Skip("NOT RUN: make ci SUITE=e2e-network runs it")
	}
	c := newCluster(t, layout{transport: "vxlan", v4: true, v6: true, nodes: 1})
	one := c.nodes[0]
	pods := make([]*pod, 250)
	for i := range pods {
		pods[i] = one.newPod(fmt.Sprint("pod-", i))
	}
	var all sync.WaitGroup
	errs := make([]error, len(pods))
	gate := make(chan struct{}, 16)
	for i, p := range pods {
		all.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			errs[i] = p.add()
		})
	}
	all.Wait()
	c.must(errors.Join(errs...))
	before := c.show(one.ns, "-o link")
	f := c.flow(pods[0].place, pods[249].place, true)
	began := time.Now()
	one.kill()
	one.launch()
	one.await()
	ready := time.Since(began)
	l := f.End()
	c.Expect(l.Lost).To(BeNumerically("<=", l.Dropped), "%v", l)
	c.Expect(c.show(one.ns, "-o link")).To(Equal(before), "no link is made again")
	text, err := one.Get(t.Context(), localapi.PathEventHistory)
	c.must(err)
	var events []controller.Record
	c.must(json.Unmarshal([]byte(text), &events))
	took := time.Duration(0)
	for _, ev := range events {
		if strings.Contains(ev.Name, "Resync") {
			took = max(took, ev.ProcessingEnd.Sub(ev.ProcessingStart))
		}
	}
	c.Expect(took).NotTo(BeZero(), text)
	t.Logf("resync of %d pods: %v", len(pods), took)
	c.record("resync", len(pods), ready.Milliseconds(), took.Milliseconds(), l.Lost, l.Sent)
}

// Pods of two networks are on a node. Each reaches the ones of its own network, and none of
// the other one.
func TestNetworksAreApart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, layout{transport: "vxlan", v4: true, v6: true, nodes: 2})
	pools := filepath.Join(c.dir, "pools.yaml")
	var text strings.Builder
	text.WriteString("pools:\n")
	for i, name := range []string{"blue", "red"} {
		fmt.Fprintf(&text, "- {name: %[1]s, network: %[1]s, ranges: [{cidr: 10.%[2]d.0.0/16, oneNodePrefixLen: 24}, {cidr: 'fd0%[2]d::/48', oneNodePrefixLen: 64}]}\n", name, i+5)
	}
	c.must(os.WriteFile(pools, []byte(text.String()), 0o600))
	out, err := c.nodes[0].CLI(t.Context(), "apply", "-f", pools)
	c.Expect(err).NotTo(HaveOccurred(), out)
	pods := map[string][]*pod{}
	for _, n := range c.nodes[:1] {
		for _, network := range []string{"blue", "red"} {
			for i := range 2 {
				p := n.newPod(fmt.Sprint(network, "-", i))
				p.List, err = libcni.ConfListFromBytes(fmt.Appendf(nil,
					`{"cniVersion": "1.0.0", "name": %q, "plugins": [{"type": "cadastre-cni", "ipam": {"pool": %[1]q, "socket": %[2]q}}]}`, network, n.Socket()))
				c.must(err)
				c.Eventually(p.add, patience, 100*time.Millisecond).Should(Succeed()) // the other node learns of the pools
				pods[network] = append(pods[network], p)
			}
		}
	}
	for _, is4 := range c.families() {
		for _, to := range pods["blue"] {
			c.apart(pods["blue"], pods["red"], to, is4)
		}
		for _, to := range pods["red"] {
			c.apart(pods["red"], pods["blue"], to, is4)
		}
	}
	c.strays.expectNone(c)
}

// apart sends from all pods of a network to one of them, and from strangers, which it does
// not hear.
func (c *cluster) apart(all, strangers []*pod, to *pod, is4 bool) {
	c.t.Helper()
	server := c.echo(to.ns, netip.AddrPortFrom(to.addr(is4), 0))
	defer server.Close()
	for _, from := range all {
		if from == to {
			continue
		}
		seen, err := c.call(from.place, server.At(), server)
		c.Expect(err).NotTo(HaveOccurred(), "to %s", to.name)
		c.Expect(seen).To(Equal(from.addr(is4)))
	}
	before := server.Heard()
	for _, from := range strangers {
		c.tryTo(from.place, server.At())
	}
	c.Expect(server.Heard()).To(Equal(before), "%s has heard a pod of another network", to.name)
}
