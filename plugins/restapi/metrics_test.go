// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// scrape reads the metrics as Prometheus does.
func (a *agent) scrape() map[string]*dto.MetricFamily {
	code, body := ask(a.handler, "GET", localapi.PathMetrics, "")
	a.g.Expect(code).To(Equal(200))
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(strings.NewReader(body))
	a.g.Expect(err).NotTo(HaveOccurred())
	return families
}

// values are the samples of a family as "label=value label=value: number".
func values(f *dto.MetricFamily) []string {
	var all []string
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.Label {
			labels = append(labels, l.GetName()+"="+l.GetValue())
		}
		v := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		all = append(all, fmt.Sprint(strings.Join(labels, " "), ": ", v))
	}
	slices.Sort(all)
	return all
}

func TestMetricsThatAreCounted(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	a.metrics.Event(&controller.Record{Name: "Add Pod", Handlers: []controller.HandlerRecord{{Handler: "ipam", Duration: time.Millisecond}, {Handler: "ipnet"}}})
	a.metrics.Event(&controller.Record{Name: "Add Pod", Error: "no", Group: 3, Handlers: []controller.HandlerRecord{{Handler: "ipam", Error: "no"}}})
	a.metrics.Commit(time.Millisecond, nil)
	a.metrics.Commit(time.Millisecond, errInjected)
	a.metrics.Served(podmanager.Served{Command: "ADD", Took: time.Millisecond})
	a.metrics.Served(podmanager.Served{Command: "ADD", Code: 11, Took: time.Second})
	all := a.scrape()
	for name, want := range map[string][]string{
		"cadastre_event_duration_seconds":         {"event=Add Pod outcome=error: 1", "event=Add Pod outcome=ok: 1"},
		"cadastre_event_handler_duration_seconds": {"event=Add Pod handler=ipam: 2", "event=Add Pod handler=ipnet: 1"},
		"cadastre_store_commit_duration_seconds":  {"outcome=error: 1", "outcome=ok: 1"},
		"cadastre_cni_requests_total":             {"code=0 command=ADD: 1", "code=11 command=ADD: 1"},
		"cadastre_cni_request_duration_seconds":   {"command=ADD: 2"},
		"cadastre_event_queue_length":             {"kind=events: 3", "kind=followups: 1"},
		"cadastre_events_processed_total":         {": 17"},
		"cadastre_grouped_events_total":           {": 1"},
	} {
		g.Expect(values(all[name])).To(Equal(want), name)
	}
}

func TestMetricsOfTheLedger(t *testing.T) {
	g := NewWithT(t)
	all := newAgent(t).scrape()
	g.Expect(values(all["cadastre_leases"])).To(ContainElements(
		"family=ipv4 pool=default state=held: 3", "family=ipv4 pool=default state=infra: 1", "family=ipv4 pool=default state=cooling: 1",
		"family=ipv4 pool=default state=quarantined: 1", "family=ipv6 pool=default state=held: 0"))
	g.Expect(values(all["cadastre_pool_addresses"])).To(ContainElements(
		"family=ipv4 kind=all pool=default: 256", "family=ipv4 kind=free pool=default: 248"))
}

// Each scrape asks the cluster; without Watch none does.
func TestMetricsOfTheCluster(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	g.Expect(a.scrape()).NotTo(HaveKey("cadastre_kvdb_connected"))
	var cluster restapi.ClusterState
	a.metrics.Watch(func() restapi.ClusterState { return cluster })
	expect := func(connected, conflict, problems int) {
		all := a.scrape()
		g.Expect(values(all["cadastre_kvdb_connected"])).To(Equal([]string{fmt.Sprint(": ", connected)}))
		g.Expect(values(all["cadastre_node_id_conflict"])).To(Equal([]string{fmt.Sprint(": ", conflict)}))
		g.Expect(values(all["cadastre_pool_problems"])).To(Equal([]string{fmt.Sprint(": ", problems)}))
	}
	expect(0, 0, 0)
	cluster.KVDBConnected = true
	expect(1, 0, 0)
	cluster = restapi.ClusterState{NodeIDConflict: true, PoolProblems: 3}
	expect(0, 1, 3)
	g.Expect(values(a.scrape()["cadastre_config_differs"])).To(Equal([]string{": 0"}))
	cluster.ConfigDiffers = true
	g.Expect(values(a.scrape()["cadastre_config_differs"])).To(Equal([]string{": 1"}))
}

// TestMetricsOfTheSouthbound counts each value in one state.
func TestMetricsOfTheSouthbound(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	g.Expect(a.scrape()).NotTo(HaveKey("cadastre_southbound_values"))
	a.metrics.WatchSouthbound("vpp", "vxlan", func() localapi.Southbound { return localapi.Southbound{Made: 7, Pending: 2, Failed: 3, Foreign: 1} })
	g.Expect(values(a.scrape()["cadastre_southbound_values"])).To(ConsistOf("state=made: 7", "state=pending: 2", "state=failed: 2", "state=foreign: 1"))
	g.Expect(values(a.scrape()["cadastre_dataplane_info"])).To(ConsistOf("dataplane=vpp transport=vxlan: 1"))
}

// Everything that is ours has our prefix and says what it is.
func TestTheNamesOfMetrics(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	a.metrics.Watch(func() restapi.ClusterState { return restapi.ClusterState{} })
	for name, f := range a.scrape() {
		g.Expect(name).To(MatchRegexp("^(cadastre|go|process|promhttp)_"))
		g.Expect(f.GetHelp()).NotTo(BeEmpty(), name)
	}
}
