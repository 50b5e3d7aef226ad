// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

func TestRoutesFollowTransactions(t *testing.T) {
	n := newNode(t, routeOptions{})
	for _, x := range []struct {
		what string
		txn  controller.Transaction
		want []string
	}{
		{"nothing", resync(), []string{}},
		{"both families", resync(to("10.1.7.0/24", "192.168.16.7"), to("fd01:7::/64", "fd16::7")),
			[]string{"10.1.7.0/24 via 192.168.16.7 proto 202", "fd01:7::/64 via fd16::7 proto 202"}},
		{"an update changes its keys only", update(to("10.1.8.0/24", "192.168.16.8")),
			[]string{"10.1.7.0/24 via 192.168.16.7 proto 202", "10.1.8.0/24 via 192.168.16.8 proto 202", "fd01:7::/64 via fd16::7 proto 202"}},
		{"other gateways", update(to("10.1.7.0/24", "192.168.16.17"), to("fd01:7::/64", "fd16::17")),
			[]string{"10.1.7.0/24 via 192.168.16.17 proto 202", "10.1.8.0/24 via 192.168.16.8 proto 202", "fd01:7::/64 via fd16::17 proto 202"}},
		{"without gateway they are closed", update(to("10.1.7.0/24", ""), to("fd01:7::/64", "")),
			[]string{"10.1.8.0/24 via 192.168.16.8 proto 202", "unreachable 10.1.7.0/24 proto 202", "unreachable fd01:7::/64 proto 202"}},
		{"and opened", update(to("10.1.7.0/24", "192.168.16.7"), to("fd01:7::/64", "fd16::7")),
			[]string{"10.1.7.0/24 via 192.168.16.7 proto 202", "10.1.8.0/24 via 192.168.16.8 proto 202", "fd01:7::/64 via fd16::7 proto 202"}},
		{"removed and added in one, the last counts", update(no("10.1.8.0/24"), to("10.1.8.0/24", "192.168.16.18"), to("10.1.7.0/24", "192.168.16.9"), no("10.1.7.0/24")),
			[]string{"10.1.8.0/24 via 192.168.16.18 proto 202", "fd01:7::/64 via fd16::7 proto 202"}},
		{"removed again", update(no("10.1.7.0/24"), no("fd01:7::/64"), no("fd01:8::/64"), no("nonsense")),
			[]string{"10.1.8.0/24 via 192.168.16.18 proto 202"}},
		{"a longer prefix beside it", update(to("10.1.8.0/25", "192.168.16.8"), to("10.1.8.9/32", "192.168.16.9")),
			[]string{"10.1.8.0/24 via 192.168.16.18 proto 202", "10.1.8.0/25 via 192.168.16.8 proto 202", "10.1.8.9/32 via 192.168.16.9 proto 202"}},
		{"a resync is a difference", resync(to("10.1.8.0/24", "192.168.16.8"), to("10.1.9.0/24", "192.168.16.9")),
			[]string{"10.1.8.0/24 via 192.168.16.8 proto 202", "10.1.9.0/24 via 192.168.16.9 proto 202"}},
		{"everything goes", resync(), []string{}},
	} {
		n.Expect(n.commit(x.txn)).To(Succeed(), x.what)
		n.Expect(n.routes()).To(Equal(x.want), x.what)
	}
}

func TestKernelIsTheTruth(t *testing.T) {
	n := newNode(t, routeOptions{})
	values := []controller.Value{to("10.1.7.0/24", "192.168.16.7"), to("10.1.8.0/24", ""), to("fd01:7::/64", "fd16::7"), to("fd01:8::/64", "")}
	n.Expect(n.commit(resync(values...))).To(Succeed())
	want := n.routes()
	n.Expect(want).To(HaveLen(4))
	for _, x := range []struct {
		what   string
		damage func() error
	}{
		{"another program removes an own route", func() error {
			return errors.Join(netlink.RouteDel(by(ownProtocol, "10.1.7.0/24", "192.168.16.7", 0)), netlink.RouteDel(by(ownProtocol, "fd01:7::/64", "fd16::7", 0)),
				netlink.RouteDel(by(ownProtocol, "10.1.8.0/24", "", 0)), netlink.RouteDel(by(ownProtocol, "fd01:8::/64", "", 0)))
		}},
		{"another program changes an own route", func() error {
			return errors.Join(netlink.RouteReplace(by(ownProtocol, "10.1.7.0/24", "192.168.16.99", 0)), netlink.RouteReplace(by(ownProtocol, "fd01:7::/64", "fd16::99", 0)),
				netlink.RouteReplace(by(ownProtocol, "10.1.8.0/24", "192.168.16.99", 0)))
		}},
		{"another program adds a route with our protocol", func() error {
			return errors.Join(netlink.RouteAdd(by(ownProtocol, "10.1.7.0/24", "192.168.16.99", 5)), netlink.RouteAdd(by(ownProtocol, "fd01:7::/64", "fd16::99", 5)),
				netlink.RouteAdd(by(ownProtocol, "10.1.8.0/24", "192.168.16.7", 5)), netlink.RouteAdd(by(ownProtocol, "10.9.0.0/16", "192.168.16.7", 0)))
		}},
		{"ours get further next hops", func() error {
			return errors.Join(netlink.RouteAppend(by(ownProtocol, "10.1.7.0/24", "192.168.16.99", 0)), netlink.RouteAppend(by(ownProtocol, "fd01:7::/64", "fd16::99", 0)))
		}},
		{"ours get other settings", func() error {
			r4, r6 := by(ownProtocol, "10.1.7.0/24", "192.168.16.7", 0), by(ownProtocol, "fd01:7::/64", "fd16::7", 0)
			r4.MTU, r6.MTU = 1400, 1400
			return errors.Join(netlink.RouteReplace(r4), netlink.RouteReplace(r6))
		}},
		{"ours become multipath", func() error {
			r4 := by(ownProtocol, "10.1.7.0/24", "192.168.16.7", 0)
			r4.Gw, r4.MultiPath = nil, []*netlink.NexthopInfo{{Gw: net.ParseIP("192.168.16.7")}, {Gw: net.ParseIP("192.168.16.8")}}
			return netlink.RouteReplace(r4)
		}},
	} {
		for _, method := range []controller.EventMethodType{controller.DownstreamResync, controller.FullResync, controller.UpstreamResync} {
			n.inside(x.damage)
			txn := resync(values...)
			txn.Method = method
			n.Expect(n.commit(txn)).To(Succeed(), x.what)
			n.Expect(n.routes()).To(Equal(want), x.what)
		}
		n.inside(x.damage) // a sink that knows nothing
		n.Expect(commit(n.open(routeOptions{}), resync(values...))).To(Succeed(), x.what)
		n.Expect(n.routes()).To(Equal(want), x.what)
	}
}

// TestUnchangedRoutesAreNotTouched subscribes to changes of routes.
func TestUnchangedRoutesAreNotTouched(t *testing.T) {
	n := newNode(t, routeOptions{})
	values := []controller.Value{to("10.1.7.0/24", "192.168.16.7"), to("10.1.8.0/24", ""), to("fd01:7::/64", "fd16::7"), to("fd01:8::/64", "")}
	n.Expect(n.commit(resync(values...))).To(Succeed())
	events, done := make(chan netlink.RouteUpdate, 1000), make(chan struct{})
	n.inside(func() error { return netlink.RouteSubscribe(events, done) })
	defer func() {
		close(done)
		n.Eventually(events).Should(BeClosed())
	}()
	changes := func(mark string) (all []string) { // of own routes, before the foreign route mark
		n.inside(func() error { return netlink.RouteAdd(by(unix.RTPROT_STATIC, mark, "192.168.16.7", 0)) })
		for e := range events {
			if e.Dst.String() == mark {
				return all
			}
			if e.Protocol != ownProtocol {
				continue // the kernel's own, which take their time
			}
			all = append(all, map[uint16]string{unix.RTM_NEWROUTE: "new ", unix.RTM_DELROUTE: "del "}[e.Type]+plain(describeRoute(e.Route)))
		}
		return all
	}
	n.Expect(n.commit(resync(values...))).To(Succeed())
	n.Expect(n.commit(update(values...))).To(Succeed())
	n.Expect(commit(n.open(routeOptions{}), resync(values...))).To(Succeed())
	n.Expect(changes("10.99.1.0/24")).To(BeEmpty())

	values[0], values[3] = to("10.1.7.0/24", "192.168.16.17"), no("fd01:8::/64")
	n.Expect(n.commit(resync(values...))).To(Succeed())
	n.Expect(changes("10.99.2.0/24")).To(Equal([]string{
		"del unreachable fd01:8::/64 proto 202", "new 10.1.7.0/24 via 192.168.16.17 proto 202", "del 10.1.7.0/24 via 192.168.16.7 proto 202",
	}), "there is no moment without a route")
}

func TestForeignRoutesAreNotTouched(t *testing.T) {
	n := newNode(t, routeOptions{})
	foreign := []*netlink.Route{
		by(unix.RTPROT_STATIC, "10.1.1.0/24", "192.168.16.1", 0), by(unix.RTPROT_BIRD, "10.1.2.0/24", "192.168.16.1", 32),
		by(unix.RTPROT_BOOT, "10.1.3.0/24", "", 0), by(unix.RTPROT_STATIC, "fd01:1::/64", "fd16::1", 0),
		by(unix.RTPROT_BIRD, "fd01:2::/64", "fd16::1", 32), by(203, "fd01:3::/64", "", 4000),
	}
	n.inside(func() error {
		for _, r := range foreign {
			if err := netlink.RouteAdd(r); err != nil {
				return err
			}
		}
		return nil
	})
	before := n.routesOf(unix.RT_TABLE_MAIN)
	n.Expect(before).To(HaveLen(len(foreign)))
	values := []controller.Value{to("192.168.16.0/24", "192.168.16.9")} // the connected route
	for _, r := range foreign {
		gateway := "192.168.16.9"
		if r.Dst.IP.To4() == nil {
			gateway = "fd16::9"
		}
		values = append(values, to(r.Dst.String(), gateway))
	}
	removals := []controller.Value{}
	for _, v := range values {
		removals = append(removals, controller.Value{Key: v.Key})
	}
	good := to("10.1.9.0/24", "192.168.16.9")
	for _, txn := range []controller.Transaction{update(append(values, good)...), resync(append(values, good)...)} {
		err := n.commit(txn)
		n.Expect(err).To(MatchError(southbound.ErrForeign))
		n.Expect(failedKeys(err)).To(HaveLen(len(values)))
		for _, s := range []string{
			"route/10.1.2.0/24: an object of another program is in the way: 10.1.2.0/24 via 192.168.16.1 interface ", " proto bird metric 32",
			"route/192.168.16.0/24: an object of another program is in the way: 192.168.16.0/24 interface ", " proto kernel", "unreachable 10.1.3.0/24 proto boot",
		} {
			n.Expect(err).To(MatchError(ContainSubstring(s)))
		}
		n.Expect(n.routes()).To(ContainElement("10.1.9.0/24 via 192.168.16.9 proto 202"))
		n.Expect(n.commit(update(append(removals, no("10.1.9.0/24"))...))).To(Succeed(), "what is not ours is not there for us")
		n.Expect(n.routesOf(unix.RT_TABLE_MAIN)).To(Equal(before))
	}
	n.Expect(n.commit(reverting(good, values[1]))).To(MatchError(southbound.ErrForeign))
	n.Expect(n.routesOf(unix.RT_TABLE_MAIN)).To(Equal(before))
	n.Expect(n.commit(resync())).To(Succeed())
	n.Expect(n.routesOf(unix.RT_TABLE_MAIN)).To(Equal(before))
}

func TestForeignRoutesBesideOurs(t *testing.T) {
	n := newNode(t, routeOptions{})
	ours := []controller.Value{to("10.1.7.0/24", "192.168.16.7"), to("fd01:7::/64", "fd16::7")}
	n.Expect(n.commit(resync(ours...))).To(Succeed())
	n.inside(func() error {
		return errors.Join(netlink.RouteAdd(by(unix.RTPROT_STATIC, "10.1.7.0/24", "192.168.16.1", 9)), netlink.RouteAdd(by(unix.RTPROT_STATIC, "fd01:7::/64", "fd16::1", 9)))
	})
	before := n.routes()
	n.Expect(before).To(HaveLen(4))
	n.Expect(n.commit(resync(ours...))).To(MatchError(southbound.ErrForeign), "also while ours is there")
	n.Expect(n.commit(update(to("10.1.7.0/24", "192.168.16.8"), to("fd01:7::/64", "")))).To(MatchError(southbound.ErrForeign))
	n.Expect(n.routes()).To(Equal(before), "a key that fails leaves what was there")
	n.Expect(n.commit(resync())).To(Succeed(), "unwanted routes are removed")
	n.Expect(n.routes()).To(Equal([]string{"10.1.7.0/24 via 192.168.16.1 proto static metric 9", "fd01:7::/64 via fd16::1 proto static metric 9"}))

	// IPv6 shows routes of one metric as one, with the protocol of one of them
	n.Expect(n.commit(update(to("fd01:8::/64", "fd16::8")))).To(Succeed())
	n.inside(func() error { return netlink.RouteAppend(by(unix.RTPROT_STATIC, "fd01:8::/64", "fd16::1", 0)) })
	n.Expect(n.commit(resync(to("fd01:8::/64", "fd16::8")))).To(MatchError(southbound.ErrForeign))
	n.Expect(n.routes()).To(ContainElement(And(ContainSubstring(" nexthop fd16::8"), ContainSubstring(" nexthop fd16::1"))))
	n.Expect(n.commit(resync())).To(Succeed())
	n.Expect(n.routes()).To(ContainElement("fd01:8::/64 via fd16::1 proto static"), "the other one stays")
}

func TestGatewaysThatCannotBeReached(t *testing.T) {
	n := newNode(t, routeOptions{})
	err := n.commit(update(to("10.1.7.0/24", "172.16.0.1"), to("10.1.8.0/24", "192.168.16.8"), to("fd01:7::/64", "fd99::1")))
	n.Expect(err).To(MatchError(unix.ENETUNREACH))
	n.Expect(err).To(MatchError(unix.EHOSTUNREACH))
	n.Expect(err).To(MatchError(And(
		ContainSubstring("route/10.1.7.0/24: add 10.1.7.0/24 via 172.16.0.1 proto 202: network is unreachable (Nexthop has invalid gateway): no connected route reaches the gateway"),
		ContainSubstring("route/fd01:7::/64: add "))))
	n.Expect(n.routes()).To(Equal([]string{"10.1.8.0/24 via 192.168.16.8 proto 202"}), "the other keys go on")
	n.Expect(n.commit(update(to("10.1.8.0/24", "172.16.0.1")))).To(MatchError(unix.ENETUNREACH))
	n.Expect(n.routes()).To(Equal([]string{"10.1.8.0/24 via 192.168.16.8 proto 202"}), "a change that fails changes nothing")
	n.inside(func() error { return netlink.RouteAdd(by(unix.RTPROT_STATIC, "172.16.0.0/16", "192.168.16.1", 0)) })
	n.Expect(n.commit(update(to("10.1.7.0/24", "172.16.0.1")))).To(HaveOccurred(), "a gateway behind a gateway")
}

// TestInterfacesThatLoseTheirAddress has routes that outlive the connected
// route that they were made by.
func TestInterfacesThatLoseTheirAddress(t *testing.T) {
	n := newNode(t, routeOptions{})
	values := []controller.Value{to("10.1.7.0/24", "192.168.17.7"), to("fd01:7::/64", "fd17::7")}
	addresses := []string{"192.168.17.5/24", "fd17::5/64"}
	n.inside(func() error { return errors.Join(wire("eth1", "peer1"), address("eth0", addresses...)) })
	n.Expect(n.commit(resync(values...))).To(Succeed())
	devices := func() (all []string) {
		n.inside(func() error {
			for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
				routes, err := netlink.RouteListFiltered(family, &netlink.Route{Protocol: ownProtocol}, netlink.RT_FILTER_PROTOCOL)
				if err != nil {
					return err
				}
				for _, r := range routes {
					link, err := netlink.LinkByIndex(r.LinkIndex)
					if err != nil {
						return err
					}
					all = append(all, link.Attrs().Name)
				}
			}
			return nil
		})
		return all
	}
	n.Expect(devices()).To(Equal([]string{"eth0", "eth0"}))
	n.inside(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, s := range addresses {
			a, _ := netlink.ParseAddr(s)
			if err := netlink.AddrDel(link, a); err != nil {
				return err
			}
		}
		return nil
	})
	n.Expect(n.commit(resync(values...))).To(HaveOccurred(), "nothing reaches the gateways")
	n.inside(func() error { return address("eth1", addresses...) })
	n.Expect(n.commit(resync(values...))).To(Succeed())
	n.Expect(devices()).To(Equal([]string{"eth1", "eth1"}))
}

func TestClosedSubnetsDoNotLeaveByTheDefaultRoute(t *testing.T) {
	n := newNode(t, routeOptions{})
	dial := func() error {
		conn, err := net.Dial("udp", "10.1.7.1:9")
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	n.inside(func() error {
		return errors.Join(netlink.RouteAdd(by(unix.RTPROT_STATIC, "0.0.0.0/0", "192.168.16.1", 0)), dial())
	})
	n.Expect(n.commit(update(to("10.1.7.0/24", "")))).To(Succeed())
	n.Expect(n.ns.Do(dial)).To(MatchError(unix.EHOSTUNREACH))
}

func TestTablesAndProtocolsAreApart(t *testing.T) {
	n := newNode(t, routeOptions{})
	v := to("10.1.7.0/24", "192.168.16.7")
	in := func(table uint32, dst, gateway string) controller.Value {
		return controller.Value{Key: kv.SinkRouteKey(dst, table), Message: &kv.NodeRoute{Dst: dst, Gateway: gateway, Table: table, NodeId: 7, NodeName: "seven"}}
	}
	n.Expect(n.commit(resync(v, in(1000, "10.1.7.0/24", "192.168.16.8"), in(1001, "10.1.7.0/24", ""), in(1000, "fd01:7::/64", "")))).To(Succeed())
	n.inside(func() error { return netlink.RouteAdd(by(201, "10.1.8.0/24", "192.168.16.7", 0)) })
	n.Expect(n.routes()).To(Equal([]string{"10.1.7.0/24 via 192.168.16.7 proto 202", "10.1.8.0/24 via 192.168.16.7 proto 201"}))
	n.Expect(n.routesOf(1000)).To(HaveLen(2))
	n.Expect(n.routesOf(1001)).To(Equal([]string{"unreachable 10.1.7.0/24 proto 202 table 1001"}))
	n.Expect(dump(n.sink)).To(Equal([]string{"10.1.7.0/24  seven", "10.1.7.0/24 192.168.16.7 10-1-7-0-24", "10.1.7.0/24 192.168.16.8 seven", "fd01:7::/64  seven"}))
	n.Expect(n.commit(update(no("10.1.7.0/24")))).To(Succeed())
	n.Expect(n.routesOf(1000)).To(HaveLen(2), "only the key that goes")
	n.Expect(n.commit(update(in(1000, "10.1.7.0/24", "192.168.16.9")))).To(Succeed())
	n.Expect(n.routesOf(1000)).To(ContainElement(ContainSubstring("10.1.7.0/24 via 192.168.16.9")))
	n.Expect(commit(n.open(routeOptions{}), resync(v))).To(Succeed(), "one that knows nothing")
	n.Expect(n.routesOf(1000)).To(BeEmpty())
	n.Expect(n.routesOf(1001)).To(BeEmpty())
	n.Expect(n.routes()).To(HaveLen(2))

	m := newNode(t, routeOptions{}) // another namespace
	n.Expect(m.routes()).To(BeEmpty())
	for _, bad := range []routeOptions{{namespace: "/nowhere"}, {namespace: os.DevNull}} {
		_, err := newRouteSink(bad)
		n.Expect(err).To(MatchError(HavePrefix("open the kernel's routes: ")))
	}
}

func TestNewComesBackFromItsNamespace(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const current = "/proc/thread-self/ns/net"
	home, err := os.Readlink(current)
	n := newNode(t, routeOptions{})
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(os.Readlink(current)).To(Equal(home))
	_, err = newRouteSink(routeOptions{namespace: os.DevNull})
	n.Expect(err).To(HaveOccurred())
	n.Expect(os.Readlink(current)).To(Equal(home))
}

// TestWithoutRights has a thread that may not change the network.
func TestWithoutRights(t *testing.T) {
	n := newNode(t, routeOptions{})
	n.Expect(n.commit(resync(to("10.1.8.0/24", "192.168.16.8")))).To(Succeed())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		n.Expect(dropNetAdmin()).To(Succeed())
		own, err := newRouteSink(routeOptions{})
		n.Expect(err).NotTo(HaveOccurred(), "nothing is written yet")
		n.Expect(own.Close()).To(Succeed())
		_, err = n.sink.Dump(context.Background())
		n.Expect(err).NotTo(HaveOccurred())
		n.Expect(n.commit(update(controller.Value{Key: kv.SinkNode, Message: &kv.NodeNetwork{}}))).To(Succeed())
		err = n.commit(resync(to("10.1.7.0/24", "192.168.16.7")))
		n.Expect(err).To(MatchError(unix.EPERM))
		n.Expect(failedKeys(err)).To(Equal([]string{"route/10.1.7.0/24", "route/10.1.8.0/24"}))
		n.Expect(err).To(MatchError(ContainSubstring(
			"route/10.1.7.0/24: add 10.1.7.0/24 via 192.168.16.7 proto 202: operation not permitted: it needs CAP_NET_ADMIN in the network namespace")))
		n.Expect(err).To(MatchError(ContainSubstring("route/10.1.8.0/24: remove 10.1.8.0/24")))
	}()
	<-ended
	n.Expect(n.routes()).To(Equal([]string{"10.1.8.0/24 via 192.168.16.8 proto 202"}))
}

// dropNetAdmin takes CAP_NET_ADMIN from the calling thread.
func dropNetAdmin() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return err
	}
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	return unix.Capset(&head, &data[0])
}

// TestGatewaysOnAnInterfaceThatTheKernelChooses has a gateway that no connected route
// reaches and the kernel takes all the same: an address of its own.
func TestGatewaysOnAnInterfaceThatTheKernelChooses(t *testing.T) {
	n := newNode(t, routeOptions{})
	n.inside(func() error { return address("lo", "10.99.0.1/32") })
	v := to("10.1.7.0/24", "10.99.0.1")
	n.Expect(n.commit(update(v))).To(Succeed())
	events, done := make(chan netlink.RouteUpdate, 100), make(chan struct{})
	n.inside(func() error { return netlink.RouteSubscribe(events, done) })
	n.Expect(n.commit(resync(v))).To(Succeed())
	n.Expect(n.commit(resync(v, to("10.1.8.0/24", "")))).To(Succeed())
	e := <-events
	for e.Protocol != ownProtocol {
		e = <-events
	}
	n.Expect(e.Dst.String()).To(Equal("10.1.8.0/24"), "the other one is not touched")
	close(done)
	n.Eventually(events).Should(BeClosed())
}

// Another program appends a hop to an IPv6 route of ours, which the kernel shows as one route with
// the protocol of the first hop. Our hop stays until it can be changed, or is not wanted any more.
func TestForeignHopsBesideOurs(t *testing.T) {
	const subnet = "fd01:7::/64"
	n := newNode(t, routeOptions{})
	foreign := by(unix.RTPROT_STATIC, subnet, "fd16::1", routeMetric6)
	events, done := make(chan netlink.RouteUpdate, 1000), make(chan struct{})
	n.inside(func() error { return netlink.RouteSubscribe(events, done) })
	defer func() {
		close(done)
		for range events { // until the subscription has ended
		}
	}()
	n.Expect(n.commit(resync(to(subnet, "fd16::7")))).To(Succeed())
	n.inside(func() error { return netlink.RouteAppend(foreign) })
	before := n.routesOf(unix.RT_TABLE_MAIN)
	n.Expect(before).To(ConsistOf(And(ContainSubstring("nexthop fd16::7"), ContainSubstring("nexthop fd16::1"))))
	for _, gateway := range []string{"fd16::8", "fd16::1", "", "fd16::7"} {
		for _, txn := range []controller.Transaction{
			update(to(subnet, gateway)), resync(to(subnet, gateway)), reverting(to("fd01:8::/64", "fd16::8"), to(subnet, gateway)),
		} {
			if txn.Method == controller.Update && gateway == "fd16::7" {
				continue // it is made
			}
			n.Expect(n.commit(txn)).To(MatchError(southbound.ErrForeign), gateway)
			n.Expect(n.routesOf(unix.RT_TABLE_MAIN)).To(Equal(before), gateway)
		}
	}
	n.Expect(n.commit(resync(to(subnet, "fd16::8")))).To(MatchError(southbound.ErrForeign))
	n.inside(func() error { return netlink.RouteAdd(by(unix.RTPROT_STATIC, "10.99.0.0/24", "192.168.16.7", 0)) })
	for e := range events {
		if e.Dst.String() == "10.99.0.0/24" {
			break
		}
		if e.Dst.String() == subnet {
			n.Expect(e.Type).To(BeEquivalentTo(unix.RTM_NEWROUTE), "no hop is removed, not even for a moment")
		}
	}
	n.inside(func() error {
		return errors.Join(netlink.RouteDel(foreign), netlink.RouteDel(by(unix.RTPROT_STATIC, "10.99.0.0/24", "192.168.16.7", 0)))
	})
	n.Expect(n.commit(resync(to(subnet, "fd16::8")))).To(Succeed())
	n.Expect(n.routes()).To(Equal([]string{"fd01:7::/64 via fd16::8 proto 202"}))

	// The hop of the other program comes first: the kernel shows the route as not ours.
	n.inside(func() error {
		ours := by(ownProtocol, subnet, "fd16::8", routeMetric6)
		return errors.Join(netlink.RouteDel(ours), netlink.RouteAdd(foreign), netlink.RouteAppend(ours))
	})
	n.Expect(n.commit(resync(to(subnet, "fd16::8")))).To(MatchError(southbound.ErrForeign))
	n.Expect(n.routes()).To(ConsistOf(And(ContainSubstring("nexthop fd16::8"), ContainSubstring("nexthop fd16::1"))))
	n.Expect(n.commit(resync())).To(Succeed())
	n.Expect(n.routes()).To(Equal([]string{"fd01:7::/64 via fd16::1 proto static"}))
}

// If the kernel refuses a change, nothing is to be restored.
func TestARefusedChangeIsOneCall(t *testing.T) {
	n, calls := newNode(t, routeOptions{}), []string{}
	s := n.tamper(routeOptions{}, func(operation, key string, call func() error) error {
		calls = append(calls, operation+" "+key)
		return call()
	})
	n.Expect(commit(s, update(to("10.1.7.0/24", "192.168.16.7")))).To(Succeed())
	n.Expect(commit(s, update(to("10.1.7.0/24", "172.16.0.1"), to("10.1.8.0/24", "172.16.0.1")))).To(MatchError(unix.ENETUNREACH))
	n.Expect(calls).To(Equal([]string{"create route/10.1.7.0/24", "update route/10.1.7.0/24", "create route/10.1.8.0/24"}))
}
