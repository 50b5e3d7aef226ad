// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/southbound"
)

func TestInvalidValues(t *testing.T) {
	n, calls := newNode(t, routeOptions{}), 0
	g, s := n, n.tamper(routeOptions{}, func(_, _ string, call func() error) error {
		calls++
		return call()
	})
	g.Expect(commit(s, update(to("10.1.7.0/24", "192.168.16.7")))).To(Succeed())
	for _, x := range []struct {
		value controller.Value
		why   string
	}{
		{to("10.1.7.1/24", "192.168.16.7"), "destination 10.1.7.1/24 is not written 10.1.7.0/24"},
		{to("fd01:0::/64", "fd16::7"), "destination fd01:0::/64 is not written fd01::/64"},
		{to("FD01::/64", "fd16::7"), "destination FD01::/64 is not written fd01::/64"},
		{to("::ffff:10.1.7.0/120", "192.168.16.7"), "is an IPv4 one within IPv6"},
		{to("10.1.7.0", "192.168.16.7"), "destination: netip.ParsePrefix"},
		{to("", "192.168.16.7"), "destination: netip.ParsePrefix"},
		{to("0.0.0.0/0", "192.168.16.7"), "is the default route"},
		{to("::/0", ""), "is the default route"},
		{to("224.0.0.0/8", "192.168.16.7"), "is multicast"},
		{to("10.1.7.0/24", "192.168.16"), "gateway: ParseAddr"},
		{to("10.1.7.0/24", "192.168.16.7/24"), "gateway: ParseAddr"},
		{to("10.1.7.0/24", "fd16::7"), "gateway fd16::7 is not of the family of destination 10.1.7.0/24"},
		{to("10.1.7.0/24", "::ffff:192.168.16.7"), "is not of the family"},
		{to("fd01::/64", "192.168.16.7"), "is not of the family"},
		{to("fd01::/64", "::ffff:192.168.16.7"), "is not of the family"},
		{to("fd01::/64", "fe80::7"), "is good on one interface only"},
		{to("fd01::/64", "fd16::7%eth0"), "is good on one interface only"},
		{to("10.1.7.0/24", "0.0.0.0"), "is not an address of another node"},
		{to("10.1.7.0/24", "127.0.0.1"), "is not an address of another node"},
		{to("fd01::/64", "ff02::1"), "is not an address of another node"},
		{controller.Value{Key: "route/10.1.7.0/24", Message: &kv.NodeRoute{Dst: "10.1.8.0/24"}}, `its destination "10.1.8.0/24" is not that of its key`},
		{controller.Value{Key: "route/10.1.7.0/24", Message: (*kv.NodeRoute)(nil)}, `its destination "" is not that of its key`},
		{controller.Value{Key: "route/10.1.7.0/24", Message: &kv.PodNetwork{}}, "it is a cadastre"},
		{controller.Value{Key: kv.SinkNode, Message: &kv.PodNetwork{}}, "it is a cadastre"},
		{controller.Value{Key: kv.SinkPodPrefix + "a", Message: &kv.NodeNetwork{}}, "it is a cadastre"},
		{controller.Value{Key: "other", Message: &kv.NodeNetwork{}}, "the southbound has no such key"},
	} {
		good := to("10.1.9.0/24", "192.168.16.9")
		for _, txn := range []controller.Transaction{update(x.value, good), resync(x.value, good, to("10.1.7.0/24", "192.168.16.7"))} {
			if txn.Method != controller.Update && strings.HasPrefix(x.value.Key, "route/10.1.7.0/24") {
				txn.Values = txn.Values[:2]
			}
			err := commit(s, txn)
			g.Expect(failedKeys(err)).To(Equal([]string{x.value.Key}))
			g.Expect(err).To(MatchError(And(HavePrefix(x.value.Key+": invalid value "), ContainSubstring(x.why))))
			g.Expect(n.routes()).To(Equal([]string{"10.1.7.0/24 via 192.168.16.7 proto 202", "10.1.9.0/24 via 192.168.16.9 proto 202"}), x.why)
			g.Expect(dump(s)).To(Equal([]string{"10.1.7.0/24 192.168.16.7 10-1-7-0-24", "10.1.9.0/24 192.168.16.9 10-1-9-0-24"}), x.why)
			g.Expect(commit(s, update(no("10.1.9.0/24")))).To(Succeed())
		}
		calls = 0
		g.Expect(commit(s, reverting(good, x.value))).To(MatchError(ContainSubstring(x.why)))
		g.Expect(calls).To(BeZero(), "what can be known before is known before")
	}
}

func TestDump(t *testing.T) {
	n := newNode(t, routeOptions{})
	g, s := n, n.sink
	pod, node := &kv.PodNetwork{Name: "web"}, &kv.NodeNetwork{Id: 5}
	values := []controller.Value{
		{Key: kv.SinkNode, Message: node}, {Key: kv.SinkPodPrefix + "pods/4f1c/eth0", Message: pod},
		to("10.1.7.0/24", "192.168.16.7"), to("10.1.8.0/24", ""), to("fd01:7::/64", "FD16::0:7"),
	}
	g.Expect(commit(s, resync(values...))).To(Succeed())
	have, err := s.Dump(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(have).To(HaveLen(len(values)))
	for _, v := range values {
		g.Expect(proto.Equal(have[v.Key], v.Message)).To(BeTrue(), v.Key)
	}
	clear(have) // it is the caller's
	g.Expect(commit(s, update(controller.Value{Key: kv.SinkPodPrefix + "pods/4f1c/eth0"}))).To(Succeed())
	n.inside(func() error {
		return errors.Join(netlink.RouteDel(by(ownProtocol, "10.1.8.0/24", "", 0)), netlink.RouteAdd(by(ownProtocol, "10.1.9.0/24", "192.168.16.9", 0)),
			netlink.RouteAdd(by(ownProtocol, "10.1.10.0/24", "192.168.16.9", 7)), netlink.RouteAdd(by(unix.RTPROT_STATIC, "10.1.11.0/24", "192.168.16.9", 7)))
	})
	shown := dump(s)
	for i := range shown {
		shown[i] = plain(shown[i])
	}
	g.Expect(shown).To(Equal([]string{
		"10.1.10.0/24 10.1.10.0/24 via 192.168.16.9 proto 202 metric 7", "10.1.7.0/24 192.168.16.7 10-1-7-0-24", "10.1.9.0/24 192.168.16.9",
		"fd01:7::/64 FD16::0:7 fd01-7---64", "node",
	}), "what the kernel has, and what is remembered")
	g.Expect(commit(s, resync())).To(Succeed())
	g.Expect(dump(s)).To(BeEmpty())

	hear := n.deafen(s)
	_, err = s.Dump(t.Context())
	g.Expect(err).To(MatchError(unix.EINVAL))
	hear()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Dump(ctx)
	g.Expect(err).To(MatchError(context.Canceled))
	g.Expect(s.Close()).To(Succeed())
	g.Expect(s.Close()).To(Succeed())
	_, err = s.Dump(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("southbound was closed")))
	g.Expect(commit(s, update())).To(MatchError(ContainSubstring("southbound was closed")))
	g.Expect(s.Run(t.Context())).To(Succeed())
}

// TestPodsDoNotAskTheKernel is about the transactions of every ADD and DEL.
func TestPodsDoNotAskTheKernel(t *testing.T) {
	n := newNode(t, routeOptions{})
	hear := n.deafen(n.sink)
	n.Expect(n.commit(reverting(controller.Value{Key: kv.SinkPodPrefix + "a", Message: &kv.PodNetwork{}}))).To(Succeed())
	n.Expect(n.commit(update(controller.Value{Key: kv.SinkPodPrefix + "b"}))).To(Succeed())
	hear()
	n.Expect(dump(n.sink)).To(Equal([]string{"pod/a"}))
	n.Expect(n.commit(update(to("fd01:7::/64", "fd16::7"), no("fd01:8::/64")))).To(Succeed())
	for _, prefixes := range n.sink.routes.table.onLink {
		for _, p := range prefixes {
			n.Expect(p.Addr().Is6()).To(BeTrue(), "the transaction reads the routes of one family")
		}
	}
}

// scenario has a change of every kind.
func scenario() (before, txn []controller.Value) {
	before = []controller.Value{
		to("10.1.2.0/24", "192.168.16.2"), to("10.1.3.0/24", "192.168.16.3"), to("10.1.4.0/24", ""), to("10.1.5.0/24", "192.168.16.5"),
		to("10.1.6.0/24", "192.168.16.6"), to("fd01:2::/64", "fd16::2"), to("fd01:3::/64", "fd16::3"), to("fd01:4::/64", ""),
	}
	txn = []controller.Value{
		to("10.1.1.0/24", "192.168.16.1"), to("10.1.2.0/24", "192.168.16.22"), to("10.1.3.0/24", ""), to("10.1.4.0/24", "192.168.16.4"), no("10.1.5.0/24"),
		to("10.1.6.0/24", "192.168.16.6"), to("10.1.7.0/24", ""), to("fd01:1::/64", "fd16::1"), to("fd01:2::/64", ""), no("fd01:3::/64"), to("fd01:4::/64", "fd16::4"),
		to("fd01:5::/64", ""),
		{Key: kv.SinkPodPrefix + "a", Message: &kv.PodNetwork{}},
	}
	return before, txn
}

// A mishap is a way in which a call fails.
type mishap string

const (
	unmade   mishap = "nothing is done"
	halfMade mishap = "the new route is there, beside the former one"
	allMade  mishap = "all is done"
)

// happen fails instead of call.
func (n *node) happen(s *routeSink, m mishap, operation string, value controller.Value, call func() error) error {
	switch {
	case m == halfMade && operation == "update":
		route := value.Message.(*kv.NodeRoute)
		n.inside(func() error { return netlink.RouteAppend(by(ownProtocol, route.Dst, route.Gateway, 0)) })
		place, _ := readPlace(value.Key)
		s.routes.table.requested[place] = false // as after a request that has succeeded
	case m == allMade:
		if err := call(); err != nil {
			return err
		}
	}
	return unix.EIO
}

// TestFailuresAtEveryStep lets each call of the scheduler fail once, in each way. What it calls
// then restores the routes: they have no undo of their own.
func TestFailuresAtEveryStep(t *testing.T) {
	n := newNode(t, routeOptions{})
	n.inside(func() error { return netlink.RouteAdd(by(unix.RTPROT_STATIC, "10.9.0.0/16", "", 0)) })
	_, values := scenario()
	for _, m := range []mishap{unmade, halfMade, allMade} {
		for _, txn := range []controller.Transaction{update(values...), resync(values...), reverting(values...),
			{Method: controller.FullResync, Values: values, RevertOnFailure: true}} {
			failing := 1
			for n.failsAt(failing, m, txn) {
				failing++
			}
			n.Expect(failing).To(BeNumerically(">", 10))
		}
	}
}

// valueOf returns the value of a key in a transaction.
func valueOf(txn controller.Transaction, key string) controller.Value {
	i := slices.IndexFunc(txn.Values, func(v controller.Value) bool { return v.Key == key })
	if i < 0 {
		return controller.Value{Key: key}
	}
	return txn.Values[i]
}

// failsAt commits a transaction whose call number failing ends with a mishap. It reports whether
// there is such a call.
func (n *node) failsAt(failing int, m mishap, txn controller.Transaction) bool {
	calls, failed, operation, armed := 0, "", "", false
	var s *routeSink
	s = n.tamper(routeOptions{}, func(op, key string, call func() error) error {
		if calls++; !armed || calls != failing {
			return call()
		}
		failed, operation = key, op
		return n.happen(s, m, op, valueOf(txn, key), call)
	})
	before, values := scenario()
	n.Expect(commit(s, resync(before...))).To(Succeed())
	was, wasDump := n.routes(), dump(s)
	calls, armed = 0, true
	err := commit(s, txn)
	armed = false
	defer func() { n.Expect(s.Close()).To(Succeed()) }()
	if failed == "" {
		n.Expect(err).NotTo(HaveOccurred())
		return false
	}
	where := fmt.Sprintf("%s %s: %s, method %v, reverts %v", operation, failed, m, txn.Method, txn.RevertOnFailure)
	n.Expect(err).To(MatchError(unix.EIO), where)
	n.Expect(failedKeys(err)).To(Equal([]string{failed}), where)
	switch {
	case txn.RevertOnFailure:
		n.Expect(n.routes()).To(Equal(was), where)
		n.Expect(dump(s)).To(Equal(wasDump), where)
	case operation == "delete" && m == allMade:
		n.Expect(n.routes()).To(Equal(partly(was, s, values, "")), where)
	default:
		n.Expect(n.routes()).To(Equal(partly(was, s, values, failed)), where)
		n.Expect(dump(s)).To(ContainElement("pod/a"), where)
	}
	n.Expect(commit(s, resync(values...))).To(Succeed(), where)
	n.Expect(n.routes()).To(Equal(partly(was, s, values, "")), where)
	return true
}

// partly returns the former routes with all values except the one of a key.
func partly(was []string, s *routeSink, values []controller.Value, failed string) []string {
	after := map[string]string{}
	for _, line := range was {
		after[strings.Fields(strings.TrimPrefix(line, "unreachable "))[0]] = line
	}
	for _, v := range values {
		if !strings.HasPrefix(v.Key, kv.SinkRoutePrefix) || failed == v.Key {
			continue
		}
		if v.Message == nil {
			delete(after, strings.TrimPrefix(v.Key, kv.SinkRoutePrefix))
			continue
		}
		w, _ := readRoute(v.Key, v.Message)
		r, _ := w.way.route(w.place, nil)
		after[w.place.dst.String()] = plain(routeText(r))
	}
	return slices.Sorted(maps.Values(after))
}

// Without the kernel's routes nothing is changed.
func TestRoutesThatCannotBeRead(t *testing.T) {
	n := newNode(t, routeOptions{})
	before, values := scenario()
	n.Expect(n.commit(resync(before...))).To(Succeed())
	was := n.routes()
	hear := n.deafen(n.sink)
	err := n.commit(update(values...))
	n.Expect(err).To(MatchError(unix.EINVAL))
	n.Expect(failedKeys(err)).NotTo(BeEmpty())
	err = n.commit(resync(values...))
	n.Expect(err).To(MatchError(unix.EINVAL))
	n.Expect(failedKeys(err)).To(BeEmpty(), "of a resync it is known that all of it may have failed")
	hear()
	n.Expect(n.routes()).To(Equal(was))
}

// TestFailuresOfUndoing lets the kernel fail from some call on.
func TestFailuresOfUndoing(t *testing.T) {
	n, calls := newNode(t, routeOptions{}), 0
	var s *routeSink
	s = n.tamper(routeOptions{}, func(_, _ string, call func() error) error {
		if calls++; calls == 4 { // the first one makes the former route
			n.deafen(s)
		}
		return call()
	})
	n.Expect(commit(s, update(to("10.1.8.0/24", "192.168.16.8")))).To(Succeed())
	err := commit(s, reverting(to("10.1.7.0/24", "192.168.16.7"), no("10.1.8.0/24"), to("10.1.9.0/24", "192.168.16.9")))
	n.Expect(failedKeys(err)).To(BeEmpty(), "it is not of single values")
	n.Expect(err).To(MatchError(And(
		ContainSubstring("route/10.1.9.0/24: add 10.1.9.0/24 via 192.168.16.9"), ContainSubstring("undo: route/10.1.7.0/24: "), ContainSubstring("undo: route/10.1.8.0/24: "))))
}

// TestRaces has another program that acts between the check and the change.
func TestRaces(t *testing.T) {
	const subnet = "10.1.7.0/24"
	static := func(gateway string) *netlink.Route { return by(unix.RTPROT_STATIC, subnet, gateway, 0) }
	ours := by(ownProtocol, subnet, "192.168.16.7", 0)
	for _, x := range []struct {
		what   string
		before []controller.Value
		value  controller.Value
		act    func() error
		err    error
		want   []string
	}{
		{"makes a route where none was", nil, to(subnet, "192.168.16.7"),
			func() error { return netlink.RouteAdd(static("192.168.16.1")) }, southbound.ErrForeign, []string{"10.1.7.0/24 via 192.168.16.1 proto static"}},
		{"puts theirs for ours", []controller.Value{to(subnet, "192.168.16.7")}, to(subnet, "192.168.16.8"),
			func() error { return netlink.RouteReplace(static("192.168.16.1")) }, southbound.ErrForeign, []string{"10.1.7.0/24 via 192.168.16.1 proto static"}},
		{"puts theirs for ours that goes", []controller.Value{to(subnet, "192.168.16.7")}, no(subnet),
			func() error { return netlink.RouteReplace(static("192.168.16.7")) }, nil, []string{"10.1.7.0/24 via 192.168.16.7 proto static"}},
		{"removes ours that changes", []controller.Value{to(subnet, "192.168.16.7")}, to(subnet, "192.168.16.8"),
			func() error { return netlink.RouteDel(ours) }, nil, []string{"10.1.7.0/24 via 192.168.16.8 proto 202"}},
		{"makes what is wanted already", []controller.Value{to(subnet, "192.168.16.7")}, to(subnet, "192.168.16.8"),
			func() error { return netlink.RouteAppend(by(ownProtocol, subnet, "192.168.16.8", 0)) }, southbound.ErrForeign,
			[]string{"10.1.7.0/24 via 192.168.16.7 proto 202", "10.1.7.0/24 via 192.168.16.8 proto 202"}},
	} {
		n, armed := newNode(t, routeOptions{}), false
		s := n.tamper(routeOptions{}, func(_, _ string, call func() error) error {
			if armed { // the transaction has read the routes
				n.inside(x.act)
			}
			return call()
		})
		n.Expect(commit(s, resync(x.before...))).To(Succeed())
		armed = true
		err := commit(s, update(x.value))
		if x.err == nil {
			n.Expect(err).NotTo(HaveOccurred(), x.what)
		} else {
			n.Expect(err).To(MatchError(x.err), x.what)
		}
		n.Expect(n.routes()).To(Equal(x.want), x.what)
	}
}

func TestCommitHonoursItsContext(t *testing.T) {
	n, after := newNode(t, routeOptions{}), func() {}
	g, s := n, n.tamper(routeOptions{}, func(_, _ string, call func() error) error {
		defer after()
		return call()
	})
	before, values := scenario()
	g.Expect(commit(s, resync(before...))).To(Succeed())
	was, why := n.routes(), errors.New("too long")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for _, txn := range []controller.Transaction{update(values...), resync(), reverting(values...)} {
		g.Expect(s.Commit(ctx, txn)).To(MatchError(why))
		g.Expect(n.routes()).To(Equal(was))
	}
	g.Expect(commit(s, resync(before...))).To(Succeed())
	for _, reverts := range []bool{true, false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		calls := 0
		after = func() {
			if calls++; calls == 4 {
				cancel(why)
			}
		}
		txn := update(values...)
		txn.RevertOnFailure = reverts
		err := s.Commit(ctx, txn)
		after = func() {}
		g.Expect(err).To(MatchError(why))
		if reverts {
			g.Expect(n.routes()).To(Equal(was), "undoing does not end with the context")
			continue
		}
		g.Expect(err).NotTo(MatchError(ContainSubstring("route/10.1.1.0/24: ")), "what worked remains")
		g.Expect(err).To(MatchError(ContainSubstring("route/fd01:4::/64: too long")))
		g.Expect(n.routes()).To(ContainElement("10.1.1.0/24 via 192.168.16.1 proto 202"))
	}
}

func TestFormsAreRecognized(t *testing.T) {
	g := NewWithT(t)
	table := &routeTable{links: map[routeLink]uint32{{transport: kv.Transport_VXLAN}: 8, {transport: kv.Transport_WIREGUARD}: 9, {transport: kv.Transport_VXLAN, vni: 12}: 10}}
	for _, x := range []*kv.NodeRoute{
		{Dst: "10.1.7.0/24", Gateway: "192.168.16.7"}, {Dst: "10.1.7.0/24"}, {Dst: "fd01::/64", Gateway: "fd16::7"}, {Dst: "fd01::/64"},
		{Dst: "10.1.7.0/24", Gateway: "192.168.30.7", Transport: kv.Transport_VXLAN}, {Dst: "fd01::/64", Gateway: "fe80::7", Transport: kv.Transport_VXLAN},
		{Dst: "10.5.7.0/24", Gateway: "192.168.30.7", Transport: kv.Transport_VXLAN, Table: 1000, Network: "blue", Vni: 12},
		{Dst: "10.1.7.0/24", Transport: kv.Transport_WIREGUARD}, {Dst: "fd01::/64", Transport: kv.Transport_WIREGUARD, Table: 1000},
	} {
		want, err := readRoute(kv.SinkRouteKey(x.Dst, x.Table), x)
		g.Expect(err).NotTo(HaveOccurred())
		r, err := want.way.route(want.place, table.links)
		g.Expect(err).NotTo(HaveOccurred())
		k, err := rtnl.DecodeRoute(routeBody(r))
		g.Expect(err).NotTo(HaveOccurred())
		if x.Transport == kv.Transport_DIRECT && x.Gateway != "" {
			k.Link = 2 // the kernel has chosen it
		}
		k.Flags |= unix.RTNH_F_LINKDOWN
		g.Expect(table.own(k)).To(BeTrue())
		have, ok := table.way(k)
		g.Expect(ok).To(BeTrue(), "%+v", k)
		g.Expect(have).To(Equal(want.way))
		for _, change := range []func(*rtnl.Route){
			func(r *rtnl.Route) { r.Onlink = !r.Onlink }, func(r *rtnl.Route) { r.TOS = 4 }, func(r *rtnl.Route) { r.More = true },
			func(r *rtnl.Route) { r.Metric++ }, func(r *rtnl.Route) { r.Type = unix.RTN_BLACKHOLE }, func(r *rtnl.Route) { r.Source = r.Dst.Addr() },
			func(r *rtnl.Route) { r.Scope = unix.RT_SCOPE_HOST }, func(r *rtnl.Route) { r.Hops = []rtnl.Hop{{}} },
		} {
			other := k
			change(&other)
			_, ok := table.way(other)
			g.Expect(ok).To(BeFalse(), "%+v", other)
		}
		for _, change := range []func(*rtnl.Route){
			func(r *rtnl.Route) { r.Protocol = unix.RTPROT_STATIC }, func(r *rtnl.Route) { r.Metric = lastMetric },
			func(r *rtnl.Route) { r.Dst = defaultRoute(unix.AF_INET) },
			func(r *rtnl.Route) { r.Gateway, r.Link, r.Type = netip.Addr{}, 77, unix.RTN_UNICAST },
		} {
			other := k
			change(&other)
			g.Expect(table.own(other)).To(BeFalse(), "a route of a wire, or a foreign one: %+v", other)
		}
	}
}
