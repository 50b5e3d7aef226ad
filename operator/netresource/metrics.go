// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// MetricsAPI is what a manager tells of itself.
type MetricsAPI interface {
	IncAllocationAttempt(status, subnetID string)
	AddIPAllocation(subnetID string, allocated int64)
	AddIPRelease(subnetID string, released int64)
	SetAllocatedIPs(typ string, allocated int)
	SetAvailableInterfaces(available int)
	SetAvailableIPsPerSubnet(subnetID string, availabilityZone string, available int)
	SetNetResourceSets(category string, nodes int)
	IncResyncCount()
	PoolMaintainerTrigger() TriggerObserver
	K8sSyncTrigger() TriggerObserver
	ResyncTrigger() TriggerObserver
}

// TriggerObserver sees the requests of one kind and the runs that answer them.
type TriggerObserver interface {
	// QueueEvent is called for every request.
	QueueEvent(reason string)
	// PostRun is called after every run, with its duration, how long the first
	// request for it has waited, and how many requests it has answered.
	PostRun(callDuration, latency time.Duration, folds int)
}

// Metrics is the MetricsAPI of Prometheus, and a collector of it.
type Metrics struct {
	ips, perSubnet, nodes                 *prometheus.GaugeVec
	overdue                               *prometheus.GaugeVec
	interfaces                            prometheus.Gauge
	allocations, releases, interfaceCalls *prometheus.CounterVec
	resyncs                               prometheus.Counter
	maintain, sync, resync                *triggerMetrics
}

var (
	_ MetricsAPI           = (*Metrics)(nil)
	_ OverdueObserver      = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// NewMetrics makes metrics of that namespace, in the subsystem ipam.
func NewMetrics(namespace string) *Metrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "ipam", Name: name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: "ipam", Name: name, Help: help}, labels)
	}
	return &Metrics{
		ips:            gauge("ips", "Addresses of all nodes: used, available (free), needed.", "type"),
		perSubnet:      gauge("available_ips_per_subnet", "Addresses that are left of a subnet or pool.", "subnet_id", "availability_zone"),
		nodes:          gauge("nodes", "Nodes: total, in-deficit, at-capacity, unknown (not yet read from the provider).", "category"),
		overdue:        gauge("provider_calls_overdue", "Calls of the provider that are past their deadline and have not returned.", "operation"),
		interfaces:     prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "ipam", Name: "available", Help: "Interfaces that can still be made, or filled."}),
		allocations:    counter("allocation_ops", "Addresses that were taken.", "subnet_id"),
		releases:       counter("release_ops", "Addresses that were given back.", "subnet_id"),
		interfaceCalls: counter("interface_creation_ops", "Attempts to take addresses or interfaces, by outcome.", "subnet_id", "status"),
		resyncs:        prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: "ipam", Name: "resync_total", Help: "Rounds over all nodes."}),
		maintain:       newTriggerMetrics(namespace, "deficit_resolver"),
		sync:           newTriggerMetrics(namespace, "k8s_sync"),
		resync:         newTriggerMetrics(namespace, "resync"),
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{
		m.ips, m.perSubnet, m.nodes, m.overdue, m.interfaces, m.allocations, m.releases, m.interfaceCalls, m.resyncs, m.maintain, m.sync, m.resync,
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}

// IncAllocationAttempt implements MetricsAPI.
func (m *Metrics) IncAllocationAttempt(status, subnetID string) {
	m.interfaceCalls.WithLabelValues(subnetID, status).Inc()
}

// AddIPAllocation implements MetricsAPI.
func (m *Metrics) AddIPAllocation(subnetID string, allocated int64) {
	m.allocations.WithLabelValues(subnetID).Add(float64(allocated))
}

// AddIPRelease implements MetricsAPI.
func (m *Metrics) AddIPRelease(subnetID string, released int64) {
	m.releases.WithLabelValues(subnetID).Add(float64(released))
}

// SetAllocatedIPs implements MetricsAPI.
func (m *Metrics) SetAllocatedIPs(typ string, allocated int) {
	m.ips.WithLabelValues(typ).Set(float64(allocated))
}

// SetAvailableInterfaces implements MetricsAPI.
func (m *Metrics) SetAvailableInterfaces(available int) { m.interfaces.Set(float64(available)) }

// SetAvailableIPsPerSubnet implements MetricsAPI.
func (m *Metrics) SetAvailableIPsPerSubnet(subnetID, availabilityZone string, available int) {
	m.perSubnet.WithLabelValues(subnetID, availabilityZone).Set(float64(available))
}

// SetNetResourceSets implements MetricsAPI.
func (m *Metrics) SetNetResourceSets(category string, nodes int) {
	m.nodes.WithLabelValues(category).Set(float64(nodes))
}

// SetOverdueCalls implements OverdueObserver.
func (m *Metrics) SetOverdueCalls(operation string, calls int) {
	m.overdue.WithLabelValues(operation).Set(float64(calls))
}

// IncResyncCount implements MetricsAPI.
func (m *Metrics) IncResyncCount() { m.resyncs.Inc() }

// PoolMaintainerTrigger implements MetricsAPI.
func (m *Metrics) PoolMaintainerTrigger() TriggerObserver { return m.maintain }

// K8sSyncTrigger implements MetricsAPI.
func (m *Metrics) K8sSyncTrigger() TriggerObserver { return m.sync }

// ResyncTrigger implements MetricsAPI.
func (m *Metrics) ResyncTrigger() TriggerObserver { return m.resync }

// triggerMetrics are those of one queue.
type triggerMetrics struct {
	queued            prometheus.Counter
	folds             prometheus.Gauge
	duration, latency prometheus.Histogram
}

func newTriggerMetrics(namespace, name string) *triggerMetrics {
	counter := func(part, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: "ipam", Name: name + part, Help: help})
	}
	histogram := func(part, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Subsystem: "ipam", Name: name + part, Help: help})
	}
	return &triggerMetrics{
		queued:   counter("_queued_total", "Requests."),
		folds:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: "ipam", Name: name + "_folds", Help: "Requests that the last run has answered."}),
		duration: histogram("_duration_seconds", "Time of a run."), latency: histogram("_latency_seconds", "Time from the first request to its run."),
	}
}

// QueueEvent implements TriggerObserver.
func (t *triggerMetrics) QueueEvent(string) { t.queued.Inc() }

// PostRun implements TriggerObserver.
func (t *triggerMetrics) PostRun(callDuration, latency time.Duration, folds int) {
	t.folds.Set(float64(folds))
	t.duration.Observe(callDuration.Seconds())
	t.latency.Observe(latency.Seconds())
}

// Describe implements prometheus.Collector.
func (t *triggerMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range t.all() {
		c.Describe(ch)
	}
}

func (t *triggerMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{t.queued, t.folds, t.duration, t.latency}
}

// Collect implements prometheus.Collector.
func (t *triggerMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range t.all() {
		c.Collect(ch)
	}
}

// noMetrics is a MetricsAPI for whoever wants none.
type noMetrics struct{}

var _ MetricsAPI = noMetrics{}

func (noMetrics) IncAllocationAttempt(string, string)          {}
func (noMetrics) AddIPAllocation(string, int64)                {}
func (noMetrics) AddIPRelease(string, int64)                   {}
func (noMetrics) SetAllocatedIPs(string, int)                  {}
func (noMetrics) SetAvailableInterfaces(int)                   {}
func (noMetrics) SetAvailableIPsPerSubnet(string, string, int) {}
func (noMetrics) SetNetResourceSets(string, int)               {}
func (noMetrics) IncResyncCount()                              {}
func (noMetrics) PoolMaintainerTrigger() TriggerObserver       { return nil }
func (noMetrics) K8sSyncTrigger() TriggerObserver              { return nil }
func (noMetrics) ResyncTrigger() TriggerObserver               { return nil }
