// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/southbound"
)

func TestInvalidValues(t *testing.T) {
	s, f := newFakeSink(routeOptions{})
	g := NewWithT(t)
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
			g.Expect(f.list()).To(Equal([]string{"10.1.7.0/24 via 192.168.16.7 proto 202", "10.1.9.0/24 via 192.168.16.9 proto 202"}), x.why)
			g.Expect(dump(s)).To(Equal([]string{"10.1.7.0/24 192.168.16.7 10-1-7-0-24", "10.1.9.0/24 192.168.16.9 10-1-9-0-24"}), x.why)
			g.Expect(commit(s, update(no("10.1.9.0/24")))).To(Succeed())
		}
		f.log = nil
		g.Expect(commit(s, reverting(good, x.value))).To(MatchError(ContainSubstring(x.why)))
		g.Expect(f.log).To(BeEmpty(), "what can be known before is known before")
	}
}

func TestDump(t *testing.T) {
	g := NewWithT(t)
	s, f := newFakeSink(routeOptions{})
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
	g.Expect(f.RouteDel(by(ownProtocol, "10.1.8.0/24", "", 0))).To(MatchError(unix.ESRCH))
	f.routes = slices.DeleteFunc(f.routes, func(r netlink.Route) bool { return r.Type == unix.RTN_UNREACHABLE })
	for _, r := range []*netlink.Route{
		by(ownProtocol, "10.1.9.0/24", "192.168.16.9", 0), by(ownProtocol, "10.1.10.0/24", "192.168.16.9", 7), by(unix.RTPROT_STATIC, "10.1.11.0/24", "192.168.16.9", 7),
	} {
		r.Table, r.Type = unix.RT_TABLE_MAIN, unix.RTN_UNICAST
		g.Expect(f.RouteAdd(r)).To(Succeed())
	}
	g.Expect(dump(s)).To(Equal([]string{
		"10.1.10.0/24 10.1.10.0/24 via 192.168.16.9 interface 2 proto 202 metric 7", "10.1.7.0/24 192.168.16.7 10-1-7-0-24", "10.1.9.0/24 192.168.16.9",
		"fd01:7::/64 FD16::0:7 fd01-7---64", "node",
	}), "what the kernel has, and what is remembered")
	g.Expect(commit(s, resync())).To(Succeed())
	g.Expect(dump(s)).To(BeEmpty())

	f.fault = func(op string, _ *netlink.Route) error { return unix.ENOBUFS }
	_, err = s.Dump(t.Context())
	g.Expect(err).To(MatchError(unix.ENOBUFS))
	f.fault = nil
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
	g := NewWithT(t)
	s, f := newFakeSink(routeOptions{})
	g.Expect(commit(s, reverting(controller.Value{Key: kv.SinkPodPrefix + "a", Message: &kv.PodNetwork{}}))).To(Succeed())
	g.Expect(commit(s, update(controller.Value{Key: kv.SinkPodPrefix + "b"}))).To(Succeed())
	g.Expect(f.log).To(BeEmpty())
	g.Expect(dump(s)).To(Equal([]string{"pod/a"}))
	f.log = nil
	g.Expect(commit(s, update(to("fd01:7::/64", "fd16::7"), no("fd01:8::/64")))).To(Succeed())
	g.Expect(f.log).To(Equal([]string{"list", "add fd01:7::/64 via fd16::7 proto 202"}), "one list, of one family")
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

// TestFailuresAtEveryStep lets each call to the kernel fail once.
func TestFailuresAtEveryStep(t *testing.T) {
	before, values := scenario()
	for _, reverts := range []bool{false, true} {
		for _, method := range []controller.EventMethodType{controller.Update, controller.FullResync} {
			for failing := 1; ; failing++ {
				g := NewWithT(t)
				s, f := newFakeSink(routeOptions{})
				g.Expect(commit(s, resync(before...))).To(Succeed())
				g.Expect(f.RouteAdd(&netlink.Route{Dst: by(0, "10.9.0.0/16", "", 0).Dst, Protocol: unix.RTPROT_STATIC, Table: unix.RT_TABLE_MAIN})).To(Succeed())
				was, wasDump := f.list(), dump(s)
				calls, failed := 0, ""
				f.fault = func(op string, r *netlink.Route) error {
					if calls++; calls == failing {
						if failed = op; r != nil {
							failed = r.Dst.String()
						}
						return unix.EIO
					}
					return nil
				}
				err := commit(s, controller.Transaction{Method: method, Values: values, RevertOnFailure: reverts})
				f.fault = nil
				if failed == "" { // no call is left
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(failing).To(BeNumerically(">", 15))
					break
				}
				g.Expect(err).To(MatchError(unix.EIO), failed)
				if failed != "list" || method == controller.Update {
					g.Expect(failedKeys(err)).NotTo(BeEmpty())
				} else {
					g.Expect(failedKeys(err)).To(BeEmpty(), "of a resync it is known that all of it may have failed")
				}
				if reverts {
					g.Expect(f.list()).To(Equal(was), "at call %d, %s", failing, failed)
					g.Expect(dump(s)).To(Equal(wasDump))
					continue
				}
				g.Expect(f.list()).To(Equal(partly(was, s, values, failed)), "at call %d, %s", failing, failed)
				g.Expect(dump(s)).To(ContainElement("pod/a"))
				if failed != "list" {
					g.Expect(failedKeys(err)).To(Equal([]string{"route/" + failed}))
				}
			}
		}
	}
}

// partly returns the former routes with all values except those to one destination; with none
// if the list failed.
func partly(was []string, s *routeSink, values []controller.Value, failed string) []string {
	after := map[string]string{}
	for _, line := range was {
		after[strings.Fields(strings.TrimPrefix(line, "unreachable "))[0]] = line
	}
	for _, v := range values {
		if !s.routes.Handles(v.Key) || failed == "list" || failed == strings.TrimPrefix(v.Key, kv.SinkRoutePrefix) {
			continue
		}
		if v.Message == nil {
			delete(after, strings.TrimPrefix(v.Key, kv.SinkRoutePrefix))
			continue
		}
		w, _ := readRoute(v.Key, v.Message)
		r, _ := kernelRoute(w, &routeTable{})
		after[w.place.dst.String()] = plain(describeRoute(r))
	}
	return slices.Sorted(maps.Values(after))
}

// TestFailuresOfUndoing lets the kernel fail from some call on.
func TestFailuresOfUndoing(t *testing.T) {
	g := NewWithT(t)
	s, f := newFakeSink(routeOptions{})
	g.Expect(commit(s, update(to("10.1.8.0/24", "192.168.16.8")))).To(Succeed())
	calls := 0
	f.fault = func(op string, _ *netlink.Route) error {
		if calls++; calls > 3 {
			return unix.EIO
		}
		return nil
	}
	err := commit(s, reverting(to("10.1.7.0/24", "192.168.16.7"), no("10.1.8.0/24"), to("10.1.9.0/24", "192.168.16.9")))
	g.Expect(failedKeys(err)).To(BeEmpty(), "it is not of single values")
	g.Expect(err).To(MatchError(And(
		ContainSubstring("route/10.1.9.0/24: add 10.1.9.0/24 via 192.168.16.9"), ContainSubstring("undo: route/10.1.7.0/24: "), ContainSubstring("undo: route/10.1.8.0/24: "))))
}

// TestRaces has another program that acts between the check and the change.
func TestRaces(t *testing.T) {
	alien := func(gateway string, metric int) netlink.Route {
		r := by(unix.RTPROT_STATIC, "10.1.7.0/24", gateway, metric)
		r.Table, r.Type, r.LinkIndex, r.Family = unix.RT_TABLE_MAIN, unix.RTN_UNICAST, 2, netlink.FAMILY_V4
		return *r
	}
	ours := func(f *fake) int {
		return slices.IndexFunc(f.routes, func(r netlink.Route) bool { return r.Protocol == ownProtocol })
	}
	for _, x := range []struct {
		what   string
		before []controller.Value
		value  controller.Value
		act    func(f *fake)
		err    error
		want   []string
	}{
		{"makes a route where none was", nil, to("10.1.7.0/24", "192.168.16.7"),
			func(f *fake) { f.routes = append(f.routes, alien("192.168.16.1", 0)) }, southbound.ErrForeign, []string{"10.1.7.0/24 via 192.168.16.1 proto static"}},
		{"puts theirs for ours", []controller.Value{to("10.1.7.0/24", "192.168.16.7")}, to("10.1.7.0/24", "192.168.16.8"),
			func(f *fake) { f.routes[ours(f)] = alien("192.168.16.1", 0) }, southbound.ErrForeign, []string{"10.1.7.0/24 via 192.168.16.1 proto static"}},
		{"puts theirs for ours that goes", []controller.Value{to("10.1.7.0/24", "192.168.16.7")}, no("10.1.7.0/24"),
			func(f *fake) { f.routes[ours(f)] = alien("192.168.16.7", 0) }, nil, []string{"10.1.7.0/24 via 192.168.16.7 proto static"}},
		{"removes ours that changes", []controller.Value{to("10.1.7.0/24", "192.168.16.7")}, to("10.1.7.0/24", "192.168.16.8"),
			func(f *fake) { f.routes = slices.Delete(f.routes, ours(f), ours(f)+1) }, nil, []string{"10.1.7.0/24 via 192.168.16.8 proto 202"}},
		{"makes what is wanted already", []controller.Value{to("10.1.7.0/24", "192.168.16.7")}, to("10.1.7.0/24", "192.168.16.8"),
			func(f *fake) {
				r := alien("192.168.16.8", 0)
				r.Protocol = ownProtocol
				f.routes = append(f.routes, r)
			}, southbound.ErrForeign, []string{"10.1.7.0/24 via 192.168.16.7 proto 202", "10.1.7.0/24 via 192.168.16.8 proto 202"}},
	} {
		g := NewWithT(t)
		s, f := newFakeSink(routeOptions{})
		g.Expect(commit(s, resync(x.before...))).To(Succeed())
		f.after = func(op string, _ *netlink.Route) {
			if op == "list" {
				f.after = nil
				x.act(f)
			}
		}
		err := commit(s, update(x.value))
		if x.err == nil {
			g.Expect(err).NotTo(HaveOccurred(), x.what)
		} else {
			g.Expect(err).To(MatchError(x.err), x.what)
		}
		g.Expect(f.list()).To(Equal(x.want), x.what)
	}
}

func TestListsThatAreInterrupted(t *testing.T) {
	g := NewWithT(t)
	s, f := newFakeSink(routeOptions{})
	interrupted := 3
	f.fault = func(op string, _ *netlink.Route) error {
		if op == "list" && interrupted > 0 {
			interrupted--
			return netlink.ErrDumpInterrupted
		}
		return nil
	}
	g.Expect(commit(s, resync(to("10.1.7.0/24", "192.168.16.7")))).To(Succeed())
	interrupted = 1000
	g.Expect(commit(s, resync())).To(MatchError(netlink.ErrDumpInterrupted), "also where no key could have it")
	g.Expect(1000 - interrupted).To(Equal(2 * routeListTries))
	g.Expect(f.list()).To(HaveLen(1))
}

func TestCommitHonoursItsContext(t *testing.T) {
	g := NewWithT(t)
	s, f := newFakeSink(routeOptions{})
	before, values := scenario()
	g.Expect(commit(s, resync(before...))).To(Succeed())
	was, why := f.list(), errors.New("too long")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	for _, txn := range []controller.Transaction{update(values...), resync(), reverting(values...)} {
		g.Expect(s.Commit(ctx, txn)).To(MatchError(why))
		g.Expect(f.list()).To(Equal(was))
	}
	g.Expect(commit(s, resync(before...))).To(Succeed())
	for _, reverts := range []bool{true, false} {
		ctx, cancel := context.WithCancelCause(t.Context())
		calls := 0
		f.after = func(string, *netlink.Route) {
			if calls++; calls == 5 {
				cancel(why)
			}
		}
		txn := update(values...)
		txn.RevertOnFailure = reverts
		err := s.Commit(ctx, txn)
		f.after = nil
		g.Expect(err).To(MatchError(why))
		if reverts {
			g.Expect(f.list()).To(Equal(was), "undoing does not end with the context")
			continue
		}
		g.Expect(err).NotTo(MatchError(ContainSubstring("route/10.1.1.0/24: ")), "what worked remains")
		g.Expect(err).To(MatchError(ContainSubstring("route/fd01:4::/64: too long")))
		g.Expect(f.list()).To(ContainElement("10.1.1.0/24 via 192.168.16.1 proto 202"))
	}
}

func TestFormsAreRecognized(t *testing.T) {
	g := NewWithT(t)
	s := newFake()
	table := &routeTable{links: map[routeLink]int{{transport: kv.Transport_VXLAN}: 8, {transport: kv.Transport_WIREGUARD}: 9, {transport: kv.Transport_VXLAN, vni: 12}: 10}}
	for _, x := range []*kv.NodeRoute{
		{Dst: "10.1.7.0/24", Gateway: "192.168.16.7"}, {Dst: "10.1.7.0/24"}, {Dst: "fd01::/64", Gateway: "fd16::7"}, {Dst: "fd01::/64"},
		{Dst: "10.1.7.0/24", Gateway: "192.168.30.7", Transport: kv.Transport_VXLAN}, {Dst: "fd01::/64", Gateway: "fe80::7", Transport: kv.Transport_VXLAN},
		{Dst: "10.5.7.0/24", Gateway: "192.168.30.7", Transport: kv.Transport_VXLAN, Table: 1000, Network: "blue", Vni: 12},
		{Dst: "10.1.7.0/24", Transport: kv.Transport_WIREGUARD}, {Dst: "fd01::/64", Transport: kv.Transport_WIREGUARD, Table: 1000},
	} {
		want, err := readRoute(kv.SinkRouteKey(x.Dst, x.Table), x)
		g.Expect(err).NotTo(HaveOccurred())
		r, err := kernelRoute(want, table)
		g.Expect(err).NotTo(HaveOccurred())
		k := s.kept(&r)
		if x.Transport != kv.Transport_DIRECT {
			k.LinkIndex = r.LinkIndex
		}
		k.Flags |= unix.RTNH_F_LINKDOWN
		g.Expect(table.own(k)).To(BeTrue())
		have, ok := table.way(k)
		g.Expect(ok).To(BeTrue(), "%+v", k)
		g.Expect(have).To(Equal(want.way))
		for _, change := range []func(*netlink.Route){
			func(r *netlink.Route) { r.Flags ^= unix.RTNH_F_ONLINK }, func(r *netlink.Route) { r.Tos = 4 }, func(r *netlink.Route) { r.MTU = 1 },
			func(r *netlink.Route) { r.Priority++ }, func(r *netlink.Route) { r.Type = unix.RTN_BLACKHOLE }, func(r *netlink.Route) { r.Src = r.Dst.IP },
			func(r *netlink.Route) { r.Scope = unix.RT_SCOPE_HOST }, func(r *netlink.Route) { r.Via = &netlink.Via{} }, func(r *netlink.Route) { r.Realm = 1 },
			func(r *netlink.Route) { r.MultiPath = []*netlink.NexthopInfo{{}} }, func(r *netlink.Route) { r.Congctl = "bbr" },
		} {
			other := k
			change(&other)
			_, ok := table.way(other)
			g.Expect(ok).To(BeFalse(), "%+v", other)
		}
		for _, change := range []func(*netlink.Route){
			func(r *netlink.Route) { r.Protocol = unix.RTPROT_STATIC }, func(r *netlink.Route) { r.Priority = lastMetric },
			func(r *netlink.Route) { r.Dst = &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)} },
			func(r *netlink.Route) { r.Gw, r.LinkIndex, r.Type = nil, 77, unix.RTN_UNICAST },
		} {
			other := k
			change(&other)
			g.Expect(table.own(other)).To(BeFalse(), "a route of a wire, or a foreign one: %+v", other)
		}
	}
}
