// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/effort"
	"github.com/cadastre/cadastre/vpp"
)

// kernelLinks returns the links and routes of the node's kernel that this package makes.
func (l *lab) kernelLinks() (all []string) {
	l.must(l.host.Do(func() error {
		links, err := netlink.LinkList()
		l.must(err)
		for _, link := range links {
			if a := link.Attrs(); strings.HasPrefix(a.Name, "vpp") {
				all = append(all, "link "+a.Name+" "+a.HardwareAddr.String())
			}
		}
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: 202}, netlink.RT_FILTER_PROTOCOL)
		l.must(err)
		for _, r := range routes {
			all = append(all, fmt.Sprintf("route %s via %s", r.Dst, r.Gw))
		}
		return nil
	}))
	slices.Sort(all)
	return all
}

// objects returns what VPP has, without the numbers of the kernel's links and what stays for
// good.
func (l *lab) objects() []string {
	all := lines(l.Dump())
	for i, line := range all {
		if at := strings.Index(line, "@"); at >= 0 {
			all[i] = line[:at] + line[at+strings.IndexByte(line[at:], '"'):]
		}
	}
	return slices.DeleteFunc(all, func(line string) bool {
		return strings.HasPrefix(line, "nat enabled") || strings.HasPrefix(line, "source ")
	})
}

func TestAllValuesAreMadeAndRemoved(t *testing.T) {
	l := newLab(t)
	l.Foreign(netip.MustParsePrefix("10.77.0.1/24"), netip.MustParsePrefix("10.78.0.0/16"))
	foreign := l.objects()
	w := l.values()
	l.must(l.resync(w))
	l.inspect(w)
	made, kernel := l.Dump(), l.kernelLinks()
	l.Expect(kernel).To(ContainElement("route 10.1.0.0/16 via 172.30.5.1"))
	l.must(l.resync(w))
	l.Expect(l.Dump()).To(Equal(made))
	l.restart()
	l.must(l.resync(w))
	l.Expect(l.Dump()).To(Equal(made))
	l.Expect(l.kernelLinks()).To(Equal(kernel))
	l.restart()
	l.must(l.resync(wanted{}))
	l.inspect(wanted{})
	l.Expect(l.objects()).To(Equal(foreign))
	l.Expect(l.kernelLinks()).To(BeEmpty())
}

// Contiv-VPP has its pods in VRF 1 by default, and the node in VRF 0.
func TestThePodsHaveATableOfTheirOwn(t *testing.T) {
	l := newLab(t)
	before := l.objects()
	w := l.values()
	w["network/default"].(*kv.Network).Table = 1
	for _, key := range []string{"pod/k8s/a/eth0", "pod/k8s/b/eth0"} {
		w[key].(*kv.PodNetwork).Wire.Table = 1
	}
	for id := 6; id < 8; id++ {
		key := fmt.Sprintf("route/10.1.%d.0/24", id)
		m := w[key].(*kv.NodeRoute)
		delete(w, key)
		m.Table = 1
		w[kv.SinkRouteKey(m.Dst, 1)] = m
	}
	l.must(l.resync(w))
	l.inspect(w)
	made := l.Dump()
	l.Expect(made).To(ContainSubstring("route 0 10.1.0.0/16 source=cadastre via=invalid IP - into=1"))
	l.Expect(made).To(ContainSubstring("route 1 0.0.0.0/0 source=cadastre via=invalid IP - into=0"))
	l.restart()
	l.must(l.resync(w))
	l.Expect(l.Dump()).To(Equal(made))
	l.must(l.resync(wanted{}))
	l.Expect(l.objects()).To(Equal(before))
}

func TestARestartedVPPGetsTheSameObjectsAgain(t *testing.T) {
	needsModel(t, "VPP is restarted")
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	made := l.Dump()
	l.model.Restart()
	l.Expect(l.Dump()).NotTo(ContainSubstring("cad"))
	l.must(l.resync(w))
	l.Expect(l.Dump()).To(Equal(made), "MAC addresses must not change: neighbours keep them")
}

// Run notices the end of VPP by itself.
func TestARestartIsNoticed(t *testing.T) {
	needsModel(t, "VPP is restarted")
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	made := l.Dump()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = l.scheduler.Run(ctx) }()
	defer func() { stop(); <-ended }()
	l.model.Restart()
	l.Eventually(l.Dump, "20s").Should(Equal(made))

	l.model.Stop()
	err := l.update(true, "pod/k8s/a/eth0", nil)
	l.Expect(err).To(MatchError(ContainSubstring("/run/model.sock")))
	l.model.Start()
	l.Eventually(l.Dump, "20s").Should(ContainSubstring("host-cad00000000000b"))
	l.Eventually(l.Dump, "20s").Should(ContainSubstring("nat output host-eth1"))

	l.Expect(l.RemoveInterface("host-cad00000000000b")).To(BeTrue())
	l.Eventually(l.Dump, "20s").Should(ContainSubstring("interface host-cad00000000000b"))
}

// Objects may be gone or changed without any announcement.
func TestDamageIsRepaired(t *testing.T) {
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	made := l.objects()
	names := []string{"host-eth1", "host-vpp2", "host-cad00000000000a", "host-cad00000000000c"}
	for _, line := range made {
		if name := strings.Fields(line)[1]; strings.HasPrefix(line, "interface vxlan") {
			names = append(names, name)
		}
	}
	for n := range 5 {
		names = append(names, fmt.Sprintf("loop%d", n))
	}
	removed := 0
	for _, name := range names {
		if !l.RemoveInterface(name) {
			continue
		}
		removed++
		l.must(l.resync(w))
		l.inspect(w)
		l.Expect(l.objects()).To(Equal(made), name)
	}
	l.Expect(removed).To(BeNumerically(">=", len(names)-1), "of %v", names)
}

// The connection breaks at each request in turn, before or after its execution. The process
// ends, and the next one makes the same as if nothing had happened.
func TestACrashBetweenAnyTwoRequests(t *testing.T) {
	needsModel(t, "the connection breaks at each request in turn")
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	made := l.objects()
	for _, remove := range []bool{false, true} {
		for n := 1; ; n++ {
			before, after := wanted{}, w
			if remove {
				before, after = w, wanted{}
			}
			l.restart()
			l.must(l.resync(before))
			l.restart()
			start := l.model.Requests()
			l.model.BreakAt(n, n%2 == 0)
			err := l.resync(after)
			l.model.BreakAt(0, false)
			if err == nil {
				t.Logf("remove %t: %d requests", remove, l.model.Requests()-start)
				break
			}
			l.restart()
			l.must(l.resync(w))
			l.inspect(w)
			l.Expect(l.objects()).To(Equal(made), "remove %t, request %d", remove, n)
			n += max(0, effort.Nightly-effort.Level(t)) // fewer of them while one works on the code
		}
	}
}

// An interface that was made has no tag yet.
func TestACrashBeforeTheTag(t *testing.T) {
	needsModel(t, "the connection breaks after one request")
	l := newLab(t)
	w := l.values()
	nothing := l.objects()
	l.must(l.resync(w))
	made := l.objects()
	create := []string{"af_packet_create_v3", "create_loopback_instance", "vxlan_add_del_tunnel_v3"}
	for _, key := range []string{"all", kv.SinkNode, "pod/k8s/a/eth0", "link/blue", "tunnel/6"} {
		for _, message := range create {
			for _, next := range []wanted{w, {}} {
				before := maps.Clone(w)
				if delete(before, key); key == "all" {
					before = wanted{}
				}
				l.restart()
				l.must(l.resync(before))
				l.restart()
				l.model.BreakIn(message)
				err := l.resync(w)
				l.model.BreakIn("")
				if err == nil {
					continue // this value has no such interface
				}
				l.restart()
				l.must(l.resync(next))
				l.inspect(next)
				want := made
				if len(next) == 0 {
					want = nothing
				}
				l.Expect(l.objects()).To(Equal(want), "%s: %s", key, message)
			}
		}
	}
}

// Any sequence of updates ends where one resync of the last state ends.
func TestUpdatesEndWhereAResyncEnds(t *testing.T) {
	l := newLab(t)
	all := l.values()
	keys := all.list()
	random := rand.New(rand.NewPCG(1, 2))
	now := wanted{}
	l.must(l.resync(now))
	for range 60 {
		v := keys[random.IntN(len(keys))]
		m := v.Message
		switch random.IntN(3) {
		case 0:
			m = nil
			delete(now, v.Key)
		case 1:
			m = changed(m)
			now[v.Key] = m
		default:
			now[v.Key] = m
		}
		l.must(l.scheduler.Commit(context.Background(), controller.Transaction{
			Method: controller.Update,
			Values: []controller.Value{{Key: v.Key, Message: m}},
		}))
	}
	updated := l.objects()
	l.empty()
	l.must(l.resync(now))
	l.Expect(updated).To(Equal(l.objects()))
}

// changed returns another value of a key.
func changed(m proto.Message) proto.Message {
	m = proto.Clone(m)
	switch m := m.(type) {
	case *kv.NodeNetwork:
		m.Mtu, m.VxlanIps = 1400, []string{"192.168.30.55/24"}
	case *kv.NodeTunnel:
		m.Underlay = []string{"192.168.16.99"}
		if m.NodeId == 6 {
			m.Underlay = []string{"192.168.16.98"}
		}
	case *kv.NodeRoute:
		m.Gateway = "192.168.30.77"
	case *kv.PodNetwork:
		m.Addresses = []string{"10.1.5.2" + m.Name[:0] + fmt.Sprint(m.Name[0]-'a') + "/24"}
	case *kv.Network:
		m.Subnets = append(m.Subnets, "10.9.0.0/16")
	}
	return m
}

func TestForeignObjectsAreInTheWay(t *testing.T) {
	l := newLab(t)
	w := l.values()
	// Another program has the VNI's bridge domain.
	l.must(l.resync(wanted{kv.SinkNode: w[kv.SinkNode], "network/blue": w["network/blue"]}))
	l.ForeignBridge(7)
	l.Expect(l.update(false, "link/blue", w["link/blue"])).To(MatchError(ContainSubstring("another program")))
	l.Expect(l.Dump()).To(ContainSubstring(`bridge 7 ""`))
}

func TestAForeignInterfaceOnTheUnderlayStays(t *testing.T) {
	l := newLab(t)
	l.ForeignPacketLink("eth1")
	l.Expect(l.resync(l.values())).To(MatchError(ContainSubstring("another program")))
	l.Expect(l.Dump()).To(ContainSubstring(`interface host-eth1 tag="" mac=02fe01`))
	l.must(l.resync(wanted{}))
	l.Expect(l.Dump()).To(ContainSubstring(`interface host-eth1 tag="" mac=02fe01`))
}

// Without an announcement the next request meets what is not there any more.
func TestAnUpdateMeetsWhatAnotherProgramRemoved(t *testing.T) {
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	key := "pod/k8s/a/eth0"
	l.Expect(l.RemoveInterface("host-cad00000000000a")).To(BeTrue())
	w[key] = proto.Clone(w[key])
	w[key].(*kv.PodNetwork).Addresses = []string{"10.1.5.77/24"}
	l.must(l.update(true, key, w[key]))
	l.inspect(w)
}

// VPP goes on reading a link that is gone, whatever has its name later.
func TestAnotherLinkOfTheKernelIsReadAnew(t *testing.T) {
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	index := func() (n int) {
		l.must(l.host.Do(func() error {
			link, err := netlink.LinkByName("cad00000000000a")
			if err == nil {
				n = link.Attrs().Index
			}
			return err
		}))
		return n
	}
	before := index()
	l.must(l.host.Do(func() error {
		link, err := netlink.LinkByName("cad00000000000a")
		l.must(err)
		return netlink.LinkDel(link)
	}))
	l.must(l.resync(w))
	l.inspect(w)
	l.Expect(index()).NotTo(Equal(before))
	l.Expect(l.Dump()).To(ContainSubstring(fmt.Sprintf(`tag="cadastre:pod/cad00000000000a@%d"`, index())))
}

func TestAPodThatFailsLeavesNothing(t *testing.T) {
	needsModel(t, "VPP refuses a link that the kernel has")
	l := newLab(t)
	w := l.values()
	key := "pod/k8s/a/eth0"
	pod := w[key]
	delete(w, key)
	l.must(l.resync(w))
	before := l.objects()
	l.model.LinksOf(func(string) bool { return false }) // VPP cannot read it
	l.Expect(l.update(true, key, pod)).To(MatchError(ContainSubstring("Invalid interface")))
	l.Expect(l.objects()).To(Equal(before))
}

func TestValuesThatCannotBeMadeAreRefused(t *testing.T) {
	l := newLab(t)
	for key, m := range map[string]proto.Message{
		kv.SinkNode:         &kv.NodeNetwork{NodeIps: []string{"192.168.16"}},
		"tunnel/7":          &kv.NodeTunnel{NodeId: 7, Transport: kv.Transport_WIREGUARD},
		"route/10.1.7.0/24": &kv.NodeRoute{Dst: "10.1.7.0/24", Gateway: "here"},
		"pod/k8s/x/eth0":    &kv.PodNetwork{Wire: &kv.Wire{HostIfName: "eth0"}},
		"link/blue":         &kv.NetworkLink{Network: "blue", Mac: "ff:ff:ff:ff:ff:ff", Vni: 7},
	} {
		for _, d := range l.descriptors {
			if d.Handles(key) {
				l.Expect(d.Validate(key, m)).To(HaveOccurred(), key)
			}
		}
	}
}

func TestDescriptorsOpenWithoutVPP(t *testing.T) {
	l := newLab(t)
	all, err := vpp.Descriptors(vpp.Options{Socket: "/nowhere/api.sock", Namespace: l.host.Path()})
	l.must(err)
	defer closeAll(t, all)
	_, err = all[0].Retrieve(context.Background(), nil)
	l.Expect(err).To(MatchError(ContainSubstring("/nowhere/api.sock")))
}
