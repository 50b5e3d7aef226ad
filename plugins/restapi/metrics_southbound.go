// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// WatchSouthbound adds the gauges of the values of the network, which a data plane makes
// with a transport. It must be called at most once, before the first scrape.
func (m *Metrics) WatchSouthbound(dataplane, transport string, status func() localapi.Southbound) {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "cadastre_dataplane_info",
		Help:        "1 with the data plane and the transport of the node's network as labels.",
		ConstLabels: prometheus.Labels{"dataplane": dataplane, "transport": transport},
	})
	info.Set(1)
	m.Registry.MustRegister(&southboundCollector{status}, info)
}

// southboundCollector counts values on demand.
type southboundCollector struct{ status func() localapi.Southbound }

func southboundDesc() *prometheus.Desc {
	return prometheus.NewDesc(
		"cadastre_southbound_values",
		"Values of the network by state: made, pending (waiting for others), failed, "+
			"or foreign (failed, because an object of another program is in the way).",
		[]string{"state"},
		nil,
	)
}

// Describe sends the description of the metric.
func (c *southboundCollector) Describe(ch chan<- *prometheus.Desc) { ch <- southboundDesc() }

// Collect counts the values.
func (c *southboundCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.status()
	for state, count := range map[string]int{
		"made":    s.Made,
		"pending": s.Pending,
		"failed":  s.Failed - s.Foreign,
		"foreign": s.Foreign,
	} {
		ch <- prometheus.MustNewConstMetric(southboundDesc(), prometheus.GaugeValue, float64(count), state)
	}
}
