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
	for _, f := range all {
		names = append(names, f.GetName())
	}
	want := []string{"ips", "available", "available_ips_per_subnet", "nodes", "allocation_ops", "release_ops", "interface_creation_ops", "resync_total"}
	for _, trigger := range []string{"deficit_resolver", "k8s_sync", "resync"} {
		want = append(want, trigger+"_queued_total", trigger+"_folds", trigger+"_duration_seconds", trigger+"_latency_seconds")
	}
	for i := range want {
		want[i] = "cadastre_ipam_" + want[i]
	}
	g.Expect(names).To(ConsistOf(want))
}
