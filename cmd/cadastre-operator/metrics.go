// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are those of the program; each controller adds its own when it runs.
type metrics struct{ registry *prometheus.Registry }

func newMetrics(p *operator) *metrics {
	m := &metrics{prometheus.NewRegistry()}
	leader := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "cadastre_operator_leader", Help: "Whether this process leads, and works: 1 or 0."}, func() float64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.leading {
			return 1
		}
		return 0
	})
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "cadastre_operator_build_info", Help: "What this process is made of; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "go_version": runtime.Version()}})
	build.Set(1)
	m.registry.MustRegister(leader, build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// add adds those of a controller. A process leads once at most.
func (m *metrics) add(all ...prometheus.Collector) error {
	for _, c := range all {
		if err := m.registry.Register(c); err != nil {
			return fmt.Errorf("add metrics: %w", err)
		}
	}
	return nil
}
