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

// Metrics holds the agent's metrics. A scrape counts leases and queued events; the
// parts of the agent report all other values.
type Metrics struct {
	Registry *prometheus.Registry

	events   *prometheus.HistogramVec
	handlers *prometheus.HistogramVec
	grouped  prometheus.Counter
	store    *prometheus.HistogramVec
	kvdb     *prometheus.HistogramVec
	cni      *prometheus.CounterVec
	cniTime  *prometheus.HistogramVec
	podEvent *prometheus.CounterVec
}

// NewMetrics returns the metrics of a ledger and a loop.
func NewMetrics(stats func() []ledger.BlockStat, loop func() controller.Status) *Metrics {
	buckets := prometheus.ExponentialBuckets(0.00002, 2.5, 14)
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		events: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "cadastre_event_duration_seconds",
			Help:    "Time from the beginning of an event's processing to its end.",
			Buckets: buckets,
		}, []string{"event", "outcome"}),
		handlers: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cadastre_event_handler_duration_seconds",
			Help: "Time that one handler took for an event.", Buckets: buckets}, []string{"event", "handler"}),
		grouped: prometheus.NewCounter(prometheus.CounterOpts{Name: "cadastre_grouped_events_total",
			Help: "Events that shared their commit to the ledger's journal with other events."}),
		store: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cadastre_store_commit_duration_seconds",
			Help: "Time of one commit to the ledger's journal.", Buckets: buckets}, []string{"outcome"}),
		kvdb: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cadastre_kvdb_request_duration_seconds",
			Help: "Time of one request to the cluster store.", Buckets: buckets}, []string{"request", "outcome"}),
		cni: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cadastre_cni_requests_total",
			Help: "CNI requests by command and CNI code, 0 being success."}, []string{"command", "code"}),
		cniTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cadastre_cni_request_duration_seconds",
			Help: "Time of a CNI request, the wait in the queue included.", Buckets: buckets}, []string{"command"}),
		podEvent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cadastre_pod_events_total",
			Help: "Warning events about refused pods: written, failed, or dropped because too many waited.",
		}, []string{"outcome"}),
	}
	m.Registry.MustRegister(
		m.events,
		m.handlers,
		m.grouped,
		m.store,
		m.kvdb,
		m.cni,
		m.cniTime,
		m.podEvent,
		&collector{
			stats: stats,
			loop:  loop,
		},
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return m
}

// ClusterState holds the gauges of the node's place in the cluster.
type ClusterState struct {
	KVDBConnected  bool
	NodeIDConflict bool
	PoolProblems   int // pools that this node does not follow
	ClaimsHeld     int // prefixes whose claim this node holds
	ClaimsWaiting  int // prefixes that this node claims and another node holds
	ConfigDiffers  bool
}

// Watch adds the gauges of the cluster. It must be called at most once, before the
// first scrape.
func (m *Metrics) Watch(cluster func() ClusterState) {
	gauge := func(name, help string, value func(ClusterState) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: name, Help: help},
			func() float64 { return value(cluster()) },
		)
	}
	m.Registry.MustRegister(
		gauge(
			"cadastre_kvdb_connected",
			"Whether the cluster store answers: 1 or 0.",
			func(c ClusterState) float64 { return number(c.KVDBConnected) },
		),
		gauge(
			"cadastre_node_id_conflict",
			"Whether the node cannot be sure that its ID is its own: 1 or 0.",
			func(c ClusterState) float64 { return number(c.NodeIDConflict) },
		),
		gauge(
			"cadastre_config_differs",
			"Whether contiv.conf differs from the pools that the cluster uses: 1 or 0.",
			func(c ClusterState) float64 { return number(c.ConfigDiffers) },
		),
		gauge(
			"cadastre_pool_problems",
			"Pools that this node does not follow.",
			func(c ClusterState) float64 { return float64(c.PoolProblems) },
		),
		gauge(
			"cadastre_claims_held",
			"Prefixes whose claim this node holds.",
			func(c ClusterState) float64 { return float64(c.ClaimsHeld) },
		),
		gauge(
			"cadastre_claims_waiting",
			"Prefixes that this node claims and another node has.",
			func(c ClusterState) float64 { return float64(c.ClaimsWaiting) },
		),
	)
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Event counts one event.
func (m *Metrics) Event(r *controller.Record) {
	outcome := "ok"
	if r.Error != "" {
		outcome = "error"
	}
	m.events.WithLabelValues(r.Name, outcome).Observe(r.ProcessingEnd.Sub(r.ProcessingStart).Seconds())
	if r.Group > 0 {
		m.grouped.Inc()
	}
	for _, h := range r.Handlers {
		m.handlers.WithLabelValues(r.Name, h.Handler).Observe(h.Duration.Seconds())
	}
}

// Served counts one CNI request.
func (m *Metrics) Served(s podmanager.Served) {
	m.cni.WithLabelValues(s.Command, strconv.FormatUint(uint64(s.Code), 10)).Inc()
	m.cniTime.WithLabelValues(s.Command).Observe(s.Took.Seconds())
}

// PodEvent counts one warning event about a pod.
func (m *Metrics) PodEvent(outcome string) { m.podEvent.WithLabelValues(outcome).Inc() }

// Commit counts one commit to the journal.
func (m *Metrics) Commit(took time.Duration, err error) {
	m.store.WithLabelValues(outcomeOf(err)).Observe(took.Seconds())
}

// Request counts one request to the cluster store.
func (m *Metrics) Request(what string, took time.Duration, err error) {
	m.kvdb.WithLabelValues(what, outcomeOf(err)).Observe(took.Seconds())
}

func outcomeOf(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

// collector counts leases and events on demand.
type collector struct {
	stats func() []ledger.BlockStat
	loop  func() controller.Status
}

func leasesDesc() *prometheus.Desc {
	return prometheus.NewDesc(
		"cadastre_leases",
		"Leases by pool, family and state; the node itself uses those of state infra.",
		[]string{"pool", "family", "state"},
		nil,
	)
}

func addressesDesc() *prometheus.Desc {
	return prometheus.NewDesc(
		"cadastre_pool_addresses",
		"Addresses of the active blocks by kind: all, or free.",
		[]string{"pool", "family", "kind"},
		nil,
	)
}

func queueDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_event_queue_length", "Events in the queue.", []string{"kind"}, nil)
}

func processedDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_events_processed_total", "Events processed since the start.", nil, nil)
}

// Describe sends the descriptions of the metrics.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{leasesDesc(), addressesDesc(), queueDesc(), processedDesc()} {
		ch <- d
	}
}

// Collect counts leases and events.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	type familyPool struct{ pool, family string }
	sum := map[familyPool]ledger.BlockStat{}
	for _, s := range c.stats() {
		k := familyPool{s.Pool, s.Family.String()}
		t := sum[k]
		t.Held += s.Held
		t.Infra += s.Infra
		t.Cooling += s.Cooling
		t.Quarantined += s.Quarantined
		if s.State == ledger.Active {
			t.Size += s.Size
			t.Free += s.Free
		}
		sum[k] = t
	}
	for k, t := range sum {
		gauge(leasesDesc(), float64(t.Held), k.pool, k.family, "held")
		gauge(leasesDesc(), float64(t.Infra), k.pool, k.family, "infra")
		gauge(leasesDesc(), float64(t.Cooling), k.pool, k.family, "cooling")
		gauge(leasesDesc(), float64(t.Quarantined), k.pool, k.family, "quarantined")
		gauge(addressesDesc(), float64(t.Size), k.pool, k.family, "all")
		gauge(addressesDesc(), float64(t.Free), k.pool, k.family, "free")
	}
	s := c.loop()
	gauge(queueDesc(), float64(s.Queued), "events")
	gauge(queueDesc(), float64(s.FollowUps), "followups")
	ch <- prometheus.MustNewConstMetric(processedDesc(), prometheus.CounterValue, float64(s.Processed))
}
