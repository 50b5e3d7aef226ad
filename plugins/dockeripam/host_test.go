// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package dockeripam_test

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/ipam/ipamapi"
	"github.com/cadastre/cadastre/plugins/dockeripam"
)

// route adds a route by way of a link.
func route(link netlink.Link, dst, via string) error {
	r := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: net.ParseIP(via)}
	if dst != "" {
		_, n, err := net.ParseCIDR(dst)
		if err != nil {
			return err
		}
		r.Dst = n
	}
	return netlink.RouteAdd(r)
}

func TestNetworksOfTheHost(t *testing.T) {
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	g := NewWithT(t)
	ns, err := netlab.New()
	g.Expect(err).NotTo(HaveOccurred())
	defer ns.Close()
	host := dockeripam.Host{Log: slog.New(slog.DiscardHandler), Own: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")} }}
	var found []netip.Prefix
	g.Expect(ns.Do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "docker0"}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return err
		}
		for _, text := range []string{"172.17.0.1/16", "fd00:17::1/64"} {
			a, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(bridge, a); err != nil {
				return err
			}
		}
		if err := netlink.LinkSetUp(bridge); err != nil {
			return err
		}
		for dst, via := range map[string]string{"": "172.17.0.9", "10.8.0.0/24": "172.17.0.9", "192.0.2.7/32": "172.17.0.9", "fd00:8::/48": "fd00:17::9", "224.0.0.0/4": "172.17.0.9"} {
			if err := route(bridge, dst, via); err != nil {
				return err
			}
		}
		found = host.Networks()
		return nil
	})).To(Succeed())
	var texts []string
	for _, p := range found {
		texts = append(texts, p.String())
	}
	g.Expect(texts).To(ContainElements("10.1.0.0/16", "172.17.0.0/16", "10.8.0.0/24", "192.0.2.7/32", "fd00:17::/64", "fd00:8::/48"))
	for _, p := range found {
		g.Expect(p.Bits()).To(BeNumerically(">", 0), "a default route leads everywhere")
		g.Expect(p.Addr().IsLinkLocalUnicast()).To(BeFalse())
		g.Expect(p.Addr().IsMulticast()).To(BeFalse())
	}
}

// No pool overlaps a network of the host, unless the request allows it.
func TestPoolsAvoidTheHostsNetworks(t *testing.T) {
	n := newNode(t)
	n.host = networks{netip.MustParsePrefix("172.17.0.0/16"), netip.MustParsePrefix("10.8.0.0/24")}
	e := n.begin()
	n.Expect(e.pool(n, "")).To(Equal("LocalDefault/172.18.0.0/16"))
	_, err := e.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault", Pool: "10.8.0.0/16"})
	n.Expect(err).To(MatchError(And(ContainSubstring(ipamapi.ErrPoolOverlap.Error()), ContainSubstring("10.8.0.0/24"))), "it is said with what")
	p, err := e.RequestPool(ipamapi.PoolRequest{AddressSpace: "LocalDefault", Pool: "10.8.0.0/16", Options: map[string]string{ipamapi.OverlapOption: "true"}})
	n.Expect(err).NotTo(HaveOccurred())
	n.Expect(p.Pool.String()).To(Equal("10.8.0.0/16"))
}
