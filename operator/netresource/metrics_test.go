// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
	"cmp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
)

func TestMetricNames(t *testing.T) {
	g := NewWithT(t)
	m, r := NewMetrics("cadastre"), prometheus.NewPedanticRegistry()
	g.Expect(r.Register(m)).To(Succeed())
	g.Expect(r.Register(m.Under("cce"))).To(Succeed())
	g.Expect(r.Register(m.Under(""))).To(Succeed())
	g.Expect(r.Register(m.Cilium())).To(Succeed())
	m.SetOverdueCalls("Resync", 1)
	m.IncAllocationAttempt("success", "s")
	m.AddIPAllocation("s", 3)
	m.AddIPRelease("s", 2)
	m.SetAllocatedIPs("used", 1)
	m.SetAvailableInterfaces(1)
	m.SetAvailableIPsPerSubnet("s", "z", 9)
	m.SetNetResourceSets("total", 1)
	m.IncResyncCount()
	for _, o := range []TriggerObserver{m.PoolMaintainerTrigger(), m.K8sSyncTrigger(), m.ResyncTrigger()} {
		o.QueueEvent("x")
		o.PostRun(time.Second, time.Second, 2)
	}
	all, err := r.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	var names []string
	labels := map[string][]string{}
	for _, f := range all {
		names = append(names, f.GetName())
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels[f.GetName()] = append(labels[f.GetName()], l.GetName())
		}
	}
	// Those of the published manager, whose triggers have the label owner as well: the name of
	// a node, which is always empty here, because one queue serves all nodes.
	published := map[string][]string{
		"ips": {"type"}, "available": nil, "available_ips_per_subnet": {"availability_zone", "subnet_id"}, "nodes": {"category"},
		"allocation_ops": {"subnet_id"}, "release_ops": {"subnet_id"}, "interface_creation_ops": {"status", "subnet_id"}, "resync_total": nil,
	}
	for _, trigger := range []string{"deficit_resolver", "k8s_sync", "resync"} {
		for _, of := range []string{"_queued_total", "_folds", "_duration_seconds", "_latency_seconds"} {
			published[trigger+of] = nil
		}
	}
	published["provider_calls_overdue"] = []string{"operation"} // ours alone
	ours := map[string]string{
		"allocation_ops": "allocations_total", "release_ops": "releases_total",
		"interface_creation_ops": "interface_creations_total", "available": "available_interfaces",
	}
	cilium := map[string]string{"allocation_ops": "ip_allocation_ops", "release_ops": "ip_release_ops", "available": "available_interfaces"}
	var want []string
	for namespace, renamed := range map[string]map[string]string{"cadastre_": ours, "cce_": nil, "": nil, "cilium_operator_": cilium} {
		for name, with := range published {
			name = namespace + "ipam_" + cmp.Or(renamed[name], name)
			want = append(want, name)
			g.Expect(labels[name]).To(HaveLen(len(with)), name)
			g.Expect(labels[name]).To(ContainElements(with), name)
		}
	}
	g.Expect(names).To(ConsistOf(want))
	for _, f := range all {
		m := f.GetMetric()[0]
		for part, value := range map[string]float64{"allocation": 3, "release": 2} {
			if strings.HasSuffix(f.GetName(), part+"_ops") || strings.HasSuffix(f.GetName(), part+"s_total") {
				g.Expect(m.GetCounter().GetValue()).To(Equal(value), f.GetName())
			}
		}
	}
}
