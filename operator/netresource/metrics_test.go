// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource

import (
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
	var want []string
	for _, namespace := range []string{"cadastre_", "cce_", ""} {
		for name, with := range published {
			want = append(want, namespace+"ipam_"+name)
			g.Expect(labels[namespace+"ipam_"+name]).To(HaveLen(len(with)), name)
			g.Expect(labels[namespace+"ipam_"+name]).To(ContainElements(with), name)
		}
	}
	g.Expect(names).To(ConsistOf(want))
}
