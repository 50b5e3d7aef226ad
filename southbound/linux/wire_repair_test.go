// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
)

// hostEnd changes the host end of a pod's wire.
func (l *wireLab) hostEnd(p *labPod, change func(netlink.Link) error) func() error {
	return func() error {
		return l.host.Do(func() error {
			link, err := netlink.LinkByName(p.value.Wire.HostIfName)
			if err != nil {
				return err
			}
			return change(link)
		})
	}
}

// podEnd changes the pod's end.
func podEnd(p *labPod, change func(netlink.Link) error) func() error {
	return func() error {
		return p.Do(func() error {
			link, err := netlink.LinkByName(p.value.IfName)
			if err != nil {
				return err
			}
			return change(link)
		})
	}
}

func parseNet(text string) *net.IPNet {
	n, err := netlink.ParseIPNet(text)
	if err != nil {
		panic(err)
	}
	return n
}

func deleteAddress(text string) func(netlink.Link) error {
	return func(link netlink.Link) error { return netlink.AddrDel(link, &netlink.Addr{IPNet: parseNet(text)}) }
}

func deleteRoute(text string) func(netlink.Link) error {
	return func(link netlink.Link) error {
		return netlink.RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: parseNet(text), Scope: unix.RT_SCOPE_NOWHERE})
	}
}

func deleteNeighbour(text string) func(netlink.Link) error {
	return func(link netlink.Link) error {
		return netlink.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: net.ParseIP(text)})
	}
}

// damage is a change by another program.
type damage struct {
	what     string
	do       func() error
	announce bool // the kernel announces it in the node's namespace
}

// damages returns one for each object of a wire.
func (l *wireLab) damages(p *labPod) []damage {
	up := func(link netlink.Link) error { return netlink.LinkSetUp(link) }
	down := func(link netlink.Link) error { return netlink.LinkSetDown(link) }
	bounce := func(link netlink.Link) error { return errors.Join(down(link), up(link)) }
	mac := func(link netlink.Link) error {
		return netlink.LinkSetHardwareAddr(link, net.HardwareAddr{2, 0, 0, 0, 0, 9})
	}
	mtu := func(link netlink.Link) error { return netlink.LinkSetMTU(link, 1300) }
	all := []damage{
		{"the pair is removed", l.hostEnd(p, netlink.LinkDel), true},
		{"the pair is removed in the pod", podEnd(p, netlink.LinkDel), true},
		{"the host end is down", l.hostEnd(p, down), true},
		{"the host end is down and up", l.hostEnd(p, bounce), true},
		{"the pod's end is down", podEnd(p, down), false},
		{"the pod's end is down and up", podEnd(p, bounce), false},
		{"the host end has another MAC", l.hostEnd(p, mac), false},
		{"the pod's end has another MAC", podEnd(p, mac), false},
		{"the host end has another MTU", l.hostEnd(p, mtu), false},
		{"the pod's end has another MTU", podEnd(p, mtu), false},
		{"the host end has no alias", l.hostEnd(p, func(link netlink.Link) error { return netlink.LinkSetAlias(link, "") }), false},
		{"the host end has another group", l.hostEnd(p, func(link netlink.Link) error { return netlink.LinkSetGroup(link, 77) }), false},
	}
	four, six := p.ip[0].String(), p.ip[1].String()
	for _, x := range []struct{ address, route, pod, any string }{
		{"10.1.5.1", four, four, "0.0.0.0/0"}, {"fd01::1", six, six, "::/0"},
	} {
		bits := "/32"
		if x.any == "::/0" {
			bits = "/128"
		}
		all = append(all,
			damage{"no address " + x.address, l.hostEnd(p, deleteAddress(x.address+bits)), true},
			damage{"no route to " + x.pod, l.hostEnd(p, deleteRoute(x.pod+bits)), true},
			damage{"no neighbour " + x.pod, l.hostEnd(p, deleteNeighbour(x.pod)), true},
			damage{"no address in the pod " + x.pod, podEnd(p, deleteAddress(x.pod+bits)), false},
			damage{"no default route in the pod " + x.any, podEnd(p, deleteRoute(x.any)), false},
			damage{"no neighbour in the pod " + x.address, podEnd(p, deleteNeighbour(x.address)), false},
		)
	}
	return all
}

// TestEachDamageIsSeenAndRepaired does it by a resync: Retrieve, then Create or Update.
func TestEachDamageIsSeenAndRepaired(t *testing.T) {
	l := newWireLab(t, Options{})
	p, other := l.pod(), l.pod()
	l.create(p)
	l.create(other)
	for _, x := range l.damages(p) {
		l.must(x.do())
		found := l.retrieved(p, other)
		l.Expect(found).To(HaveKeyWithValue(other.key, done), x.what)
		l.Expect(found[p.key]).NotTo(Equal(done), x.what)
		if before, there := l.messages(p, other)[p.key]; there {
			l.Expect(l.wires.Update(context.Background(), p.key, before, p.value)).To(Succeed(), x.what)
		} else {
			l.Expect(l.wires.Create(context.Background(), p.key, p.value)).To(Succeed(), x.what)
		}
		l.Expect(l.retrieved(p, other)).To(Equal(map[string]string{p.key: done, other.key: done}), x.what)
		for i := range p.ip {
			_, err := l.exchange(other.Namespace, p.Namespace, p.ip[i], 10)
			l.Expect(err).NotTo(HaveOccurred(), x.what)
		}
	}
}

// TestRoutesThatAPodFakesDoNotKeepItsWireFromRepair adds more routes with our mark than one
// system call can remove.
func TestRoutesThatAPodFakesDoNotKeepItsWireFromRepair(t *testing.T) {
	l := newWireLab(t, Options{})
	p := l.pod()
	l.create(p)
	l.must(podEnd(p, func(link netlink.Link) error {
		s, err := ownSocket()
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		id := linkID{uint32(link.Attrs().Index), link.Attrs().Name}
		for i := range 10000 {
			dst := netip.AddrFrom4([4]byte{10, 77, byte(i >> 8), byte(i)})
			fake := object{kind: routeObject, prefix: whole(dst), table: unix.RT_TABLE_MAIN}
			if err := s.Run(oneRequest(fake.add(id))); err != nil {
				return err
			}
		}
		return nil
	})())
	l.Expect(l.retrieved(p)[p.key]).NotTo(Equal(done))
	l.Expect(l.wires.Update(context.Background(), p.key, l.messages(p)[p.key], p.value)).To(Succeed())
	l.complete(p)
}

// TestDamageIsAnnounced expects the key for each damage that the node's namespace shows,
// and nothing for what this process does itself.
func TestDamageIsAnnounced(t *testing.T) {
	l := newWireLab(t, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	keys, ended := make(chan string, 10000), make(chan error, 1)
	go func() { ended <- l.wires.Watch(ctx, func(key string) { keys <- key }) }()
	defer func() {
		cancel()
		l.Expect(<-ended).To(Succeed())
	}()
	p, other := l.pod(), l.pod()
	l.create(other)
	first := l.hostEnd(other, deleteNeighbour(other.ip[0].String()))
	l.Eventually(func() int { // Watch has begun
		_ = first()
		l.must(l.wires.Update(ctx, other.key, other.value, other.value))
		return len(keys)
	}).Should(BeNumerically(">", 0))
	marks := map[string]bool{other.key: true}
	quiet := func() { // all earlier announcements have come, and are of damage
		mark := l.pod()
		marks[mark.key] = true
		l.create(mark)
		l.must(l.hostEnd(mark, deleteAddress("10.1.5.1/32"))())
		for key := range keys {
			if key == mark.key {
				break
			}
			l.Expect(marks).To(HaveKey(key), "an announcement of what this process did")
		}
		l.delete(mark)
	}
	quiet()
	l.create(p)
	q := l.pod()
	l.create(q)
	l.delete(q)
	quiet()
	for _, x := range l.damages(p) {
		if !x.announce {
			continue
		}
		l.must(x.do())
		l.Eventually(keys).Should(Receive(Equal(p.key)), x.what)
		l.must(l.wires.Update(ctx, p.key, p.value, p.value))
		l.complete(p, other)
		for len(keys) > 0 { // of the same damage
			<-keys
		}
	}
	l.must(l.networks().Create(ctx, "network/blue", &kv.Network{Name: "blue", Table: 1007}))
	apart := l.podOf("blue", 1007, 700)
	l.create(apart)
	for _, family := range []string{"-4", "-6"} {
		command(t, l.host.Path(), "ip", family, "rule", "del", "iif", apart.value.Wire.HostIfName, "lookup", "1007")
		l.Eventually(keys).Should(Receive(Equal(apart.key)), "a rule of a custom network is removed")
	}
}

func TestUpdatesChangeOnlyWhatDiffers(t *testing.T) {
	l := newWireLab(t, Options{})
	p := l.pod()
	l.create(p)
	index := func() (n int) {
		l.must(l.hostEnd(p, func(link netlink.Link) error { n = link.Attrs().Index; return nil })())
		return n
	}
	began := index()
	for _, x := range []struct {
		what   string
		change func(*kv.PodNetwork)
		same   bool // the links stay
	}{
		{"MTU", func(v *kv.PodNetwork) { v.Wire.Mtu = 1400 }, true},
		{"MACs", func(v *kv.PodNetwork) { v.Wire.PodMac, v.Wire.HostMac = macOf("x"), macOf("y") }, true},
		{"gateway", func(v *kv.PodNetwork) {
			v.Gateways[0], v.Routes[0].Gateway = "10.1.5.250", "10.1.5.250"
		}, true},
		{"another address", func(v *kv.PodNetwork) { v.Addresses[0] = "10.1.77.7/24" }, true},
		{"only IPv6", func(v *kv.PodNetwork) {
			v.Addresses, v.Gateways, v.Routes = v.Addresses[1:], v.Gateways[1:], v.Routes[1:]
		}, true},
		{"another name in the pod", func(v *kv.PodNetwork) { v.IfName = "net1" }, false},
		{"another name on the node", func(v *kv.PodNetwork) { v.Wire.HostIfName = "cad00000000000f" }, false},
	} {
		before := p.value
		p.value = proto.CloneOf(before)
		x.change(p.value)
		l.Expect(l.retrieved(p)[p.key]).NotTo(Equal(done), x.what)
		l.Expect(l.wires.Update(context.Background(), p.key, before, p.value)).To(Succeed(), x.what)
		l.complete(p)
		if now := index(); x.same {
			l.Expect(now).To(Equal(began), x.what)
		} else {
			l.Expect(now).NotTo(Equal(began), x.what)
		}
	}
	// a new namespace of the same attachment
	before := p.value
	p.value, p.Namespace = proto.CloneOf(before), l.namespace()
	p.value.Wire.Netns, p.value.Wire.Namespace = p.Path(), namespaceAt(p.Path())
	l.Expect(l.wires.Update(context.Background(), p.key, before, p.value)).To(Succeed())
	l.complete(p)
	// no wire any more
	before = p.value
	p.value = proto.CloneOf(before)
	p.value.Wire = nil
	l.Expect(l.wires.Update(context.Background(), p.key, before, p.value)).To(Succeed())
	l.complete(p)
	l.Expect(l.links()).To(BeEmpty())
}

// links returns the names of the links of ours that are not detached.
func (l *wireLab) links() (names []string) {
	all, err := listLinks(l.wires.host, "")
	l.must(err)
	for _, x := range all {
		if x.ours() && !x.detached() {
			names = append(names, x.name)
		}
	}
	return names
}

// foreignLink makes a link that is not ours.
func foreignLink(name string) error {
	return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
}

// A second interface of one network would need the routes that the pod has already: the
// error names the interface that has them, and the first one stays.
func TestASecondInterfaceOfAPodInOneNetwork(t *testing.T) {
	l := newWireLab(t, Options{})
	first := l.pod()
	second := l.podIn(first.Namespace)
	second.value.IfName = "net1"
	l.create(first)
	for range 2 { // again
		err := l.wires.Create(context.Background(), second.key, second.value)
		l.Expect(err).To(MatchError(And(ContainSubstring("on eth0, which this agent has made"), ContainSubstring("give net1 a pool of another network"))))
		l.Expect(err).NotTo(MatchError(southbound.ErrForeign))
	}
	l.delete(second)
	l.complete(first)
}

func TestForeignObjectsAreNamedAndStay(t *testing.T) {
	l := newWireLab(t, Options{})
	a, b, c, d := l.pod(), l.pod(), l.pod(), l.pod()
	l.must(l.host.Do(func() error { return foreignLink(a.value.Wire.HostIfName) }))
	l.must(b.Do(func() error { return foreignLink("eth0") }))
	l.must(l.host.Do(func() error {
		if err := foreignLink("other"); err != nil {
			return err
		}
		link, err := netlink.LinkByName("other")
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(link), netlink.RouteAdd(&netlink.Route{
			LinkIndex: link.Attrs().Index, Dst: parseNet(c.ip[0].String() + "/32"), Scope: unix.RT_SCOPE_LINK,
		}))
	}))
	for _, x := range []struct {
		p    *labPod
		text string
	}{
		{a, "link " + a.value.Wire.HostIfName},
		{b, "interface eth0 is in " + b.value.Wire.Netns},
		{c, "route " + c.ip[0].String() + "/32 of link"},
	} {
		for range 2 { // again
			err := l.wires.Create(context.Background(), x.p.key, x.p.value)
			l.Expect(err).To(MatchError(southbound.ErrForeign))
			l.Expect(err).To(MatchError(ContainSubstring(x.text)))
		}
		l.delete(x.p)
	}
	l.Expect(l.links()).To(BeEmpty(), "nothing of a failed Create remains")
	l.complete()
	for _, name := range []string{a.value.Wire.HostIfName, "other"} {
		l.must(l.host.Do(func() error { _, err := netlink.LinkByName(name); return err }))
	}
	l.must(b.Do(func() error { _, err := netlink.LinkByName("eth0"); return err }))
	l.must(l.host.Do(func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: parseNet(c.ip[0].String() + "/32")}, netlink.RT_FILTER_DST)
		l.Expect(routes).To(HaveLen(1))
		return err
	}))
	// a foreign link in the group that is removed
	l.must(l.host.Do(func() error {
		link, err := netlink.LinkByName("other")
		if err != nil {
			return err
		}
		return netlink.LinkSetGroup(link, sweptGroup)
	}))
	l.create(d)
	l.delete(d)
	l.sweep()
	l.must(l.host.Do(func() error { _, err := netlink.LinkByName("other"); return err }))
	l.Expect(l.host.Do(func() error { _, err := netlink.LinkByName(d.value.Wire.HostIfName); return err })).To(HaveOccurred())
}

// sweep sweeps until nothing is left.
func (l *wireLab) sweep() {
	l.t.Helper()
	for more := true; more; {
		var err error
		more, err = l.wires.Sweep(context.Background())
		l.must(err)
	}
	all, err := listLinks(l.wires.host, vethKind)
	l.must(err)
	for _, x := range all {
		l.Expect(x.detached()).To(BeFalse(), "link %s is left", x.name)
	}
}

func TestImpossibleValuesAreExplained(t *testing.T) {
	l := newWireLab(t, Options{})
	plain := filepath.Join(t.TempDir(), "netns")
	l.must(os.WriteFile(plain, nil, 0o600))
	for _, x := range []struct {
		change func(*kv.PodNetwork)
		never  bool // Validate says so
		text   string
	}{
		{func(v *kv.PodNetwork) { v.Wire.Netns = "/run/netns/none" }, false, "open network namespace /run/netns/none: no network namespace is there: open: no such file or directory"},
		{func(v *kv.PodNetwork) { v.Wire.Netns = plain }, false, "the file is not a namespace"},
		{func(v *kv.PodNetwork) { v.Wire.Netns = "/proc/self/ns/uts" }, false, "want a network namespace"},
		{func(v *kv.PodNetwork) { v.Wire.Netns = l.host.Path() }, false, "is that of the node"},
		{func(v *kv.PodNetwork) { v.Wire.Netns = "" }, true, "netns is empty"},
		{func(v *kv.PodNetwork) { v.Wire.HostIfName = "eth7" }, true, `host_if_name "eth7"`},
		{func(v *kv.PodNetwork) { v.IfName = "a-name-that-is-too-long" }, true, "if_name"},
		{func(v *kv.PodNetwork) { v.IfName = "eth%d" }, true, `if_name "eth%d"`},
		{func(v *kv.PodNetwork) { v.Wire.PodMac = "01:00:5e:00:00:01" }, true, "pod_mac"},
		{func(v *kv.PodNetwork) { v.Wire.HostMac = "nonsense" }, true, "host_mac"},
		{func(v *kv.PodNetwork) { v.Wire.Table = 255 }, true, "table 255 belongs to the kernel"},
		{func(v *kv.PodNetwork) { v.Addresses = v.Addresses[:1] }, true, "1 addresses and 2 gateways"},
		{func(v *kv.PodNetwork) { v.Gateways[0] = "fd01::1" }, true, "gateway fd01::1 of address"},
		{func(v *kv.PodNetwork) { v.Addresses[0] = "10.1.5.7" }, true, `address "10.1.5.7"`},
		{func(v *kv.PodNetwork) { v.Routes[0].Dst = "x" }, true, `route to "x"`},
		{func(v *kv.PodNetwork) { v.Wire.Mtu = 10 }, false, "make the pair of links"},
	} {
		p := l.pod()
		x.change(p.value)
		if x.never {
			l.Expect(l.wires.Validate(p.key, p.value)).To(MatchError(ContainSubstring(x.text)))
		} else {
			l.Expect(l.wires.Validate(p.key, p.value)).To(Succeed())
		}
		l.Expect(l.wires.Create(context.Background(), p.key, p.value)).To(MatchError(ContainSubstring(x.text)))
	}
	l.Expect(l.wires.Validate("pod/x", &kv.Egress{})).To(MatchError("the value is a *kv.Egress, want a PodNetwork"))
	p := l.pod()
	l.Expect(l.wires.Validate("pod/"+fmt.Sprintf("%0300d", 1), p.value)).To(MatchError(ContainSubstring("at most")))
	l.Expect(l.links()).To(BeEmpty())
}

// TestIPv6IsTurnedOnWhereThePodNeedsIt has a pod and a node whose new links have no IPv6.
func TestIPv6IsTurnedOnWhereThePodNeedsIt(t *testing.T) {
	l := newWireLab(t, Options{})
	p, other := l.pod(), l.pod()
	for _, ns := range []*netlab.Namespace{p.Namespace, l.host} {
		l.must(ns.Do(func() error { return writeSetting("net.ipv6.conf.default.disable_ipv6", "1") }))
	}
	l.create(p)
	l.create(other)
	l.complete(p, other)
	for i := range p.ip {
		_, err := l.exchange(other.Namespace, p.Namespace, p.ip[i], 10)
		l.Expect(err).NotTo(HaveOccurred())
	}
}

// TestAPodThatEndsTakesItsWireAlong has the runtime remove the namespace before the DEL.
func TestAPodThatEndsTakesItsWireAlong(t *testing.T) {
	l := newWireLab(t, Options{})
	p := l.pod()
	l.create(p)
	l.must(p.Close())
	l.Eventually(l.links).Should(BeEmpty())
	l.delete(p)
	l.complete()
	l.sweep()
}
