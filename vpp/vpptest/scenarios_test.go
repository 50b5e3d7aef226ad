// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpptest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// bench is a cluster with pods a and b on node 1 and c on node 2.
type bench struct {
	*cluster
	a, b, c *pod
}

func newBench(t testing.TB, l layout) *bench {
	t.Helper()
	c := newCluster(t, l)
	m := &bench{cluster: c}
	m.a, m.b, m.c = c.nodes[0].pod("a"), c.nodes[0].pod("b"), c.nodes[1].pod("c")
	c.reached(m.a.Place, m.c.Place) // the other node's tunnel may be made after ADD
	return m
}

// transports returns the layouts with VPP on two nodes.
func transports() []layout {
	return []layout{
		{plane: "vpp", transport: "vxlan", nodes: 2},
		{plane: "vpp", transport: "vxlan", v6: true, nodes: 2},
		{plane: "vpp", transport: "hostgw", nodes: 2},
	}
}

func (l layout) String() string { return l.transport + "/" + l.pick("ipv4", "ipv6") }

// Pods on both nodes reach each other, their hosts and the outside.
func TestPodsReachEachOther(t *testing.T) {
	for _, l := range transports() {
		t.Run(l.String(), func(t *testing.T) {
			m := newBench(t, l)
			version, err := m.nodes[0].vpp.Version(t.Context())
			m.must(err)
			t.Logf("VPP %s", version)
			one, two := m.nodes[0].host(), m.nodes[1].host()
			for _, x := range []struct{ from, to netlab.Place }{
				{m.a.Place, m.b.Place},
				{m.b.Place, m.a.Place},
				{m.a.Place, m.c.Place},
				{m.c.Place, m.b.Place},
				{one, m.a.Place},
				{one, m.c.Place},
				{two, m.a.Place},
				{m.a.Place, one},
				{m.a.Place, two},
				{m.c.Place, one},
			} {
				for _, is4 := range m.families() {
					if !x.from.Addr(is4).IsValid() || !x.to.Addr(is4).IsValid() {
						continue // hosts have an address of IPv4
					}
					seen, err := netlab.Reach(t, x.from, x.to, is4)
					m.Expect(err).NotTo(HaveOccurred(), "%s to %s", x.from.Name, x.to.Name)
					m.Expect(seen).To(Equal(x.from.Addr(is4)), "%s to %s", x.from.Name, x.to.Name)
				}
			}
			for _, is4 := range m.families() {
				for _, p := range []*pod{m.b, m.c} {
					m.Expect(netlab.Transfer(t, m.a.Place, p.Place, is4, 4<<20)).To(Succeed())
				}
			}
			m.Expect(m.a.check()).To(Succeed())
		})
	}
}

// A packet to the outside has the node's address there, also by TCP.
func TestOutgoingPacketsHaveTheNodesAddress(t *testing.T) {
	m := newBench(t, layout{plane: "vpp", nodes: 2})
	for i, p := range []*pod{m.a, m.c} {
		seen, err := netlab.Reach(t, p.Place, m.outside(), true)
		m.must(err)
		m.Expect(seen.String()).To(Equal(fmt.Sprintf("192.168.16.%d", i+1)), "source of %s", p.Name)
		m.Expect(netlab.Transfer(t, p.Place, m.outside(), true, 1<<20)).To(Succeed())
	}
	// pods see each other's own addresses
	seen, err := netlab.Reach(t, m.a.Place, m.c.Place, true)
	m.must(err)
	m.Expect(seen).To(Equal(m.a.Addr(true)))
}

// Pods of two networks are on both nodes. Each reaches those of its own network, and none of
// the other one or of the default network.
func TestNetworksAreApart(t *testing.T) {
	m := newBench(t, layout{plane: "vpp", nodes: 2})
	all := map[string][]*pod{"default": {m.a, m.b, m.c}}
	for i, name := range []string{"blue", "red"} {
		m.network(name, fmt.Sprintf("10.%d.0.0/16", i+5), "")
		for _, n := range m.nodes {
			p := n.podIn(name, name)
			all[name] = append(all[name], p)
			// a pod may send what its own routes do not allow
			m.ip(p.Net, fmt.Sprintf("route replace default via %s dev eth0 onlink", p.Result.IPs[0].Gateway))
		}
	}
	for network, pods := range all {
		for _, from := range pods {
			for _, to := range pods {
				if from != to {
					m.reached(from.Place, to.Place)
				}
			}
			for other, strangers := range all {
				if other != network {
					m.unreached(from.Place, strangers[0].Place)
				}
			}
		}
	}
}

// hardware returns the MAC addresses of the gateways of a pod, and those of VPP's interfaces.
// A tunnel has one that no packet has.
func (m *bench) hardware(p *pod) string {
	m.t.Helper()
	macs, name := []string{m.show(p.Net, "-4 neighbour show nud permanent")}, ""
	for line := range strings.Lines(p.node.cli("show hardware-interfaces")) {
		if !strings.HasPrefix(line, " ") {
			name = strings.Fields(line)[0]
		}
		mac := regexp.MustCompile("[0-9a-f]{2}(:[0-9a-f]{2}){5}").FindString(line)
		if mac != "" && !strings.HasPrefix(name, "vxlan_tunnel") && !strings.HasPrefix(name, "loop") {
			macs = append(macs, name+" "+mac)
		} else if mac != "" && strings.HasPrefix(name, "loop") {
			macs = append(macs, "loop "+mac) // VPP numbers them in any order
		}
	}
	slices.Sort(macs)
	return strings.Join(macs, "\n")
}

// VPP is killed and started again: packets flow again without any other action, and all
// interfaces have their former MAC addresses.
func TestVPPIsKilled(t *testing.T) {
	for _, l := range transports() {
		t.Run(l.String(), func(t *testing.T) {
			m := newBench(t, l)
			before := m.hardware(m.a)
			for _, n := range m.nodes {
				var flows []*netlab.Flow
				for _, is4 := range m.families() {
					flows = append(flows, netlab.NewFlow(t, m.a.Place, m.b.Place, is4), netlab.NewFlow(t, m.a.Place, m.c.Place, is4))
				}
				began := time.Now()
				m.must(n.vpp.Kill())
				n.startVPP()
				started := time.Since(began)
				since := time.Now()
				for _, f := range flows {
					m.Eventually(func() int { return f.ReceivedSince(since) }, patience, pace).Should(BeNumerically(">=", 50), f.Name)
				}
				for _, f := range netlab.Halted(flows) {
					t.Logf("VPP of %s killed, back after %d ms; %s: %v", n.Node, started.Milliseconds(), f.Name, f.End())
				}
				if l.transport == "vxlan" {
					seen, err := netlab.Reach(t, m.a.Place, m.outside(), true)
					m.must(err)
					m.Expect(seen.String()).To(Equal("192.168.16.1"))
				}
			}
			m.Expect(m.hardware(m.a)).To(Equal(before))
		})
	}
}

// The agent is killed and started again: no packet is lost.
func TestTheAgentIsKilled(t *testing.T) {
	for _, l := range transports() {
		t.Run(l.String(), func(t *testing.T) {
			m := newBench(t, l)
			for _, n := range m.nodes {
				flows := []*netlab.Flow{
					netlab.NewFlow(t, m.a.Place, m.b.Place, true),
					netlab.NewFlow(t, m.a.Place, m.c.Place, true),
				}
				n.kill()
				n.launch()
				n.await()
				since := time.Now()
				for _, f := range flows {
					m.Eventually(func() int { return f.ReceivedSince(since) }, patience, pace).Should(BeNumerically(">=", 50), f.Name)
				}
				for _, f := range netlab.Halted(flows) {
					l := f.End()
					t.Logf("agent of %s killed, %s: %v", n.Node, f.Name, l)
					m.Expect(l.Lost).To(BeNumerically("<=", l.Dropped), "%s: %v", f.Name, l)
				}
			}
		})
	}
}

// Both are killed and only VPP is started: the agent makes all again when it starts.
func TestVPPAndAgentAreKilled(t *testing.T) {
	m := newBench(t, layout{plane: "vpp", nodes: 2})
	one := m.nodes[0]
	one.kill()
	m.must(one.vpp.Kill())
	one.launch() // the agent waits for VPP
	one.startVPP()
	one.await()
	m.reached(m.a.Place, m.b.Place)
	m.reached(m.a.Place, m.c.Place)
}

// A pod goes: VPP has no object of it any more, the other pods lose no packet, and the next
// pod with its address is reached.
func TestAPodGoes(t *testing.T) {
	m := newBench(t, layout{plane: "vpp", nodes: 2})
	one := m.nodes[0]
	before := one.cli("show interface")
	routes := one.cli("show ip fib summary")
	flow := netlab.NewFlow(t, m.a.Place, m.c.Place, true)
	gone := one.newPod("gone")
	m.must(gone.add())
	m.reached(m.a.Place, gone.Place)
	m.must(gone.del())
	m.Eventually(func() string { return names(one.cli("show interface")) }, patience, pace).Should(Equal(names(before)))
	m.Expect(one.cli("show ip fib summary")).To(Equal(routes))
	m.Expect(one.cli("show ip neighbors")).NotTo(ContainSubstring(gone.Addr(true).String() + " "))
	fresh := one.newPod("fresh")
	fresh.Runtime.CapabilityArgs = map[string]any{"ips": []string{gone.Addr(true).String()}}
	m.must(fresh.add())
	m.Expect(fresh.Addresses).To(Equal(gone.Addresses))
	m.reached(m.c.Place, fresh.Place)
	l := flow.End()
	m.Expect(l.Lost).To(BeNumerically("<=", l.Dropped), "%v", l)
}

// VPP is stopped by a signal, and so takes requests without an answer: an ADD fails with an
// error that names the socket, and a DEL and the next ADD succeed when VPP goes on.
func TestVPPHangs(t *testing.T) {
	m := newBench(t, layout{plane: "vpp", nodes: 2})
	one := m.nodes[0]
	late, next := one.newPod("late"), one.newPod("next")
	m.must(one.vpp.Signal(syscall.SIGSTOP))
	began := time.Now()
	err := late.add()
	t.Logf("ADD while VPP hangs: after %d ms: %v", time.Since(began).Milliseconds(), err)
	m.Expect(err).To(MatchError(ContainSubstring(one.vpp.Socket())))
	began = time.Now()
	err = m.b.del()
	t.Logf("DEL while VPP hangs: after %d ms: %v", time.Since(began).Milliseconds(), err)
	m.must(one.vpp.Signal(syscall.SIGCONT))
	m.Eventually(m.b.del, patience, pace).Should(Succeed())
	m.Eventually(late.add, patience, pace).Should(Succeed())
	m.Eventually(next.add, patience, pace).Should(Succeed())
	m.reached(m.a.Place, m.c.Place)
	m.reached(m.a.Place, late.Place)
	m.reached(m.c.Place, next.Place)
	m.Expect(m.a.check()).To(Succeed())
	// the interface of a pod that is gone goes too
	m.Eventually(func() int { return strings.Count(one.cli("show interface"), "host-cad") }, patience, pace).Should(Equal(3))
	m.Eventually(func() string { return one.show(one.ns, "link show") }, patience, pace).
		Should(WithTransform(func(s string) int { return strings.Count(s, ": cad") }, Equal(3)))
}

// names returns the interfaces of a list.
func names(list string) string {
	var all []string
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 2 && !strings.HasPrefix(line, " ") && fields[0] != "Name" {
			all = append(all, fields[0])
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// Objects that an administrator has made in VPP stay, also when the agent starts anew.
func TestForeignObjectsStay(t *testing.T) {
	m := newBench(t, layout{plane: "vpp", nodes: 2})
	one := m.nodes[0]
	for _, command := range []string{
		"create loopback interface instance 77",
		"set interface state loop77 up",
		"set interface ip address loop77 198.51.100.1/24",
		"ip table add 4077",
		"ip route add 198.51.100.128/25 via loop77",
		"create bridge-domain 4077",
		"set ip neighbor loop77 198.51.100.2 02:00:00:00:00:77",
	} {
		m.Expect(one.cli(command)).NotTo(MatchRegexp("(?i)unknown|failed|error"), command)
	}
	foreign := func() string {
		return one.cli("show interface address loop77") + one.cli("show ip fib 198.51.100.128/25") + one.cli("show ip neighbors loop77") +
			one.cli("show bridge-domain 4077") + one.cli("show ip fib table 4077 0.0.0.0/0")
	}
	steady := regexp.MustCompile("(?m)(index:|Age).*|^ *[0-9.]+ |uRPF-list:[0-9]+|locks:[0-9]+|refs:[0-9]+")
	before := steady.ReplaceAllString(foreign(), "")
	one.kill()
	one.launch()
	one.await()
	m.reached(m.a.Place, m.c.Place)
	m.must(one.pod("another").del())
	m.Expect(steady.ReplaceAllString(foreign(), "")).To(Equal(before))
}

const podsEnv = "VPP_TEST_PODS" // the number of pods of TestAResyncOfManyPods; "": 250

// VPP is killed under many pods, and all are reached again.
func TestAResyncOfManyPods(t *testing.T) {
	count, err := strconv.Atoi(cmp.Or(os.Getenv(podsEnv), "250"))
	if err != nil || count < 1 || count > 250 {
		t.Fatalf("%s: want a number from 1 to 250, the addresses of a node", podsEnv)
	}
	c := newCluster(t, layout{plane: "vpp", nodes: 1})
	one := c.nodes[0]
	pods := make([]*pod, count)
	for i := range pods {
		pods[i] = one.newPod(fmt.Sprint("pod-", i))
	}
	began := time.Now()
	c.inParallel(8, pods, (*pod).add)
	t.Logf("ADD of %d pods, 8 at once: %v", len(pods), time.Since(began))
	c.reached(one.host(), pods[count-1].Place)
	began = time.Now()
	c.must(one.vpp.Kill())
	one.startVPP()
	answers := time.Since(began)
	c.inParallel(32, pods, func(p *pod) error {
		var err error
		for time.Since(began) < patience {
			if _, err = netlab.Reach(t, one.host(), p.Place, true); err == nil {
				return nil
			}
		}
		return err
	})
	t.Logf("VPP killed under %d pods: API answers after %v, all pods reached after %v", len(pods), answers, time.Since(began))
}

// inParallel calls f for all pods, some at a time.
func (c *cluster) inParallel(width int, pods []*pod, f func(*pod) error) {
	c.t.Helper()
	var all sync.WaitGroup
	errs := make([]error, len(pods))
	gate := make(chan struct{}, width)
	for i, p := range pods {
		all.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			errs[i] = f(p)
		})
	}
	all.Wait()
	c.must(errors.Join(errs...))
}
