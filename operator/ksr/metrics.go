// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ksr

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/operator/runner"
)

// metrics holds the metrics of a Reflector.
type metrics struct {
	*runner.Metrics
	writes *prometheus.CounterVec
	errors *prometheus.CounterVec
	sweeps prometheus.Counter
}

func newMetrics(r *Reflector) *metrics {
	m := runner.NewMetrics("cadastre_ksr_")
	objects := m.Desc("objects", "Keys in the cluster store, by resource.", "resource")
	bad := m.Desc("bad_objects", "Objects that cannot be stored.")
	synced := m.Desc("synced", "1 if all objects of a resource have been read, else 0.", "resource")
	pending := m.Desc("pending", "Keys that wait to be compared with the cluster store.")
	connected := m.Desc("connected", "1 while the cluster store is followed, else 0.")
	lastSweep := m.Desc("last_sweep_timestamp_seconds", "Time of the last comparison of all keys; 0: none yet.")
	m.OnCollect(func(ch chan<- prometheus.Metric) {
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
		}
		status := r.Status()
		for _, k := range status.kinds {
			gauge(objects, float64(k.stored), k.Resource)
			gauge(synced, oneIf(k.State == stateSynced), k.Resource)
		}
		gauge(bad, float64(len(status.rejected)))
		gauge(pending, float64(status.Pending))
		gauge(connected, oneIf(status.Connected))
		last := 0.
		if !status.lastSweep.IsZero() {
			last = float64(status.lastSweep.UnixMilli()) / 1000
		}
		gauge(lastSweep, last)
	})
	all := &metrics{
		Metrics: m,
		writes: m.Counter(
			"writes_total",
			"Keys written to the cluster store, by resource and operation: put or delete.",
			"resource",
			"op",
		),
		errors: m.Counter(
			"errors_total",
			"Failures by kind: store, older (the store lost writes), fence, watch (of the API server), object (cannot be stored).",
			"what",
		),
		sweeps: m.Counter("sweeps_total", "Comparisons of all keys.").WithLabelValues(),
	}
	for _, what := range []string{"store", "older", "fence", "watch", "object"} {
		all.errors.WithLabelValues(what)
	}
	for _, resource := range kv.Resources() {
		all.writes.WithLabelValues(resource.Name, "put")
		all.writes.WithLabelValues(resource.Name, "delete")
	}
	return all
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// wrote counts a written key.
func (m *metrics) wrote(op kvdb.Op) {
	resource, _ := kv.ResourceOf(op.Key)
	what := "put"
	if op.Delete {
		what = "delete"
	}
	m.writes.WithLabelValues(resource.Name, what).Inc()
}

// failed counts an error of the store or of the fence.
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
