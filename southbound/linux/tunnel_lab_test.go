// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

const (
	labMTU = 1400
	labVNI = 10
	// labPodLink is the node's end of the pod's wire.
	labPodLink = "cad0123456789ab"
)

// tunnelLab has nodes that a router separates: no two share a link.
type tunnelLab struct {
	t      testing.TB
	router *netlab.Namespace
	nodes  []*labNode
}

// labNode is one node with one pod, wired by hand.
type labNode struct {
	lab *tunnelLab
	id  int
	net *netlab.Namespace
	pod *netlab.Namespace
}

func newNamespace(t testing.TB) *netlab.Namespace {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	n, err := netlab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func newTunnelLab(t testing.TB, count int) *tunnelLab {
	t.Helper()
	lab := &tunnelLab{t: t, router: newNamespace(t)}
	lab.must(lab.router.Do(forwardAll))
	for id := 1; id <= count; id++ {
		n := &labNode{lab: lab, id: id, net: newNamespace(t), pod: newNamespace(t)}
		lab.nodes = append(lab.nodes, n)
		lab.must(n.net.Do(forwardAll))
		lab.connect(lab.router, fmt.Sprintf("to-%d", id), n.net, "uplink")
		for _, family := range []string{"10.99.%d.%d/24", "fd99:%d::%d/64"} {
			lab.address(lab.router, fmt.Sprintf("to-%d", id), fmt.Sprintf(family, id, 1))
			lab.address(n.net, "uplink", fmt.Sprintf(family, id, 2))
		}
		lab.route(n.net, "", fmt.Sprintf("10.99.%d.1", id), "")
		lab.route(n.net, "", fmt.Sprintf("fd99:%d::1", id), "")
		lab.connect(n.net, labPodLink, n.pod, "eth0")
		lab.must(n.pod.Do(func() error {
			eth0, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			return netlink.LinkSetMTU(eth0, labMTU)
		}))
		for _, family := range []string{"10.1.%d.%d/24", "fd01:%d::%d/64"} {
			lab.address(n.net, labPodLink, fmt.Sprintf(family, id, 1))
			lab.address(n.pod, "eth0", fmt.Sprintf(family, id, 2))
		}
		lab.route(n.pod, "", fmt.Sprintf("10.1.%d.1", id), "")
		lab.route(n.pod, "", fmt.Sprintf("fd01:%d::1", id), "")
	}
	return lab
}

// forwardAll turns forwarding on in the current namespace.
func forwardAll() error {
	return errors.Join(writeSetting("net.ipv4.ip_forward", "1"), writeSetting("net.ipv6.conf.all.forwarding", "1"))
}

func (l *tunnelLab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// connect makes a veth pair between two namespaces.
func (l *tunnelLab) connect(a *netlab.Namespace, nameA string, b *netlab.Namespace, nameB string) {
	l.t.Helper()
	l.must(a.Do(func() error {
		peer, err := os.Open(b.Path())
		if err != nil {
			return err
		}
		defer peer.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = nameA
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: nameB, PeerNamespace: netlink.NsFd(peer.Fd())}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return netlink.LinkSetUp(veth)
	}))
	l.must(b.Do(func() error {
		link, err := netlink.LinkByName(nameB)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}))
}

func (l *tunnelLab) address(n *netlab.Namespace, link, text string) {
	l.t.Helper()
	l.must(n.Do(func() error {
		found, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD
		return netlink.AddrAdd(found, addr)
	}))
}

// route adds a route, to everything if dst is "".
func (l *tunnelLab) route(n *netlab.Namespace, dst, gateway, link string) {
	l.t.Helper()
	l.must(n.Do(func() error {
		route := &netlink.Route{Gw: net.ParseIP(gateway)}
		if dst != "" {
			to, err := netlink.ParseIPNet(dst)
			if err != nil {
				return err
			}
			route.Dst = to
		}
		if link != "" {
			found, err := netlink.LinkByName(link)
			if err != nil {
				return err
			}
			route.LinkIndex = found.Attrs().Index
			if gateway != "" {
				route.Flags = int(netlink.FLAG_ONLINK)
			}
		}
		return netlink.RouteReplace(route)
	}))
}

// host returns access to the node's kernel.
func (n *labNode) host() *tunnelHost {
	n.lab.t.Helper()
	h, err := newTunnelHost(Options{Namespace: n.net.Path()})
	n.lab.must(err)
	n.lab.t.Cleanup(h.close)
	return h
}

func (n *labNode) underlay() []string {
	return []string{fmt.Sprintf("10.99.%d.2", n.id), fmt.Sprintf("fd99:%d::2", n.id)}
}

func (n *labNode) mac() string { return fmt.Sprintf("02:ca:da:00:00:%02x", n.id) }

// network returns the node's value.
func (n *labNode) network(transport kv.Transport) *kv.NodeNetwork {
	return &kv.NodeNetwork{
		Id:          uint32(n.id),
		PodSubnets:  n.subnets(),
		PodGateways: []string{fmt.Sprintf("10.1.%d.1", n.id), fmt.Sprintf("fd01:%d::1", n.id)},
		VxlanIps:    []string{fmt.Sprintf("192.168.30.%d/24", n.id), fmt.Sprintf("fd30::%d/64", n.id)},
		Transport:   transport,
		Underlay:    n.underlay(),
		Mtu:         labMTU,
		VxlanMac:    n.mac(),
		Vni:         labVNI,
	}
}

func (n *labNode) subnets() []string {
	return []string{fmt.Sprintf("10.1.%d.0/24", n.id), fmt.Sprintf("fd01:%d::/64", n.id)}
}

// tunnel returns the value with which other nodes reach the node.
func (n *labNode) tunnel(transport kv.Transport) *kv.NodeTunnel {
	return &kv.NodeTunnel{
		NodeId:    uint32(n.id),
		NodeName:  fmt.Sprintf("node-%d", n.id),
		Transport: transport,
		Underlay:  n.underlay(),
		VxlanIps:  []string{fmt.Sprintf("192.168.30.%d", n.id), fmt.Sprintf("fd30::%d", n.id)},
		Mac:       n.mac(),
		Subnets:   n.subnets(),
	}
}

func (n *labNode) tunnelKey() string { return fmt.Sprintf("%s%d", kv.SinkTunnelPrefix, n.id) }

// tunnelRoutes adds the routes to the pods of the other nodes, as the route descriptor does.
func (l *tunnelLab) tunnelRoutes(n *labNode, link string, viaVXLAN bool) {
	for _, other := range l.nodes {
		if other == n {
			continue
		}
		for i, dst := range other.subnets() {
			gateway := ""
			if viaVXLAN {
				gateway = other.tunnel(kv.Transport_VXLAN).GetVxlanIps()[i]
			}
			l.route(n.net, dst, gateway, link)
		}
	}
}

// echo sends an ICMP echo request of size bytes, with its headers, that must not be
// fragmented, and waits for the answer.
func echo(from *netlab.Namespace, to string, size int) error { return echoTimes(from, to, size, 50) }

// echoTimes sends at most times requests.
func echoTimes(from *netlab.Namespace, to string, size, times int) error {
	addr, err := netip.ParseAddr(to)
	if err != nil {
		return err
	}
	network, headers := "ip4:icmp", 28
	level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if addr.Is6() {
		network, headers = "ip6:ipv6-icmp", 48
		level, option, value = unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var inner error
		err := c.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), level, option, value) })
		return errors.Join(err, inner)
	}}
	var conn net.Conn
	err = from.Do(func() (err error) {
		conn, err = dialer.Dial(network, to)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	id := rand.IntN(1 << 16)
	packet := icmp.Message{Type: request, Body: &icmp.Echo{ID: id, Seq: 1, Data: make([]byte, size-headers)}}
	out, err := packet.Marshal(nil)
	if err != nil {
		return err
	}
	// a packet that meets the start of a tunnel may be lost: it is sent again
	for attempt := range times {
		if err = conn.SetDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			return err
		}
		if _, err = conn.Write(out); err != nil {
			return fmt.Errorf("echo to %s with %d bytes: %w", to, size, err)
		}
		if err = answered(conn, reply, id, size-headers); err == nil {
			return nil
		}
		err = fmt.Errorf("echo to %s with %d bytes: no answer to attempt %d: %w", to, size, attempt, err)
	}
	return err
}

// answered reads from conn until an answer arrives.
func answered(conn net.Conn, reply icmp.Type, id, length int) error {
	for in := make([]byte, 1<<16); ; {
		n, err := conn.Read(in)
		if err != nil {
			return err
		}
		packet := in[:n]
		if reply == ipv4.ICMPTypeEchoReply && n > 20 {
			packet = packet[int(packet[0]&15)*4:] // Read leaves the header of IPv4
		}
		answer, err := icmp.ParseMessage(reply.Protocol(), packet)
		if err != nil || answer.Type != reply {
			continue
		}
		if body, ok := answer.Body.(*icmp.Echo); ok && body.ID == id && len(body.Data) == length {
			return nil
		}
	}
}

// podAddresses returns the addresses of the node's pod.
func (n *labNode) podAddresses() []string {
	return []string{fmt.Sprintf("10.1.%d.2", n.id), fmt.Sprintf("fd01:%d::2", n.id)}
}

// expectReachable checks that pods reach each other, and that nodes reach pods of others.
func (l *tunnelLab) expectReachable(size int) {
	l.t.Helper()
	g := NewWithT(l.t)
	for _, from := range l.nodes {
		for _, to := range l.nodes {
			if from == to {
				continue
			}
			for _, addr := range to.podAddresses() {
				g.Expect(echo(from.pod, addr, size)).To(Succeed(), "pod of node %d", from.id)
				g.Expect(echo(from.net, addr, size)).To(Succeed(), "node %d", from.id)
			}
		}
	}
}

func value(key string, m *kv.NodeTunnel) controller.Value {
	return controller.Value{Key: key, Message: m}
}
