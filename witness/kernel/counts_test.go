// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"bufio"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/kernel"
)

// ip runs commands of ip in a namespace.
func (n *node) ip(ns *netlab.Namespace, commands ...string) {
	n.t.Helper()
	must(n.t, ns.IP(commands...))
}

// unprivileged starts a process of uid 65534 without any capability. It makes itself root of a user and network namespace
// of its own, runs a script there, and stays. The result is the file of the network namespace.
func (n *node) unprivileged(script string) string {
	n.t.Helper()
	user := []string{"--reuid=65534", "--clear-groups", "unshare", "-Urn"}
	if out, err := exec.Command("setpriv", append(user, "true")...).CombinedOutput(); err != nil {
		n.t.Skipf("NOT RUN: this machine gives no user namespaces to uid 65534: %v: %s", err, out)
	}
	attack := exec.Command("setpriv", append(user, "sh", "-e", "-c", script+"\necho $$\nexec cat")...)
	out, err := attack.StdoutPipe()
	must(n.t, err)
	attack.Stderr = n.t.Output()
	n.start(n.ns, attack)
	pid, err := bufio.NewReader(out).ReadString('\n')
	must(n.t, err)
	return fmt.Sprintf("/proc/%s/ns/net", strings.TrimSpace(pid))
}

// sightings returns the addresses of 10.1.5.0/24 and fd00:10:1:5::/64 that answer, and those that do not, with the places.
func sightings(v *witness.KernelView) (answering, silent map[string]string) {
	w := &witness.World{Kernel: v}
	answering, silent = map[string]string{}, map[string]string{}
	wanted := func(a netip.Addr) bool {
		return netip.MustParsePrefix("10.1.5.0/24").Contains(a) || netip.MustParsePrefix("fd00:10:1:5::/64").Contains(a)
	}
	for _, s := range w.Sightings(wanted) {
		if s.Answers {
			answering[s.Addr.String()] = s.String()
		} else {
			silent[s.Addr.String()] = s.String()
		}
	}
	return answering, silent
}

func keys(m map[string]string) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	return all
}

// allReader returns a reader of this node that sees processes too.
func (n *node) allReader() *kernel.Reader {
	return kernel.New(kernel.Options{Host: n.ns.Path(), Dirs: []string{n.dir}})
}

// A process without a capability can put each address of the block on links of its own, of
// any kind. None of them leads anywhere, so none is evidence.
func TestAnUnprivilegedProcessGivesNoEvidence(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	_, pod := n.pod("pod1", "10.1.5.2/32")
	n.ip(n.ns, "link set pod1 up", "route add 10.1.5.2 dev pod1")
	path := n.unprivileged(`
		ip link set lo up
		ip addr add 10.1.5.2/32 dev lo
		for i in $(seq 10 19); do ip addr add 10.1.5.$i/32 dev lo; done
		ip link add left type veth peer name right
		ip link add br0 type bridge
		ip link set right master br0
		ip link set left up; ip link set right up; ip link set br0 up
		ip addr add 10.1.5.20/24 dev left; ip addr add 10.1.5.21/24 dev br0
		ip link add br1 type bridge; ip link set br1 up; ip addr add 10.1.5.22/24 dev br1
		ip -6 addr add fd00:10:1:5::22/64 dev br1 nodad`)
	v, err := n.allReader().Read(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.At(path)).NotTo(BeNil())
	g.Expect(v.At(path).Counts).To(BeFalse())
	g.Expect(v.At(pod).Counts).To(BeTrue())
	answering, silent := sightings(v)
	g.Expect(keys(answering)).To(ConsistOf("10.1.5.2"), "that of the pod")
	g.Expect(answering["10.1.5.2"]).To(ContainSubstring(pod + " has 10.1.5.2 (the host's route 10.1.5.2/32 leads to it over link pod1)"))
	g.Expect(silent).To(HaveLen(1 + 10 + 4))
	g.Expect(silent["10.1.5.10"]).To(ContainSubstring("no link leads from there to the host"))
}

// What the kernel shows of each way to connect a pod.
func TestAddressesThatAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		make              func(n *node)
		answering, silent []string
	}{
		"a pair of links, with a route of the host": {func(n *node) {
			n.pod("pod1", "10.1.5.2/32", "10.1.5.77/24", "fd00:10:1:5::2/128", "fd00:10:1:5::77/64")
			n.ip(n.ns, "link set pod1 up", "route add 10.1.5.2 dev pod1", "route add fd00:10:1:5::2 dev pod1")
		}, []string{"10.1.5.2", "fd00:10:1:5::2"}, []string{"10.1.5.77", "fd00:10:1:5::77"}},
		"a pair of links, and a permanent neighbour beside a route of another table": {func(n *node) {
			n.pod("pod1", "10.1.5.2/32", "10.1.5.3/32", "10.1.5.77/32", "10.1.5.78/32")
			n.ip(n.ns, "link set pod1 up", "neigh add 10.1.5.2 lladdr 02:00:00:00:00:02 dev pod1 nud permanent",
				"neigh add 10.1.5.77 lladdr 02:00:00:00:00:02 dev pod1 nud reachable",
				"route add 10.1.5.3 dev pod1 table 100", "route add default dev pod1 table 101")
		}, []string{"10.1.5.2", "10.1.5.3"}, []string{"10.1.5.77", "10.1.5.78"}},
		"links of a pod that lead nowhere": {func(n *node) {
			pod, _ := n.pod("pod1", "10.1.5.2/32")
			n.ip(n.ns, "link set pod1 up", "route add 10.1.5.2 dev pod1")
			n.ip(pod, "link add br1 type bridge", "addr add 10.1.5.70/24 dev br1", "link add left type veth peer name right", "addr add 10.1.5.71/24 dev left",
				"link add br0 type bridge", "link set right master br0", "addr add 10.1.5.72/24 dev br0", "addr add 10.1.5.73/32 dev lo",
				"link add mac0 link eth0 type macvlan", "addr add 10.1.5.74/24 dev mac0", "tuntap add tap0 mode tap", "addr add 10.1.5.75/24 dev tap0")
			below := newNamespace(n.t) // as a nested cluster has it
			n.ip(below, "link add br0 type bridge", "addr add 10.1.5.1/24 dev br0")
			must(n.t, pod.Do(func() error { return connect("child", "eth0", below) }))
			n.ip(pod, "addr add 10.1.5.76/24 dev child")
			n.ip(below, "link set eth0 master br0")
		}, []string{"10.1.5.2"}, []string{"10.1.5.70", "10.1.5.71", "10.1.5.72", "10.1.5.73", "10.1.5.74", "10.1.5.75", "10.1.5.76", "10.1.5.1"}},
		"a bridge": {func(n *node) {
			pod, _ := n.pod("pod1", "10.1.5.2/24", "10.1.5.3/32")
			n.ip(n.ns, "link add br0 type bridge", "addr add 10.1.5.1/25 dev br0", "link set br0 up", "link set pod1 master br0 up")
			n.ip(pod, "addr add 10.1.5.4/32 dev lo", "link add br1 type bridge", "addr add 10.1.5.5/32 dev br1")
			n.pod("pod2", "10.1.5.6/32", "10.1.5.200/32")
			n.ip(n.ns, "link set pod2 master br0 up")
		}, []string{"10.1.5.1", "10.1.5.2", "10.1.5.3", "10.1.5.5", "10.1.5.6"}, []string{"10.1.5.4", "10.1.5.200"}},
		"a bridge without an address": {func(n *node) {
			n.pod("pod1", "10.1.5.2/24", "fd00:10:1:5::2/64")
			n.pod("pod2", "10.1.5.3/32")
			n.ip(n.ns, "link add br0 type bridge", "link set pod1 master br0 up", "link set pod2 master br0 up")
		}, []string{"10.1.5.2", "10.1.5.3", "fd00:10:1:5::2"}, nil},
		"a bridge inside of the pod": {func(n *node) {
			pod, _ := n.pod("pod1")
			n.ip(n.ns, "link set pod1 up", "route add 10.1.5.2 dev pod1")
			n.ip(pod, "link add br0 type bridge", "link set eth0 master br0", "addr add 10.1.5.2/24 dev br0", "addr add 10.1.5.77/24 dev br0")
		}, []string{"10.1.5.2"}, []string{"10.1.5.77"}},
		"macvlan": {func(n *node) { n.below("macvlan") }, []string{"10.1.5.2"}, []string{"10.1.5.70"}},
		"ipvlan":  {func(n *node) { n.below("ipvlan") }, []string{"10.1.5.2"}, []string{"10.1.5.70"}},
		"Docker's overlay": {func(n *node) {
			container, overlay := newNamespace(n.t), newNamespace(n.t)
			n.named(container, "0123456789ab")
			n.named(overlay, "1-abcdefghij")
			n.ip(overlay, "link add br0 type bridge", "addr add 10.1.5.1/24 dev br0", "link set br0 up")
			n.ip(n.ns, "link add vx0 type vxlan id 4096 dstport 4789 dev lo")
			n.do(func() error { return move("vx0", overlay) })
			must(n.t, overlay.Do(func() error { return connect("veth0", "eth0", container) }))
			n.ip(overlay, "link set vx0 master br0 up", "link set veth0 master br0 up")
			n.ip(container, "addr add 10.1.5.2/24 dev eth0", "link set eth0 up")
		}, []string{"10.1.5.1", "10.1.5.2"}, nil},
		"a VIP on a pod": {func(n *node) {
			pod, _ := n.pod("pod1", "10.1.5.2/32")
			n.ip(n.ns, "link set pod1 up", "route add 10.1.5.2 dev pod1", "route add 10.1.5.50 dev pod1")
			n.ip(pod, "addr add 10.1.5.50/32 dev lo", "addr add 10.1.5.51/32 dev lo")
		}, []string{"10.1.5.2", "10.1.5.50"}, []string{"10.1.5.51"}},
		"a namespace without a file": {func(n *node) {
			n.connect(newNamespace(n.t), "pod1", "10.1.5.2/32", "10.1.5.77/32") // the test's open file holds it
			n.ip(n.ns, "link set pod1 up", "route add 10.1.5.2 dev pod1")
		}, []string{"10.1.5.2"}, []string{"10.1.5.77"}},
		"a pod with its own users": {func(n *node) {
			pid := n.userNamespace()
			pod, err := netlab.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
			must(n.t, err)
			n.t.Cleanup(func() { _ = pod.Close() })
			n.connect(pod, "pod1", "10.1.5.2/32", "10.1.5.77/32")
			n.ip(n.ns, "link set pod1 up", "route add 10.1.5.2 dev pod1")
		}, []string{"10.1.5.2"}, []string{"10.1.5.77"}},
		"the host": {func(n *node) { n.do(func() error { return addresses("lo", "10.1.5.9/32") }) }, []string{"10.1.5.9"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			n := newNode(t)
			c.make(n)
			answering, silent := sightings(n.view())
			g.Expect(keys(answering)).To(ConsistOf(c.answering), "%v", silent)
			g.Expect(keys(silent)).To(ConsistOf(c.silent), "%v", answering)
		})
	}
}

// below makes a pod with a link of a kind over a link of the host, which shows it inside only.
func (n *node) below(kind string) {
	n.t.Helper()
	pod := newNamespace(n.t)
	n.named(pod, kind)
	n.ip(n.ns, "link add uplink type bridge", "link set uplink up")
	if err := n.ns.IP("link add mac0 link uplink type " + kind); err != nil {
		n.t.Skipf("NOT RUN: this kernel has no %s: %v", kind, err)
	}
	n.do(func() error { return move("mac0", pod) })
	n.ip(pod, "addr add 10.1.5.2/24 dev mac0", "link set mac0 up", "addr add 10.1.5.70/32 dev lo")
}
