// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
)

// cloudLab is a cloud in one network namespace: a bridge for each subnet, and a router, which
// is the gateway of all. Behind it is a machine of the outside.
//
//	subnet 0  10.77.0.0/24  fd77:0::/64   nodes: the first link of each
//	subnet 1  10.77.1.0/24  fd77:1::/64   uplink one of each node
//	subnet 2  10.77.2.0/24  fd77:2::/64   uplink two of each node
//	outside   198.51.100.2  fd98::2
type cloudLab struct {
	Gomega
	t       *testing.T
	cloud   *netlab.Namespace
	outside *netlab.Namespace
	nodes   []*cloudNode
	seen    *capture
}

// cloudNode is a node with three links, and a scheduler with all descriptors.
type cloudNode struct {
	*wireLab
	id   int
	sink *southbound.Scheduler
	stop func()
	// attentive: it notices announcements alone, and never compares all values
	attentive bool
	families  []byte            // of its kernel; nil: all
	log       *logbuffer.Buffer // nil: none
}

const outside4, outside6 = "198.51.100.2", "fd98::2"

func newCloudLab(t *testing.T, nodes int) *cloudLab {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	l := &cloudLab{Gomega: NewWithT(t), t: t, cloud: newNamespace(t), outside: newNamespace(t)}
	for s := range 3 {
		l.ip(l.cloud, fmt.Sprintf("link add br%d type bridge", s))
		l.ip(l.cloud, fmt.Sprintf("link set br%d up", s))
		l.ip(l.cloud, fmt.Sprintf("address add 10.77.%d.1/24 dev br%d", s, s))
		l.ip(l.cloud, fmt.Sprintf("address add fd77:%d::1/64 dev br%d nodad", s, s))
	}
	l.Expect(l.cloud.Do(func() error { return errors.Join(writeSetting(forwarding4, "1"), writeSetting(forwarding6, "1")) })).To(Succeed())
	l.join(l.cloud, "out", l.outside, "eth0")
	l.ip(l.cloud, "address add 198.51.100.1/24 dev out")
	l.ip(l.cloud, "address add fd98::1/64 dev out nodad")
	l.ip(l.outside, "address add 198.51.100.2/24 dev eth0")
	l.ip(l.outside, "address add fd98::2/64 dev eth0 nodad")
	l.ip(l.outside, "route add default via 198.51.100.1")
	l.ip(l.outside, "route add default via fd98::1")
	l.seen = newCapture(l)
	for id := 1; id <= nodes; id++ {
		l.nodes = append(l.nodes, l.node(id))
	}
	return l
}

// ip runs the command ip in a namespace.
func (l *cloudLab) ip(ns *netlab.Namespace, args string) {
	l.t.Helper()
	command(l.t, ns.Path(), append([]string{"ip"}, strings.Fields(args)...)...)
}

// join connects two namespaces.
func (l *cloudLab) join(a *netlab.Namespace, nameA string, b *netlab.Namespace, nameB string) {
	l.t.Helper()
	l.ip(a, fmt.Sprintf("link add %s type veth peer name %s netns %s", nameA, nameB, b.Path()))
	l.ip(a, "link set "+nameA+" up")
	l.ip(b, "link set "+nameB+" up")
}

// node adds a node whose links are ens0, ens1 and ens2.
func (l *cloudLab) node(id int) *cloudNode {
	l.t.Helper()
	n := &cloudNode{id: id, wireLab: &wireLab{Gomega: l.Gomega, t: l.t, host: newNamespace(l.t), made: 100 * id}}
	for s := range 3 {
		l.attach(n, s)
	}
	l.ip(n.host, "route add default via 10.77.0.1")
	l.ip(n.host, "route add default via fd77:0::1")
	n.start()
	l.t.Cleanup(func() { n.stop() })
	return n
}

// attach attaches the link of a node in subnet s, configured as an image of the cloud does.
func (l *cloudLab) attach(n *cloudNode, s int) {
	l.t.Helper()
	port, link := fmt.Sprintf("p%d%d", n.id, s), fmt.Sprintf("ens%d", s)
	l.join(l.cloud, port, n.host, link)
	l.ip(n.host, fmt.Sprintf("link set %s address %s", link, n.mac(s)))
	l.ip(l.cloud, fmt.Sprintf("link set %s master br%d", port, s))
	l.ip(n.host, fmt.Sprintf("address add 10.77.%d.%d/24 dev %s", s, 10+n.id, link))
	l.ip(n.host, fmt.Sprintf("address add fd77:%d::%x/64 dev %s nodad", s, 10+n.id, link))
	l.seen.follow(port)
}

// start starts a scheduler, as a process of the agent does. It compares all values five times
// a second, not each 20 seconds.
func (n *cloudNode) start() {
	n.t.Helper()
	after := func(d time.Duration) <-chan time.Time {
		if d == slowComparison && n.attentive {
			return nil
		}
		if d == slowComparison {
			d /= 100
		}
		return time.After(d)
	}
	node := Options{Namespace: n.host.Path(), After: after}.withDefaults()
	all, err := Descriptors(node)
	n.must(err)
	if n.families != nil { // the last two kinds are those of a kernel with fewer families
		links, addresses, err := newUplinks(node)
		n.must(err)
		n.Expect(links.families).To(Equal([]byte{unix.AF_INET, unix.AF_INET6}))
		links.families, addresses.families = n.families, n.families
		last := len(all) - 2
		n.must(all[last].Close())
		all = append(all[:last], links.kind().Descriptor(), addresses.kind().Descriptor())
	}
	opt := southbound.Options{}
	if n.log != nil {
		opt.Log = slog.New(slog.NewTextHandler(n.log, nil))
	}
	n.sink = southbound.New(opt, all...)
	n.stop = runUntil(n.t, n.sink)
}

func (n *cloudNode) mac(s int) string { return fmt.Sprintf("02:77:00:00:%02x:%02x", n.id, s) }

// uplink returns the uplink of a node in subnet s.
func (n *cloudNode) uplink(s int) *kv.Uplink {
	return &kv.Uplink{
		Interface: fmt.Sprintf("eni-%d-%d", n.id, s), Mac: n.mac(s), Table: kv.UplinkTables + uint32(s),
		Ranges: []*kv.SubnetRange{
			{Cidr: fmt.Sprintf("10.77.%d.0/24", s), Gateway: fmt.Sprintf("10.77.%d.1", s)},
			{Cidr: fmt.Sprintf("fd77:%d::/64", s), Gateway: fmt.Sprintf("fd77:%d::1", s)},
		},
		VpcCidrs: []string{"10.77.0.0/16", "fd77::/16"},
	}
}

func (n *cloudNode) uplinkKey(s int) string { return kv.SinkUplinkPrefix + n.uplink(s).Interface }

// cloudPod is a pod with addresses of an uplink.
type cloudPod struct {
	*labPod
	node   *cloudNode
	subnet int
}

// pod returns pod number k of a node, with addresses of subnet s.
func (n *cloudNode) pod(s, k int) *cloudPod {
	n.t.Helper()
	p := &cloudPod{labPod: n.podWith(n.namespace(), fmt.Sprintf("pod/k8s/c%d-%d-%d/eth0", n.id, s, k), k), node: n, subnet: s}
	p.ip = []netip.Addr{
		netip.MustParseAddr(fmt.Sprintf("10.77.%d.%d", s, 100*n.id+k)),
		netip.MustParseAddr(fmt.Sprintf("fd77:%d::%x", s, 0x1000*n.id+k)),
	}
	p.value.Addresses = []string{p.ip[0].String() + "/32", p.ip[1].String() + "/128"}
	return p
}

// values returns the values of pods.
func podValues(pods ...*cloudPod) (all []controller.Value) {
	for _, p := range pods {
		all = append(all, controller.Value{Key: p.key, Message: p.value})
		for _, a := range p.ip {
			all = append(all, controller.Value{Key: kv.SinkSourcePrefix + a.String(), Message: &kv.UplinkAddress{
				Address: a.String(), Interface: p.node.uplink(p.subnet).Interface, Table: p.node.uplink(p.subnet).Table,
			}})
		}
	}
	return all
}

// removed returns the removals of values.
func removed(all []controller.Value) (none []controller.Value) {
	for _, v := range all {
		none = append(none, controller.Value{Key: v.Key})
	}
	return none
}

// own returns the values of a node and its uplinks.
func (n *cloudNode) own(subnets ...int) []controller.Value {
	all := []controller.Value{
		{Key: kv.SinkNode, Message: &kv.NodeNetwork{Id: uint32(n.id)}},
		{Key: kv.SinkNetworkPrefix + "default", Message: &kv.Network{Name: "default", Subnets: []string{"10.77.0.0/16"}}},
	}
	for _, s := range subnets {
		all = append(all, controller.Value{Key: n.uplinkKey(s), Message: n.uplink(s)})
	}
	return all
}

// resync makes values the wanted ones.
func (n *cloudNode) resync(values ...controller.Value) error {
	return n.sink.Commit(n.t.Context(), controller.Transaction{Method: controller.FullResync, Values: values, Retry: retryOften()})
}

// update changes values, all or none.
func (n *cloudNode) update(values ...controller.Value) error {
	return n.sink.Commit(n.t.Context(), controller.Transaction{Method: controller.Update, Values: values, RevertOnFailure: true, Retry: retryOften()})
}

func retryOften() controller.Retry {
	return controller.Retry{Enabled: true, MaxAttempts: 3, Delay: 50 * time.Millisecond}
}

// differs returns the wanted values that the kernel does not show, and the others that it
// does.
func (n *cloudNode) differs(values []controller.Value) (keys []string) {
	n.t.Helper()
	have, err := n.sink.Dump(n.t.Context())
	n.must(err)
	for _, v := range values {
		if m := have[v.Key]; m == nil || !proto.Equal(m, v.Message) {
			keys = append(keys, fmt.Sprintf("%s: %v", v.Key, m))
		}
		delete(have, v.Key)
	}
	for key, m := range have {
		keys = append(keys, fmt.Sprintf("also %s: %v", key, m))
	}
	return keys
}

// complete waits until the kernel shows values and no others.
func (n *cloudNode) complete(values []controller.Value) {
	n.t.Helper()
	n.Eventually(func() []string { return n.differs(values) }, 40*time.Second, 50*time.Millisecond).Should(BeEmpty())
}

// capture notes which addresses the links of nodes have sent from, and to, as the cloud sees
// it at its ports.
type capture struct {
	lab *cloudLab

	mu   sync.Mutex
	sent map[string]map[netip.Addr]int // by port: number of packets by source
	got  map[string]map[netip.Addr]int // by port: number of packets by destination
}

func newCapture(l *cloudLab) *capture {
	return &capture{lab: l, sent: map[string]map[netip.Addr]int{}, got: map[string]map[netip.Addr]int{}}
}

func (c *capture) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.sent)
	clear(c.got)
}

// ports returns the ports that have seen an address as source or destination.
func (c *capture) ports(a netip.Addr) (sent, got []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for port, all := range c.sent {
		if all[a] > 0 {
			sent = append(sent, port)
		}
	}
	for port, all := range c.got {
		if all[a] > 0 {
			got = append(got, port)
		}
	}
	slices.Sort(sent)
	slices.Sort(got)
	return sent, got
}

// follow captures the packets of a port until it is removed, or the test ends.
func (c *capture) follow(port string) {
	l := c.lab
	var fd int
	l.Expect(l.cloud.Do(func() error {
		link, err := net.InterfaceByName(port)
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20000}),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}),
		)
	})).To(Succeed())
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		packet := make([]byte, 1<<16)
		for {
			select {
			case <-ended:
				return
			default:
			}
			n, from, err := unix.Recvfrom(fd, packet, 0)
			if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil { // the port is gone
				return
			}
			if link, ok := from.(*unix.SockaddrLinklayer); ok {
				c.note(port, packet[:n], link.Pkttype == unix.PACKET_OUTGOING)
			}
		}
	}()
	l.t.Cleanup(func() {
		close(ended)
		<-done
		_ = unix.Close(fd)
	})
}

// note notes an IP packet. Packets that a bridge floods do not count as arrived: their
// destination is a group.
func (c *capture) note(port string, b []byte, toNode bool) {
	var source, destination netip.Addr
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		source, destination = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	case len(b) >= 40 && b[0]>>4 == 6:
		source, destination = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	default:
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all, a := c.sent, source
	if toNode {
		all, a = c.got, destination
	}
	if all[port] == nil {
		all[port] = map[netip.Addr]int{}
	}
	all[port][a]++
}

// onlyPort expects that the packets from and to a pod passed the port of its uplink alone.
func (l *cloudLab) onlyPort(p *cloudPod) {
	l.t.Helper()
	port := fmt.Sprintf("p%d%d", p.node.id, p.subnet)
	for _, a := range p.ip {
		l.Eventually(func() [][]string { // the capture may be behind the packets
			sent, got := l.seen.ports(a)
			return [][]string{sent, got}
		}).Should(Equal([][]string{{port}, {port}}), "ports with packets from and to %s", a)
	}
}

// runUntil runs a scheduler until the returned function is called, which closes it.
func runUntil(t testing.TB, s *southbound.Scheduler) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	var once sync.Once
	return func() {
		once.Do(func() {
			cancel()
			if err := errors.Join(<-ended, s.Close()); err != nil {
				t.Errorf("end of a scheduler: %v", err)
			}
		})
	}
}
