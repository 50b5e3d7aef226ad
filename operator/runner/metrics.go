// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import "github.com/prometheus/client_golang/prometheus"

// Metrics is a prometheus.Collector of all metrics of one controller: those that
// it sets as it works, and those that OnCollect reads from its state.
type Metrics struct {
	prefix     string
	collectors []prometheus.Collector
	descs      []*prometheus.Desc
	read       func(chan<- prometheus.Metric)
}

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns an empty set; the names of its metrics begin with prefix.
func NewMetrics(prefix string) *Metrics { return &Metrics{prefix: prefix} }

// Counter adds a counter. Without labels, call WithLabelValues once: it begins at 0.
func (m *Metrics) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.prefix + name, Help: help}, labels)
	m.collectors = append(m.collectors, c)
	return c
}

// Gauge adds a gauge. Without labels, call WithLabelValues once: it begins at 0.
func (m *Metrics) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.prefix + name, Help: help}, labels)
	m.collectors = append(m.collectors, g)
	return g
}

// Histogram adds a histogram; without buckets it has Prometheus' default ones.
func (m *Metrics) Histogram(name, help string, buckets ...float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: m.prefix + name, Help: help, Buckets: buckets})
	m.collectors = append(m.collectors, h)
	return h
}

// Desc adds a metric that OnCollect sends.
func (m *Metrics) Desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(m.prefix+name, help, labels, nil)
	m.descs = append(m.descs, d)
	return d
}

// OnCollect sets the function that sends the metrics of Desc.
func (m *Metrics) OnCollect(read func(ch chan<- prometheus.Metric)) { m.read = read }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		ch <- d
	}
	for _, c := range m.collectors {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	if m.read != nil {
		m.read(ch)
	}
	for _, c := range m.collectors {
		c.Collect(ch)
	}
}
