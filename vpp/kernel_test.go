// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp_test

import (
	"context"
	"net"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

// The kernel's part of the value of the node may be changed by other programs too.
func TestDamageInTheKernelIsRepaired(t *testing.T) {
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	on := func(name string, f func(netlink.Link) error) func() error {
		return func() error {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			return f(link)
		}
	}
	mac := net.HardwareAddr{0x02, 0, 0, 0, 0, 9}
	other := func(link netlink.Link) *netlink.Neigh {
		return &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: net.IPv4(172, 30, 5, 77), HardwareAddr: mac}
	}
	address := func(link netlink.Link) (netlink.Addr, error) {
		all, err := netlink.AddrList(link, netlink.FAMILY_V4)
		if err == nil && len(all) == 0 {
			err = net.ErrClosed
		}
		if err != nil {
			return netlink.Addr{}, err
		}
		return all[0], nil
	}
	for name, damage := range map[string]func() error{
		"the MAC address of the kernel's end": on("vpp1", func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac) }),
		"the MAC address of VPP's end":        on("vpp2", func(l netlink.Link) error { return netlink.LinkSetHardwareAddr(l, mac) }),
		"the MTU":                             on("vpp2", func(l netlink.Link) error { return netlink.LinkSetMTU(l, 1300) }),
		"a link that is down":                 on("vpp1", netlink.LinkSetDown),
		"an alias":                            on("vpp2", func(l netlink.Link) error { return netlink.LinkSetAlias(l, "") }),
		"an address that is gone": on("vpp1", func(l netlink.Link) error {
			a, err := address(l)
			if err != nil {
				return err
			}
			return netlink.AddrDel(l, &a)
		}),
		"another address": on("vpp1", func(l netlink.Link) error {
			a, err := netlink.ParseAddr("172.30.5.88/24")
			if err != nil {
				return err
			}
			return netlink.AddrAdd(l, a)
		}),
		"another neighbour": on("vpp1", func(l netlink.Link) error { return netlink.NeighAdd(other(l)) }),
		"a neighbour that is gone": on("vpp1", func(l netlink.Link) error {
			all, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_V4)
			if err != nil {
				return err
			}
			return netlink.NeighDel(&all[0])
		}),
		"an end of another pair": func() error {
			link, err := netlink.LinkByName("vpp2")
			if err != nil {
				return err
			}
			alias := link.Attrs().Alias
			for _, name := range []string{"vpp1", "vpp2"} {
				if link, err := netlink.LinkByName(name); err == nil {
					if err := netlink.LinkDel(link); err != nil {
						return err
					}
				}
			}
			for near, far := range map[string]string{"vpp1": "x1", "vpp2": "x2"} {
				pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: near}, PeerName: far}
				if err := netlink.LinkAdd(pair); err != nil {
					return err
				}
				if err := netlink.LinkSetAlias(pair, alias); err != nil {
					return err
				}
			}
			return nil
		},
		"a network card that takes its own packets alone": on("eth1", netlink.SetPromiscOff),
	} {
		l.must(l.host.Do(damage))
		node, err := l.descriptors[0].Retrieve(context.Background(), []controller.Value{{Key: kv.SinkNode, Message: w[kv.SinkNode]}})
		l.must(err)
		l.Expect(len(node) == 1 && proto.Equal(node[0].Message, w[kv.SinkNode])).To(BeFalse(), "%s is not noticed", name)
		l.must(l.resync(w))
		l.inspect(w)
	}
}

// A route of the kernel to pods leads to VPP, and to no other gateway.
func TestARouteOfTheKernelWithAnotherGatewayIsRepaired(t *testing.T) {
	l := newLab(t)
	w := l.values()
	l.must(l.resync(w))
	change := func(routes []netlink.Route) error {
		for _, r := range routes {
			if r.Gw == nil {
				continue
			}
			r.Gw, r.Flags = net.IPv4(172, 30, 5, 99), int(netlink.FLAG_ONLINK)
			return netlink.RouteReplace(&r)
		}
		return net.ErrClosed
	}
	l.must(l.host.Do(func() error {
		link, err := netlink.LinkByName("vpp1")
		if err != nil {
			return err
		}
		routes, err := netlink.RouteList(link, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		return change(routes)
	}))
	routes := func() string {
		text, err := l.host.Show("-4 route show dev vpp1")
		l.must(err)
		return text
	}
	l.Expect(routes()).To(ContainSubstring("172.30.5.99"))
	l.must(l.resync(w))
	l.Expect(routes()).NotTo(ContainSubstring("172.30.5.99"))
	l.inspect(w)
}
