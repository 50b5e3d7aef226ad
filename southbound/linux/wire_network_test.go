// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
)

// networks opens the descriptor of networks of the lab's node.
func (l *wireLab) networks() *southbound.Descriptor {
	l.t.Helper()
	n, err := openNetworks(Options{Namespace: l.host.Path()})
	l.must(err)
	l.t.Cleanup(func() { _ = n.Close() })
	return n
}

// podOf returns a pod with the addresses of number n in a network.
func (l *wireLab) podOf(network string, table uint32, n int) *labPod {
	p := l.podWith(l.namespace(), fmt.Sprintf("pod/%s/c%d/eth0", network, n), n)
	p.value.Wire.Pool, p.value.Wire.Table = network, table
	return p
}

// TestNetworksWithTheSameAddressesAreApart has two pods with the same addresses in each of
// three networks, one of which is in the main table.
func TestNetworksWithTheSameAddressesAreApart(t *testing.T) {
	l := newWireLab(t, Options{})
	networks, ctx := l.networks(), context.Background()
	tables := map[string]uint32{"default": 0, "blue": 1007, "red": 1008}
	pods := map[string][2]*labPod{}
	var all []*labPod
	for name, table := range tables {
		l.must(networks.Create(ctx, "network/"+name, &kv.Network{Name: name, Table: table}))
		pods[name] = [2]*labPod{l.podOf(name, table, 700), l.podOf(name, table, 701)}
		for _, p := range pods[name] {
			l.create(p)
			all = append(all, p)
		}
	}
	l.complete(all...)
	apart := func() {
		for name, pair := range pods {
			others := map[string]*labPod{}
			for other, p := range pods {
				if other != name {
					others[other] = p[1]
				}
			}
			for i, ip := range pair[1].ip {
				_, err := l.exchange(pair[0].Namespace, pair[1].Namespace, ip, 10)
				l.Expect(err).NotTo(HaveOccurred(), "%s in network %s", ip, name)
				for other, p := range others { // the same address there hears nothing
					inbox := l.listen(p.Namespace, netip.AddrPortFrom(p.ip[i], 7100).String())
					conn := l.dialUDP(pair[0].Namespace, netip.AddrPortFrom(ip, 7100).String())
					_, err := conn.Write([]byte(name))
					l.must(err)
					_, err = l.exchange(pair[0].Namespace, pair[1].Namespace, ip, 10) // it was on its way before
					l.must(err)
					n, err := drain(inbox)
					l.must(err)
					l.Expect(n).To(BeZero(), "network %s has a packet of %s", other, name)
					_ = inbox.Close()
				}
			}
		}
	}
	apart()
	// the default route of the node is not that of a network with a table
	outside := l.namespace()
	l.must(l.host.Do(func() error {
		out, err := exec.Command("sh", "-c", "ip link add uplink type veth peer name peer && ip link set uplink up && ip link set peer up && "+
			"ip addr add 192.0.2.1/24 dev uplink && ip route add default via 192.0.2.2").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w", out, err)
		}
		link, err := netlink.LinkByName("peer")
		if err != nil {
			return err
		}
		return moveLink(link, outside)
	}))
	l.must(outside.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(lo, &netlink.Addr{IPNet: parseNet("198.51.100.1/32")})
	}))
	sink := l.listen(outside, "198.51.100.1:7000")
	for _, network := range []string{"blue", "red", "default"} { // the last one shows that it would arrive
		conn := l.dialUDP(pods[network][0].Namespace, "198.51.100.1:7000")
		_, err := conn.Write([]byte(network))
		l.must(err)
	}
	l.must(sink.SetReadDeadline(time.Now().Add(answerTime)))
	buf := make([]byte, 64)
	n, _, err := sink.ReadFromUDPAddrPort(buf)
	l.must(err)
	l.Expect(string(buf[:n])).To(Equal("default"))

	// without its rules the wire is incomplete, and they are made again
	p := pods["blue"][0]
	l.must(l.host.Do(func() error {
		rules, err := netlink.RuleList(netlink.FAMILY_V4)
		for _, r := range rules {
			if r.IifName == p.value.Wire.HostIfName {
				return netlink.RuleDel(&r)
			}
		}
		return fmt.Errorf("no rule: %w", err)
	}))
	l.Expect(l.retrieved(all...)[p.key]).NotTo(Equal(done))
	l.must(l.wires.Update(ctx, p.key, p.value, p.value))
	l.complete(all...)
	apart()
	// the pod ends while the agent does not run: its rules stay
	l.must(podEnd(pods["red"][0], netlink.LinkDel)())
	left := []*labPod{}
	for _, p := range all {
		if p != pods["red"][0] {
			left = append(left, p)
		}
	}
	l.Eventually(l.links).Should(HaveLen(len(left)))
	for key, m := range l.messages(left...) {
		if strings.HasPrefix(key, unknownPrefix) {
			l.Expect(m.(*kv.PodNetwork).Wire.Table).To(BeEquivalentTo(1008))
			l.must(l.wires.Delete(ctx, key, m))
		}
	}
	l.complete(left...)
	for _, p := range left {
		l.delete(p)
	}
	rules, err := listRules(l.wires.host)
	l.must(err)
	l.Expect(rules).To(BeEmpty())
}

// moveLink moves a link into a namespace and sets it up with 192.0.2.2.
func moveLink(link netlink.Link, to *netlab.Namespace) error {
	file, err := rtnl.Open(to.Path())
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := netlink.LinkSetNsFd(link, file.Fd()); err != nil {
		return err
	}
	return to.Do(func() error {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: parseNet("192.0.2.2/24")}); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
}

func TestNetworksAreRetrievedAndRemoved(t *testing.T) {
	l := newWireLab(t, Options{})
	n, ctx := l.networks(), context.Background()
	value := func(name string, table uint32) controller.Value {
		return controller.Value{Key: "network/" + name, Message: &kv.Network{Name: name, Table: table}}
	}
	all := []controller.Value{value("default", 0), value("blue", 1007), value("red", 1008)}
	made := func(wanted ...controller.Value) (texts []string) {
		found, err := n.Retrieve(ctx, wanted)
		l.must(err)
		for _, v := range found {
			texts = append(texts, v.Key+" "+strings.Join(strings.Fields(fmt.Sprint(v.Message)), " "))
		}
		return texts
	}
	l.Expect(made(all...)).To(ConsistOf(HavePrefix("network/default ")))
	for range 2 {
		for _, v := range all {
			l.must(n.Create(ctx, v.Key, v.Message))
		}
		l.Expect(made(all...)).To(ConsistOf(HavePrefix("network/default"), HavePrefix("network/blue name"), HavePrefix("network/red name")))
	}
	l.must(l.host.Do(func() error {
		return netlink.RouteDel(&netlink.Route{Dst: parseNet("0.0.0.0/0"), Table: 1008, Type: unix.RTN_BLACKHOLE, Priority: lastMetric})
	}))
	l.Expect(made(all[1:]...)).To(ConsistOf(HavePrefix("network/blue name"), Equal("network/red table:1008")))
	l.must(n.Update(ctx, all[2].Key, &kv.Network{Table: 1008}, all[2].Message))
	l.Expect(made(all[2])).To(ConsistOf(HavePrefix("network/red name"), Equal("network/table-1007 table:1007")))
	l.must(n.Update(ctx, all[2].Key, all[2].Message, value("red", 1009).Message))
	l.Expect(made()).To(ConsistOf("network/table-1007 table:1007", "network/table-1009 table:1009"))
	l.must(n.Delete(ctx, "network/table-1007", &kv.Network{Table: 1007}))
	l.must(n.Delete(ctx, "network/blue", all[1].Message))
	l.must(n.Delete(ctx, "network/red", &kv.Network{Table: 1009}))
	l.Expect(made()).To(BeEmpty())

	l.must(l.host.Do(func() error {
		return netlink.RouteAdd(&netlink.Route{Dst: parseNet("10.9.0.0/16"), Table: 1010, Type: unix.RTN_UNREACHABLE, Protocol: unix.RTPROT_STATIC})
	}))
	err := n.Create(ctx, "network/green", &kv.Network{Table: 1010})
	l.Expect(err).To(MatchError(southbound.ErrForeign))
	l.Expect(err).To(MatchError(ContainSubstring("table 1010 has the route 10.9.0.0/16")))
	l.Expect(n.Validate("network/x", &kv.Network{Table: 255})).To(MatchError(ContainSubstring("table 255 belongs to the kernel")))
	l.Expect(n.Validate("network/x", &kv.Egress{})).To(HaveOccurred())
	p := l.podOf("blue", 1007, 1)
	needs := func(p *labPod) []string {
		plan, err := l.wires.read(p.key, p.value)
		l.must(err)
		return plan.needs()
	}
	l.Expect(needs(p)).To(Equal([]string{"network/blue"}))
	l.Expect(needs(l.pod())).To(BeEmpty())
}

// TestTheKernelsCheckOfSourcesIsRefusedForTables has rp_filter on, which would drop all
// packets of a network with a table.
func TestTheKernelsCheckOfSourcesIsRefusedForTables(t *testing.T) {
	l := newWireLab(t, Options{})
	set := func(name, value string) { l.must(l.host.Do(func() error { return writeSetting(name, value) })) }
	set("net.ipv4.conf.default.rp_filter", "1") // of new links
	l.must(l.networks().Create(context.Background(), "network/blue", &kv.Network{Table: 1007}))
	a, b := l.podOf("blue", 1007, 1), l.podOf("blue", 1007, 2)
	l.create(a)
	l.create(b)
	_, err := l.exchange(a.Namespace, b.Namespace, b.ip[0], 10)
	l.Expect(err).NotTo(HaveOccurred())
	sink := l.listen(l.host, "10.1.5.1:7000") // the check of what is not forwarded reads the main table
	_, err = l.dialUDP(a.Namespace, "10.1.5.1:7000").Write([]byte("x"))
	l.must(err)
	l.must(sink.SetReadDeadline(time.Now().Add(answerTime)))
	_, _, err = sink.ReadFromUDPAddrPort(make([]byte, 8))
	l.Expect(err).NotTo(HaveOccurred())
	set("net.ipv4.conf.all.rp_filter", "1")
	c := l.podOf("blue", 1007, 3)
	l.Expect(l.wires.Create(context.Background(), c.key, c.value)).
		To(MatchError(ContainSubstring("sysctl -w net.ipv4.conf.all.rp_filter=0")))
	d := l.pod()
	l.create(d) // a wire in the main table passes the check
	e := l.pod()
	l.create(e)
	_, err = l.exchange(d.Namespace, e.Namespace, e.ip[0], 10)
	l.Expect(err).NotTo(HaveOccurred())
}

func TestForwardingIsTurnedOnForThePodsFamilies(t *testing.T) {
	l := newWireLab(t, Options{})
	f := &forwarding{l.host.Path(), Options{}.withDefaults().Log}
	get := func(name string) (have string) {
		l.must(l.host.Do(func() (err error) { have, err = readSetting(name); return err }))
		return have
	}
	off := func() {
		l.must(l.host.Do(func() error {
			for _, name := range []string{forwarding4, forwarding6} {
				if err := writeSetting(name, "0"); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	four, six := &kv.NodeNetwork{PodSubnets: []string{"10.1.5.0/24"}}, &kv.NodeNetwork{PodSubnets: []string{"fd01::/64", "fd02::/64"}}
	both := proto.CloneOf(four)
	both.PodSubnets = append(both.PodSubnets, six.PodSubnets...)
	for _, x := range []struct {
		value  *kv.NodeNetwork
		v4, v6 string
	}{{&kv.NodeNetwork{}, "0", "0"}, {four, "1", "0"}, {six, "0", "1"}, {both, "1", "1"}} {
		off()
		plan := nodePlan{}
		l.must(f.read(x.value, &plan))
		state, err := f.retrieve(&kv.NodeNetwork{}, plan)
		l.must(err)
		l.Expect(state).To(Equal(partAbsent))
		l.must(f.create(plan))
		l.Expect([]string{get(forwarding4), get(forwarding6)}).To(Equal([]string{x.v4, x.v6}))
		state, err = f.retrieve(&kv.NodeNetwork{}, plan)
		l.must(err)
		l.Expect(state == partComplete).To(Equal(f.wanted(plan)))
	}
	// /proc/sys is read-only, as in a container without privileges
	off()
	err := l.host.Do(func() error {
		return privately(func() error {
			if err := unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				return err
			}
			if err := writeSetting(forwarding4, "0"); err != nil {
				return fmt.Errorf("a value that is right is not written: %w", err)
			}
			return writeSetting(forwarding4, "1")
		})
	})
	l.Expect(err).To(MatchError(And(
		ContainSubstring("set net.ipv4.ip_forward from 0 to 1: /proc/sys is read-only"),
		ContainSubstring("sysctl -w net.ipv4.ip_forward=1"), ContainSubstring("mount the node's /proc/sys/net writable"))))
	l.Expect(get(forwarding4)).To(Equal("0"))
}

// privately calls f with mounts of its own, on the calling thread.
func privately(f func() error) error {
	done := make(chan error)
	go func() { // the thread ends with the goroutine, which never unlocks it
		runtime.LockOSThread()
		err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, "")
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// A closed network in the main table refuses the packets that no other route takes.
func TestAClosedNetworkRefusesWhatHasNoRoute(t *testing.T) {
	l := newWireLab(t, Options{})
	n, ctx, key := l.networks(), context.Background(), "network/default"
	shown := func() string {
		var out []byte
		l.must(l.host.Do(func() (err error) {
			out, err = exec.Command("sh", "-c", "ip -4 route show type unreachable; ip -6 route show type unreachable").CombinedOutput()
			return err
		}))
		return string(out)
	}
	retrieved := func(want *kv.Network) bool {
		all, err := n.Retrieve(ctx, []controller.Value{{Key: key, Message: want}})
		l.must(err)
		l.Expect(all).NotTo(BeEmpty())
		return len(all) == 1 && proto.Equal(all[0].Message, want)
	}
	open := &kv.Network{Name: "default", Subnets: []string{"10.1.0.0/16"}}
	closed := &kv.Network{Name: "default", Subnets: []string{"10.1.0.0/16", "fd00:1::/48"}, Closed: true}
	moved := &kv.Network{Name: "default", Subnets: []string{"10.2.0.0/16", "fd00:1::/48"}, Closed: true}
	l.must(n.Create(ctx, key, open))
	l.Expect(shown()).To(BeEmpty())
	l.Expect(retrieved(open)).To(BeTrue())
	l.Expect(retrieved(closed)).To(BeFalse())
	l.must(n.Update(ctx, key, open, closed))
	l.must(n.Create(ctx, key, closed)) // again
	l.Expect(shown()).To(And(ContainSubstring("10.1.0.0/16 proto 202"), ContainSubstring("fd00:1::/48"), HaveSuffix("\n")))
	l.Expect(retrieved(closed)).To(BeTrue())
	l.Expect(retrieved(open)).To(BeFalse())
	l.must(n.Update(ctx, key, closed, moved))
	l.Expect(shown()).To(And(ContainSubstring("10.2.0.0/16"), ContainSubstring("fd00:1::/48"), Not(ContainSubstring("10.1.0.0/16"))))
	l.Expect(retrieved(closed)).To(BeFalse())
	all, err := n.Retrieve(ctx, nil) // of an earlier agent
	l.must(err)
	l.Expect(all).To(HaveLen(1))
	l.must(n.Delete(ctx, all[0].Key, all[0].Message))
	l.Expect(shown()).To(BeEmpty())
	l.Expect(n.Validate(key, &kv.Network{Closed: true, Subnets: []string{"10.1.0.1/16"}})).To(MatchError(ContainSubstring("10.1.0.0/16")))
}
