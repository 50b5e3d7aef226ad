// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/plugins/reclaim"
	"github.com/cadastre/cadastre/witness"
)

// WatchReclaims adds the metrics of the witnesses and of reclaims. It must be called at
// most once, before the first scrape.
func (m *Metrics) WatchReclaims(counts func() reclaim.Counts, reports func() []witness.Report, now func() time.Time) {
	m.Registry.MustRegister(&reclaimCollector{counts: counts, reports: reports, now: now})
}

// reclaimCollector reads the figures on demand.
type reclaimCollector struct {
	counts  func() reclaim.Counts
	reports func() []witness.Report
	now     func() time.Time
}

func reclaimsDesc() *prometheus.Desc {
	return prometheus.NewDesc(
		"cadastre_reclaims_total",
		"Attachments whose reclaim has ended since the start, by outcome: reclaimed or undone.",
		[]string{"outcome"},
		nil,
	)
}

func reclaimsPendingDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_reclaims_pending", "Attachments whose reclaim can be undone.", nil, nil)
}

func quarantinesDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_quarantines_total",
		"Addresses that were found in use without a lease since the start.", nil, nil)
}

func roundsDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_witness_rounds_total", "Readings of all witnesses since the start.", nil, nil)
}

func witnessPresentDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_witness_present",
		"Whether a witness was read: 1, or 0 if it is missing; without a value if it does not apply.",
		[]string{"witness"}, nil)
}

func witnessAgeDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_witness_age_seconds", "Age of the last view of a witness.",
		[]string{"witness"}, nil)
}

// Describe sends the descriptions of the metrics.
func (c *reclaimCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		reclaimsDesc(), reclaimsPendingDesc(), quarantinesDesc(), roundsDesc(), witnessPresentDesc(), witnessAgeDesc(),
	} {
		ch <- d
	}
}

// Collect reads the figures.
func (c *reclaimCollector) Collect(ch chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	n := c.counts()
	send(reclaimsDesc(), prometheus.CounterValue, float64(n.Reclaimed), string(reclaim.OutcomeReclaimed))
	send(reclaimsDesc(), prometheus.CounterValue, float64(n.Undone), string(reclaim.OutcomeUndone))
	send(reclaimsPendingDesc(), prometheus.GaugeValue, float64(n.Pending))
	send(quarantinesDesc(), prometheus.CounterValue, float64(n.Quarantined))
	send(roundsDesc(), prometheus.CounterValue, float64(n.Rounds))
	for _, r := range c.reports() {
		if r.State == witness.NotApplicable {
			continue
		}
		send(witnessPresentDesc(), prometheus.GaugeValue, number(r.State == witness.Present), string(r.Name))
		if !r.Read.IsZero() {
			send(witnessAgeDesc(), prometheus.GaugeValue, c.now().Sub(r.Read).Seconds(), string(r.Name))
		}
	}
}
