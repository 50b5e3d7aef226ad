// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/internal/testkit/engines/critest"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// ip runs commands of ip in a namespace.
func (l *lab) ip(ns *netlab.Namespace, commands ...string) {
	l.t.Helper()
	l.g.Expect(ns.IP(commands...)).To(Succeed())
}

// namespace makes a network namespace that ends with the test.
func (l *lab) namespace() *netlab.Namespace {
	l.t.Helper()
	ns, err := netlab.New()
	l.g.Expect(err).NotTo(HaveOccurred())
	l.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// connect lays a pair of links from the node to a namespace.
func (l *lab) connect(from *netlab.Namespace, name string, to *netlab.Namespace, inside string) {
	l.t.Helper()
	l.g.Expect(from.Do(func() error {
		file, err := os.Open(to.Path())
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: inside, PeerNamespace: netlink.NsFd(file.Fd()),
		})
	})).To(Succeed())
	l.ip(to, "link set "+inside+" up")
	l.ip(from, "link set "+name+" up")
}

// move moves a link of the node into a namespace.
func (l *lab) move(from *netlab.Namespace, name string, to *netlab.Namespace) {
	l.t.Helper()
	l.g.Expect(from.Do(func() error {
		file, err := os.Open(to.Path())
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkSetNsFd(link, int(file.Fd()))
	})).To(Succeed())
}

// wired makes a pod with a lease, whose link the node has a route for.
func (l *lab) wired(name string) (*netlab.Namespace, netip.Addr) {
	l.t.Helper()
	ns, a := l.leased(name)
	l.connect(l.home, name, ns, "eth0")
	l.ip(ns, fmt.Sprintf("addr add %s/32 dev eth0", a))
	l.ip(l.home, fmt.Sprintf("route add %s dev %s", a, name))
	return ns, a
}

// leased makes a namespace and a lease for a pod.
func (l *lab) leased(name string) (*netlab.Namespace, netip.Addr) {
	l.t.Helper()
	ns, err := netlab.New()
	l.g.Expect(err).NotTo(HaveOccurred())
	l.pods[name] = ns
	l.sandboxes()
	return ns, l.addAgain(name)
}

// quarantined returns the quarantined addresses.
func (l *lab) quarantined() map[string]bool {
	l.t.Helper()
	leases, _, err := l.agent.Leases(l.t.Context())
	l.g.Expect(err).NotTo(HaveOccurred())
	all := map[string]bool{}
	for _, x := range leases {
		if x.State == "quarantined" {
			all[x.IP] = true
		}
	}
	return all
}

// check returns the findings. "cadastre check" fails if there are any.
func (l *lab) check() string {
	l.t.Helper()
	out, _ := l.agent.CLI(l.t.Context(), "check")
	return out
}

// uid 65534 without a capability makes a user and network namespace, and puts each address of
// the block on its loopback. No address is lost for pods, and one finding says it.
func TestAnUnprivilegedProcessQuarantinesNothing(t *testing.T) {
	l := newLab(t, settings{})
	_, a := l.wired("c1")
	block := netip.PrefixFrom(a, 24).Masked()
	unprivileged := []string{"--reuid=65534", "--clear-groups", "unshare", "-Urn"}
	if out, err := exec.Command("setpriv", append(unprivileged, "true")...).CombinedOutput(); err != nil {
		t.Skipf("NOT RUN: this machine gives no user namespaces to uid 65534: %v: %s", err, out)
	}
	var script strings.Builder
	for x := block.Addr(); block.Contains(x); x = x.Next() {
		fmt.Fprintf(&script, "addr add %s/32 dev lo\n", x)
	}
	attack := exec.Command("setpriv", append(unprivileged, "sh", "-e", "-c",
		"ip -batch - <<'END'\nlink set lo up\n"+script.String()+"END\necho done\nexec sleep 600")...)
	attack.Stderr = t.Output()
	out, err := attack.StdoutPipe()
	l.g.Expect(err).NotTo(HaveOccurred())
	l.g.Expect(l.home.Do(attack.Start)).To(Succeed())
	t.Cleanup(func() { _ = attack.Process.Kill(); _ = attack.Wait() })
	_, err = bufio.NewReader(out).ReadString('\n')
	l.g.Expect(err).NotTo(HaveOccurred())

	l.rounds(6)
	l.g.Expect(l.quarantined()).To(BeEmpty())
	l.add("c2")
	l.g.Expect(l.check()).To(And(
		ContainSubstring("C212 addresses-not-its-own: network namespace /proc/%d/ns/net has 256 addresses", attack.Process.Pid),
		Not(ContainSubstring("C202")), Not(ContainSubstring("C204"))))
}

// A pod with CAP_NET_ADMIN puts each address of the block on its own link. The node has a route for
// the pod's own address only: no other pod loses an address, and the finding names the pod.
func TestAPodWithTheAddressesOfOthers(t *testing.T) {
	l := newLab(t, settings{})
	ns, a := l.wired("greedy")
	_, b := l.wired("other")
	block := netip.PrefixFrom(a, 24).Masked()
	var commands []string
	for x := block.Addr(); block.Contains(x); x = x.Next() {
		if x != a {
			commands = append(commands, fmt.Sprintf("addr add %s/24 dev eth0", x))
		}
	}
	l.ip(ns, commands...)
	l.rounds(6)
	l.g.Expect(l.quarantined()).To(BeEmpty())
	l.g.Expect(l.lease("other").IP).To(Equal(b.String()))
	l.add("c2")
	l.g.Expect(l.check()).To(ContainSubstring("C212 addresses-not-its-own: pod shop/greedy has 255 addresses"))
}

// After the database was deleted each address that a living pod has is quarantined, whatever
// connects the pod. With its database the address is never reclaimed, also if the runtime
// forgets the pod.
func TestEachKindOfPodAfterALostDatabase(t *testing.T) {
	for name, connect := range map[string]func(l *lab, ns *netlab.Namespace, a netip.Addr){
		"a wire": func(l *lab, ns *netlab.Namespace, a netip.Addr) {
			l.connect(l.home, "pod", ns, "eth0")
			l.ip(ns, fmt.Sprintf("addr add %s/32 dev eth0", a))
			l.ip(l.home, fmt.Sprintf("route add %s dev pod", a))
		},
		"the bridge below us": func(l *lab, ns *netlab.Namespace, a netip.Addr) {
			l.connect(l.home, "pod", ns, "eth0")
			l.ip(l.home, "link add br0 type bridge", "link set br0 up", "link set pod master br0")
			l.ip(ns, fmt.Sprintf("addr add %s/24 dev eth0", a))
		},
		"macvlan": func(l *lab, ns *netlab.Namespace, a netip.Addr) { l.below("macvlan", ns, a) },
		"ipvlan":  func(l *lab, ns *netlab.Namespace, a netip.Addr) { l.below("ipvlan", ns, a) },
		"a VIP": func(l *lab, ns *netlab.Namespace, a netip.Addr) {
			l.connect(l.home, "pod", ns, "eth0")
			l.ip(ns, fmt.Sprintf("addr add %s/32 dev lo", a))
			l.ip(l.home, fmt.Sprintf("route add %s dev pod", a))
		},
		"a data plane in user space": func(l *lab, ns *netlab.Namespace, a netip.Addr) { // the kernel has no route, as with VPP
			l.connect(l.home, "pod", ns, "eth0")
			l.ip(ns, fmt.Sprintf("addr add %s/32 dev eth0", a))
			l.cri.Set(critest.Sandbox{ID: "pod", Namespace: "shop", Name: "pod", NetNS: ns.Path(), Addrs: []netip.Addr{a}})
		},
		"Docker's overlay": func(l *lab, ns *netlab.Namespace, a netip.Addr) {
			overlay := l.namespace()
			l.ip(overlay, "link add br0 type bridge", "link set br0 up")
			l.ip(l.home, "link add vx0 type vxlan id 4096 dstport 4789 dev lo")
			l.move(l.home, "vx0", overlay)
			l.connect(overlay, "veth0", ns, "eth0")
			l.ip(overlay, "link set vx0 master br0 up", "link set veth0 master br0")
			l.ip(ns, fmt.Sprintf("addr add %s/24 dev eth0", a))
			l.cri.Set(critest.Sandbox{ID: "pod", Namespace: "shop", Name: "pod", NetNS: ns.Path()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, settings{undo: "300ms"})
			ns, a := l.leased("pod")
			connect(l, ns, a)
			sandboxes := name == "a data plane in user space" || name == "Docker's overlay"
			if !sandboxes {
				l.cri.Set() // the runtime has forgotten the pod
			}
			l.rounds(12)
			l.g.Expect(l.state("pod")).To(Equal("held"))

			l.lose()
			l.g.Eventually(l.quarantined).WithTimeout(time.Minute).Should(HaveKey(a.String()))
			l.rounds(6)
			l.g.Expect(l.quarantined()).To(HaveKey(a.String()))
		})
	}
}

// below connects a pod by a link of a kind over a link of the node.
func (l *lab) below(kind string, ns *netlab.Namespace, a netip.Addr) {
	l.t.Helper()
	l.ip(l.home, "link add uplink type bridge", "link set uplink up")
	if err := l.home.IP("link add mac0 link uplink type " + kind); err != nil {
		l.t.Skipf("NOT RUN: this kernel has no %s: %v", kind, err)
	}
	l.move(l.home, "mac0", ns)
	l.ip(ns, fmt.Sprintf("addr add %s/24 dev mac0", a), "link set mac0 up")
}

// lose deletes the database of a killed agent, and starts the agent again. It is not ready: it
// allocates nothing until a person has decided.
func (l *lab) lose() {
	l.t.Helper()
	l.g.Expect(l.proc.Kill()).To(Succeed())
	l.g.Expect(os.Remove(filepath.Join(l.agent.State(), "cadastre.db"))).To(Succeed())
	var err error
	l.proc, err = l.agent.Launch(l.home.Do)
	l.g.Expect(err).NotTo(HaveOccurred())
	l.g.Eventually(func() error {
		_, _, err := l.agent.Leases(l.t.Context())
		return err
	}).WithTimeout(time.Minute).Should(Succeed())
}
