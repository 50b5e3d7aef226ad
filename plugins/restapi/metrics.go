// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// Metrics holds the agent's metrics; docs/metrics.md lists them. A scrape counts leases and
// queued events; the parts of the agent report all other values. The counters of a closed set
// of labels begin at 0, so that the first error is an increase. Any goroutine may call the
// methods that report.
type Metrics struct {
	Registry *prometheus.Registry

	events     *prometheus.HistogramVec
	handlers   *prometheus.HistogramVec
	grouped    prometheus.Counter
	resync     prometheus.Gauge
	store      *prometheus.HistogramVec
	southbound *prometheus.HistogramVec
	kvdb       *prometheus.HistogramVec
	cni        *prometheus.CounterVec
	cniTime    *prometheus.HistogramVec
	podEvent   *prometheus.CounterVec
	*allocationMetrics
}

// NewMetrics returns the metrics of a ledger and a loop.
func NewMetrics(stats func() []ledger.BlockStat, loop func() controller.Status) *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		events: histogram("cadastre_event_duration_seconds",
			"Time from the beginning of an event's processing to its end.", "event", "outcome"),
		handlers: histogram("cadastre_event_handler_duration_seconds",
			"Time that one handler took for an event.", "event", "handler"),
		grouped: prometheus.NewCounter(prometheus.CounterOpts{Name: "cadastre_grouped_events_total",
			Help: "Events that shared their commit to the ledger's journal with other events."}),
		resync: prometheus.NewGauge(prometheus.GaugeOpts{Name: "cadastre_last_resync_timestamp_seconds",
			Help: "Time of the end of the last successful resync; 0: none yet."}),
		store: histogram("cadastre_store_commit_duration_seconds",
			"Time of one commit to the ledger's journal.", "outcome"),
		southbound: histogram("cadastre_southbound_commit_duration_seconds",
			"Time that the southbound took for the values of one event.", "outcome"),
		kvdb: histogram("cadastre_kvdb_request_duration_seconds",
			"Time of one request to the cluster store.", "request", "outcome"),
		cni: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cadastre_cni_requests_total",
			Help: "CNI requests by command and CNI code, 0 being success."}, []string{"command", "code"}),
		cniTime: histogram("cadastre_cni_request_duration_seconds",
			"Time of a CNI request, the wait in the queue included.", "command"),
		podEvent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cadastre_pod_events_total",
			Help: "Warning events about refused pods: written, failed, or dropped because too many waited.",
		}, []string{"outcome"}),
		allocationMetrics: newAllocationMetrics(),
	}
	for _, outcome := range []string{outcomeOK, outcomeError} {
		m.store.WithLabelValues(outcome)
		m.southbound.WithLabelValues(outcome)
	}
	for _, outcome := range []string{"written", "failed", "dropped"} {
		m.podEvent.WithLabelValues(outcome)
	}
	m.Registry.MustRegister(
		m.events,
		m.handlers,
		m.grouped,
		m.resync,
		m.store,
		m.southbound,
		m.kvdb,
		m.cni,
		m.cniTime,
		m.podEvent,
		m.phases,
		m.allocations,
		&ledgerCollector{stats: stats},
		&loopCollector{loop: loop},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// histogram returns a histogram from 20 microseconds to 3 seconds.
func histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    name,
		Help:    help,
		Buckets: prometheus.ExponentialBuckets(0.00002, 2.5, 14),
	}, labels)
}

// Values of the label outcome.
const (
	outcomeOK    = "ok"
	outcomeError = "error"
)

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Event counts one event.
func (m *Metrics) Event(r *controller.Record) {
	outcome := outcomeOK
	if r.Error != "" {
		outcome = outcomeError
	}
	m.events.WithLabelValues(r.Name, outcome).Observe(r.ProcessingEnd.Sub(r.ProcessingStart).Seconds())
	if r.Group > 0 {
		m.grouped.Inc()
	}
	for _, h := range r.Handlers {
		m.handlers.WithLabelValues(r.Name, h.Handler).Observe(h.Duration.Seconds())
	}
	if r.SinkTook > 0 || r.TxnError != "" {
		m.southbound.WithLabelValues(outcomeIf(r.TxnError == "")).Observe(r.SinkTook.Seconds())
	}
	if r.Method != controller.Update && r.Error == "" && r.Note == "" {
		m.resync.Set(float64(r.ProcessingEnd.UnixMilli()) / 1000)
	}
	m.event(r, outcome)
}

// Served counts one CNI request.
func (m *Metrics) Served(s podmanager.Served) {
	m.cni.WithLabelValues(s.Command, strconv.FormatUint(uint64(s.Code), 10)).Inc()
	m.cniTime.WithLabelValues(s.Command).Observe(s.Took.Seconds())
	m.served(s)
}

// PodEvent counts one warning event about a pod.
func (m *Metrics) PodEvent(outcome string) { m.podEvent.WithLabelValues(outcome).Inc() }

// Commit counts one commit to the journal.
func (m *Metrics) Commit(took time.Duration, err error) {
	m.store.WithLabelValues(outcomeIf(err == nil)).Observe(took.Seconds())
}

// Request counts one request to the cluster store.
func (m *Metrics) Request(what string, took time.Duration, err error) {
	m.kvdb.WithLabelValues(what, outcomeIf(err == nil)).Observe(took.Seconds())
}

func outcomeIf(ok bool) string {
	if ok {
		return outcomeOK
	}
	return outcomeError
}
