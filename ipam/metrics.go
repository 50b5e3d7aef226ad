// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/ledger"
)

// MetricsOwner is an Owner that provides the metrics of NewIPAM.
type MetricsOwner interface {
	// Metrics returns the metrics of the IPAM, or nil.
	Metrics() *Metrics
}

// Metrics counts the calls of an IPAM under the names of Cilium (cilium_ipam_events_total,
// cilium_ip_addresses, cilium_ipam_capacity) and of CCE (cce_ipam_events_total,
// cce_ipam_error_counter, cce_kubernetes_events_total and
// cce_kubernetes_events_received_total), and under Cadastre's (cadastre_ipam_*). Use
// NewMetrics, pass it to one IPAM, and register it. Any goroutine may call its methods. A
// nil *Metrics counts nothing.
type Metrics struct {
	events     [3]*prometheus.CounterVec // one of each name
	errors     [2]*prometheus.CounterVec
	eventsSeen *prometheus.CounterVec
	eventsDone *prometheus.CounterVec
	gauges     []gauge

	mu sync.Mutex
	m  *IPAM // nil: none yet
}

// gauge is one number of addresses by family, with all names that it has.
type gauge struct {
	descs []*prometheus.Desc
	value func(ledger.BlockStat) uint64
}

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns metrics that count nothing yet.
func NewMetrics() *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"family"}, nil)
	}
	const events = "Addresses that were allocated or released, by action (allocate, release) and family."
	const failed = "Calls that failed, by error (exhausted, refused, disabled, other), kind and name of the resource."
	return &Metrics{
		events: [3]*prometheus.CounterVec{
			counter("cadastre_ipam_events_total", events, "action", "family"),
			counter("cilium_ipam_events_total", events, "action", "family"),
			counter("cce_ipam_events_total", events, "action", "family"),
		},
		errors: [2]*prometheus.CounterVec{
			counter("cadastre_ipam_errors_total", failed, "error", "kind", "name"),
			counter("cce_ipam_error_counter", failed, "error", "kind", "name"),
		},
		eventsSeen: counter("cce_kubernetes_events_received_total",
			"Received events by scope, action, validity and equality.", "scope", "action", "valid", "equal"),
		eventsDone: counter("cce_kubernetes_events_total",
			"Processed events by scope, action and outcome (success, failed).", "scope", "action", "status"),
		gauges: []gauge{
			{
				[]*prometheus.Desc{
					desc("cadastre_ipam_addresses", "Allocated addresses by family."),
					desc("cilium_ip_addresses", "Allocated addresses by family."),
				},
				func(b ledger.BlockStat) uint64 { return uint64(b.Held + b.Quarantined) },
			},
			{
				[]*prometheus.Desc{desc("cadastre_ipam_cooling_addresses",
					"Released addresses that are not allocated again yet, by family.")},
				func(b ledger.BlockStat) uint64 { return uint64(b.Cooling) },
			},
			{
				[]*prometheus.Desc{
					desc(
						"cadastre_ipam_capacity",
						"Addresses that the node can allocate, and those that it has allocated, by family.",
					),
					desc(
						"cilium_ipam_capacity",
						"Addresses that the node can allocate, and those that it has allocated, by family.",
					),
				},
				func(b ledger.BlockStat) uint64 { return add(b.Free, uint64(b.Held+b.Quarantined+b.Cooling)) },
			},
		},
	}
}

// of makes m the IPAM whose addresses are counted.
func (x *Metrics) of(m *IPAM) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.m = m
}

// Describe implements prometheus.Collector.
func (x *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range x.counters() {
		c.Describe(ch)
	}
	for _, g := range x.gauges {
		for _, d := range g.descs {
			ch <- d
		}
	}
}

// Collect implements prometheus.Collector.
func (x *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range x.counters() {
		c.Collect(ch)
	}
	x.mu.Lock()
	m := x.m
	x.mu.Unlock()
	if m == nil {
		return
	}
	stats := m.stats()
	for _, f := range m.families.both {
		if m.allocatorOf(f) == nil {
			continue
		}
		for _, g := range x.gauges {
			n := uint64(0)
			for _, b := range stats {
				if b.Family == f {
					n = add(n, g.value(b))
				}
			}
			for _, d := range g.descs {
				ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), familyLabel(f))
			}
		}
	}
}

func (x *Metrics) counters() []*prometheus.CounterVec {
	return append(append(x.events[:], x.errors[:]...), x.eventsSeen, x.eventsDone)
}

// familyLabel returns the published name of a family.
func familyLabel(f ledger.Family) string {
	if f == ledger.IPv4 {
		return string(IPv4)
	}
	return string(IPv6)
}

// Values of the label action.
const (
	actionAllocate = "allocate"
	actionRelease  = "release"
)

// count counts n allocated or released addresses.
func (x *Metrics) count(action string, f ledger.Family, n int) {
	if x == nil || n == 0 {
		return
	}
	for _, c := range x.events {
		c.WithLabelValues(action, familyLabel(f)).Add(float64(n))
	}
}

// failed counts a call that failed.
func (x *Metrics) failed(name string, err error) {
	if x == nil || err == nil {
		return
	}
	reason := "other"
	switch {
	case errors.Is(err, ledger.ErrExhausted):
		reason = "exhausted"
	case errors.Is(err, ErrIPv4Disabled), errors.Is(err, ErrIPv6Disabled), errors.Is(err, ErrDelegated):
		reason = "disabled"
	case errors.Is(err, ErrBlacklisted), errors.Is(err, ErrGivenBack), errors.Is(err, ledger.ErrTaken),
		errors.Is(err, errNoSubnet):
		reason = "refused"
	}
	for _, c := range x.errors {
		c.WithLabelValues(reason, scope, name).Inc()
	}
}

func (x *Metrics) received(scope, action string, valid, equal bool) {
	if x != nil {
		x.eventsSeen.WithLabelValues(scope, action, strconv.FormatBool(valid), strconv.FormatBool(equal)).Inc()
	}
}

func (x *Metrics) processed(scope, action string, ok bool) {
	status := "success"
	if !ok {
		status = "failed"
	}
	if x != nil {
		x.eventsDone.WithLabelValues(scope, action, status).Inc()
	}
}
