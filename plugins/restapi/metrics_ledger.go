// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cadastre/cadastre/ledger"
)

// ledgerCollector counts addresses, leases and blocks on demand.
type ledgerCollector struct {
	stats func() []ledger.BlockStat
}

func leasesDesc() *prometheus.Desc {
	return prometheus.NewDesc(
		"cadastre_leases",
		"Leases by pool, family and state: held, infra (of the node itself), cooling or quarantined.",
		[]string{"pool", "family", "state"},
		nil,
	)
}

func addressesDesc() *prometheus.Desc {
	return prometheus.NewDesc(
		"cadastre_pool_addresses",
		"Addresses of the active blocks by state: free, held, infra (of the node itself), cooling, quarantined or "+
			"reserved. Their sum is cadastre_pool_capacity_addresses.",
		[]string{"pool", "family", "state"},
		nil,
	)
}

func capacityDesc() *prometheus.Desc {
	return prometheus.NewDesc(
		"cadastre_pool_capacity_addresses",
		"Addresses of the active blocks.",
		[]string{"pool", "family"},
		nil,
	)
}

func blocksDesc() *prometheus.Desc {
	return prometheus.NewDesc(
		"cadastre_pool_blocks",
		"Blocks of this node by state: active, or draining (allocates nothing until its last lease ends).",
		[]string{"pool", "family", "state"},
		nil,
	)
}

// Describe sends the descriptions of the metrics.
func (c *ledgerCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		leasesDesc(), addressesDesc(), capacityDesc(), blocksDesc(),
	} {
		ch <- d
	}
}

// familyPool names a pool's addresses of one family.
type familyPool struct{ pool, family string }

// poolCount counts the blocks of a familyPool and their addresses.
type poolCount struct {
	all    ledger.BlockStat // of all blocks
	active ledger.BlockStat
	blocks map[ledger.BlockState]int
}

// Collect counts addresses, leases and blocks.
func (c *ledgerCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	pools := map[familyPool]*poolCount{}
	for _, s := range c.stats() {
		k := familyPool{s.Pool, s.Family.String()}
		if pools[k] == nil {
			pools[k] = &poolCount{blocks: map[ledger.BlockState]int{}}
		}
		pools[k].add(s)
	}
	for k, n := range pools {
		for state, v := range states(n.all) {
			gauge(leasesDesc(), v, k.pool, k.family, state)
		}
		now := states(n.active)
		free, size := float64(n.active.Free), float64(n.active.Size)
		rest := size - free
		for state, v := range now {
			gauge(addressesDesc(), v, k.pool, k.family, state)
			rest -= v
		}
		gauge(addressesDesc(), free, k.pool, k.family, "free")
		gauge(addressesDesc(), max(0, rest), k.pool, k.family, "reserved")
		gauge(capacityDesc(), size, k.pool, k.family)
		gauge(blocksDesc(), float64(n.blocks[ledger.Active]), k.pool, k.family, "active")
		gauge(blocksDesc(), float64(n.blocks[ledger.Draining]), k.pool, k.family, "draining")
	}
}

// states returns the leases of a BlockStat by state.
func states(s ledger.BlockStat) map[string]float64 {
	return map[string]float64{
		"held":        float64(s.Held),
		"infra":       float64(s.Infra),
		"cooling":     float64(s.Cooling),
		"quarantined": float64(s.Quarantined),
	}
}

// add counts one more block.
func (n *poolCount) add(s ledger.BlockStat) {
	n.blocks[s.State]++
	sums := []*ledger.BlockStat{&n.all}
	if s.State == ledger.Active {
		sums = append(sums, &n.active)
	}
	for _, t := range sums {
		t.Size += s.Size
		t.Free += s.Free
		t.Held += s.Held
		t.Infra += s.Infra
		t.Cooling += s.Cooling
		t.Quarantined += s.Quarantined
	}
}
