// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import "github.com/prometheus/client_golang/prometheus"

// Values of the label "outcome" of cadastre_cloud_requests_total.
const (
	outcomeDone        = "done"         // status below 400
	outcomeRefused     = "refused"      // status 4xx
	outcomeThrottled   = "throttled"    // the cloud limits the rate
	outcomeServerError = "server_error" // status 5xx
	outcomeNoAnswer    = "no_answer"    // sent, perhaps done
	outcomeNotSent     = "not_sent"     // its context ended while it waited
)

// metrics are those of one cloud.
type metrics struct {
	requests *prometheus.CounterVec   // by operation and outcome
	wait     *prometheus.HistogramVec // by operation
	duration *prometheus.HistogramVec // by operation
	rate     prometheus.GaugeFunc
}

func newMetrics(cloud string, rate func() float64) *metrics {
	labels := prometheus.Labels{"cloud": cloud}
	buckets := []float64{.001, .01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name:        "cadastre_cloud_requests_total",
			Help:        "Requests to the cloud, by operation and outcome.",
			ConstLabels: labels,
		}, []string{"operation", "outcome"}),
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:        "cadastre_cloud_wait_seconds",
			Help:        "Time that a request waited for the budget, by operation.",
			ConstLabels: labels,
			Buckets:     buckets,
		}, []string{"operation"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:        "cadastre_cloud_request_seconds",
			Help:        "Time from sending a request until its answer, by operation.",
			ConstLabels: labels,
			Buckets:     buckets,
		}, []string{"operation"}),
		rate: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "cadastre_cloud_rate",
			Help:        "Requests in a second that the budget allows at present; 0: no limit.",
			ConstLabels: labels,
		}, rate),
	}
}

// begin has the counters of an operation begin at 0, so that the first refusal is an increase.
func (m *metrics) begin(operation string) {
	for _, outcome := range []string{
		outcomeDone, outcomeRefused, outcomeThrottled, outcomeServerError, outcomeNoAnswer, outcomeNotSent,
	} {
		m.requests.WithLabelValues(operation, outcome)
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.wait, m.duration, m.rate}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(to)
	}
}
