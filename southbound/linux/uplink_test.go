// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/southbound"
)

// TestPodsUseTheUplinkOfTheirAddress: two nodes with two uplinks each.
func TestPodsUseTheUplinkOfTheirAddress(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 2)
	var pods []*cloudPod
	for _, n := range l.nodes {
		own := []*cloudPod{n.pod(1, 1), n.pod(1, 2), n.pod(2, 1)}
		l.Expect(n.resync(slices.Concat(n.own(1, 2), podValues(own...))...)).To(Succeed())
		pods = append(pods, own...)
	}
	for _, from := range pods {
		for _, to := range pods {
			if from == to {
				continue
			}
			for _, a := range to.ip {
				l.Expect(echo(from.Namespace, a.String(), 1000)).To(Succeed(), "from %s", from.ip)
			}
		}
		l.Expect(echo(from.Namespace, outside4, 1000)).To(Succeed(), "from %s", from.ip)
		l.Expect(echo(from.Namespace, outside6, 1000)).To(Succeed(), "from %s", from.ip)
	}
	for _, p := range pods {
		l.onlyPort(p)
		for _, a := range p.ip {
			l.Expect(echo(l.outside, a.String(), 1000)).To(Succeed())
		}
	}
	for _, n := range l.nodes {
		l.Expect(echo(n.host, outside4, 1000)).To(Succeed())
		l.Expect(echo(n.host, outside6, 1000)).To(Succeed())
	}
}

// TestAnUplinkOfTwoSubnets: a port may have addresses of several subnets of its network.
func TestAnUplinkOfTwoSubnets(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	l.ip(l.cloud, "address add 10.77.201.1/24 dev br1")
	neighbour := newNamespace(t)
	l.join(l.cloud, "extra", neighbour, "eth0")
	l.ip(l.cloud, "link set extra master br1")
	l.ip(neighbour, "address add 10.77.201.9/24 dev eth0") // it has no route to other ranges
	first, second := n.pod(1, 1), n.pod(1, 2)
	second.ip[0] = netip.MustParseAddr("10.77.201.102")
	second.value.Addresses[0] = second.ip[0].String() + "/32"
	want := slices.Concat(n.own(1), podValues(first, second))
	for _, v := range want {
		if m, ok := v.Message.(*kv.Uplink); ok {
			m.Ranges = append(m.Ranges, &kv.SubnetRange{Cidr: "10.77.201.0/24", Gateway: "10.77.201.1"})
		}
	}
	l.Expect(n.resync(want...)).To(Succeed())
	n.complete(want)
	l.Expect(n.sink.Status().Notes).NotTo(ContainElement(ContainSubstring("has no address in")))
	for _, p := range []*cloudPod{first, second} {
		l.Expect(echo(p.Namespace, outside4, 1000)).To(Succeed(), "from %s", p.ip)
		l.Expect(echo(p.Namespace, outside6, 1000)).To(Succeed(), "from %s", p.ip)
		l.onlyPort(p)
	}
	l.Expect(echo(second.Namespace, "10.77.201.9", 1000)).To(Succeed())
	l.Expect(echo(second.Namespace, first.ip[0].String(), 1000)).To(Succeed())
}

// TestRepliesToTheNodeLeaveByItsOwnLink: a host port, or a NodePort that keeps the source,
// leads to a pod. Its replies have the address of the node's link, and no cloud takes them on
// another one.
func TestRepliesToTheNodeLeaveByItsOwnLink(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	p := n.pod(1, 1)
	want := slices.Concat(n.own(1, 2), podValues(p))
	l.Expect(n.resync(want...)).To(Succeed())
	n.complete(want)
	for _, x := range []struct{ command, protocol, address, to string }{
		{"iptables", "icmp --icmp-type echo-request", "10.77.0.11", p.ip[0].String()},
		{"ip6tables", "icmpv6 --icmpv6-type echo-request", "fd77:0::b", p.ip[1].String()},
	} {
		rule := fmt.Sprintf("%s -t nat -A PREROUTING ! -i cad+ -p %s -d %s -j DNAT --to-destination %s", x.command, x.protocol, x.address, x.to)
		command(t, n.host.Path(), strings.Fields(rule)...)
		l.seen.reset()
		l.Expect(echo(l.outside, x.address, 1000)).To(Succeed())
		l.Eventually(func() []string {
			sent, _ := l.seen.ports(netip.MustParseAddr(x.address))
			return sent
		}).Should(Equal([]string{"p10"}), x.address)
	}
	l.seen.reset()
	l.Expect(echo(p.Namespace, outside4, 1000)).To(Succeed())
	l.Expect(echo(p.Namespace, outside6, 1000)).To(Succeed())
	l.onlyPort(p)
	for _, damage := range []string{"rule delete priority 1150", "-6 rule delete priority 1150"} {
		l.ip(n.host, damage)
		n.complete(want)
	}
	l.Expect(n.resync(n.own()...)).To(Succeed())
	l.Eventually(func() string { return strings.Join(l.state(n), "\n") }).ShouldNot(Or(ContainSubstring("1150"), ContainSubstring(repliesChain)))
}

// TestPodsReachNetworksOnTheNode: a bridge of another program, such as Docker's, is there before the uplinks, or comes and goes later. Its containers and the
// pods reach each other, and no packet of a pod leaves by the node's own link.
func TestPodsReachNetworksOnTheNode(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	n.stop()
	n.attentive = true
	n.start()
	p := n.pod(1, 1)
	want := slices.Concat(n.own(1), podValues(p))
	container := newNamespace(t)
	bridge := func() {
		l.ip(n.host, "link add docker0 type bridge")
		l.ip(n.host, "link set docker0 up")
		l.ip(n.host, "address add 172.17.0.1/16 dev docker0")
		l.ip(n.host, "address add fd17::1/64 dev docker0 nodad")
		l.join(n.host, "dock", container, "eth0")
		l.ip(n.host, "link set dock master docker0")
		l.ip(container, "address add 172.17.0.2/16 dev eth0")
		l.ip(container, "address add fd17::2/64 dev eth0 nodad")
		l.ip(container, "route add default via 172.17.0.1")
		l.ip(container, "route add default via fd17::1")
	}
	reached := func() {
		t.Helper()
		l.seen.reset()
		for i, a := range []string{"172.17.0.2", "fd17::2"} {
			l.Eventually(func() error { return echo(p.Namespace, a, 300) }, 20*time.Second).Should(Succeed(), a)
			l.Expect(echo(container, p.ip[i].String(), 1000)).To(Succeed())
		}
		sent, _ := l.seen.ports(p.ip[0])
		l.Expect(sent).NotTo(ContainElement("p10"))
	}
	lost := func() {
		t.Helper()
		l.seen.reset()
		for i, a := range []string{"172.17.0.2", "fd17::2"} {
			l.Expect(echoTimes(p.Namespace, a, 100, 1)).NotTo(Succeed())
			l.Expect(echo(p.Namespace, []string{outside4, outside6}[i], 1000)).To(Succeed())
		}
		l.onlyPort(p)
	}
	bridge()
	l.Expect(n.resync(want...)).To(Succeed())
	n.complete(want)
	reached()
	for _, own := range []string{"10.77.0.1", "fd77:0::1", "10.77.2.1", "fd77:2::1"} { // on links of the node that are not the pod's
		l.Expect(echo(p.Namespace, own, 1000)).To(Succeed())
	}
	l.onlyPort(p)

	n.stop() // the rules stay while no process runs
	l.ip(n.host, "link delete docker0")
	l.ip(n.host, "link delete dock")
	l.Expect(command(t, n.host.Path(), "ip", "rule")).To(ContainSubstring("172.17"))
	lost()
	n.start()
	l.Expect(n.resync(want...)).To(Succeed())
	n.complete(want)
	lost()
	l.Expect(command(t, n.host.Path(), "ip", "rule")).NotTo(ContainSubstring("172.17"))
	bridge()
	reached()
	for _, damage := range []string{"rule delete to 172.17.0.0/16", "-6 rule delete to fd17::/64"} {
		l.ip(n.host, damage)
		reached()
	}
	l.Expect(n.resync(n.own()...)).To(Succeed())
	for _, family := range []string{"-4", "-6"} {
		l.Eventually(func() string { return command(t, n.host.Path(), "ip", family, "rule") }).ShouldNot(ContainSubstring("1180"))
	}
}

// TestUplinksWithoutIPv6: administrators disable it, or the kernel does not have it. What needs IPv4 alone works, and nothing of IPv6 is requested or enabled.
func TestUplinksWithoutIPv6(t *testing.T) {
	t.Parallel()
	for what, families := range map[string][]byte{"disabled": nil, "not in the kernel": {unix.AF_INET}} {
		t.Run(what, func(t *testing.T) { uplinksWithoutIPv6(t, families) })
	}
}

func uplinksWithoutIPv6(t *testing.T, families []byte) {
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	n.stop()
	for _, at := range []string{"all", "default", "lo"} {
		l.Expect(n.host.Do(func() error { return writeSetting("net.ipv6.conf."+at+".disable_ipv6", "1") })).To(Succeed())
	}
	n.families = families
	n.start()
	p := n.pod(1, 1)
	p.ip, p.value.Addresses, p.value.Gateways = p.ip[:1], p.value.Addresses[:1], p.value.Gateways[:1]
	p.value.Routes = slices.DeleteFunc(p.value.Routes, func(r *kv.Route) bool { return strings.Contains(r.Dst, ":") })
	want := slices.Concat(n.own(1, 2), podValues(p))
	for _, v := range want {
		if m, is := v.Message.(*kv.Uplink); is {
			m.Ranges, m.VpcCidrs = m.Ranges[:1], m.VpcCidrs[:1]
		}
	}
	l.Expect(n.resync(want...)).To(Succeed())
	n.complete(want)
	l.Expect(echo(p.Namespace, outside4, 1000)).To(Succeed())
	l.onlyPort(p)
	l.Expect(echo(l.outside, p.ip[0].String(), 1000)).To(Succeed())
	for _, link := range []string{"all", "ens0", "ens1", "ens2"} {
		l.Expect(n.host.Do(func() error {
			have, err := readSetting("net.ipv6.conf." + link + ".disable_ipv6")
			l.Expect(have).To(Equal("1"), link)
			return err
		})).To(Succeed())
	}
	if families != nil {
		l.Expect(command(t, n.host.Path(), "ip", "-6", "rule")).NotTo(Or(ContainSubstring("1100"), ContainSubstring("1150")))
		l.Expect(command(t, n.host.Path(), "ip", "-6", "route", "show", "table", "all")).NotTo(ContainSubstring("table 2"))
		l.Expect(n.resync(append(want, controller.Value{Key: n.uplinkKey(2), Message: n.uplink(2)})...)).To(MatchError(ContainSubstring("the kernel has no IPv6, which interface eni-1-2 needs")))
		l.Expect(echo(p.Namespace, outside4, 1000)).To(Succeed())
		l.Expect(n.resync(want...)).To(Succeed())
	}
	l.ip(n.host, "rule delete from "+p.ip[0].String())
	n.complete(want)
	l.Expect(n.resync(n.own()...)).To(Succeed())
	l.Eventually(func() string { return command(t, n.host.Path(), "ip", "rule") }).ShouldNot(Or(ContainSubstring("1100"), ContainSubstring("1200")))
}

// TestNetworksOnTheNode: a link that leads out of the node has none.
func TestNetworksOnTheNode(t *testing.T) {
	g := NewWithT(t)
	route := func(prefix string, index uint32) parsed {
		return parsed{object: object{kind: routeObject, prefix: netip.MustParsePrefix(prefix), table: 254}, index: index}
	}
	link := func(index uint32, name, kind string, change func(*hostLink)) hostLink {
		l := hostLink{linkID: linkID{index, name}, kind: kind, peerNSID: rtnl.Here}
		if change != nil {
			change(&l)
		}
		return l
	}
	known := &uplinkLinks{byInterface: map[string]uplinkLink{"eni-1": {linkID: linkID{3, "ens6"}, cloud: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}}}
	links := []hostLink{
		link(1, "lo", "", nil), link(2, "ens5", "", nil), link(3, "ens6", "bond", nil), link(4, "docker0", "bridge", nil), link(5, "wg0", "wireguard", nil),
		link(6, "ens5.7", "vlan", func(l *hostLink) { l.peer = 2 }), link(7, "br-ex", "bridge", nil), link(8, "ens7", "", func(l *hostLink) { l.master = 7 }),
		link(9, "br-ex.4", "vlan", func(l *hostLink) { l.peer = 7 }), link(10, "docker0.3", "vlan", func(l *hostLink) { l.peer = 4 }),
		link(11, "veth1", "veth", func(l *hostLink) { l.peerNSID = 0 }), link(12, "docked", "veth", func(l *hostLink) { l.master = 4 }),
		link(13, "cadastre-vxlan", "vxlan", func(l *hostLink) { l.alias = "cadastre:node" }), link(14, "vpn0", "tun", nil), link(15, "moved", "macvlan", func(l *hostLink) { l.peer, l.peerNSID = 2, 0 }),
	}
	routes := []parsed{
		route("0.0.0.0/0", 14), route("192.0.2.0/24", 2), route("192.168.1.0/24", 3), route("172.17.0.0/16", 4), route("10.8.0.0/24", 5), route("192.168.7.0/24", 6),
		route("192.168.8.0/24", 7), route("192.168.9.0/24", 8), route("192.168.10.0/24", 9), route("172.18.0.0/16", 10), route("192.168.11.0/24", 11),
		route("192.168.12.0/24", 12), route("192.168.13.0/24", 13), route("192.168.14.0/24", 14), route("192.168.15.0/24", 15),
		route("10.0.9.0/24", 4), route("10.0.0.0/8", 4), route("fe80::/64", 4), route("172.17.0.9/32", 4), route("ff00::/8", 4), route("fd17::/64", 4),
	}
	far := route("172.20.0.0/16", 4)
	far.gateway = netip.MustParseAddr("172.17.0.2")
	routes = append(routes, far, route("172.17.0.0/16", 4))
	g.Expect(texts(localNetworks(routes, links, known))).To(Equal([]string{"10.8.0.0/24", "172.17.0.0/16", "172.18.0.0/16", "fd17::/64"}))
}

// TestUplinksHeal removes by hand each object of an uplink and its addresses.
func TestUplinksHeal(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	n.stop()
	n.attentive = true
	n.start()
	p := n.pod(1, 1)
	want := slices.Concat(n.own(1, 2), podValues(p))
	l.Expect(n.resync(want...)).To(Succeed())
	n.complete(want)
	table := fmt.Sprint(n.uplink(1).Table)
	for _, damage := range []string{
		"rule delete from " + p.ip[0].String(),
		"-6 rule delete from " + p.ip[1].String(),
		"rule delete priority 1100",
		"-6 rule delete priority 1100",
		"route delete 10.77.1.0/24 table " + table,
		"route delete default via 10.77.1.1 table " + table,
		"route delete unreachable default table " + table,
		"-6 route flush table " + table,
		"link set ens1 down",
	} {
		l.ip(n.host, damage)
		n.complete(want)
	}
	n.stop()
	n.attentive = false
	n.start()
	l.Expect(n.resync(want...)).To(Succeed())
	for i, family := range []string{"-4", "-6"} { // the kernel does not announce the removal of a proxy neighbour
		l.ip(n.host, fmt.Sprintf("%s neighbour delete proxy %s dev ens1", family, p.ip[i]))
		n.complete(want)
	}
	for _, setting := range []string{"net.ipv4.conf.ens1.rp_filter=1", "net.ipv4.conf.ens1.forwarding=0", "net.ipv6.conf.ens1.proxy_ndp=0", "net.ipv4.ip_forward=0"} {
		command(t, n.host.Path(), "sysctl", "-w", setting)
		n.complete(want)
	}
	for _, a := range p.ip {
		l.Expect(echo(l.outside, a.String(), 100)).To(Succeed())
	}
}

// TestTheInterfaceOfAnUplinkGoesAndReturns: meanwhile no packet of its pods leaves through
// another link, pods of the node reach each other, and an ADD fails.
func TestTheInterfaceOfAnUplinkGoesAndReturns(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	p, other, late := n.pod(1, 1), n.pod(2, 1), n.pod(1, 2)
	want := slices.Concat(n.own(1, 2), podValues(p, other))
	l.Expect(n.resync(want...)).To(Succeed())
	l.Expect(echo(p.Namespace, outside4, 100)).To(Succeed())

	l.ip(l.cloud, "link delete p11")
	l.Eventually(func() []southbound.Failed { return n.sink.Status().Failed }).Should(
		ContainElement(HaveField("Error", ContainSubstring("the node has no link with the MAC "+n.mac(1)))))
	l.seen.reset()
	for _, to := range []string{outside4, outside6} {
		l.Expect(echoTimes(p.Namespace, to, 100, 3)).NotTo(Succeed())
		l.Expect(echo(other.Namespace, to, 100)).To(Succeed())
	}
	for i := range p.ip {
		l.Expect(echo(p.Namespace, other.ip[i].String(), 100)).To(Succeed())
		sent, _ := l.seen.ports(p.ip[i])
		l.Expect(sent).To(BeEmpty(), "packets from %s left through another link", p.ip[i])
	}
	l.Expect(n.update(podValues(late)...)).To(MatchError(ContainSubstring("interface eni-1-1")))

	l.attach(n, 1)
	l.ip(n.host, "link set ens1 down")
	l.ip(n.host, "link set ens1 name enX9")
	l.ip(n.host, "link set enX9 up")
	n.complete(want)
	l.Expect(n.update(podValues(late)...)).To(Succeed())
	l.seen.reset()
	for _, x := range []*cloudPod{p, late} {
		l.Expect(echo(x.Namespace, outside4, 100)).To(Succeed())
		l.Expect(echo(x.Namespace, outside6, 100)).To(Succeed())
		l.onlyPort(x)
	}
}

// TestAnUplinkIsPendingUntilItsInterfaceAppears: the cloud attaches an interface after the
// agent knows of it.
func TestAnUplinkIsPendingUntilItsInterfaceAppears(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	l.ip(l.cloud, "link delete p11")
	command(t, n.host.Path(), "sysctl", "-w", forwarding4+"=1")
	p, other := n.pod(1, 1), n.pod(1, 2)
	want := slices.Concat(n.own(1), podValues(p, other))
	l.Expect(n.resync(want...)).To(MatchError(ContainSubstring("no link with the MAC")))
	for _, a := range other.ip { // it is the node's only uplink
		l.Expect(echo(p.Namespace, a.String(), 1000)).To(Succeed(), "pods of the node reach each other")
	}
	l.Expect(n.sink.Status().Pending).To(ContainElement(southbound.Pending{
		Key: kv.SinkSourcePrefix + p.ip[0].String(), WaitsFor: []string{n.uplinkKey(1)},
	}))
	l.seen.reset()
	l.Expect(echoTimes(p.Namespace, outside4, 100, 2)).NotTo(Succeed())
	sent, _ := l.seen.ports(p.ip[0])
	l.Expect(sent).To(BeEmpty(), "it left through another link")
	l.attach(n, 1)
	n.complete(want)
	l.Expect(echo(p.Namespace, outside4, 100)).To(Succeed())
	l.ip(l.cloud, "link delete p11")
	l.Eventually(func() []southbound.Failed { return n.sink.Status().Failed }).ShouldNot(BeEmpty())
	for _, a := range other.ip {
		l.Expect(echo(p.Namespace, a.String(), 1000)).To(Succeed(), "pods of the node reach each other")
	}
	l.Expect(n.resync(n.own()...)).To(Succeed())
	l.Eventually(func() string { return strings.Join(l.state(n), "\n") }).ShouldNot(ContainSubstring("1100"), "the rules to the pods")
}

// TestADeletedAddressIsGoneWithTheCommit: no rule leads from it, and the node does not answer
// for it any more.
func TestADeletedAddressIsGoneWithTheCommit(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	p, stays := n.pod(1, 1), n.pod(1, 2)
	l.Expect(n.resync(slices.Concat(n.own(1), podValues(p, stays))...)).To(Succeed())
	l.Expect(n.update(removed(podValues(p))...)).To(Succeed())
	for i, family := range []string{"-4", "-6"} {
		rules := command(t, n.host.Path(), "ip", family, "rule")
		proxies := command(t, n.host.Path(), "ip", family, "neighbour", "show", "proxy")
		l.Expect(rules + proxies).NotTo(ContainSubstring(p.ip[i].String() + " "))
		l.Expect(rules).To(ContainSubstring(stays.ip[i].String() + " "))
		l.Expect(proxies).To(ContainSubstring(stays.ip[i].String() + " "))
	}
}

// TestUplinksLeaveForeignObjects: rules, routes, proxy neighbours and addresses of other
// programs stay, one in the way is named, and nothing of ours remains.
func TestUplinksLeaveForeignObjects(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	p := n.pod(1, 1)
	l.Expect(n.resync(n.own()...)).To(Succeed())
	for _, s := range []string{
		"rule add from 10.77.1.200 lookup 99 priority 1200", "route add 10.99.0.0/16 dev ens1 table 99", "neighbour add proxy 10.77.1.200 dev ens1",
		"neighbour add proxy " + p.ip[0].String() + " dev ens2",
	} {
		l.ip(n.host, s)
	}
	foreign := l.state(n)
	l.ip(n.host, "neighbour add proxy "+p.ip[0].String()+" dev ens1")
	l.ip(n.host, fmt.Sprint("route add 10.98.0.0/16 dev ens2 table ", n.uplink(2).Table))
	failed := n.resync(slices.Concat(n.own(1, 2), podValues(p))...)
	l.Expect(failed).To(MatchError(southbound.ErrForeign))
	l.Expect(failed).To(MatchError(And(ContainSubstring("proxy neighbour "+p.ip[0].String()), ContainSubstring("route 10.98.0.0/16"))))
	l.ip(n.host, "neighbour delete proxy "+p.ip[0].String()+" dev ens1")
	l.ip(n.host, fmt.Sprint("route delete 10.98.0.0/16 dev ens2 table ", n.uplink(2).Table))
	want := slices.Concat(n.own(1, 2), podValues(p))
	n.complete(want)

	l.Expect(n.resync(n.own()...)).To(Succeed())
	l.Eventually(func() []string { return differences(foreign, l.state(n)) }).Should(BeEmpty())
	l.Expect(n.resync(want...)).To(Succeed())
	n.stop()
	removed, err := Uninstall(t.Context(), Options{Namespace: n.host.Path()})
	l.Expect(err).NotTo(HaveOccurred())
	l.Expect(removed).To(ContainElements(
		fmt.Sprintf("rule from %s to table %d", p.ip[0], n.uplink(1).Table), fmt.Sprintf("IPv6 rule from %s to table %d", p.ip[1], n.uplink(1).Table),
		"rule to the routes of pods", "IPv6 rule to the routes of pods", "proxy neighbour "+p.ip[0].String(), "proxy neighbour "+p.ip[1].String(),
		fmt.Sprintf("route 0.0.0.0/0 via 10.77.1.1 table %d", n.uplink(1).Table), fmt.Sprintf("unreachable route ::/0 table %d", n.uplink(1).Table),
	))
	l.Expect(differences(foreign, l.state(n))).To(BeEmpty())
	n.start()
}

// TestUplinksKeepCustomNetworksApart: packets of a custom network do not use the
// rule to the pods of the default network.
func TestUplinksKeepCustomNetworksApart(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	p := n.pod(1, 1)
	blue := n.podOf("blue", 1007, 55)
	blue.value.Routes = append(blue.value.Routes, &kv.Route{Dst: "10.77.0.0/16", Gateway: "10.1.5.1"})
	want := slices.Concat(n.own(1), podValues(p), []controller.Value{
		{Key: kv.SinkNetworkPrefix + "blue", Message: &kv.Network{Name: "blue", Table: 1007, Subnets: []string{"10.5.0.0/16"}}},
		{Key: blue.key, Message: blue.value},
	})
	l.Expect(n.resync(want...)).To(Succeed())
	n.complete(want)
	l.Expect(echo(n.host, p.ip[0].String(), 100)).To(Succeed())
	l.Expect(echoTimes(blue.Namespace, p.ip[0].String(), 100, 2)).NotTo(Succeed())
	l.Expect(echoTimes(p.Namespace, blue.ip[0].String(), 100, 2)).NotTo(Succeed())
}

// TestUplinksOfAnEarlierProcessAreTakenOver: a process that takes over finds all, and changes nothing.
func TestUplinksOfAnEarlierProcessAreTakenOver(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	p, gone := n.pod(1, 1), n.pod(2, 1)
	l.Expect(n.resync(slices.Concat(n.own(1, 2), podValues(p, gone))...)).To(Succeed())
	n.stop()
	before := l.state(n)
	n.start()
	l.Expect(n.resync(slices.Concat(n.own(1, 2), podValues(p, gone))...)).To(Succeed())
	l.Expect(differences(before, l.state(n))).To(BeEmpty())
	n.stop()
	n.start()
	want := slices.Concat(n.own(1), podValues(p))
	l.Expect(n.resync(want...)).To(Succeed())
	n.complete(want)
	l.Expect(strings.Join(l.state(n), "\n")).NotTo(Or(ContainSubstring(gone.ip[0].String()), ContainSubstring(fmt.Sprint(n.uplink(2).Table))))
}

// state returns the objects of a node that matter.
func (l *cloudLab) state(n *cloudNode) (all []string) {
	l.t.Helper()
	read := func() (err error) {
		all, err = kernelState()
		return err
	}
	l.Eventually(func() error { return n.host.Do(read) }).Should(Succeed()) // a change interrupts a reading
	return all
}

// TestTheLinkOfAnUplinkAmongStackedOnes: links on top of one another share a MAC.
func TestTheLinkOfAnUplinkAmongStackedOnes(t *testing.T) {
	mac := hardware{2, 0, 0, 0, 0, 1}
	link := func(index uint32, name string, change func(*hostLink)) hostLink {
		l := hostLink{linkID: linkID{index, name}, mac: mac, peerNSID: rtnl.Here}
		if change != nil {
			change(&l)
		}
		return l
	}
	g := NewWithT(t)
	for _, c := range []struct {
		what  string
		links []hostLink
		want  string
	}{
		{"a VLAN on it", []hostLink{link(3, "ens1.7", func(l *hostLink) { l.peer = 2 }), link(2, "ens1", nil)}, "ens1"},
		{"a port of a bridge", []hostLink{link(2, "ens1", func(l *hostLink) { l.master = 4 }), link(4, "br-ex", nil)}, "br-ex"},
		{"a port of a bridge with another MAC", []hostLink{link(2, "ens1", func(l *hostLink) { l.master = 9 })}, "ens1"},
		{"a veth whose peer has a number of the other namespace", []hostLink{
			link(2, "ens1", func(l *hostLink) { l.peer, l.peerNSID = 3, 0 }), link(3, "ours", func(l *hostLink) { l.alias = aliasPrefix + "node" }),
		}, "ens1"},
	} {
		found, err := selectLink(uplink{mac: mac}, c.links)
		g.Expect(err).NotTo(HaveOccurred(), c.what)
		g.Expect(found.name).To(Equal(c.want), c.what)
	}
	_, err := selectLink(uplink{iface: "eni-1", mac: mac}, []hostLink{link(2, "a", nil), link(3, "b", nil)})
	g.Expect(err).To(MatchError("interface eni-1: links a, b all have the MAC 02:00:00:00:00:01, want one"))
}

// TestALinkWithoutAnAddressIsNoted: Cadastre does not configure the interface itself.
func TestALinkWithoutAnAddressIsNoted(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	l.Expect(n.resync(n.own(1, 2)...)).To(Succeed())
	l.Expect(n.sink.Status().Notes).NotTo(ContainElement(ContainSubstring("has no address in")))
	l.ip(n.host, "-4 address flush dev ens1")
	n.complete(n.own(1, 2))
	l.Eventually(func() []string { return n.sink.Status().Notes }).Should(ContainElement(ContainSubstring("link ens1 of interface eni-1-1 has no address in 10.77.1.0/24")))
	l.Expect(n.resync(n.own(2)...)).To(Succeed())
	l.Expect(n.sink.Status().Notes).NotTo(ContainElement(ContainSubstring("has no address in")))
}

// TestImpossibleUplinks names what is wrong.
func TestImpossibleUplinks(t *testing.T) {
	g := NewWithT(t)
	uplinks := (&uplinks{families: []byte{unix.AF_INET, unix.AF_INET6}, known: &uplinkLinks{}}).kind().Descriptor()
	addresses := (&uplinkAddresses{}).kind().Descriptor()
	for text, change := range map[string]func(*kv.Uplink){
		`its interface "eni-2" is not that of its key`:       func(m *kv.Uplink) { m.Interface = "eni-2" },
		`table 254: want that of an uplink`:                  func(m *kv.Uplink) { m.Table = 254 },
		`mac "": `:                                           func(m *kv.Uplink) { m.Mac = "" },
		`ranges: want the CIDR of its subnet`:                func(m *kv.Uplink) { m.Ranges = nil },
		`destination 10.0.1.9/24 is not written 10.0.1.0/24`: func(m *kv.Uplink) { m.Ranges[0].Cidr = "10.0.1.9/24" },
		`gateway fe80::1 is not of the family`:               func(m *kv.Uplink) { m.Ranges[0].Gateway = "fe80::1" },
		`10.0.1.0/24 is there twice, want it once`: func(m *kv.Uplink) {
			m.Ranges = append(m.Ranges, &kv.SubnetRange{Cidr: "10.0.1.0/24"})
		},
	} {
		m := &kv.Uplink{Interface: "eni-1", Mac: "02:00:00:00:00:01", Table: kv.UplinkTables + 1, Ranges: []*kv.SubnetRange{{Cidr: "10.0.1.0/24", Gateway: "10.0.1.1"}}}
		g.Expect(uplinks.Validate("uplink/eni-1", m)).To(Succeed())
		change(m)
		g.Expect(uplinks.Validate("uplink/eni-1", m)).To(MatchError(ContainSubstring(text)))
	}
	for text, change := range map[string]func(*kv.UplinkAddress){
		`is not that of its key`:          func(m *kv.UplinkAddress) { m.Address = "10.0.1.8" },
		`table 7: want that of an uplink`: func(m *kv.UplinkAddress) { m.Table = 7 },
	} {
		m := &kv.UplinkAddress{Address: "10.0.1.9", Interface: "eni-1", Table: kv.UplinkTables + 1}
		g.Expect(addresses.Validate("uplinkaddress/10.0.1.9", m)).To(Succeed())
		change(m)
		g.Expect(addresses.Validate("uplinkaddress/10.0.1.9", m)).To(MatchError(ContainSubstring(text)))
	}
}

// TestTwoUplinksInOneSubnet: the second link has no IPv6 address of its own, so the main table
// reaches the gateway of both through the first one.
func TestTwoUplinksInOneSubnet(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	l.join(l.cloud, "p1x", n.host, "ens9")
	l.ip(l.cloud, "link set p1x master br1")
	l.ip(n.host, "link set ens9 address 02:77:00:00:09:09")
	l.ip(n.host, "address add 10.77.1.99/24 dev ens9")
	l.seen.follow("p1x")
	second := n.uplink(1)
	second.Interface, second.Mac, second.Table = "eni-1-9", "02:77:00:00:09:09", kv.UplinkTables+9
	p, q := n.pod(1, 1), n.pod(1, 2)
	want := slices.Concat(n.own(1), podValues(p, q), []controller.Value{{Key: kv.SinkUplinkPrefix + second.Interface, Message: second}})
	for _, v := range want {
		if a, is := v.Message.(*kv.UplinkAddress); is && slices.Contains([]string{q.ip[0].String(), q.ip[1].String()}, a.Address) {
			a.Interface, a.Table = second.Interface, second.Table
		}
	}
	l.Expect(n.resync(want...)).To(Succeed())
	n.complete(want)
	l.Expect(n.sink.Status().Failed).To(BeEmpty())
	for pod, port := range map[*cloudPod]string{p: "p11", q: "p1x"} {
		for i, to := range []string{outside4, outside6} {
			l.seen.reset()
			l.Expect(echo(pod.Namespace, to, 1000)).To(Succeed())
			l.Eventually(func() []string {
				sent, _ := l.seen.ports(pod.ip[i])
				return sent
			}).Should(Equal([]string{port}))
		}
	}
	l.ip(l.cloud, "-6 neighbour flush all")
	l.seen.reset()
	l.Expect(echo(l.cloud, q.ip[1].String(), 1000)).To(Succeed()) // the router asks with its global address
	for _, own := range []string{"fd77:0::b", "fd77:1::b"} {
		sent, _ := l.seen.ports(netip.MustParseAddr(own))
		l.Expect(sent).NotTo(ContainElement("p1x"), "%s is an address of another link", own)
	}
}

// TestAnAddressThatMovesIsReachedAtOnce: the router knows the address at the MAC address of the
// interface that had it before, and does not ask again for 15 seconds at the least.
func TestAnAddressThatMovesIsReachedAtOnce(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 2)
	before, after := l.nodes[0], l.nodes[1]
	p, stays := before.pod(1, 1), after.pod(1, 2)
	ping := func(p *cloudPod, times int) {
		t.Helper()
		for _, to := range p.ip {
			l.Expect(echoTimes(l.cloud, to.String(), 1000, times)).To(Succeed())
		}
	}
	l.Expect(before.resync(slices.Concat(before.own(1), podValues(p))...)).To(Succeed())
	l.Expect(after.resync(slices.Concat(after.own(1), podValues(stays))...)).To(Succeed())
	ping(p, 50)
	ping(stays, 50)
	l.Expect(before.resync(before.own(1)...)).To(Succeed())
	moved := after.pod(1, 1)
	moved.ip, moved.value.Addresses = p.ip, p.value.Addresses
	l.ip(l.cloud, "link set p11 down") // the interface is deleted: it forwards nothing
	for _, a := range p.ip {           // as after a packet that was answered a moment ago
		l.ip(l.cloud, fmt.Sprintf("neighbour replace %s lladdr %s dev br1 nud reachable", a, before.mac(1)))
	}
	l.Expect(after.resync(slices.Concat(after.own(1), podValues(stays, moved))...)).To(Succeed())
	ping(moved, 20)
}

// TestAFailedUplinkIsNotRepeatedByWhatItRemoves: the routes that a failed attempt removes are
// announced, and do not cause the next attempt.
func TestAFailedUplinkIsNotRepeatedByWhatItRemoves(t *testing.T) {
	t.Parallel()
	l := newCloudLab(t, 1)
	n := l.nodes[0]
	n.stop()
	n.attentive = true
	n.log = &logbuffer.Buffer{}
	n.start()
	p := n.pod(1, 1)
	bad := n.uplink(2)
	bad.Ranges[1].Gateway = fmt.Sprintf("fd77:2::%x", 10+n.id) // the kernel refuses the link's own address
	key := n.uplinkKey(2)
	want := slices.Concat(n.own(1), podValues(p))
	l.Expect(n.resync(append(want, controller.Value{Key: key, Message: bad})...)).NotTo(Succeed())
	failed := func() (all []string) {
		for _, f := range n.sink.Status().Failed {
			if f.Retry.IsZero() {
				all = append(all, f.Key)
			}
		}
		return all
	}
	l.Eventually(failed).Should(Equal([]string{key}), "the retries are over")
	before := len(n.log.String())
	for range 5 { // each repair takes as long as one of the failed uplink would
		l.ip(n.host, "rule delete from "+p.ip[0].String())
		n.complete(want)
	}
	l.Expect(n.log.String()[before:]).NotTo(ContainSubstring(key))
}
