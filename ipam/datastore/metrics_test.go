// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package datastore_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	. "github.com/cadastre/cadastre/ipam/datastore"
)

func TestMetricsHaveTheirPublishedNames(t *testing.T) {
	g := NewWithT(t)
	ds, _ := store(Options{CoolDown: DefaultCoolDown})
	add(g, ds, "eni-1", 0, "10.0.0.1", "10.0.0.2", "10.0.0.3")
	m := NewMetrics(ds)
	m.SetLimits(3, 10)
	m.Added(true)
	m.Deleted("PodDeleted")
	m.Error("assign")
	m.Reconciled("reconcile")()
	assign(g, ds, 1)
	assign(g, ds, 2)
	unassign(g, ds, 2)
	registry := prometheus.NewPedanticRegistry()
	g.Expect(registry.Register(m)).To(Succeed())
	all, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, f := range all {
		names = append(names, f.GetName())
	}
	g.Expect(names).To(ConsistOf(
		"awscni_eni_allocated", "awscni_eni_max", "awscni_ip_max", "awscni_total_ip_addresses", "awscni_assigned_ip_addresses",
		"awscni_force_removed_enis", "awscni_force_removed_ips", "awscni_add_ip_req_count", "awscni_del_ip_req_count",
		"awscni_reconcile_count", "awscni_ipamd_error_count", "awscni_ipamd_action_inprogress",
		"awscni_total_ipv4_prefixes", "awscni_assigned_ip_per_eni", "awscni_assigned_ip_per_cidr", "awscni_no_available_ip_addresses",
		"cadastre_interfaces_attached", "cadastre_interfaces_addresses", "cadastre_interfaces_prefixes",
		"cadastre_interfaces_returning", "cadastre_interfaces_lost", "cadastre_interfaces_backing_off",
	))
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP awscni_assigned_ip_addresses Addresses that pods have.
# TYPE awscni_assigned_ip_addresses gauge
awscni_assigned_ip_addresses 1
# HELP awscni_del_ip_req_count Releases of addresses of pods, by reason.
# TYPE awscni_del_ip_req_count counter
awscni_del_ip_req_count{reason="PodDeleted"} 1
# HELP awscni_ip_max The most addresses of the machine, own ones of interfaces left out.
# TYPE awscni_ip_max gauge
awscni_ip_max 30
# HELP awscni_no_available_ip_addresses Requests without a free address.
# TYPE awscni_no_available_ip_addresses counter
awscni_no_available_ip_addresses 1
# HELP cadastre_interfaces_addresses Addresses by state: free, assigned or cooling.
# TYPE cadastre_interfaces_addresses gauge
cadastre_interfaces_addresses{family="ipv4",state="assigned"} 1
cadastre_interfaces_addresses{family="ipv4",state="cooling"} 1
cadastre_interfaces_addresses{family="ipv4",state="free"} 1
cadastre_interfaces_addresses{family="ipv6",state="assigned"} 0
cadastre_interfaces_addresses{family="ipv6",state="cooling"} 0
cadastre_interfaces_addresses{family="ipv6",state="free"} 0
`), "awscni_assigned_ip_addresses", "awscni_del_ip_req_count", "awscni_ip_max", "awscni_no_available_ip_addresses", "cadastre_interfaces_addresses")).To(Succeed())
	problems, err := testutil.GatherAndLint(registry)
	g.Expect(err).NotTo(HaveOccurred())
	for _, p := range problems { // published names of counters have no "_total"
		g.Expect(p.Metric).To(HavePrefix("awscni_"), p.Text)
	}
}
