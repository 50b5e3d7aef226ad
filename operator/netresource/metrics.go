// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/operator/runner"
)

// MetricsAPI receives the measurements of a manager.
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

// Metrics implements MetricsAPI for Prometheus.
type Metrics struct {
	prometheus.Collector
	interfaces                            prometheus.Gauge
	allocations, releases, interfaceCalls *prometheus.CounterVec
	ips, perSubnet                        *prometheus.GaugeVec
	nodes, overdue                        *prometheus.GaugeVec
	resyncs                               prometheus.Counter
	maintain, sync, resync                *triggerMetrics
}

var (
	_ MetricsAPI      = (*Metrics)(nil)
	_ OverdueObserver = (*Metrics)(nil)
)

// NewMetrics returns metrics whose names begin with the namespace and ipam.
func NewMetrics(namespace string) *Metrics {
	m := runner.NewMetrics(namespace + "_ipam_")
	return &Metrics{
		Collector: m,
		interfaces: m.Gauge(
			"available_interfaces",
			"Interfaces that can still be created or filled.",
		).WithLabelValues(),
		allocations: m.Counter("allocations_total", "Allocated addresses.", "subnet_id"),
		releases:    m.Counter("releases_total", "Released addresses.", "subnet_id"),
		interfaceCalls: m.Counter(
			"interface_creations_total",
			"Attempts to allocate addresses or create interfaces, by outcome.",
			"subnet_id",
			"status",
		),
		ips: m.Gauge("ips", "Addresses of all nodes: used, available (free), needed.", "type"),
		perSubnet: m.Gauge("available_ips_per_subnet", "Free addresses of a subnet or pool.",
			"subnet_id", "availability_zone"),
		nodes: m.Gauge(
			"nodes",
			"Nodes: total, in-deficit, at-capacity, unknown (not yet read from the provider).",
			"category",
		),
		overdue: m.Gauge(
			"provider_calls_overdue",
			"Calls of the provider that have not returned by their deadline.",
			"operation",
		),
		resyncs:  m.Counter("resync_total", "Resyncs of all nodes.").WithLabelValues(),
		maintain: newTriggerMetrics(m, "deficit_resolver"),
		sync:     newTriggerMetrics(m, "k8s_sync"),
		resync:   newTriggerMetrics(m, "resync"),
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
func (m *Metrics) SetAvailableInterfaces(available int) {
	m.interfaces.Set(float64(available))
}

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

// triggerMetrics holds the metrics of one queue.
type triggerMetrics struct {
	queued            prometheus.Counter
	folds             prometheus.Gauge
	duration, latency prometheus.Histogram
}

func newTriggerMetrics(m *runner.Metrics, name string) *triggerMetrics {
	return &triggerMetrics{
		queued:   m.Counter(name+"_queued_total", "Requests.").WithLabelValues(),
		folds:    m.Gauge(name+"_folds", "Requests that the last run has answered.").WithLabelValues(),
		duration: m.Histogram(name+"_duration_seconds", "Duration of a run."),
		latency:  m.Histogram(name+"_latency_seconds", "Time from the first request to its run."),
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

// noMetrics implements MetricsAPI without metrics.
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
