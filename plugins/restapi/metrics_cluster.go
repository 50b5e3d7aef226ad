// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import "github.com/prometheus/client_golang/prometheus"

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
