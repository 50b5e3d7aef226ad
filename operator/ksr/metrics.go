// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
)

// metrics are those of a Reflector.
type metrics struct {
	r      *Reflector
	writes *prometheus.CounterVec
	errors *prometheus.CounterVec
	sweeps prometheus.Counter

	objects, bad, synced, pending, connected, lastSweep *prometheus.Desc
}

var _ prometheus.Collector = (*metrics)(nil)

func newMetrics(r *Reflector) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cadastre_ksr_"+name, help, labels, nil)
	}
	return &metrics{
		r: r,
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cadastre_ksr_writes_total",
			Help: "Keys that were written to the cluster store, by resource and what was done: put or delete."}, []string{"resource", "op"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cadastre_ksr_errors_total",
			Help: "Failures, by what failed: store, older (the store came back so), fence, watch (of the API server), object (that cannot be stored)."}, []string{"what"}),
		sweeps:    prometheus.NewCounter(prometheus.CounterOpts{Name: "cadastre_ksr_sweeps_total", Help: "How often all keys were looked at."}),
		objects:   desc("objects", "Keys in the cluster store, by resource.", "resource"),
		bad:       desc("bad_objects", "Objects that cannot be stored."),
		synced:    desc("synced", "Whether the objects of a resource are known: 1 or 0.", "resource"),
		pending:   desc("pending", "Keys that are to be looked at."),
		connected: desc("connected", "Whether the cluster store is followed: 1 or 0."),
		lastSweep: desc("last_sweep_timestamp_seconds", "When all keys were last looked at; 0 for never."),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.objects, m.bad, m.synced, m.pending, m.connected, m.lastSweep} {
		ch <- d
	}
	for _, c := range []prometheus.Collector{m.writes, m.errors, m.sweeps} {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	status := m.r.Status()
	for _, k := range status.Kinds {
		gauge(m.objects, float64(k.Stored), k.Resource)
		gauge(m.synced, truth(k.State == Synced), k.Resource)
	}
	gauge(m.bad, float64(len(status.Bad)))
	gauge(m.pending, float64(status.Pending))
	gauge(m.connected, truth(status.Connected))
	last := 0.
	if !status.LastSweep.IsZero() {
		last = float64(status.LastSweep.UnixMilli()) / 1000
	}
	gauge(m.lastSweep, last)
	for _, c := range []prometheus.Collector{m.writes, m.errors, m.sweeps} {
		c.Collect(ch)
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// wrote counts a key.
func (m *metrics) wrote(op kvdb.Op) {
	resource, _ := kv.ResourceOf(op.Key)
	what := "put"
	if op.Delete {
		what = "delete"
	}
	m.writes.WithLabelValues(resource.Name, what).Inc()
}

// failed counts an error of the store, or of what is asked before it is written.
func (m *metrics) failed(err error) {
	what := "store"
	switch {
	case errors.Is(err, errOlder):
		what = "older"
	case errors.Is(err, errFence):
		what = "fence"
	}
	m.errors.WithLabelValues(what).Inc()
}
