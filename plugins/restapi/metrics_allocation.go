// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// allocationMetrics counts requests for the addresses of a pod.
type allocationMetrics struct {
	phases      *prometheus.HistogramVec
	allocations *prometheus.CounterVec
}

// reasonNone is the reason of a request that succeeded.
const reasonNone = "none"

func newAllocationMetrics() *allocationMetrics {
	m := &allocationMetrics{
		phases: histogram("cadastre_allocation_duration_seconds",
			"Time of the phases of a pod's ADD: queue (the wait for the loop), handlers, commit (to the ledger's "+
				"journal), southbound (the wire and the routes).", "phase", "outcome"),
		allocations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cadastre_allocations_total",
			Help: "ADDs by outcome (ok, error) and reason: none, no_address (the pool is full), address_refused " +
				"(the wanted address is taken), not_ready (the runtime tries again), invalid_request, internal.",
		}, []string{"outcome", "reason"}),
	}
	m.allocations.WithLabelValues(outcomeIf(true), reasonNone)
	for _, reason := range podmanager.Reasons() {
		m.allocations.WithLabelValues(outcomeIf(false), reason.Label())
	}
	return m
}

// event observes the phases of an AddPod. An event that failed has only the phases that it
// has reached.
func (m *allocationMetrics) event(r *controller.Record, outcome string) {
	if r.Name != (*podmanager.AddPod)(nil).GetName() {
		return
	}
	observe := func(phase string, took time.Duration) {
		m.phases.WithLabelValues(phase, outcome).Observe(took.Seconds())
	}
	observe("queue", r.Waited)
	var handlers time.Duration
	for _, h := range r.Handlers {
		if !h.Revert {
			handlers += h.Duration
		}
	}
	if len(r.Handlers) > 0 {
		observe("handlers", handlers)
	}
	if r.CommitTook > 0 {
		observe("commit", r.CommitTook)
	}
	if r.SinkTook > 0 {
		observe("southbound", r.SinkTook)
	}
}

// served counts a request of the CNI plugin, if it is for addresses.
func (m *allocationMetrics) served(s podmanager.Served) {
	if s.Command != "ADD" {
		return
	}
	reason := reasonNone
	if s.Code != 0 {
		reason = podmanager.ReasonOf(s.Code).Label()
	}
	m.allocations.WithLabelValues(outcomeIf(s.Code == 0), reason).Inc()
}
