// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	v1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/operator/blocks"
)

// lines is a log without its times.
func lines(out *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func TestCapacityIsSaidAtStart(t *testing.T) {
	for _, x := range []struct {
		ranges   []string
		reserved string
		want     []string
		not      string
	}{
		{[]string{"10.0.0.0/16 24", "fd00::/48 64"}, "10.0.0.0/20", []string{
			`msg="cluster CIDR" range=10.0.0.0/16 pool=0 blocks=256 size=/24 used=18 free=238`,
			`msg="cluster CIDR" range=fd00::/48 pool=1 blocks=65536 size=/64 used=0 free=65536`,
			`msg="node CIDRs: capacity" nodes=2 more=238`,
			`msg="one pool ends long before another" pool=1 free=65536 least=238`,
		}, "one node only"},
		{[]string{"10.0.0.0/24 24"}, "", []string{`there can be one node only`}, "long before"},
	} {
		g := NewWithT(t)
		s := newServer()
		s.put("a", with("10.0.20.0/24"))
		s.put("b", with("10.0.21.0/24"))
		settings := ranges(x.ranges...)
		if x.reserved != "" {
			settings.Reserved = prefixes(x.reserved)
		}
		var out bytes.Buffer
		newBench(t, s, settings, func(d *Deps) { d.Log = lines(&out) })
		for _, line := range x.want {
			g.Expect(out.String()).To(ContainSubstring(line))
		}
		g.Expect(out.String()).NotTo(ContainSubstring(x.not))
	}
}

func TestFullnessIsSaidOnce(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	var out bytes.Buffer
	b := newBench(t, s, ranges("10.0.0.0/20 24"), func(d *Deps) { d.Log = lines(&out) })
	said := func() int {
		b.audit()
		return strings.Count(out.String(), "nearly full")
	}
	for i, want := range []int{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2} { // 13 of 16 are 81 percent, 15 are 94
		s.put(fmt.Sprint("n", i))
		g.Expect(b.look(t.Context())).To(Succeed())
		g.Expect(said()).To(Equal(want), "%d nodes", i+1)
		g.Expect(said()).To(Equal(want), "%d nodes, again", i+1)
	}
}

// TestMetrics has the names that dashboards of upstream look for, one of which
// has a typing error there.
func TestMetrics(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	s.put("old", with("10.0.0.0/24"))
	s.put("foreign", with("10.9.0.0/24"))
	b := newBench(t, s, ranges("10.0.0.0/22 24", "fd00::/48 64"))
	s.put("a")
	s.put("b")
	_ = b.look(t.Context())
	s.remove("b")
	_ = b.look(t.Context())
	text := exposed(t, b.Metrics())
	for _, line := range []string{
		`node_ipam_controller_cidrset_cidrs_allocations_total{clusterCIDR="10.0.0.0/22"} 3`,
		`node_ipam_controller_cidrset_cidrs_allocations_total{clusterCIDR="fd00::/48"} 2`,
		`node_ipam_controller_cidrset_cidrs_releases_total{clusterCIDR="10.0.0.0/22"} 1`,
		`node_ipam_controller_cidrset_cidrs_releases_total{clusterCIDR="fd00::/48"} 1`,
		`node_ipam_controller_cirdset_max_cidrs{clusterCIDR="10.0.0.0/22"} 4`,
		`node_ipam_controller_cirdset_max_cidrs{clusterCIDR="fd00::/48"} 65536`,
		`node_ipam_controller_cidrset_usage_cidrs{clusterCIDR="10.0.0.0/22"} 0.5`,
		`node_ipam_controller_cidrset_usage_cidrs{clusterCIDR="fd00::/48"} 1.52587890625e-05`,
		`node_ipam_controller_cidrset_allocation_tries_per_request_bucket{clusterCIDR="10.0.0.0/22",le="625"} 2`,
		`node_ipam_controller_cidrset_allocation_tries_per_request_sum{clusterCIDR="10.0.0.0/22"} 1`,
		`cadastre_node_cidr_blocks{range="10.0.0.0/22",state="cooling"} 0`,
		`cadastre_node_cidr_blocks{range="10.0.0.0/22",state="free"} 2`,
		`cadastre_node_cidr_blocks{range="10.0.0.0/22",state="held"} 2`,
		`cadastre_node_cidr_nodes{state="CIDROutOfRange"} 1`,
		`cadastre_node_cidr_nodes{state="held"} 3`,
		`cadastre_node_cidr_nodes{state="waiting"} 0`,
		`cadastre_node_cidr_leader 0`,
		`cadastre_node_cidr_patches_total{outcome="ok"} 2`,
		`cadastre_node_cidr_assign_duration_seconds_count 2`,
	} {
		g.Expect(text).To(ContainElement(line))
	}
}

// exposed returns the lines of a scrape.
func exposed(t *testing.T, c prometheus.Collector) []string {
	t.Helper()
	g := NewWithT(t)
	registry := prometheus.NewPedanticRegistry()
	g.Expect(registry.Register(c)).To(Succeed())
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	var out bytes.Buffer
	for _, f := range families {
		_, err := expfmt.MetricFamilyToText(&out, f)
		g.Expect(err).NotTo(HaveOccurred())
	}
	return strings.Split(out.String(), "\n")
}

// A condition that could not be written, or that an earlier leader has left, does
// not stay for ever.
func TestConditionsThatAreNotTrueAnyMore(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	b := newBench(t, s, ranges("10.0.0.0/28 28"))
	s.put("a")
	s.put("b")
	g.Expect(b.look(t.Context(), "a")).To(Succeed())
	g.Expect(b.look(t.Context(), "b")).To(MatchError(blocks.ErrExhausted))
	s.remove("a")
	s.fault = func(c call) fault {
		if c.what == "status" {
			return fail
		}
		return none
	}
	g.Expect(b.look(t.Context())).To(Succeed())
	g.Expect(s.cidrs()["b"]).To(HaveLen(1), "who cannot tell gives all the same")
	g.Expect(conditionOf(s.node("b"), ConditionProblem).Status).To(Equal(v1.ConditionTrue))
	s.fault = nil
	b.cache.refresh(s)
	b.queued()
	b.audit()
	g.Expect(b.queued()).To(Equal([]string{"b"}))
	g.Expect(b.sync(t.Context(), "b")).To(Succeed())
	g.Expect(conditionOf(s.node("b"), ConditionProblem).Status).To(Equal(v1.ConditionFalse))
}

// The problem of a node changes, and no node waits that could get a block.
func TestANodeHasOneProblemAtATime(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	s.put("full", with("10.0.0.0/28"))
	b := newBench(t, s, limited(ranges("10.0.0.0/28 28"), "10.0.0.0/28=28-28"))
	size := func(text string) { s.edit("a", func(n *v1.Node) { n.Labels = map[string]string{SizeIPv4: text} }) }
	s.put("a")
	g.Expect(b.look(t.Context(), "a")).To(MatchError(blocks.ErrExhausted))
	size("x")
	g.Expect(b.look(t.Context(), "a")).To(MatchError(blocks.ErrSize))
	g.Expect(b.Status().Waiting).To(BeEmpty())
	g.Expect(b.Status().Problems).To(ConsistOf(HaveField("Reason", ReasonInvalidSize)))
	size("")
	g.Expect(b.look(t.Context(), "a")).To(MatchError(blocks.ErrExhausted))
	g.Expect(b.Status().Waiting).To(Equal([]string{"a"}))
	g.Expect(b.Status().Problems).To(BeEmpty())
	g.Expect(conditionOf(s.node("a"), ConditionProblem).Reason).To(Equal(ReasonNotAvailable))
}
