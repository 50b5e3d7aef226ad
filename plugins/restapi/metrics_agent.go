// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// About adds the metrics of the agent as a whole. It must be called at most once, before the
// first scrape.
func (m *Metrics) About(status func() localapi.Status) {
	m.Registry.MustRegister(&agentCollector{status})
}

// agentCollector asks the agent on demand.
type agentCollector struct{ status func() localapi.Status }

func buildDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_build_info", "Version of the agent and of Go; always 1.",
		[]string{"version", "go_version"}, nil)
}

func readyDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_ready", "Whether the agent can serve an ADD: 1 or 0.", nil, nil)
}

func suspendedDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_allocation_suspended",
		"Whether the agent allocates no new address until an administrator acts, as with a database in doubt: 1 or 0.",
		nil, nil)
}

// Describe sends the descriptions of the metrics.
func (c *agentCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- buildDesc()
	ch <- readyDesc()
	ch <- suspendedDesc()
}

// Collect asks the agent.
func (c *agentCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.status()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(buildDesc(), 1, s.Version, runtime.Version())
	gauge(readyDesc(), number(s.Ready))
	gauge(suspendedDesc(), number(s.Suspended != ""))
}

// loopCollector asks the event loop on demand.
type loopCollector struct {
	loop func() controller.Status
}

func queueDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_event_queue_length", "Events in the queue: events, or followups of others.",
		[]string{"kind"}, nil)
}

func processedDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_events_processed_total", "Events processed since the start.", nil, nil)
}

func verificationsDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_verification_failures_total",
		"Verifications of the southbound that have found a difference since the start.", nil, nil)
}

func loopDesc() *prometheus.Desc {
	return prometheus.NewDesc("cadastre_loop_state",
		"State of the event loop, 1 or 0 each. resynced: a resync has succeeded since the start. healthy: no healing "+
			"is due. stuck: an event takes longer than its deadline. failed: the loop has ended with an error.",
		[]string{"state"}, nil)
}

// Describe sends the descriptions of the metrics.
func (c *loopCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queueDesc(), processedDesc(), verificationsDesc(), loopDesc()} {
		ch <- d
	}
}

// Collect asks the event loop.
func (c *loopCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.loop()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	send(queueDesc(), prometheus.GaugeValue, float64(s.Queued), "events")
	send(queueDesc(), prometheus.GaugeValue, float64(s.FollowUps), "followups")
	send(processedDesc(), prometheus.CounterValue, float64(s.Processed))
	send(verificationsDesc(), prometheus.CounterValue, float64(s.VerificationFailures))
	for state, is := range map[string]bool{
		"resynced": s.Resynced,
		"healthy":  s.Healthy,
		"stuck":    s.Stuck,
		"failed":   s.Fatal != "",
	} {
		send(loopDesc(), prometheus.GaugeValue, number(is), state)
	}
}
