// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// machine is a network namespace with a public and a private NIC, and a link of ours.
type machine struct {
	Gomega
	ns *netlab.Namespace
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	m := &machine{Gomega: NewWithT(t)}
	var err error
	m.ns, err = netlab.New()
	m.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { m.Expect(m.ns.Close()).To(Succeed()) })
	return m
}

// nic makes a link with an MTU and addresses.
func (m *machine) nic(name string, mtu int, alias string, addresses ...string) {
	m.do(func() error {
		attrs := netlink.LinkAttrs{Name: name, MTU: mtu}
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "p" + name, PeerMTU: uint32(mtu)}); err != nil {
			return err
		}
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if alias != "" {
			if err := netlink.LinkSetAlias(link, alias); err != nil {
				return err
			}
		}
		peer, err := netlink.LinkByName("p" + name)
		if err != nil {
			return err
		}
		for _, l := range []netlink.Link{link, peer} {
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
		}
		return address(name, addresses...)
	})
}

func (m *machine) do(f func() error) { m.Expect(m.ns.Do(f)).To(Succeed()) }

// route adds a default route.
func (m *machine) route(link, gateway string, metric int) {
	m.do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		r := netlink.Route{LinkIndex: l.Attrs().Index, Gw: netip.MustParseAddr(gateway).AsSlice(), Priority: metric}
		return netlink.RouteAdd(&r)
	})
}

// underlay reads the underlay of the machine.
func (m *machine) underlay(opt UnderlayOptions) (string, error) {
	opt.Namespace = m.ns.Path()
	u, err := ReadUnderlay(context.Background(), opt)
	return fmt.Sprint(u.Addresses, " ", u.Link, " ", u.MTU), err
}

func nodeIPs(texts ...string) (o UnderlayOptions) {
	for _, s := range texts {
		o.NodeIPs = append(o.NodeIPs, netip.MustParseAddr(s))
	}
	return o
}

// A node with two NICs, neither of which has an address of nodeInterconnectCIDR.
func TestUnderlayOfANodeWithTwoNICs(t *testing.T) {
	m := newMachine(t)
	m.nic("cad0123456789", 1400, "cadastre:pod/x", "10.1.5.1/32", "fd00:1::1/128")
	m.nic("pub0", 1500, "", "203.0.113.7/24", "2001:db8::7/64")
	m.nic("prv0", 9000, "", "10.200.0.7/24", "10.200.0.8/24", "fd20::7/64")
	m.route("pub0", "203.0.113.1", 100)
	m.route("prv0", "10.200.0.1", 200)
	m.route("pub0", "2001:db8::1", 1024)
	const public = "[203.0.113.7 2001:db8::7] pub0 1500"
	for _, c := range []struct {
		name string
		opt  UnderlayOptions
		want string
	}{
		{"the default routes", UnderlayOptions{}, public},
		{"the Node object", nodeIPs("10.200.0.8", "fd20::7"), "[10.200.0.8 fd20::7] prv0 9000"},
		{"IPv4 alone", nodeIPs("10.200.0.7"), "[10.200.0.7] prv0 9000"},
		{"IPv6 alone", nodeIPs("fd20::7"), "[fd20::7] prv0 9000"},
		{"an external address before", nodeIPs("198.51.100.1", "10.200.0.7"), "[10.200.0.7] prv0 9000"},
		{"a family on each link: the smaller MTU", nodeIPs("fd20::7", "203.0.113.7"), "[203.0.113.7 fd20::7] pub0 1500"},
		{"the smaller MTU is that of IPv6", nodeIPs("2001:db8::7", "10.200.0.7"), "[10.200.0.7 2001:db8::7] prv0 1500"},
		{"a named link", UnderlayOptions{Interface: "prv0"}, "[10.200.0.7 fd20::7] prv0 9000"},
		{"a named link beside the Node object's", UnderlayOptions{Interface: "prv0", NodeIPs: nodeIPs("203.0.113.7").NodeIPs}, "[10.200.0.7 fd20::7] prv0 9000"},
		{"a named link with the Node object's", UnderlayOptions{Interface: "prv0", NodeIPs: nodeIPs("10.200.0.8").NodeIPs}, "[10.200.0.8 fd20::7] prv0 9000"},
		{"a network", UnderlayOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}}, "[10.200.0.7] prv0 9000"},
		{
			"a network on one of two links",
			UnderlayOptions{Interface: "prv0", CIDRs: []netip.Prefix{netip.MustParsePrefix("fd20::/16"), netip.MustParsePrefix("203.0.113.0/24")}},
			"[fd20::7] prv0 9000",
		},
		{"a network of links of ours too", UnderlayOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, "[10.200.0.7] prv0 9000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.Gomega = NewWithT(t)
			m.Expect(m.underlay(c.opt)).To(Equal(c.want))
		})
	}
}

// The error names what was looked for, what the links have, and the key to set.
func TestANodeWithoutAnUnderlay(t *testing.T) {
	m := newMachine(t)
	_, err := m.underlay(UnderlayOptions{})
	m.Expect(err).To(MatchError(And(ContainSubstring("default route"), ContainSubstring("no address"))))
	m.nic("eth0", 1500, "", "203.0.113.7/24", "fe80::7/64")
	m.nic("cad0123456789", 1400, "cadastre:pod/x", "10.1.5.1/32")
	_, err = m.underlay(UnderlayOptions{})
	m.Expect(err).To(MatchError(And(ContainSubstring("default route"), ContainSubstring("eth0 203.0.113.7"))))
	m.route("eth0", "203.0.113.1", 0)
	for _, c := range []struct {
		opt  UnderlayOptions
		want []string
	}{
		{nodeIPs("192.0.2.1", "10.1.5.1"), []string{"192.0.2.1 10.1.5.1", "cadastre.underlay.interface", "eth0 203.0.113.7"}},
		{UnderlayOptions{Interface: "eth9"}, []string{`"eth9"`, "cadastre.underlay.interface", "eth0 203.0.113.7"}},
		{UnderlayOptions{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}, []string{"10.0.0.0/8", "cadastre.underlay.cidrs", "eth0 203.0.113.7"}},
		{
			UnderlayOptions{Interface: "eth0", CIDRs: []netip.Prefix{netip.MustParsePrefix("fe80::/10")}},
			[]string{`"eth0"`, "fe80::/10", "cadastre.underlay.cidrs"},
		},
	} {
		_, err := m.underlay(c.opt)
		m.Expect(err).To(HaveOccurred())
		for _, part := range c.want {
			m.Expect(err.Error()).To(ContainSubstring(part))
		}
		m.Expect(err.Error()).NotTo(ContainSubstring("cad0123456789"))
	}
}

// The preferred default route counts, and its source address if it has one. An address on
// the loopback link, as hosts that speak a routing protocol have it, takes the MTU of the
// link that packets leave by.
func TestUnderlayOfDefaultRoutes(t *testing.T) {
	m := newMachine(t)
	m.nic("eth0", 1500, "", "203.0.113.7/24")
	m.nic("eth1", 1300, "", "10.200.0.7/24", "10.200.0.8/24")
	m.route("eth0", "203.0.113.1", 200)
	m.route("eth1", "10.200.0.1", 100)
	m.Expect(m.underlay(UnderlayOptions{})).To(Equal("[10.200.0.7] eth1 1300"))
	m.do(func() error {
		l, err := netlink.LinkByName("eth1")
		if err != nil {
			return err
		}
		gateway, source := netip.MustParseAddr("10.200.0.1").AsSlice(), netip.MustParseAddr("10.200.0.8").AsSlice()
		return netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: gateway, Src: source, Priority: 50})
	})
	m.Expect(m.underlay(UnderlayOptions{})).To(Equal("[10.200.0.8] eth1 1300"))
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	m.do(func() error { // neither leads packets to other nodes
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		gateway := netip.MustParseAddr("203.0.113.1").AsSlice()
		return errors.Join(
			netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: gateway, Priority: 1, Table: 100}),
			netlink.RouteAdd(&netlink.Route{Dst: all, Type: unix.RTN_UNREACHABLE, Priority: 2}),
		)
	})
	m.Expect(m.underlay(UnderlayOptions{})).To(Equal("[10.200.0.8] eth1 1300"))
	m.do(func() error { return address("lo", "198.51.100.7/32") })
	m.Expect(m.underlay(nodeIPs("198.51.100.7"))).To(Equal("[198.51.100.7] lo 1300"))
	m.do(func() error { // a route with two next hops
		first, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		second, err := netlink.LinkByName("eth1")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Dst: all, Priority: 10, MultiPath: []*netlink.NexthopInfo{
			{LinkIndex: first.Attrs().Index, Gw: netip.MustParseAddr("203.0.113.1").AsSlice()},
			{LinkIndex: second.Attrs().Index, Gw: netip.MustParseAddr("10.200.0.1").AsSlice()},
		}})
	})
	m.Expect(m.underlay(UnderlayOptions{})).To(Equal("[203.0.113.7] eth0 1500"))
}

// A namespace in which no link was ever up has no table of routes.
func TestANamespaceWithoutTablesHasNoUnderlay(t *testing.T) {
	m := newMachine(t)
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			_, err = ReadUnderlay(context.Background(), UnderlayOptions{})
		}
		failed <- err
	}()
	m.Expect(<-failed).To(MatchError(ContainSubstring("no default route whose link has an address")))
}

func TestUnderlayAfterTheEnd(t *testing.T) {
	m := newMachine(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := ReadUnderlay(ctx, UnderlayOptions{Namespace: m.ns.Path()})
	m.Expect(err).To(MatchError(context.Canceled))
	_, err = ReadUnderlay(context.Background(), UnderlayOptions{Namespace: "/nonexistent"})
	m.Expect(err).To(MatchError(ContainSubstring("/nonexistent")))
}
