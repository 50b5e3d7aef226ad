// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
)

func TestMain(m *testing.M) {
	crashIfAsked()
	goleak.VerifyTestMain(m)
}

// routeOptions holds the options of a scheduler of routes.
type routeOptions struct {
	namespace string
	OnFailure func(key string, err error)
	Now       func() time.Time
}

// routeSink is a scheduler whose one descriptor makes routes.
type routeSink struct {
	*southbound.Scheduler
	routes *routes
}

func newRouteSink(opt routeOptions) (*routeSink, error) {
	d, err := newRoutes(Options{Namespace: opt.namespace})
	if err != nil {
		return nil, err
	}
	return scheduled(opt, d.kind(), d), nil
}

func scheduled(opt routeOptions, k southbound.Kind[routeWant], r *routes) *routeSink {
	return &routeSink{southbound.New(southbound.Options{OnFailure: opt.OnFailure, Now: opt.Now}, k.Descriptor()), r}
}

// node is a network namespace with eth0, which is 192.168.16.5/24 and
// fd16::5/64, and a sink.
type node struct {
	Gomega
	t    testing.TB
	ns   *netlab.Namespace
	sink *routeSink
}

// newNode skips where namespaces cannot be made.
func newNode(t testing.TB, opt routeOptions) *node {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	n := &node{Gomega: NewWithT(t), t: t}
	var err error
	n.ns, err = netlab.New()
	n.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { n.Expect(n.ns.Close()).To(Succeed()) })
	n.inside(func() error {
		if err := wire("eth0", "peer0"); err != nil {
			return err
		}
		return address("eth0", "192.168.16.5/24", "fd16::5/64")
	})
	n.sink = n.open(opt)
	return n
}

// open makes another sink in the namespace.
func (n *node) open(opt routeOptions) *routeSink {
	n.t.Helper()
	opt.namespace = n.ns.Path()
	s, err := newRouteSink(opt)
	n.Expect(err).NotTo(HaveOccurred())
	n.t.Cleanup(func() { _ = s.Close() })
	return s
}

// inside runs f in the namespace.
func (n *node) inside(f func() error) {
	n.t.Helper()
	n.Expect(n.ns.Do(f)).To(Succeed())
}

// wire makes a pair of interfaces that are up.
func wire(name, peer string) error {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer}); err != nil {
		return err
	}
	for _, s := range []string{name, peer} {
		link, err := netlink.LinkByName(s)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
	}
	return nil
}

// address adds addresses that are good at once.
func address(name string, addresses ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, s := range addresses {
		a, err := netlink.ParseAddr(s)
		if err != nil {
			return err
		}
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			return err
		}
	}
	return nil
}

// by is a route of some protocol; gateway "" is unreachable.
func by(protocol int, dst, gateway string, metric int) *netlink.Route {
	_, to, err := net.ParseCIDR(dst)
	if err != nil {
		panic(err)
	}
	r := &netlink.Route{Dst: to, Gw: net.ParseIP(gateway), Protocol: netlink.RouteProtocol(protocol), Priority: metric}
	if gateway == "" {
		r.Type = unix.RTN_UNREACHABLE
	}
	return r
}

// routesOf are all routes of a table but the kernel's own, as describe writes them.
func (n *node) routesOf(table int) []string {
	n.t.Helper()
	all := []string{}
	n.inside(func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: table}, netlink.RT_FILTER_TABLE)
			if err != nil {
				return err
			}
			for _, r := range routes {
				if r.Protocol != unix.RTPROT_KERNEL {
					all = append(all, describeRoute(r))
				}
			}
		}
		return nil
	})
	slices.Sort(all)
	return all
}

// routes are those of the main table, without interfaces and the usual metric.
func (n *node) routes() []string {
	n.t.Helper()
	all := n.routesOf(unix.RT_TABLE_MAIN)
	for i, s := range all {
		all[i] = plain(s)
	}
	return all
}

func plain(s string) string {
	words := strings.Fields(s)
	for i := 0; i+1 < len(words); {
		if words[i] == "interface" || words[i] == "metric" && words[i+1] == "1024" {
			words = slices.Delete(words, i, i+2)
		} else {
			i++
		}
	}
	return strings.Join(words, " ")
}

// to is a value: a route to dst.
func to(dst, gateway string) controller.Value {
	name := strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(dst)
	return controller.Value{Key: kv.SinkRoutePrefix + dst, Message: &kv.NodeRoute{Dst: dst, Gateway: gateway, NodeId: 7, NodeName: name}}
}

// no is a value: nothing to dst.
func no(dst string) controller.Value { return controller.Value{Key: kv.SinkRoutePrefix + dst} }

func update(values ...controller.Value) controller.Transaction {
	return controller.Transaction{Method: controller.Update, Values: values}
}

func reverting(values ...controller.Value) controller.Transaction {
	txn := update(values...)
	txn.RevertOnFailure = true
	return txn
}

func resync(values ...controller.Value) controller.Transaction {
	return controller.Transaction{Method: controller.FullResync, Values: values}
}

func commit(s *routeSink, txn controller.Transaction) error {
	return s.Commit(context.Background(), txn)
}

func (n *node) commit(txn controller.Transaction) error { return commit(n.sink, txn) }

// failedKeys are the keys of ValueErrors, in order.
func failedKeys(err error) []string {
	errs, _ := err.(controller.ValueErrors) //nolint:errorlint // the error itself must be of that type
	return slices.Sorted(maps.Keys(errs))
}

// dump is the routes of Dump as "dst gateway name", and all other keys.
func dump(s *routeSink) []string {
	values, err := s.Dump(context.Background())
	Expect := NewGomega(func(message string, _ ...int) { panic(message) }).Expect
	Expect(err).NotTo(HaveOccurred())
	all := []string{}
	for key, m := range values {
		if r, ok := m.(*kv.NodeRoute); ok {
			Expect(key).To(Equal(kv.SinkRouteKey(r.Dst, r.Table)))
			key = fmt.Sprintf("%s %s %s", r.Dst, r.Gateway, r.NodeName)
		}
		all = append(all, strings.TrimSpace(key))
	}
	slices.Sort(all)
	return all
}

// describeRoute returns a route as ip route shows it.
func describeRoute(r netlink.Route) string {
	var s strings.Builder
	switch r.Type {
	case unix.RTN_UNREACHABLE:
		s.WriteString("unreachable ")
	case unix.RTN_BLACKHOLE:
		s.WriteString("blackhole ")
	case unix.RTN_PROHIBIT:
		s.WriteString("prohibit ")
	}
	s.WriteString(r.Dst.String())
	if r.Gw != nil {
		fmt.Fprintf(&s, " via %s", r.Gw)
	}
	if r.Via != nil {
		fmt.Fprintf(&s, " via %s", r.Via)
	}
	for _, hop := range r.MultiPath {
		fmt.Fprintf(&s, " nexthop %s interface %d", hop.Gw, hop.LinkIndex)
	}
	if r.LinkIndex != 0 {
		fmt.Fprintf(&s, " interface %d", r.LinkIndex)
	}
	fmt.Fprintf(&s, " proto %s", r.Protocol)
	if r.Priority != 0 {
		fmt.Fprintf(&s, " metric %d", r.Priority)
	}
	if r.Table != unix.RT_TABLE_MAIN {
		fmt.Fprintf(&s, " table %d", r.Table)
	}
	return s.String()
}

// tampered returns the kind of routes. The function around is called instead of each call that
// makes or removes a value, and may call it.
func (d *routes) tampered(around func(operation, key string, call func() error) error) southbound.Kind[routeWant] {
	k := d.kind()
	k.Create = func(ctx context.Context, key string, want routeWant) error {
		return around("create", key, func() error { return d.create(ctx, key, want) })
	}
	k.Update = func(ctx context.Context, key string, _ southbound.Made[routeWant], want routeWant) error {
		return around("update", key, func() error { return d.create(ctx, key, want) })
	}
	k.Delete = func(ctx context.Context, key string, was southbound.Made[routeWant]) error {
		return around("delete", key, func() error { return d.remove(ctx, key, was) })
	}
	return k
}

// tamper makes another sink in the namespace, whose calls go through around.
func (n *node) tamper(opt routeOptions, around func(operation, key string, call func() error) error) *routeSink {
	n.t.Helper()
	d, err := newRoutes(Options{Namespace: n.ns.Path()})
	n.Expect(err).NotTo(HaveOccurred())
	s := scheduled(opt, d.tampered(around), d)
	n.t.Cleanup(func() { _ = s.Close() })
	return s
}

// deafen gives a sink a socket whose kernel knows none of its requests, until hear is called.
func (n *node) deafen(s *routeSink) (hear func()) {
	n.t.Helper()
	deaf, err := rtnl.Dial(unix.NETLINK_SOCK_DIAG)
	n.Expect(err).NotTo(HaveOccurred())
	real := s.routes.host
	s.routes.host = deaf
	hear = sync.OnceFunc(func() {
		s.routes.host = real
		n.Expect(deaf.Close()).To(Succeed())
	})
	n.t.Cleanup(hear)
	return hear
}
