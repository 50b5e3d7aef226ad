// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
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
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
)

// model holds the routes that the kernel should have.
type model struct {
	ours    map[string]string         // gateways by destination
	known   map[string]string         // likewise, as the last transaction left them; "?": beside a foreign one
	foreign map[string]map[int]string // gateways by destination and metric
}

func (m *model) clone() *model {
	c := &model{maps.Clone(m.ours), maps.Clone(m.known), map[string]map[int]string{}}
	for dst, routes := range m.foreign {
		c.foreign[dst] = maps.Clone(routes)
	}
	return c
}

// put is the rule for one value, and whether it fails.
func (m *model) put(v controller.Value) (fails bool) {
	dst := strings.TrimPrefix(v.Key, kv.SinkRoutePrefix)
	if v.Message == nil {
		delete(m.ours, dst)
		delete(m.known, dst)
		return false
	}
	route := v.Message.(*kv.NodeRoute)
	if known, ok := m.known[dst]; ok && known == route.Gateway {
		return false // an update does not touch what is made
	}
	if len(m.foreign[dst]) > 0 || (slices.Contains(unreachable(), route.Gateway) && m.ours[dst] != route.Gateway) {
		return true
	}
	m.ours[dst], m.known[dst] = route.Gateway, route.Gateway
	return false
}

// commit applies a transaction to the model and returns the keys that fail.
func (m *model) commit(txn controller.Transaction) (after *model, failing []string) {
	after = m.clone()
	if txn.Method != controller.Update {
		after.known = maps.Clone(after.ours)
		for dst := range after.ours {
			if len(after.foreign[dst]) > 0 {
				after.known[dst] = "?"
			}
		}
	}
	asked := map[string]bool{}
	for _, v := range txn.Values {
		asked[strings.TrimPrefix(v.Key, kv.SinkRoutePrefix)] = true
		if after.put(v) {
			failing = append(failing, v.Key)
		}
	}
	if txn.Method != controller.Update {
		maps.DeleteFunc(after.ours, func(dst, _ string) bool { return !asked[dst] })
		maps.DeleteFunc(after.known, func(dst, _ string) bool { return !asked[dst] })
	}
	if txn.RevertOnFailure && len(failing) > 0 {
		return m, failing
	}
	return after, failing
}

// lines are the routes as node.routes writes them.
func (m *model) lines() []string {
	all := []string{}
	line := func(dst, gateway, tail string) {
		if gateway == "" {
			all = append(all, "unreachable "+dst+tail)
		} else {
			all = append(all, dst+" via "+gateway+tail)
		}
	}
	for dst, gateway := range m.ours {
		line(dst, gateway, " proto 202")
	}
	for dst, routes := range m.foreign {
		for metric, gateway := range routes {
			tail := " proto static"
			if metric != 0 && metric != routeMetric6 {
				tail += fmt.Sprintf(" metric %d", metric)
			}
			line(dst, gateway, tail)
		}
	}
	slices.Sort(all)
	return all
}

func unreachable() []string { return []string{"172.16.0.1", "fd99::1"} }

func destinations() []string {
	return []string{"10.1.7.0/24", "10.1.7.0/25", "10.1.8.0/24", "10.2.0.0/16", "10.1.7.1/32", "fd01:7::/64", "fd01:7::/65", "fd01:8::/64"}
}

// gateways are those that routes to dst may have.
func gateways(dst string) []string {
	if netip.MustParsePrefix(dst).Addr().Is4() {
		return []string{"192.168.16.7", "192.168.16.8", "", "172.16.0.1"}
	}
	return []string{"fd16::7", "fd16::8", "", "fd99::1"}
}

// drawValues draws at most one value for each destination.
func drawValues(t *rapid.T, deletions bool) (all []controller.Value) {
	for _, dst := range destinations() {
		choice := gateways(dst)
		switch what := rapid.IntRange(0, 9).Draw(t, dst); {
		case what < 4:
		case what == 4 && deletions:
			all = append(all, no(dst))
		case what < 9:
			all = append(all, to(dst, choice[what%3]))
		default:
			all = append(all, to(dst, choice[3]))
		}
	}
	return all
}

// world is the model beside the kernel.
type world struct {
	*node
	model *model
}

func (w *world) commits(t *rapid.T, txn controller.Transaction) {
	g := NewWithT(t)
	after, want := w.model.commit(txn)
	w.model = after
	err := w.commit(txn)
	if len(want) == 0 {
		g.Expect(err).NotTo(HaveOccurred())
		return
	}
	if txn.RevertOnFailure {
		want = slices.Sorted(slices.Values(want))[:1] // it ends with the first
	}
	g.Expect(failedKeys(err)).To(ConsistOf(want))
}

// undoable reports whether the kernel can put back what a transaction changes: not beside
// a foreign route, which ends with a resync of the loop.
func (m *model) undoable(txn controller.Transaction) bool {
	return !slices.ContainsFunc(txn.Values, func(v controller.Value) bool {
		dst := strings.TrimPrefix(v.Key, kv.SinkRoutePrefix)
		_, ours := m.ours[dst]
		return ours && (len(m.foreign[dst]) > 0 || m.known[dst] == "?")
	})
}

// damage removes own routes, which the next resync notices.
func (w *world) damage(t *rapid.T) {
	for dst, gateway := range w.model.ours {
		if len(w.model.foreign[dst]) == 0 && rapid.Bool().Draw(t, "damaged") {
			w.inside(func() error { return netlink.RouteDel(by(ownProtocol, dst, gateway, 0)) })
			delete(w.model.ours, dst)
		}
	}
	w.commits(t, resync(drawValues(t, false)...))
}

// foreign changes a foreign route.
func (w *world) foreign(t *rapid.T) {
	dst := rapid.SampledFrom(destinations()).Draw(t, "destination")
	gateway := gateways(dst)[rapid.IntRange(0, 1).Draw(t, "gateway")]
	usual := 0
	if !netip.MustParsePrefix(dst).Addr().Is4() {
		usual = routeMetric6
	}
	metric := rapid.SampledFrom([]int{usual, 50, 5000}).Draw(t, "metric")
	_, ours := w.model.ours[dst]
	switch {
	case w.model.foreign[dst][metric] != "":
		w.inside(func() error {
			return netlink.RouteDel(by(unix.RTPROT_STATIC, dst, w.model.foreign[dst][metric], metric))
		})
		delete(w.model.foreign[dst], metric)
	default:
		err := w.ns.Do(func() error { return netlink.RouteAdd(by(unix.RTPROT_STATIC, dst, gateway, metric)) })
		if ours && metric == usual {
			w.Expect(err).To(MatchError(unix.EEXIST))
			return
		}
		w.Expect(err).NotTo(HaveOccurred())
		if w.model.foreign[dst] == nil {
			w.model.foreign[dst] = map[int]string{}
		}
		w.model.foreign[dst][metric] = gateway
	}
}

// clean takes everything away.
func (w *world) clean() {
	w.inside(func() error {
		var errs []error
		for dst, routes := range w.model.foreign {
			for metric, gateway := range routes {
				errs = append(errs, netlink.RouteDel(by(unix.RTPROT_STATIC, dst, gateway, metric)))
			}
		}
		return errors.Join(errs...)
	})
	w.Expect(w.commit(resync())).To(Succeed())
	w.Expect(w.routes()).To(BeEmpty())
	w.model = &model{map[string]string{}, map[string]string{}, map[string]map[int]string{}}
}

// TestAnySequenceEndsInTheModel draws transactions, foreign routes and
// removals of ours.
func TestAnySequenceEndsInTheModel(t *testing.T) {
	w := &world{newNode(t, routeOptions{}), &model{}}
	rapid.Check(t, func(t *rapid.T) {
		w.clean()
		same := func() { NewWithT(t).Expect(w.routes()).To(Equal(w.model.lines())) }
		t.Repeat(map[string]func(*rapid.T){
			"update": func(t *rapid.T) {
				txn := update(drawValues(t, true)...)
				txn.RevertOnFailure = rapid.Bool().Draw(t, "reverts") && w.model.undoable(txn)
				w.commits(t, txn)
			},
			"resync":  func(t *rapid.T) { w.commits(t, resync(drawValues(t, false)...)) },
			"foreign": w.foreign,
			"damage":  w.damage,
			"restart": func(t *rapid.T) {
				w.Expect(w.sink.Close()).To(Succeed())
				w.sink = w.open(routeOptions{})
				w.commits(t, resync(drawValues(t, false)...))
			},
			"": func(*rapid.T) { same() },
		})
		w.commits(t, resync(drawValues(t, false)...))
		same()
	})
}
