// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/operator/runner"
	"github.com/cadastre/cadastre/witness/findings"
)

// metrics holds the metrics of an Auditor.
type metrics struct {
	*runner.Metrics
	findings *prometheus.GaugeVec
	rounds   prometheus.Counter
	errors   prometheus.Counter
	last     prometheus.Gauge
	took     prometheus.Histogram
}

func newMetrics() *metrics {
	m := runner.NewMetrics("cadastre_audit_")
	all := &metrics{
		Metrics: m,
		findings: m.Gauge(
			"findings",
			"Confirmed differences between objects of the cluster, by number and name.",
			"number",
			"name",
		),
		rounds: m.Counter("rounds_total", "Comparisons of the objects of the cluster.").WithLabelValues(),
		errors: m.Counter("errors_total", "Failed comparisons, reports and events.").WithLabelValues(),
		last: m.Gauge(
			"last_round_timestamp_seconds",
			"Time of the last comparison that succeeded; 0: none yet.",
		).WithLabelValues(),
		took: m.Histogram("round_duration_seconds", "Duration of comparisons that succeeded."),
	}
	all.show(nil)
	return all
}

// show counts the findings of every number, also those that have none.
func (m *metrics) show(confirmed []confirmedFinding) {
	counts := map[string]int{}
	for _, f := range confirmed {
		counts[f.Number]++
	}
	for _, k := range findings.ClusterKinds() {
		m.findings.WithLabelValues(k.Number, k.Name).Set(float64(counts[k.Number]))
	}
}
