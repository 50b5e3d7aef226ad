// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
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
	want := map[string][]string{
		"ips": {"type"}, "available_interfaces": nil, "available_ips_per_subnet": {"availability_zone", "subnet_id"}, "nodes": {"category"},
		"allocations_total": {"subnet_id"}, "releases_total": {"subnet_id"}, "interface_creations_total": {"status", "subnet_id"},
		"resync_total": nil, "provider_calls_overdue": {"operation"},
	}
	for _, trigger := range []string{"deficit_resolver", "k8s_sync", "resync"} {
		for _, of := range []string{"_queued_total", "_folds", "_duration_seconds", "_latency_seconds"} {
			want[trigger+of] = nil
		}
	}
	g.Expect(names).To(HaveLen(len(want)))
	for name, with := range want {
		g.Expect(names).To(ContainElement("cadastre_ipam_" + name))
		g.Expect(labels["cadastre_ipam_"+name]).To(ConsistOf(with), name)
	}
	for _, f := range all {
		m := f.GetMetric()[0]
		for part, value := range map[string]float64{"allocation": 3, "release": 2} {
			if strings.HasSuffix(f.GetName(), part+"s_total") {
				g.Expect(m.GetCounter().GetValue()).To(Equal(value), f.GetName())
			}
		}
	}
}
