// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

const routed = `
ipamConfig:
  podSubnetCIDR: 10.1.0.0/16,fd00:1::/48
  podSubnetOneNodePrefixLen: 24
  vxlanCIDR: 192.168.30.0/24,fd00:4::/64
  vppHostSubnetCIDR: 172.30.0.0/16,fd00:2::/48
  nodeInterconnectCIDR: 192.168.16.0/24,fd00:3::/64
  serviceCIDR: 10.96.0.0/12,fd00:5::/108
cadastre:
  nodeID: 5
  dataplane: linux
  transport: hostgw
  masquerade: false
  coolDown: 1s` + withEtcd

// routesToB are the routes of node 5 to the pods of node 7.
var routesToB = []string{
	"route 10.1.7.0/24 via 192.168.16.7 on up0",
	"route fd00:1:0:7::/64 via fd00:3::7 on up0",
}

// TestRoutesToAnotherNode connects a pod with a pod of another node, and follows that node,
// the links of this one, and a restart that misses the end of the other node.
func TestRoutesToAnotherNode(t *testing.T) {
	l := newLab(t, routed)
	l.join()
	l.start()
	l.Consistently(l.routes, "200ms").Should(BeEmpty(), "the link is not made yet") // a route needs the link

	other := l.namespace()
	l.connect(other)
	l.Eventually(l.routes).Should(ConsistOf(routesToB))

	p := l.newPod("web-0")
	l.add(p)
	l.answers(p)
	for _, remote := range []string{"10.1.7.2", "fd00:1:0:7::2"} {
		l.Eventually(func() error { return l.ping(p.Namespace, netip.MustParseAddr(remote)) }).Should(Succeed(), remote)
	}

	foreign := "route 203.0.113.0/24 via 192.168.16.9 on up0"
	l.must(l.host.Do(func() error { return addRoute("203.0.113.0/24", "192.168.16.9") }))
	leased := "route 198.51.100.0/24 via 192.168.16.9 on up0"
	l.must(l.host.Do(func() error { return addLeasedRoute("198.51.100.0/24", "192.168.16.9") }))
	addresses := l.addresses()
	l.resync()
	l.Expect(l.routes()).To(ConsistOf(append([]string{foreign, leased}, routesToB...)))
	l.must(l.host.Do(func() error { return deleteRoute("10.1.7.0/24") }))
	l.resync()
	l.Expect(l.routes()).To(ConsistOf(append([]string{foreign, leased}, routesToB...)))
	l.answers(p)

	l.leave()
	l.Eventually(l.routes).Should(ConsistOf(foreign, leased))
	l.join()
	l.Eventually(l.routes).Should(HaveLen(2 + len(routesToB)))
	l.kill()
	l.leave()
	l.start()
	l.Eventually(l.routes).Should(ConsistOf(foreign, leased), "the routes of the former process")
	l.Expect(l.addresses()).To(ConsistOf(addresses))
	l.answers(p)
}

// TestRoutesFollowTheLink takes the node's link down, removes it, and makes it again.
func TestRoutesFollowTheLink(t *testing.T) {
	l := newLab(t, routed)
	l.connect(l.namespace())
	l.join()
	l.start()
	l.Eventually(l.routes).Should(ConsistOf(routesToB))

	change := func(do func(netlink.Link) error) {
		l.must(l.host.Do(func() error {
			link, err := netlink.LinkByName("up0")
			if err != nil {
				return err
			}
			return do(link)
		}))
	}
	change(netlink.LinkSetDown)
	l.Eventually(l.routes).Should(BeEmpty())
	l.must(l.host.Do(func() error {
		return configure(map[string][]string{"up0": {"fd00:3::5/64"}}, nil) // the kernel has removed it
	}))
	l.Eventually(l.routes).Should(ConsistOf(routesToB))

	change(netlink.LinkDel)
	l.Eventually(l.routes).Should(BeEmpty())
	p := l.newPod("web-0")
	l.add(p)
	l.answers(p)
	l.resync()
	l.connect(l.namespace())
	l.Eventually(l.routes).Should(ConsistOf(routesToB))
	l.answers(p)
}

// join writes the record of node 7.
func (l *lab) join() {
	l.record(&kv.NodeRecord{Generation: 1, IpAddresses: []string{"192.168.16.7/24", "fd00:3::7/64"}})
}

// leave releases the ID of node 7.
func (l *lab) leave() { l.record(&kv.NodeRecord{Generation: 1, Released: 1, Clean: true}) }

func (l *lab) record(r *kv.NodeRecord) {
	l.t.Helper()
	r.Id, r.Name, r.Instance = 7, "node-b", "11111111-1111-4111-8111-111111111111"
	l.put(kv.NodeRecordKey(r.Id), r)
}

// connect connects the node with another one by a link up0 at both ends. The other one has
// the first pod addresses of node 7 on its loopback link.
func (l *lab) connect(other *netlab.Namespace) {
	l.t.Helper()
	target, err := os.Open(other.Path())
	l.must(err)
	defer target.Close()
	l.must(l.host.Do(func() error {
		for _, name := range []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"} {
			if err := os.WriteFile(name, []byte("1"), 0); err != nil {
				return err
			}
		}
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: "up0"},
			PeerName:      "up0",
			PeerNamespace: netlink.NsFd(int(target.Fd())),
		})
	}))
	l.must(other.Do(func() error {
		return configure(map[string][]string{
			"up0": {"192.168.16.7/24", "fd00:3::7/64"},
			"lo":  {"10.1.7.2/32", "fd00:1:0:7::2/128"},
		}, map[string]string{"10.1.5.0/24": "192.168.16.5", "fd00:1:0:5::/64": "fd00:3::5"})
	}))
	l.must(l.host.Do(func() error {
		return configure(map[string][]string{"up0": {"192.168.16.5/24", "fd00:3::5/64"}}, nil)
	}))
}

func configure(addresses map[string][]string, routes map[string]string) error {
	for name, all := range addresses {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		for _, text := range all {
			a, err := netlink.ParseAddr(text)
			if err != nil {
				return err
			}
			a.Flags = 0x02 // IFA_F_NODAD
			if err := netlink.AddrAdd(link, a); err != nil {
				return err
			}
		}
	}
	for dst, gateway := range routes {
		if err := addRoute(dst, gateway); err != nil {
			return err
		}
	}
	return nil
}

func addRoute(dst, gateway string) error {
	_, prefix, err := net.ParseCIDR(dst)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{Dst: prefix, Gw: net.ParseIP(gateway)})
}

// addLeasedRoute adds a route as dhcpcd does on the second link of a machine.
func addLeasedRoute(dst, gateway string) error {
	_, prefix, err := net.ParseCIDR(dst)
	if err != nil {
		return err
	}
	const dhcp = 16
	return netlink.RouteAdd(&netlink.Route{Dst: prefix, Gw: net.ParseIP(gateway), Protocol: dhcp, Priority: 202})
}

func deleteRoute(dst string) error {
	_, prefix, err := net.ParseCIDR(dst)
	if err != nil {
		return err
	}
	return netlink.RouteDel(&netlink.Route{Dst: prefix})
}

// routes returns the routes of the node through a gateway.
func (l *lab) routes() (all []string) {
	for _, line := range l.snapshot(l.host) {
		if len(line) > 5 && line[:5] == "route" && !strings.Contains(line, "via <nil>") {
			all = append(all, line)
		}
	}
	return all
}

// addresses returns the addresses of the node's own link.
func (l *lab) addresses() (all []string) {
	for _, line := range l.snapshot(l.host) {
		if strings.Contains(line, "address ") && strings.Contains(line, " on up0") {
			all = append(all, line)
		}
	}
	return all
}
