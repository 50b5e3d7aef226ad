// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/ledger"
)

// Metrics collects the metrics of a DataStore: those of AWS's daemon under their
// published names, which begin with awscni, and Cadastre's. Any goroutine may call its
// methods. Use NewMetrics.
type Metrics struct {
	store      *DataStore
	add        prometheus.Counter
	del        *prometheus.CounterVec
	reconciled *prometheus.CounterVec
	errors     *prometheus.CounterVec
	running    *prometheus.GaugeVec

	mu       sync.Mutex
	eniMax   int
	perENI   int
	noIP     uint64 // refused requests of other callers of a shared ledger
	gauges   gauges
	counters []counter
}

// counter is a metric over a count of the store.
type counter struct {
	desc  *prometheus.Desc
	value func() uint64
}

// gauges are the descriptions of the metrics that are computed from the store.
type gauges struct {
	enis, eniMax, ipMax, total, assigned, prefixes, perENI, perCIDR *prometheus.Desc
	attached, addresses, blocks, returning, lost, backingOff        *prometheus.Desc
}

func aws(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("awscni_"+name, help, labels, nil)
}

func ours(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("cadastre_interfaces_"+name, help, labels, nil)
}

// NewMetrics returns the metrics of a store, to be registered.
func NewMetrics(ds *DataStore) *Metrics {
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "awscni_" + name, Help: help}, []string{label})
	}
	m := &Metrics{
		store: ds,
		add: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "awscni_add_ip_req_count",
			Help: "Requests for an address of a pod.",
		}),
		del:        vec("del_ip_req_count", "Releases of addresses of pods, by reason.", "reason"),
		reconciled: vec("reconcile_count", "Comparisons with the cloud, by function.", "fn"),
		errors:     vec("ipamd_error_count", "Errors, by function.", "fn"),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "awscni_ipamd_action_inprogress",
			Help: "Actions in progress, by function.",
		}, []string{"fn"}),
		gauges: gauges{
			enis:       aws("eni_allocated", "Attached interfaces."),
			eniMax:     aws("eni_max", "The most interfaces of the machine."),
			ipMax:      aws("ip_max", "The most addresses of the machine, own ones of interfaces left out."),
			total:      aws("total_ip_addresses", "Addresses for pods."),
			assigned:   aws("assigned_ip_addresses", "Addresses that pods have."),
			prefixes:   aws("total_ipv4_prefixes", "IPv4 prefixes."),
			perENI:     aws("assigned_ip_per_eni", "Addresses that pods have, by interface.", "eni"),
			perCIDR:    aws("assigned_ip_per_cidr", "Addresses that pods have, by address or prefix.", "cidr"),
			attached:   ours("attached", "Attached interfaces."),
			addresses:  ours("addresses", "Addresses by state: free, assigned or cooling.", "family", "state"),
			blocks:     ours("prefixes", "Prefixes by state: free or used.", "family", "state"),
			returning:  ours("returning", "Addresses and prefixes on their way back to the cloud."),
			lost:       ours("lost", "Addresses and prefixes with leases that the cloud no longer has."),
			backingOff: ours("backing_off", "1 while the cloud is not asked because it had no addresses."),
		},
	}
	m.counters = []counter{
		{aws("force_removed_enis", "Interfaces that were removed with pods."), ds.counts.forcedENIs.Load},
		{aws("force_removed_ips", "Addresses that were removed with their pods."), ds.counts.forcedIPs.Load},
		{aws("no_available_ip_addresses", "Requests without a free address."), m.refused},
	}
	return m
}

// SetLimits sets the most interfaces of the machine, and the most addresses of each.
func (m *Metrics) SetLimits(interfaces, perInterface int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.eniMax, m.perENI = interfaces, perInterface
}

// Added counts a request for an address by another caller of a shared ledger. exhausted
// says that there was none.
func (m *Metrics) Added(exhausted bool) {
	m.add.Inc()
	if exhausted {
		m.mu.Lock()
		m.noIP++
		m.mu.Unlock()
	}
}

// Deleted counts a release by another caller of a shared ledger.
func (m *Metrics) Deleted(reason string) { m.del.WithLabelValues(reason).Inc() }

// Error counts an error of a function.
func (m *Metrics) Error(fn string) { m.errors.WithLabelValues(fn).Inc() }

// Begin counts a function as in progress until done is called.
func (m *Metrics) Begin(fn string) (done func()) {
	g := m.running.WithLabelValues(fn)
	g.Inc()
	return g.Dec
}

// Reconciled counts a comparison with the cloud, and Begin's progress.
func (m *Metrics) Reconciled(fn string) (done func()) {
	m.reconciled.WithLabelValues(fn).Inc()
	return m.Begin(fn)
}

func (m *Metrics) refused() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.noIP + m.store.counts.noAddress.Load()
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range []prometheus.Collector{m.add, m.del, m.reconciled, m.errors, m.running} {
		c.Describe(ch)
	}
	for _, c := range m.counters {
		ch <- c.desc
	}
	g := m.gauges
	for _, d := range []*prometheus.Desc{
		g.enis, g.eniMax, g.ipMax, g.total, g.assigned, g.prefixes, g.perENI, g.perCIDR,
		g.attached, g.addresses, g.blocks, g.returning, g.lost, g.backingOff,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range []prometheus.Collector{m.add, m.del, m.reconciled, m.errors, m.running} {
		c.Collect(ch)
	}
	for _, c := range m.counters {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(c.value()))
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	m.mu.Lock()
	eniMax, perENI := m.eniMax, m.perENI
	m.mu.Unlock()
	g := m.gauges
	total, assigned := m.store.GetStats()
	enis := m.store.GetENIs()
	gauge(g.enis, enis)
	gauge(g.attached, enis)
	gauge(g.eniMax, eniMax)
	gauge(g.ipMax, eniMax*perENI)
	gauge(g.total, total)
	gauge(g.assigned, assigned)
	for _, f := range []ledger.Family{ledger.IPv4, ledger.IPv6} {
		s := m.store.GetIPStats(f)
		gauge(g.addresses, s.Free(), f.String(), "free")
		gauge(g.addresses, s.Assigned, f.String(), "assigned")
		gauge(g.addresses, s.Cooling, f.String(), "cooling")
		gauge(g.blocks, s.FreePrefixes, f.String(), "free")
		gauge(g.blocks, s.Prefixes-s.FreePrefixes, f.String(), "used")
		if f == ledger.IPv4 {
			gauge(g.prefixes, s.Prefixes)
		}
	}
	byENI, byCIDR := m.store.uses()
	for id, n := range byENI {
		gauge(g.perENI, n, id)
	}
	for cidr, n := range byCIDR {
		gauge(g.perCIDR, n, cidr)
	}
	returning, lost := m.store.pending()
	gauge(g.returning, returning)
	gauge(g.lost, lost)
	backingOff := 0
	if m.store.BackingOff() {
		backingOff = 1
	}
	gauge(g.backingOff, backingOff)
}

// uses returns the numbers of addresses of pods by interface, and by block that has one.
func (ds *DataStore) uses() (byENI, byCIDR map[string]int) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	byENI, byCIDR = map[string]int{}, map[string]int{}
	for id := range ds.attached {
		byENI[id] = 0
	}
	if ds.failed != nil {
		return byENI, byCIDR
	}
	for _, b := range ds.ledger.Stats() {
		if s := ds.subpoolOf(b.Pool, b.Block); s != nil && b.Held > 0 {
			byENI[s.of.ID] += b.Held
			byCIDR[b.Block.String()] = b.Held
		}
	}
	return byENI, byCIDR
}

// pending returns the numbers of blocks on their way back, and of lost ones.
func (ds *DataStore) pending() (returning, lost int) {
	ds.mu.RLock()
	defer ds.mu.RUnlock()
	if ds.shared != nil {
		returning = len(ds.shared.returning)
	}
	for _, b := range ds.blocks {
		if b.lost {
			lost++
		}
	}
	return returning, lost
}
