// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cadastre/cadastre/operator/blocks"
)

// metrics are upstream's, under upstream's names (one of which has a typing
// error), and our own.
type metrics struct {
	patches  *prometheus.CounterVec
	syncs    *prometheus.CounterVec
	assigned prometheus.Histogram

	book    *book
	reports *reports

	allocations, releases, most, usage, tries *prometheus.Desc
	blocks, nodes, leader                     *prometheus.Desc
	led                                       func() bool
}

func newMetrics(b *book, r *reports, led func() bool) *metrics {
	upstream := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("node_ipam_controller_"+name, help, []string{"clusterCIDR"}, nil)
	}
	ours := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cadastre_node_cidr_"+name, help, labels, nil)
	}
	return &metrics{
		patches: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cadastre_node_cidr_patches_total",
			Help: "Patches of Node objects by outcome: ok, refused (not applied), unknown (read back)."}, []string{"outcome"}),
		syncs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cadastre_node_cidr_syncs_total",
			Help: "Nodes that were looked at, by outcome."}, []string{"outcome"}),
		assigned: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cadastre_node_cidr_assign_duration_seconds",
			Help: "Time from the making of a Node object to its podCIDRs.", Buckets: prometheus.ExponentialBuckets(.01, 2.5, 14)}),
		book: b, reports: r, led: led,
		allocations: upstream("cidrset_cidrs_allocations_total", "Node CIDRs that were allocated."),
		releases:    upstream("cidrset_cidrs_releases_total", "Node CIDRs that were released."),
		most:        upstream("cirdset_max_cidrs", "Node CIDRs that the range has."),
		usage:       upstream("cidrset_usage_cidrs", "Part of the node CIDRs of the range that is in use, from 0 to 1."),
		tries:       upstream("cidrset_allocation_tries_per_request", "Node CIDRs in use between where an allocation began to look and what it found."),
		blocks: ours("blocks", "Node CIDRs of a range by state. Reserved and held are one where blocks have other sizes than the range's.",
			"range", "state"),
		nodes:  ours("nodes", "Nodes by what is to be said of them: held, waiting (nothing is left), or a problem's reason.", "state"),
		leader: ours("leader", "Whether this process gives node CIDRs: 1 or 0."),
	}
}

var _ prometheus.Collector = (*metrics)(nil)

func (m *metrics) descs() []*prometheus.Desc {
	return []*prometheus.Desc{m.allocations, m.releases, m.most, m.usage, m.tries, m.blocks, m.nodes, m.leader}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs() {
		ch <- d
	}
	m.patches.Describe(ch)
	m.syncs.Describe(ch)
	m.assigned.Describe(ch)
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	stat := m.book.stat()
	for _, r := range stat.Ranges {
		m.collectRange(ch, r)
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	states := map[string]int{"held": stat.Owners, "waiting": len(m.reports.whoWaits())}
	for _, p := range m.reports.whatIsWrong() {
		states[p.Reason]++
	}
	for state, n := range states {
		gauge(m.nodes, float64(n), state)
	}
	leader := 0.
	if m.led() {
		leader = 1
	}
	gauge(m.leader, leader)
	m.patches.Collect(ch)
	m.syncs.Collect(ch)
	m.assigned.Collect(ch)
}

func (m *metrics) collectRange(ch chan<- prometheus.Metric, r blocks.RangeStat) {
	name := r.Prefix.String()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, value, append([]string{name}, labels...)...)
	}
	send(m.allocations, prometheus.CounterValue, float64(r.Allocated))
	send(m.releases, prometheus.CounterValue, float64(r.Released))
	send(m.most, prometheus.GaugeValue, float64(r.Capacity))
	send(m.usage, prometheus.GaugeValue, float64(r.Used)/float64(r.Capacity))
	buckets := map[float64]uint64{}
	for i, most := range blocks.SkipBuckets() {
		buckets[most] = r.Skipped.Buckets[i]
	}
	ch <- prometheus.MustNewConstHistogram(m.tries, r.Skipped.Count, r.Skipped.Sum, buckets, name)
	send(m.blocks, prometheus.GaugeValue, float64(r.Free()), "free")
	send(m.blocks, prometheus.GaugeValue, float64(r.Blocks), "held")
	send(m.blocks, prometheus.GaugeValue, float64(r.Cooling), "cooling")
	if rest := int64(r.Used) - int64(r.Blocks) - int64(r.Cooling); rest > 0 {
		send(m.blocks, prometheus.GaugeValue, float64(rest), "reserved")
	}
}

// patched counts a patch that was answered so.
func (m *metrics) patched(err error) { m.patches.WithLabelValues(patchOutcome(err)).Inc() }

func patchOutcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case refused(err):
		return "refused"
	default:
		return "unknown"
	}
}

// refused is true where the API server itself says that it has not applied a patch.
func refused(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) ||
		apierrors.IsUnauthorized(err) || apierrors.IsBadRequest(err) || apierrors.IsTooManyRequests(err)
}

func (m *metrics) synced(err error) {
	outcome := "ok"
	switch {
	case errors.Is(err, blocks.ErrExhausted):
		outcome = "exhausted"
	case errors.Is(err, ErrQuarantined):
		outcome = "quarantined"
	case errors.Is(err, ErrDeposed):
		outcome = "deposed"
	case err != nil:
		outcome = "error"
	}
	m.syncs.WithLabelValues(outcome).Inc()
}

func (m *metrics) assignedAfter(d time.Duration) { m.assigned.Observe(max(0, d.Seconds())) }
