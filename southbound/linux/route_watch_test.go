// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/southbound"
)

// routeReplace changes a route as ip route replace does.
func routeReplace(dst, gateway string) error {
	metric := 0
	if strings.Contains(dst, ":") {
		metric = routeMetric6
	}
	return netlink.RouteReplace(by(ownProtocol, dst, gateway, metric))
}

// Routes that another program removes are made again, also those that the kernel removes
// without an announcement.
func TestRoutesAreMadeAgain(t *testing.T) {
	t.Parallel()
	clock := &quietClock{}
	n := newNode(t, routeOptions{Now: clock.now})
	want := []string{"10.1.7.0/24 via 192.168.16.7 proto 202", "10.1.8.0/24 unreachable proto 202", "fd01:7::/64 via fd16::7 proto 202"}
	n.Expect(n.commit(update(to("10.1.7.0/24", "192.168.16.7"), to("10.1.8.0/24", ""), to("fd01:7::/64", "fd16::7")))).To(Succeed())
	made := n.routes()
	n.Expect(made).To(HaveLen(len(want)))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- n.sink.Run(ctx) }()
	defer func() { stop(); n.Expect(<-ended).To(Succeed()) }()
	eth0 := func(f func(netlink.Link) error) func() error {
		return func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return f(link)
		}
	}
	foreign := by(unix.RTPROT_STATIC, "10.1.7.0/24", "192.168.16.9", 50)
	for _, x := range []struct {
		name string
		do   func() error
	}{
		{"a route", func() error { return netlink.RouteDel(by(ownProtocol, "10.1.7.0/24", "192.168.16.7", 0)) }},
		{"an unreachable route", func() error { return netlink.RouteDel(by(ownProtocol, "10.1.8.0/24", "", 0)) }},
		{"an IPv6 route", func() error { return netlink.RouteDel(by(ownProtocol, "fd01:7::/64", "fd16::7", 0)) }},
		{"a link that goes down and up", eth0(func(l netlink.Link) error {
			if err := netlink.LinkSetDown(l); err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
			return address("eth0", "fd16::5/64") // it loses that
		})},
		{"an address that goes and comes", eth0(func(l netlink.Link) error {
			a, err := netlink.ParseAddr("192.168.16.5/24")
			if err == nil {
				err = netlink.AddrDel(l, a)
			}
			if err != nil {
				return err
			}
			return address("eth0", "192.168.16.5/24")
		})},
		{"a route that is changed", func() error { return routeReplace("10.1.7.0/24", "192.168.16.9") }},
		{"an unreachable route that is changed", func() error { return routeReplace("10.1.8.0/24", "192.168.16.9") }},
		{"an IPv6 route that is changed", func() error { return routeReplace("fd01:7::/64", "fd16::9") }},
		{"a link that is removed and made again", func() error {
			link, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			if err := netlink.LinkDel(link); err != nil {
				return err
			}
			if err := wire("eth0", "peer0"); err != nil {
				return err
			}
			return address("eth0", "192.168.16.5/24", "fd16::5/64")
		}},
	} {
		clock.pass()
		before := time.Now()
		n.inside(x.do)
		n.Eventually(n.routes, time.Minute, 5*time.Millisecond).Should(Equal(made), x.name)
		t.Logf("%s: %v", x.name, time.Since(before))
	}
	// Gateways are not on-link for a while: no transaction asks for more attempts.
	clock.pass()
	var link netlink.Link
	n.inside(eth0(func(l netlink.Link) error { link = l; return netlink.LinkSetDown(l) }))
	n.Eventually(func() int { return len(n.sink.Status().Failed) }, time.Minute, 5*time.Millisecond).Should(Equal(2))
	n.Expect(n.sink.Status().Failed[0].Retry).To(BeZero())
	n.inside(func() error {
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		return address("eth0", "fd16::5/64")
	})
	n.Eventually(func() southbound.Status { return n.sink.Status() }, time.Minute, 5*time.Millisecond).
		Should(Equal(southbound.Status{Made: 3}))
	n.Expect(n.routes()).To(Equal(made))
	// A foreign route is noticed, and our route is made again when it goes.
	n.inside(func() error { return netlink.RouteAdd(foreign) })
	n.Eventually(func() int { return len(n.sink.Status().Failed) }, time.Minute, 5*time.Millisecond).Should(Equal(1))
	n.inside(func() error { return netlink.RouteDel(foreign) })
	n.Eventually(func() int { return len(n.sink.Status().Failed) }, time.Minute, 5*time.Millisecond).Should(BeZero())
	n.Expect(n.routes()).To(Equal(made))
}
