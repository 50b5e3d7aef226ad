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

// Metrics are the agent's. Counts of leases and of the queue are taken when
// they are asked for; the rest is told by those who do the work.
type Metrics struct {
	Registry *prometheus.Registry

	events   *prometheus.HistogramVec
	handlers *prometheus.HistogramVec
	store    *prometheus.HistogramVec
	kvdb     *prometheus.HistogramVec
	cni      *prometheus.CounterVec
	cniTime  *prometheus.HistogramVec
}

// NewMetrics makes the metrics of a ledger and a loop.
func NewMetrics(stats func() []ledger.BlockStat, loop func() controller.Status) *Metrics {
	buckets := prometheus.ExponentialBuckets(0.00002, 2.5, 14)
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		events: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cadastre_event_duration_seconds",
			Help: "Time from the beginning of an event's processing to its end.", Buckets: buckets}, []string{"event", "outcome"}),
		handlers: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cadastre_event_handler_duration_seconds",
			Help: "Time that one handler took for an event.", Buckets: buckets}, []string{"event", "handler"}),
		store: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cadastre_store_commit_duration_seconds",
			Help: "Time of one commit to the ledger's journal.", Buckets: buckets}, []string{"outcome"}),
		kvdb: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cadastre_kvdb_request_duration_seconds",
			Help: "Time of one request to the cluster store.", Buckets: buckets}, []string{"request", "outcome"}),
		cni: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cadastre_cni_requests_total",
			Help: "CNI requests by command and CNI code, 0 being success."}, []string{"command", "code"}),
		cniTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "cadastre_cni_request_duration_seconds",
			Help: "Time of a CNI request, the wait in the queue included.", Buckets: buckets}, []string{"command"}),
	}
	m.Registry.MustRegister(m.events, m.handlers, m.store, m.kvdb, m.cni, m.cniTime,
		&books{stats: stats, loop: loop}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Cluster is how the agent stands to the rest of the cluster.
type Cluster struct {
	KVDBConnected  bool
	NodeIDConflict bool
	PoolProblems   int // pools that this node does not follow
	ClaimsHeld     int // prefixes that this node has claimed
	ClaimsWaiting  int // and that another node has
	ConfigDiffers  bool
}

// Watch adds the gauges of the cluster; it is called once at most, before
// anybody asks for metrics.
func (m *Metrics) Watch(cluster func() Cluster) {
	gauge := func(name, help string, value func(Cluster) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return value(cluster()) })
	}
	m.Registry.MustRegister(
		gauge("cadastre_kvdb_connected", "Whether the cluster store answers: 1 or 0.", func(c Cluster) float64 { return number(c.KVDBConnected) }),
		gauge("cadastre_node_id_conflict", "Whether the node cannot be sure that its ID is its own: 1 or 0.", func(c Cluster) float64 { return number(c.NodeIDConflict) }),
		gauge("cadastre_config_differs", "Whether contiv.conf differs from the pools that the cluster uses: 1 or 0.", func(c Cluster) float64 { return number(c.ConfigDiffers) }),
		gauge("cadastre_pool_problems", "Pools that this node does not follow.", func(c Cluster) float64 { return float64(c.PoolProblems) }),
		gauge("cadastre_claims_held", "Prefixes whose claim this node holds.", func(c Cluster) float64 { return float64(c.ClaimsHeld) }),
		gauge("cadastre_claims_waiting", "Prefixes that this node claims and another node has.", func(c Cluster) float64 { return float64(c.ClaimsWaiting) }))
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Event notes one event.
func (m *Metrics) Event(r *controller.Record) {
	outcome := "ok"
	if r.Error != "" {
		outcome = "error"
	}
	m.events.WithLabelValues(r.Name, outcome).Observe(r.ProcessingEnd.Sub(r.ProcessingStart).Seconds())
	for _, h := range r.Handlers {
		m.handlers.WithLabelValues(r.Name, h.Handler).Observe(h.Duration.Seconds())
	}
}

// Served notes one CNI request.
func (m *Metrics) Served(s podmanager.Served) {
	m.cni.WithLabelValues(s.Command, strconv.FormatUint(uint64(s.Code), 10)).Inc()
	m.cniTime.WithLabelValues(s.Command).Observe(s.Took.Seconds())
}

// Commit notes one commit to the journal.
func (m *Metrics) Commit(took time.Duration, err error) {
	m.store.WithLabelValues(outcomeOf(err)).Observe(took.Seconds())
}

// Request notes one request to the cluster store.
func (m *Metrics) Request(what string, took time.Duration, err error) {
	m.kvdb.WithLabelValues(what, outcomeOf(err)).Observe(took.Seconds())
}

func outcomeOf(err error) string {
	if err != nil {
		return "error"
	}
	return "ok"
}

// books collects what is counted on demand.
type books struct {
	stats func() []ledger.BlockStat
	loop  func() controller.Status
}

func leasesDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_leases", "Leases by pool, family and state; infra are those that the node itself uses.", []string{"pool", "family", "state"}, nil)
}

func addressesDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_pool_addresses", "Addresses of the active blocks: all of them, and those that are free.", []string{"pool", "family", "kind"}, nil)
}

func queueDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_event_queue_length", "Events that wait.", []string{"kind"}, nil)
}

func processedDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_events_processed_total", "Events processed since the start.", nil, nil)
}

// Describe tells what is collected.
func (b *books) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{leasesDesc(), addressesDesc(), queueDesc(), processedDesc()} {
		ch <- d
	}
}

// Collect counts.
func (b *books) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	type side struct{ pool, family string }
	sum := map[side]ledger.BlockStat{}
	for _, s := range b.stats() {
		k := side{s.Pool, s.Family.String()}
		t := sum[k]
		t.Held, t.Infra, t.Cooling, t.Quarantined = t.Held+s.Held, t.Infra+s.Infra, t.Cooling+s.Cooling, t.Quarantined+s.Quarantined
		if s.State == ledger.Active {
			t.Size, t.Free = t.Size+s.Size, t.Free+s.Free
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
	s := b.loop()
	gauge(queueDesc(), float64(s.Queued), "events")
	gauge(queueDesc(), float64(s.FollowUps), "followups")
	ch <- prometheus.MustNewConstMetric(processedDesc(), prometheus.CounterValue, float64(s.Processed))
}
