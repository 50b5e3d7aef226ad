// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/conflist"
)

// Two pods of the list that the agent has written reach each other and the node, until
// they are deleted.
func TestALifeOfTwoPods(t *testing.T) {
	l := newLab(t, "")
	r := l.runtime()
	l.Expect(r.list.CNIVersion).To(Equal("1.1.0"), "libcni and portmap have it")
	a, b := r.add("web"), r.add("db")
	for _, s := range []*sandbox{a, b} {
		l.Expect(s.result.Interfaces).To(HaveLen(2))
		host, pod := s.result.Interfaces[0], s.result.Interfaces[1]
		l.Expect(host.Sandbox).To(BeEmpty())
		l.Expect(l.mustIP(l.host, "link", "show", host.Name)).To(ContainSubstring(host.Mac))
		l.Expect(pod.Name).To(Equal("eth0"))
		l.Expect(pod.Sandbox).To(Equal(s.Path()))
		l.Expect(l.mustIP(s.Namespace, "link", "show", "eth0")).To(And(ContainSubstring(pod.Mac), ContainSubstring(fmt.Sprintf("mtu %d ", pod.Mtu))))
		l.Expect(pod.Mtu).To(Equal(1400), "that of the uplink")
		for _, ip := range s.result.IPs {
			l.Expect(*ip.Interface).To(Equal(1))
			l.Expect(l.mustIP(s.Namespace, "address", "show", "eth0")).To(ContainSubstring(ip.Address.String()))
		}
	}
	for _, is4 := range []bool{true, false} {
		from, to := end("web", a.Namespace, a.addr(is4)), end("db", b.Namespace, b.addr(is4))
		l.Expect(l.exchange(from, to)).To(Succeed())
		l.Expect(l.exchange(to, from)).To(Succeed())
		gateway, _ := netip.AddrFromSlice(a.result.IPs[0].Gateway)
		if gateway.Unmap().Is4() == is4 {
			l.Expect(l.exchange(from, end("node", l.host, gateway.Unmap()))).To(Succeed())
		}
	}
	l.Expect(r.check(a)).To(Succeed())
	l.Expect(r.within(func(ctx context.Context) error { return r.cni.GetStatusNetworkList(ctx, r.list) })).To(Succeed())
	l.Expect(l.links()).To(HaveLen(2))

	l.Expect(r.del(a)).To(Succeed())
	l.Expect(r.del(a)).To(Succeed(), "a DEL may be repeated")
	l.Expect(l.mustIP(l.host, "route", "show", a.addr(true).String())).To(BeEmpty())
	l.Expect(l.exchange(end("db", b.Namespace, b.addr(true)), end("web", a.Namespace, a.addr(true)))).NotTo(Succeed())
	l.Eventually(l.links, patience, pace).Should(HaveLen(1))
	again := r.add("web2")
	l.Expect(l.exchange(end("web2", again.Namespace, again.addr(true)), end("db", b.Namespace, b.addr(true)))).To(Succeed())
}

// Each thing that is taken away inside the pod is found by CHECK. What is taken away at the
// node's end is healed at once.
func TestCheckFindsWhatIsMissing(t *testing.T) {
	l := newLab(t, "")
	r := l.runtime()
	take := func(s *sandbox, args ...string) { _, _ = l.ip(s.Namespace, args...) } // it may be gone
	for _, c := range []struct {
		name   string
		damage func(s *sandbox)
		saying string
	}{
		{"an address", func(s *sandbox) { take(s, "address", "flush", "dev", "eth0", "scope", "global") }, "eth0"},
		{"the default route", func(s *sandbox) { take(s, "route", "del", "default") }, "route 0.0.0.0/0"},
		{"the default route of IPv6", func(s *sandbox) { take(s, "-6", "route", "del", "default") }, "route ::/0"},
		{"a neighbour in the pod", func(s *sandbox) { take(s, "neighbour", "flush", "dev", "eth0", "nud", "permanent") }, "neighbour"},
		{"the MTU", func(s *sandbox) { take(s, "link", "set", "eth0", "mtu", "1300") }, "MTU 1300"},
		{"the MAC address", func(s *sandbox) { take(s, "link", "set", "eth0", "address", "02:00:00:00:00:99") }, "02:00:00:00:00:99"},
		{"the link", func(s *sandbox) { take(s, "link", "del", "eth0") }, "eth0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			s := r.add("pod-" + strings.ReplaceAll(c.name, " ", "-"))
			g.Expect(r.check(s)).To(Succeed())
			g.Eventually(func() error { // the agent heals it too, later
				c.damage(s)
				return r.check(s)
			}, patience, pace).Should(And(WithTransform(code, BeEquivalentTo(100)), MatchError(ContainSubstring(c.saying))))
		})
	}
}

// The runtime asks for a MAC address and for addresses.
func TestCapabilities(t *testing.T) {
	l := newLab(t, "")
	r := l.runtime()
	s := r.sandbox("web", map[string]any{"mac": "02:AA:00:00:00:07", "ips": []string{"10.1.1.77/24", "fd00:1:0:1::77/64"}})
	l.Expect(r.tryAdd(s)).To(Succeed())
	l.Expect(s.result.Interfaces[1].Mac).To(Equal("02:aa:00:00:00:07"))
	l.Expect(l.mustIP(s.Namespace, "link", "show", "eth0")).To(ContainSubstring("02:aa:00:00:00:07"))
	l.Expect(s.addr(true)).To(Equal(netip.MustParseAddr("10.1.1.77")))
	l.Expect(s.addr(false)).To(Equal(netip.MustParseAddr("fd00:1:0:1::77")))
	l.Expect(r.check(s)).To(Succeed())
}

// Every version of the specification has the same pod.
func TestEveryVersion(t *testing.T) {
	l := newLab(t, "")
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		r := l.with(l.listOf(version, l.ours()))
		s := r.add("pod-" + version[:1] + version[2:3])
		l.Expect(s.result.Interfaces[1].Sandbox).To(Equal(s.Path()), version)
		l.Expect(*s.result.IPs[1].Interface).To(Equal(1), version)
		if version != "0.3.1" {
			l.Expect(r.check(s)).To(Succeed(), version)
		}
		l.Expect(r.del(s)).To(Succeed(), version)
	}
}

// The list, the wires and the DELs outlive an agent that is killed.
func TestTheAgentIsKilled(t *testing.T) {
	l := newLab(t, "")
	r := l.runtime()
	a, b := r.add("web"), r.add("db")
	list, err := os.Stat(l.listPath())
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(l.process.Kill()).To(Succeed())
	l.Expect(l.exchange(end("web", a.Namespace, a.addr(true)), end("db", b.Namespace, b.addr(true)))).To(Succeed())
	l.Expect(code(r.tryAdd(r.sandbox("late", nil)))).To(BeEquivalentTo(11))
	l.Expect(r.del(a)).To(Succeed(), "it is kept for the agent")
	l.start()
	l.Eventually(l.links, patience, pace).Should(HaveLen(1))
	l.Expect(r.check(b)).To(Succeed())
	c := r.add("new")
	l.Expect(l.exchange(end("db", b.Namespace, b.addr(false)), end("new", c.Namespace, c.addr(false)))).To(Succeed())
	now, err := os.Stat(l.listPath())
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(os.SameFile(list, now)).To(BeTrue())
}

// portmap makes a host port of a pod, and the list of the agent has it.
func TestPortMap(t *testing.T) {
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Skip("NOT RUN: the plugin portmap needs iptables (Debian: iptables)")
	}
	l := newLab(t, "")
	r := l.runtime()
	s := r.sandbox("web", map[string]any{"portMappings": []map[string]any{{"hostPort": 18080, "containerPort": 8080, "protocol": "tcp"}}})
	l.Expect(r.tryAdd(s)).To(Succeed())
	l.Expect(r.check(s)).To(Succeed())
	client := r.add("client")
	gateway, _ := netip.AddrFromSlice(s.result.IPs[0].Gateway)
	l.Expect(fetch(l, s, client, gateway.Unmap().String()+":18080", "8080")).To(Equal("hello"))
	l.Expect(r.del(s)).To(Succeed())
}

// bandwidth finds the node's end of the wire in the result.
func TestBandwidth(t *testing.T) {
	l := newLab(t, "")
	r := l.with(l.listOf("1.0.0", l.ours(), map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}}))
	s := r.sandbox("web", map[string]any{"bandwidth": map[string]int{"ingressRate": 8_000_000, "ingressBurst": 8_000_000, "egressRate": 8_000_000, "egressBurst": 8_000_000}})
	l.Expect(r.tryAdd(s)).To(Succeed())
	out := tc(l, "qdisc", "show", "dev", s.result.Interfaces[0].Name)
	l.Expect(out).To(ContainSubstring("tbf"))
	l.Expect(r.check(s)).To(Succeed())
	l.Expect(r.del(s)).To(Succeed())
}

// Thirty pods at once.
func TestABurst(t *testing.T) {
	l := newLab(t, "")
	r := l.runtime()
	pods := make([]*sandbox, 30)
	for i := range pods {
		pods[i] = r.sandbox(fmt.Sprint("pod-", i), nil)
	}
	atOnce := func(f func(s *sandbox) error) {
		errs := make([]error, len(pods))
		var wg sync.WaitGroup
		for i, s := range pods {
			wg.Go(func() { errs[i] = f(s) })
		}
		wg.Wait()
		l.Expect(errs).To(HaveEach(BeNil()))
	}
	atOnce(r.tryAdd)
	seen := map[netip.Addr]bool{}
	for _, s := range pods {
		l.Expect(seen[s.addr(true)]).To(BeFalse())
		seen[s.addr(true)] = true
	}
	l.Expect(l.exchange(end("0", pods[0].Namespace, pods[0].addr(true)), end("29", pods[29].Namespace, pods[29].addr(true)))).To(Succeed())
	atOnce(r.check)
	atOnce(r.del)
	l.Eventually(l.links, patience, pace).Should(BeEmpty())
}

// GC removes what no attachment of the runtime has.
func TestGC(t *testing.T) {
	l := newLab(t, ", reclaim: {grace: 1s, undo: 1s}, witnesses: {interval: 1s, runtime: none}")
	r := l.runtime()
	a, b := r.add("web"), r.add("db")
	l.mustIP(a.Namespace, "link", "del", "eth0")
	l.Expect(r.within(func(ctx context.Context) error {
		return r.cni.GCNetworkList(ctx, r.list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: b.rt.ContainerID, IfName: "eth0"}}})
	})).To(Succeed())
	l.Eventually(l.links, patience, pace).Should(HaveLen(1))
	l.Expect(r.check(b)).To(Succeed())
}

// A network changes from bridge to ours: pods of before keep their interfaces, and are
// deleted with the new list.
func TestAMigrationFromBridge(t *testing.T) {
	l := newLab(t, "")
	before := l.with(l.listOf("1.0.0", map[string]any{
		"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": map[string]any{"type": "cadastre-cni", "socket": l.socket()},
	}))
	old := before.add("old")
	after := l.runtime()
	fresh := after.add("fresh")
	l.Expect(code(after.tryAdd(&sandbox{Namespace: old.Namespace, rt: old.rt}))).To(BeEquivalentTo(100))
	l.Expect(l.mustIP(old.Namespace, "address", "show", "eth0")).To(ContainSubstring(old.addr(true).String()))
	l.Expect(after.del(old)).To(Succeed())
	out, err := l.cadastre("leases", "-o", "json")
	l.Expect(err).NotTo(HaveOccurred(), out)
	l.Expect(out).To(And(ContainSubstring(`"`+fresh.addr(true).String()+`"`), Not(ContainSubstring(`"`+old.addr(true).String()+`"`))))
}

// An agent without a data plane refuses, and names the key.
func TestNoDataPlane(t *testing.T) {
	l := newLab(t, "")
	l.Expect(l.process.Kill()).To(Succeed())
	l.conf = "cadastre: {dataplane: none}"
	l.Expect(os.Remove(l.listPath())).To(Succeed())
	data, err := conflist.List{Network: "cadastre", Socket: l.socket()}.Render()
	l.Expect(err).NotTo(HaveOccurred())
	_, err = conflist.Write(filepath.Dir(l.listPath()), data)
	l.Expect(err).NotTo(HaveOccurred())
	l.start()
	r := l.runtime()
	err = r.tryAdd(r.sandbox("web", nil))
	l.Expect(code(err)).To(BeEquivalentTo(7))
	l.Expect(err).To(MatchError(ContainSubstring("cadastre.dataplane")))
}

// tc runs tc in the network namespace of the node.
func tc(l *lab, args ...string) string {
	var out []byte
	l.Expect(l.host.Do(func() (err error) {
		out, err = exec.Command("tc", args...).CombinedOutput()
		return err
	})).To(Succeed(), "%s", out)
	return string(out)
}

// fetch connects from one namespace to an address, and returns what a server on a port of
// another one says.
func fetch(l *lab, server, client *sandbox, address, port string) (string, error) {
	var listener net.Listener
	if err := server.Do(func() (err error) {
		listener, err = net.Listen("tcp", ":"+port)
		return err
	}); err != nil {
		return "", err
	}
	defer listener.Close()
	go func() {
		if c, err := listener.Accept(); err == nil {
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
	var text []byte
	err := client.Do(func() error {
		c, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			return err
		}
		defer c.Close()
		text, err = io.ReadAll(c)
		return err
	})
	return string(text), err
}
