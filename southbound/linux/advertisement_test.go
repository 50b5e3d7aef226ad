// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// routerAdvertisement returns an Ethernet frame by which a link-local address says that it
// is a router, for the prefix 2001:bad::/64.
func routerAdvertisement() []byte {
	source, all := netip.MustParseAddr("fe80::bad"), netip.MustParseAddr("ff02::1")
	mac := []byte{0x02, 0, 0, 0, 0x0b, 0xad}
	body := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}
	body = append(append(body, 1, 1), mac...)
	body = append(body, 3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0)
	body = append(body, netip.MustParseAddr("2001:bad::").AsSlice()...)
	sum := uint32(len(body)) + unix.IPPROTO_ICMPV6
	for _, part := range [][]byte{source.AsSlice(), all.AsSlice(), body} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(body[2:], ^uint16(sum))
	frame := append([]byte{0x33, 0x33, 0, 0, 0, 1}, mac...)
	frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(body)), unix.IPPROTO_ICMPV6, 255)
	frame = append(append(frame, source.AsSlice()...), all.AsSlice()...)
	return append(frame, body...)
}

// transmit sends a frame through a link of the namespace.
func transmit(ns *netlab.Namespace, name string, frame []byte) error {
	return ns.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index, Halen: 6})
	})
}

// advertised returns what the node took from router advertisements: default routes, and the
// addresses of a link.
func advertised(t *testing.T, ns *netlab.Namespace, name string) (found []string) {
	t.Helper()
	err := ns.Do(func() error {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V6)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if r.Protocol == unix.RTPROT_RA {
				found = append(found, r.String())
			}
		}
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V6)
		for _, a := range addresses {
			if netip.MustParsePrefix("2001:bad::/64").Contains(netip.MustParseAddr(a.IP.String())) {
				found = append(found, a.String())
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// setting writes a setting of a namespace.
func setting(t *testing.T, ns *netlab.Namespace, name, value string) {
	t.Helper()
	if err := ns.Do(func() error { return writeSetting(name, value) }); err != nil {
		t.Fatal(err)
	}
}

// A pod that advertises itself as a router gets no packet of the node. This holds on a node
// without IPv6 pods, whose kernel is a host and listens to routers. It also holds on a
// router that is told to listen all the same.
func TestAPodCannotBecomeTheRouterOfTheNode(t *testing.T) {
	for _, c := range []struct{ forwarding, accept string }{{"0", "1"}, {"1", "2"}} {
		t.Run("forwarding="+c.forwarding, func(t *testing.T) {
			l := newWireLab(t, Options{})
			setting(t, l.host, "net.ipv6.conf.all.forwarding", c.forwarding)
			setting(t, l.host, "net.ipv6.conf.default.accept_ra", c.accept)
			p := l.pod()
			attack := func() {
				l.must(transmit(p.Namespace, "eth0", routerAdvertisement()))
				_, err := l.exchange(p.Namespace, l.host, netip.MustParseAddr("10.1.5.1"), 1) // behind it on the wire
				l.must(err)
			}
			l.create(p)
			attack()
			l.Expect(advertised(t, l.host, p.value.Wire.HostIfName)).To(BeEmpty())

			setting(t, l.host, "net.ipv6.conf."+p.value.Wire.HostIfName+".accept_ra", c.accept)
			l.Expect(l.wires.Inspect(t.Context(), p.key, p.value)).To(MatchError(ContainSubstring("accept_ra is not 0")))
			l.Expect(l.retrieved(p)[p.key]).NotTo(Equal(done))
			l.must(l.wires.Update(t.Context(), p.key, p.value, p.value))
			l.complete(p)
			attack()
			l.Expect(advertised(t, l.host, p.value.Wire.HostIfName)).To(BeEmpty())
		})
	}
}

// Every sender that reaches the VXLAN port of a node can put frames on its VXLAN link, so
// that link obeys no router either.
func TestASenderOfVXLANPacketsCannotBecomeTheRouterOfTheNode(t *testing.T) {
	lab := newTunnelLab(t, 2)
	n := newVXLANNode(lab.nodes[0])
	setting(t, n.net, "net.ipv6.conf.default.accept_ra", "2")
	n.join()
	underlay := n.network(kv.Transport_VXLAN).GetUnderlay()[0]
	packet := append([]byte{8, 0, 0, 0, 0, 0, labVNI, 0}, routerAdvertisement()...)
	attack := func() {
		t.Helper()
		before := receivedBy(t, n.net)
		lab.must(lab.router.Do(func() error {
			conn, err := net.Dial("udp", net.JoinHostPort(underlay, strconv.Itoa(vxlanPort)))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write(packet)
			return err
		}))
		NewWithT(t).Eventually(func() uint64 { return receivedBy(t, n.net) }, answerTime).Should(BeNumerically(">", before))
	}
	attack()
	NewWithT(t).Expect(advertised(t, n.net, vxlanName)).To(BeEmpty())

	setting(t, n.net, "net.ipv6.conf."+vxlanName+".accept_ra", "2")
	value := n.network(kv.Transport_VXLAN)
	NewWithT(t).Expect(proto.Equal(n.retrieveNode(value)[0].Message, value)).To(BeFalse())
	lab.must(n.node.Update(t.Context(), kv.SinkNode, value, value))
	attack()
	NewWithT(t).Expect(advertised(t, n.net, vxlanName)).To(BeEmpty())
}

// receivedBy returns the number of frames that the VXLAN link has received.
func receivedBy(t *testing.T, ns *netlab.Namespace) (packets uint64) {
	t.Helper()
	err := ns.Do(func() error {
		link, err := netlink.LinkByName(vxlanName)
		if err == nil {
			packets = link.Attrs().Statistics.RxPackets
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return packets
}
