// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import "github.com/prometheus/client_golang/prometheus"

// metrics collects the metrics of the plugin: what it has counted, and the figures of its
// status.
type metrics struct {
	status   func() Status
	readings prometheus.Counter
	errors   *prometheus.CounterVec

	attached, attachable, addresses, prefixes, returning, lost, backingOff *prometheus.Desc
}

func newMetrics(status func() Status) *metrics {
	name := func(s string) string { return prometheus.BuildFQName("cadastre", "interfaces", s) }
	gauge := func(s, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name(s), help, labels, nil)
	}
	return &metrics{
		status: status,
		readings: prometheus.NewCounter(prometheus.CounterOpts{
			Name: name("readings_total"),
			Help: "Readings of this machine in its cloud.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("errors_total"),
			Help: "Errors of the cloud, by call; return and round: of what was tried with it.",
		}, []string{"call"}),
		attached:   gauge("attached", "Attached interfaces."),
		attachable: gauge("attachable", "The most interfaces that the machine may have; 0: not known yet."),
		addresses:  gauge("addresses", "Addresses by state: free, assigned or cooling.", "family", "state"),
		prefixes:   gauge("prefixes", "Prefixes by state: free or used.", "family", "state"),
		returning:  gauge("returning", "Addresses and prefixes on their way back to the cloud."),
		lost:       gauge("lost", "Addresses and prefixes with leases that the cloud no longer has."),
		backingOff: gauge("backing_off", "1 while the cloud is not asked because it had no addresses."),
	}
}

// failed counts an error of a call.
func (m *metrics) failed(call string) { m.errors.WithLabelValues(call).Inc() }

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.readings.Describe(ch)
	m.errors.Describe(ch)
	for _, d := range []*prometheus.Desc{
		m.attached, m.attachable, m.addresses, m.prefixes, m.returning, m.lost, m.backingOff,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.readings.Collect(ch)
	m.errors.Collect(ch)
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	s := m.status()
	gauge(m.attached, s.Interfaces)
	gauge(m.attachable, s.MaxInterfaces)
	for _, f := range s.Families {
		name := f.Family.String()
		gauge(m.addresses, f.Free(), name, "free")
		gauge(m.addresses, f.Assigned, name, "assigned")
		gauge(m.addresses, f.Cooling, name, "cooling")
		gauge(m.prefixes, f.FreePrefixes, name, "free")
		gauge(m.prefixes, f.Prefixes-f.FreePrefixes, name, "used")
	}
	gauge(m.returning, s.Returning)
	gauge(m.lost, s.LostBlocks)
	backingOff := 0
	if s.BackingOff {
		backingOff = 1
	}
	gauge(m.backingOff, backingOff)
}
