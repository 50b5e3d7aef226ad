// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/rtnl"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
)

// watchers runs Watch of all descriptors of a node.
type watchers struct {
	Gomega
	ns      *netlab.Namespace
	monitor *monitor
	last    *rtnl.Follower[announcement] // it is told behind the descriptors
	stop    func() error

	mu     sync.Mutex
	told   map[string]string // by kind: the key of what may have changed, or "all"
	slowly int               // the kinds that also compare slowly, and follow by now
}

// newWatchers begins to watch a namespace with the link cad0.
func newWatchers(t *testing.T) *watchers {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	w := &watchers{Gomega: NewWithT(t), ns: newNamespace(t), told: map[string]string{}}
	w.Expect(w.ns.IP("link add cad0 type bridge")).To(Succeed())
	opt := Options{Namespace: w.ns.Path(), After: func(time.Duration) <-chan time.Time {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.slowly++
		return nil
	}}.withDefaults()
	w.monitor = opt.monitor
	all, err := Descriptors(opt)
	w.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, len(all))
	for _, d := range all {
		go func() {
			ended <- d.Watch(ctx, func(key string) {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.told[d.Name()] = cmp.Or(key, "all")
			})
		}()
	}
	w.stop = sync.OnceValue(func() (err error) {
		cancel()
		if w.last != nil {
			w.last.Close()
		}
		for range all {
			err = errors.Join(err, <-ended)
		}
		return errors.Join(err, closeAll(all))
	})
	t.Cleanup(func() { w.Expect(w.stop()).To(Succeed()) })
	w.Eventually(w.notices, "10s").Should(Equal(comparison()), "all but wires are compared at the start")
	w.Eventually(func() int { w.mu.Lock(); defer w.mu.Unlock(); return w.slowly }, "10s").Should(Equal(3))
	w.take()
	return w
}

// comparison is the notice for each kind but wires that all values may have changed.
func comparison() map[string]string {
	return map[string]string{
		"linux node": kv.SinkNode, "linux network link": "all", "linux tunnel": "all", "linux egress": kv.SinkEgress,
		"linux route": "all", "linux network": "all", "linux uplink": "all", "linux uplink address": "all",
	}
}

// notices returns what each kind was told since the last call of take.
func (w *watchers) notices() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.told)
}

func (w *watchers) take() map[string]string {
	w.mu.Lock()
	defer w.mu.Unlock()
	told := w.told
	w.told = map[string]string{}
	return told
}

// after makes a change, and returns what each kind was told of it.
func (w *watchers) after(change func() error) map[string]string {
	w.Expect(change()).To(Succeed())
	const marker = "203.0.113.1"
	w.Expect(w.ns.IP("route add blackhole " + marker)).To(Succeed())
	w.Expect(w.ns.IP("route del blackhole " + marker)).To(Succeed())
	table := &nftables.Table{Name: "marker", Family: nftables.TableFamilyINet}
	w.Expect(w.firewall(func(c *nftables.Conn) { c.AddTable(table) })()).To(Succeed())
	w.Expect(w.firewall(func(c *nftables.Conn) { c.DelTable(table) })()).To(Succeed())
	for routes, tables := 0, 0; routes < 2 || tables < 2; { // who has taken the second is done with the first
		news := rtnl.News[announcement]{}
		w.Eventually(w.last.News, "10s").Should(Receive(&news))
		if a := news.Announcement; a.table == table.Name {
			tables++
		} else if a.object.kind == routeObject && a.object.prefix == whole(netip.MustParseAddr(marker)) {
			routes++
		}
	}
	return w.take()
}

// firewall returns a change of nftables.
func (w *watchers) firewall(change func(*nftables.Conn)) func() error {
	return func() error {
		tables, err := openNFT(w.ns.Path())
		if err != nil {
			return err
		}
		c, err := tables.conn()
		if err == nil {
			change(c)
			err = c.Flush()
		}
		return errors.Join(err, tables.close())
	}
}

// TestTwoSocketsWatchANode counts the sockets of the namespace that receive announcements.
func TestTwoSocketsWatchANode(t *testing.T) {
	w := newWatchers(t)
	subscribed := func() (protocols []string) {
		w.Expect(w.ns.Do(func() error {
			text, err := os.ReadFile("/proc/thread-self/net/netlink")
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); f[0] != "sk" && f[3] != "00000000" {
					protocols = append(protocols, f[1])
				}
			}
			return err
		})).To(Succeed())
		return protocols
	}
	w.Expect(subscribed()).To(ConsistOf("0", "12"), "NETLINK_ROUTE and NETLINK_NETFILTER")
	w.Expect(w.stop()).To(Succeed())
	w.Expect(subscribed()).To(BeEmpty())
}

// TestEachKindIsToldOfItsChanges has no values: those that keep what they have made, as wires and
// tunnels do, are told of nothing.
func TestEachKindIsToldOfItsChanges(t *testing.T) {
	w := newWatchers(t)
	var err error
	w.last, err = w.monitor.Follow(unix.NETLINK_ROUTE, unix.NETLINK_NETFILTER)
	w.Expect(err).NotTo(HaveOccurred())
	node, egress := map[string]string{"linux node": kv.SinkNode}, map[string]string{"linux egress": kv.SinkEgress}
	routes, links := map[string]string{"linux route": "all"}, map[string]string{"linux network link": "all"}
	networks, uplinks := map[string]string{"linux network": "all"}, map[string]string{"linux uplink": "all"}
	local := map[string]string{"linux route": "all", "linux uplink": "all"}
	source := func(a string) map[string]string {
		return map[string]string{"linux uplink address": kv.SinkSourcePrefix + a}
	}
	none := map[string]string{}
	last, uplink := fmt.Sprintf("metric %d", uint32(lastMetric)), fmt.Sprintf("table %d", kv.UplinkTables+1)
	for _, x := range []struct {
		change string // arguments of ip
		told   map[string]string
	}{
		{"link add cadwg type bridge", node},
		{"address add 10.9.0.1/32 dev cadwg", node},
		{"address add fd00::1/128 dev cadwg", node},
		{"link del cadwg", node},
		{"link add eth9 type bridge", routes},
		{"link set eth9 addrgenmode none", none},
		{"link set eth9 up", routes},
		{"address add 10.9.0.2/32 dev eth9", routes},
		{"address add fd00::2/128 dev eth9 nodad", routes},
		{"address add 10.20.0.1/24 dev eth9", local},
		{"address del 10.20.0.1/24 dev eth9", local},
		{"route add fd00:20::/64 dev eth9", uplinks},
		{"route del fd00:20::/64 dev eth9", uplinks},
		{"address add 10.9.0.3/32 dev cad0", none},
		{"link add cad1 type veth peer name cad2", none},
		{"address add 10.9.0.4/32 dev cad1", none},
		{"link add br9 type bridge", routes},
		{"link set cad1 master br9", none},
		{"link set cad1 nomaster", none},
		{"address del 10.9.0.4/32 dev cad1", none},
		{"link add cadvx00002a type bridge", links},
		{"rule add iif cadvx00002a lookup 1007 protocol 202 pref 1000", none},
		{"rule del iif cadvx00002a lookup 1007 protocol 202 pref 1000", links},
		{"-6 rule add iif cadvx00002a lookup 1007 protocol 202 pref 1000", none},
		{"-6 rule del iif cadvx00002a lookup 1007 protocol 202 pref 1000", links},
		{"route add blackhole default table 1007 protocol 202 " + last, none},
		{"route del blackhole default table 1007 protocol 202 " + last, networks},
		{"-6 route add blackhole default table 1007 protocol 202 " + last, none},
		{"-6 route del blackhole default table 1007 protocol 202 " + last, networks},
		{"route add unreachable default protocol 202 " + uplink + " " + last, none},
		{"route del unreachable default protocol 202 " + uplink + " " + last, uplinks},
		{"rule add fwmark 0x80/0x80 lookup main protocol 202 pref 1150", none},
		{"rule del fwmark 0x80/0x80 lookup main protocol 202 pref 1150", uplinks},
		{"rule add from 10.1.0.9 lookup 1007 protocol 202 pref 1200", none},
		{"rule del from 10.1.0.9 lookup 1007 protocol 202 pref 1200", source("10.1.0.9")},
		{"rule add from 10.1.0.9 lookup 1007 protocol static pref 1200", none},
		{"rule del from 10.1.0.9 lookup 1007 protocol static pref 1200", none},
		{"-6 rule add from fd01::9 lookup 1007 protocol 202 pref 1200", none},
		{"-6 rule del from fd01::9 lookup 1007 protocol 202 pref 1200", source("fd01::9")},
	} {
		told := w.after(func() error {
			command(t, w.ns.Path(), append([]string{"ip"}, strings.Fields(x.change)...)...)
			return nil
		})
		w.Expect(told).To(Equal(x.told), x.change)
	}
	filter := &nftables.Table{Name: filterTable, Family: nftables.TableFamilyIPv4}
	own := &nftables.Table{Name: nftTable, Family: nftables.TableFamilyINet}
	forward, input := &nftables.Chain{Name: forwardChain, Table: filter}, &nftables.Chain{Name: "INPUT", Table: filter}
	for _, x := range []struct {
		what   string
		change func(*nftables.Conn)
		told   map[string]string
	}{
		{"a table", func(c *nftables.Conn) { c.AddTable(filter) }, none},
		{"another chain", func(c *nftables.Conn) { c.AddChain(input) }, none},
		{"a rule there", func(c *nftables.Conn) { c.AddRule(&nftables.Rule{Table: filter, Chain: input}) }, none},
		{"chain FORWARD", func(c *nftables.Conn) { c.AddChain(forward) }, node},
		{"a rule of FORWARD", func(c *nftables.Conn) { c.AddRule(&nftables.Rule{Table: filter, Chain: forward}) }, node},
		{"no rule of FORWARD", func(c *nftables.Conn) { c.FlushChain(forward) }, node},
		{"no chain FORWARD", func(c *nftables.Conn) { c.DelChain(forward) }, node},
		{"our table", func(c *nftables.Conn) { c.AddTable(own) }, egress},
		{"a chain of ours", func(c *nftables.Conn) { c.AddChain(&nftables.Chain{Name: egressIPv4, Table: own}) }, egress},
		{"all tables", func(c *nftables.Conn) { c.FlushRuleset() }, egress},
	} {
		w.Expect(w.after(w.firewall(x.change))).To(Equal(x.told), x.what)
	}
}

// TestEachKindComparesAllAfterAnOverrun has a follower that does not read, so that the queue fills.
func TestEachKindComparesAllAfterAnOverrun(t *testing.T) {
	w := newWatchers(t)
	idle, err := w.monitor.Follow(unix.NETLINK_ROUTE)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(rtnl.Within(w.ns.Path(), func() error {
		s, err := rtnl.Dial(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close() }()
		var all []*rtnl.Request
		for i := range 30000 { // of no value
			to := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
			all = append(all, object{kind: rejectObject, prefix: whole(to), table: 1007}.add(linkID{}))
		}
		return s.Run(all)
	})).To(Succeed())
	idle.Close()
	want := comparison()
	want["linux wire"] = "all"
	delete(want, "linux egress") // its queue has no overrun
	w.Eventually(w.notices, "10s").Should(Equal(want))
}

// TestAWatchEndsByItsContextOrByAFailure compares slowly until then.
func TestAWatchEndsByItsContextOrByAFailure(t *testing.T) {
	g := NewWithT(t)
	timers, told, ended := make(chan chan time.Time, 1), make(chan string), make(chan error)
	m := newMonitor("", func(time.Duration) <-chan time.Time {
		timer := make(chan time.Time)
		timers <- timer
		return timer
	})
	damaged := func(announcement) (key string, is bool) { return "", false }
	follow := func(ctx context.Context, w watch) {
		ended <- m.follow(ctx, func(key string) { told <- key }, w)
	}
	ctx, stop := context.WithCancel(t.Context())
	go follow(ctx, watch{damaged: damaged, all: "all", slowly: true, late: true})
	for range 3 {
		var timer chan time.Time
		g.Eventually(timers).Should(Receive(&timer))
		timer <- time.Time{}
		g.Eventually(told).Should(Receive(Equal("all")))
	}
	stop()
	g.Eventually(ended).Should(Receive(BeNil()))
	m.Monitor = rtnl.NewMonitor("", rtnl.Source[announcement]{
		Family: unix.NETLINK_ROUTE,
		Begin:  func() error { return errors.New("no links can be listed") },
	})
	go follow(t.Context(), watch{damaged: damaged, late: true})
	g.Eventually(ended).Should(Receive(MatchError("watch the kernel: no links can be listed")))
	go follow(t.Context(), watch{damaged: damaged, families: []int{unix.NETLINK_NETFILTER}})
	g.Eventually(ended).Should(Receive(MatchError(HavePrefix("watch the kernel: subscribe to netlink family 12"))))
}
