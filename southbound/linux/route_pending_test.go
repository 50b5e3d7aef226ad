// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
)

// trap receives what leaves a node for the pods of another one by the default route: the
// router claims the addresses of these pods.
type trap struct {
	from    *labNode
	pods    []string
	conns   []net.PacketConn // of the router, then of the node
	caught  chan string
	removed chan netlink.RouteUpdate
	end     chan struct{}
}

const trapPort = 9999

func newTrap(from *labNode, pods []string) *trap {
	l := from.lab
	l.t.Helper()
	tr := &trap{
		from:    from,
		pods:    pods,
		caught:  make(chan string, 1000),
		removed: make(chan netlink.RouteUpdate, 1000),
		end:     make(chan struct{}),
	}
	listen := func(n *netlab.Namespace, network, address string) {
		l.must(n.Do(func() error {
			conn, err := net.ListenPacket(network, address)
			tr.conns = append(tr.conns, conn)
			return err
		}))
	}
	var readers sync.WaitGroup
	for _, pod := range pods {
		bits := 32
		if strings.Contains(pod, ":") {
			bits = 128
		}
		l.address(l.router, "lo", fmt.Sprintf("%s/%d", pod, bits))
		listen(l.router, "udp", net.JoinHostPort(pod, fmt.Sprint(trapPort)))
	}
	for _, conn := range tr.conns {
		readers.Go(func() {
			for in := make([]byte, 100); ; {
				n, _, err := conn.ReadFrom(in)
				if err != nil {
					return
				}
				tr.caught <- string(in[:n])
			}
		})
	}
	listen(from.net, "udp", "")
	l.must(from.net.Do(func() error { return netlink.RouteSubscribe(tr.removed, tr.end) }))
	l.t.Cleanup(func() {
		for _, conn := range tr.conns {
			_ = conn.Close()
		}
		readers.Wait()
		close(tr.end)
		for range tr.removed { // until the subscription has ended
		}
	})
	return tr
}

// send sends one packet to each pod.
func (tr *trap) send(text string) {
	conn := tr.conns[len(tr.conns)-1]
	for _, pod := range tr.pods {
		// it fails if there is no way
		_, _ = conn.WriteTo([]byte(text+" to "+pod), &net.UDPAddr{IP: net.ParseIP(pod), Port: trapPort})
	}
}

// expectNoGap checks that each subnet had a route all the time since the first one, until
// one to the destination last is announced.
func (tr *trap) expectNoGap(subnets []string, last string) {
	tr.from.lab.t.Helper()
	g, have := NewWithT(tr.from.lab.t), map[string]int{}
	for u := range tr.removed {
		if u.Dst.String() == last {
			break
		}
		if !slices.Contains(subnets, u.Dst.String()) {
			continue
		}
		if u.Type == unix.RTM_NEWROUTE {
			have[u.Dst.String()]++
			continue
		}
		have[u.Dst.String()]--
		g.Expect(have[u.Dst.String()]).To(BeNumerically(">", 0), "%s was removed before another one was there", u.Route)
	}
	g.Expect(have).To(HaveLen(len(subnets)))
}

// While there is no tunnel to a node, packets to its pods do not leave this node, and
// between two routes there is no moment without one.
func TestPacketsOfPendingTunnelsDoNotLeaveByTheDefaultRoute(t *testing.T) {
	t.Parallel()
	for _, transport := range []kv.Transport{kv.Transport_VXLAN, kv.Transport_WIREGUARD} {
		t.Run(transport.String(), func(t *testing.T) {
			g, lab := NewWithT(t), newTunnelLab(t, 2)
			pods := lab.nodes[1].podAddresses()
			tr := newTrap(lab.nodes[0], pods)
			n, stop := startOverlay(t, lab.nodes[0])
			other, _ := startOverlay(t, lab.nodes[1])
			other.resync(transport)
			commit := func(method controller.EventMethodType, values ...controller.Value) {
				t.Helper()
				lab.must(n.sink.Commit(t.Context(), controller.Transaction{Method: method, Values: values}))
				tr.send("a secret")
			}
			var tunnel, network controller.Value
			rest := n.values(transport)
			for i, v := range rest {
				switch {
				case strings.HasPrefix(v.Key, kv.SinkTunnelPrefix):
					tunnel = v
					rest[i].Message = nil
				case v.Key == kv.SinkNode:
					network = v
				}
			}
			gone := controller.Value{Key: tunnel.Key}
			larger := proto.CloneOf(network.Message.(*kv.NodeNetwork))
			larger.Vni++

			commit(controller.FullResync, rest...) // the other node has not published its addresses
			for _, pod := range pods {
				g.Expect(echoTimes(n.pod, pod, 100, 2)).NotTo(Succeed())
			}
			g.Expect(n.sink.Status().Pending).To(HaveLen(2))
			for range 3 {
				commit(controller.Update, tunnel)
				commit(controller.Update, gone)
			}
			commit(controller.Update, tunnel)
			commit(controller.Update, controller.Value{Key: kv.SinkNode, Message: larger})
			commit(controller.Update, network)
			commit(controller.FullResync, rest...)
			commit(controller.Update, tunnel)
			g.Expect(n.sink.Status().Pending).To(BeEmpty())
			for _, pod := range pods {
				g.Expect(echo(n.pod, pod, labMTU)).To(Succeed())
			}
			commit(controller.Update, gone)
			const last = "203.0.113.0/24"
			lab.route(n.net, last, "10.99.1.1", "")
			tr.expectNoGap(lab.nodes[1].subnets(), last)
			g.Expect(n.sink.Status().Pending).To(HaveLen(2))

			stop()
			lab.must(n.net.Do(func() error { // without any of our routes
				for _, dst := range lab.nodes[1].subnets() {
					if err := netlink.RouteDel(by(ownProtocol, dst, "", 0)); err != nil {
						return err
					}
				}
				return nil
			}))
			tr.send("the trap works")
			for range pods {
				g.Eventually(tr.caught, "1m").Should(Receive(HavePrefix("the trap works to ")))
			}
			g.Expect(tr.caught).To(BeEmpty())
		})
	}
}

// What stands in for a route never hides one of another program.
func TestAForeignRouteIsNotReplacedWhileATunnelIsPending(t *testing.T) {
	n := newNode(t, routeOptions{})
	foreign := by(4, "10.1.7.0/24", "192.168.16.9", 50)
	n.inside(func() error { return netlink.RouteAdd(foreign) })
	before := n.routes()
	route := &kv.NodeRoute{Dst: "10.1.7.0/24", NodeId: 7, Gateway: "192.168.30.7", Transport: kv.Transport_VXLAN}
	err := n.commit(update(controller.Value{Key: "route/10.1.7.0/24", Message: route}))
	var failed controller.ValueErrors
	n.Expect(errors.As(err, &failed)).To(BeTrue())
	n.Expect(failed["route/10.1.7.0/24"]).To(MatchError(southbound.ErrForeign))
	n.Expect(n.routes()).To(Equal(before))
}
