// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/runner"
)

// metrics holds upstream's metrics, under upstream's names (one of which has a typing
// error), and the allocator's own.
type metrics struct {
	*runner.Metrics
	patches  *prometheus.CounterVec
	syncs    *prometheus.CounterVec
	assigned prometheus.Histogram
}

func newMetrics(b *assignments, r *reports, leading func() bool) *metrics {
	m := runner.NewMetrics("")
	nodes := m.Desc("cadastre_node_cidr_nodes",
		"Nodes by state: held, waiting (no CIDR is free), or the reason of a problem.", "state")
	leader := m.Desc("cadastre_node_cidr_leader", "1 while this process assigns node CIDRs, else 0.")
	ranges := newRangeMetrics(m)
	m.OnCollect(func(ch chan<- prometheus.Metric) {
		stat := b.stat()
		for _, r := range stat.Ranges {
			ranges.collect(ch, r)
		}
		states := map[string]int{"held": stat.Owners, "waiting": len(r.waitingNodes())}
		for _, p := range r.list() {
			states[p.Reason]++
		}
		for state, n := range states {
			ch <- prometheus.MustNewConstMetric(nodes, prometheus.GaugeValue, float64(n), state)
		}
		value := 0.
		if leading() {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(leader, prometheus.GaugeValue, value)
	})
	all := &metrics{
		Metrics: m,
		patches: m.Counter("cadastre_node_cidr_patches_total",
			"Patches of Node objects by outcome: ok, refused (not applied), unknown (read back).", "outcome"),
		syncs: m.Counter("cadastre_node_cidr_syncs_total",
			"Synchronizations of a node by outcome: ok, exhausted (no CIDR is free), quarantined, deposed or error.",
			"outcome"),
		assigned: m.Histogram("cadastre_node_cidr_assign_duration_seconds",
			"Time from the creation of a Node object to its podCIDRs.", prometheus.ExponentialBuckets(.01, 2.5, 14)...),
	}
	for _, outcome := range []string{"ok", "refused", "unknown"} {
		all.patches.WithLabelValues(outcome)
	}
	for _, outcome := range []string{"ok", "exhausted", "quarantined", "deposed", "error"} {
		all.syncs.WithLabelValues(outcome)
	}
	return all
}

// rangeMetrics holds the metrics of ranges.
type rangeMetrics struct {
	allocations, releases, capacity, usage, tries, blocks *prometheus.Desc
}

func newRangeMetrics(m *runner.Metrics) rangeMetrics {
	upstream := func(name, help string) *prometheus.Desc {
		return m.Desc("node_ipam_controller_"+name, help, "clusterCIDR")
	}
	return rangeMetrics{
		allocations: upstream("cidrset_cidrs_allocations_total", "Allocated node CIDRs."),
		releases:    upstream("cidrset_cidrs_releases_total", "Released node CIDRs."),
		capacity:    upstream("cirdset_max_cidrs", "Capacity of the range in node CIDRs."),
		usage:       upstream("cidrset_usage_cidrs", "Fraction of the range's node CIDRs in use, from 0 to 1."),
		tries: upstream("cidrset_allocation_tries_per_request",
			"Node CIDRs in use between the start of an allocation's search and its result."),
		blocks: m.Desc(
			"cadastre_node_cidr_blocks",
			"Node CIDRs of a range by state. If blocks have other sizes than the range's, reserved and held are one.",
			"range",
			"state",
		),
	}
}

func (m rangeMetrics) collect(ch chan<- prometheus.Metric, r blocks.RangeStat) {
	name := r.Prefix.String()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, value, append([]string{name}, labels...)...)
	}
	send(m.allocations, prometheus.CounterValue, float64(r.Allocated))
	send(m.releases, prometheus.CounterValue, float64(r.Released))
	send(m.capacity, prometheus.GaugeValue, float64(r.Capacity))
	send(m.usage, prometheus.GaugeValue, float64(r.Used)/float64(r.Capacity))
	buckets := map[float64]uint64{}
	for i, limit := range blocks.SkipBuckets() {
		buckets[limit] = r.Skipped.Buckets[i]
	}
	ch <- prometheus.MustNewConstHistogram(m.tries, r.Skipped.Count, r.Skipped.Sum, buckets, name)
	send(m.blocks, prometheus.GaugeValue, float64(r.Free()), "free")
	send(m.blocks, prometheus.GaugeValue, float64(r.Blocks), "held")
	send(m.blocks, prometheus.GaugeValue, float64(r.Cooling), "cooling")
	if rest := int64(r.Used) - int64(r.Blocks) - int64(r.Cooling); rest > 0 {
		send(m.blocks, prometheus.GaugeValue, float64(rest), "reserved")
	}
}

// patched counts a patch by its outcome.
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

// refused reports whether the API server itself answered that it has not applied a patch.
func refused(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) ||
		apierrors.IsForbidden(err) ||
		apierrors.IsUnauthorized(err) ||
		apierrors.IsBadRequest(err) ||
		apierrors.IsTooManyRequests(err)
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
