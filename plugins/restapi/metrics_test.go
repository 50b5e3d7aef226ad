// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package restapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
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
		"family=ipv4 pool=default state=free: 248", "family=ipv4 pool=default state=held: 3"))
	g.Expect(values(all["cadastre_pool_capacity_addresses"])).To(ContainElement("family=ipv4 pool=default: 256"))
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
		g.Expect(name).To(MatchRegexp("^(cadastre|go|process|promhttp)"))
		g.Expect(f.GetHelp()).NotTo(BeEmpty(), name)
	}
}

// The phases of an ADD are those that its event has reached.
func TestPhasesOfAllocations(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	add := controller.Record{Name: "Add Pod", Method: controller.Update, Waited: time.Second, CommitTook: time.Millisecond, SinkTook: 2 * time.Millisecond,
		Handlers: []controller.HandlerRecord{{Handler: "ipam", Duration: time.Millisecond}, {Handler: "ipam", Revert: true, Duration: time.Hour}}}
	a.metrics.Event(&add)
	a.metrics.Event(&controller.Record{Name: "Add Pod", Method: controller.Update, Waited: time.Second, Error: "expired"})
	a.metrics.Event(&controller.Record{Name: "Delete Pod", Method: controller.Update, SinkTook: time.Millisecond, TxnError: "no", Error: "no"})
	all := a.scrape()
	g.Expect(values(all["cadastre_allocation_duration_seconds"])).To(ConsistOf("outcome=ok phase=queue: 1", "outcome=ok phase=handlers: 1",
		"outcome=ok phase=commit: 1", "outcome=ok phase=southbound: 1", "outcome=error phase=queue: 1"))
	for _, m := range all["cadastre_allocation_duration_seconds"].Metric {
		if m.Label[1].GetValue() == "handlers" {
			g.Expect(m.GetHistogram().GetSampleSum()).To(BeNumerically("~", 0.001, 1e-9), "without the revert")
		}
	}
	g.Expect(values(all["cadastre_southbound_commit_duration_seconds"])).To(ConsistOf("outcome=ok: 1", "outcome=error: 1"))
	g.Expect(values(all["cadastre_last_resync_timestamp_seconds"])).To(Equal([]string{": 0"}))
	end := time.UnixMilli(1_700_000_000_500)
	a.metrics.Event(&controller.Record{Name: "DB Resync", Method: controller.FullResync, ProcessingEnd: end})
	a.metrics.Event(&controller.Record{Name: "Healing", Method: controller.FullResync, ProcessingEnd: end.Add(time.Hour), Error: "failed"})
	g.Expect(values(a.scrape()["cadastre_last_resync_timestamp_seconds"])).To(Equal([]string{": 1.7000000005e+09"}))
}

// Every reason is there before it happens, so that its first time is an increase.
func TestReasonsOfAllocations(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	g.Expect(values(a.scrape()["cadastre_allocations_total"])).To(ConsistOf("outcome=ok reason=none: 0", "outcome=error reason=no_address: 0",
		"outcome=error reason=address_refused: 0", "outcome=error reason=not_ready: 0", "outcome=error reason=internal: 0", "outcome=error reason=invalid_request: 0"))
	for _, code := range []uint{0, 102, 101, 11, 999, 7, 4} {
		a.metrics.Served(podmanager.Served{Command: "ADD", Code: code})
		a.metrics.Served(podmanager.Served{Command: "CHECK", Code: code})
	}
	g.Expect(values(a.scrape()["cadastre_allocations_total"])).To(ConsistOf("outcome=ok reason=none: 1", "outcome=error reason=no_address: 1",
		"outcome=error reason=address_refused: 1", "outcome=error reason=not_ready: 1", "outcome=error reason=internal: 1", "outcome=error reason=invalid_request: 2"))
	for _, name := range []string{"cadastre_store_commit_duration_seconds", "cadastre_southbound_commit_duration_seconds"} {
		g.Expect(values(a.scrape()[name])).To(ConsistOf("outcome=ok: 0", "outcome=error: 0"), name)
	}
}

// The states of a pool's addresses are its capacity, and Cilium's names have the sums of all pools.
func TestAddressesAddUpToTheCapacity(t *testing.T) {
	g := NewWithT(t)
	all := newAgent(t).scrape()
	sums := map[string]float64{}
	for _, m := range all["cadastre_pool_addresses"].Metric {
		sums[m.Label[0].GetValue()+m.Label[1].GetValue()] += m.GetGauge().GetValue()
	}
	for _, m := range all["cadastre_pool_capacity_addresses"].Metric {
		g.Expect(sums).To(HaveKeyWithValue(m.Label[0].GetValue()+m.Label[1].GetValue(), m.GetGauge().GetValue()))
	}
	g.Expect(values(all["cadastre_pool_blocks"])).To(ContainElements("family=ipv4 pool=default state=active: 1", "family=ipv4 pool=default state=draining: 0"))
}

func TestMetricsOfTheAgentAndItsLoop(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	status := localapi.Status{Version: "1.2.3", Ready: true}
	a.metrics.About(func() localapi.Status { return status })
	expect := func(ready, suspended int) {
		all := a.scrape()
		g.Expect(values(all["cadastre_ready"])).To(Equal([]string{fmt.Sprint(": ", ready)}))
		g.Expect(values(all["cadastre_allocation_suspended"])).To(Equal([]string{fmt.Sprint(": ", suspended)}))
	}
	expect(1, 0)
	status = localapi.Status{Version: "1.2.3", Suspended: "in doubt"}
	expect(0, 1)
	g.Expect(values(a.scrape()["cadastre_build_info"])).To(ConsistOf("go_version=" + runtime.Version() + " version=1.2.3: 1"))
	for _, c := range []struct {
		status controller.Status
		state  string
	}{
		{controller.Status{Resynced: true}, "resynced"}, {controller.Status{Healthy: true}, "healthy"},
		{controller.Status{Stuck: true}, "stuck"}, {controller.Status{Fatal: "x"}, "failed"},
	} {
		m := restapi.NewMetrics(func() []ledger.BlockStat { return nil }, func() controller.Status { return c.status })
		families, err := m.Registry.Gather()
		g.Expect(err).NotTo(HaveOccurred())
		for _, f := range families {
			if f.GetName() == "cadastre_loop_state" {
				g.Expect(values(f)).To(HaveLen(4))
				g.Expect(values(f)).To(ContainElement("state=" + c.state + ": 1"))
				g.Expect(strings.Count(strings.Join(values(f), ";"), ": 1")).To(Equal(1))
			}
		}
	}
}

// A request of the engine is counted by its status, and paths of no request are not.
func TestMetricsOfDocker(t *testing.T) {
	g := NewWithT(t)
	a := newAgent(t)
	handler := a.metrics.WatchDocker(time.Now)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Fail") != "" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		g.Expect(http.NewResponseController(w).Flush()).To(Succeed(), "the plugin flushes its answers")
	}))
	for _, r := range []string{"/IpamDriver.RequestAddress", "/IpamDriver.RequestAddress fail", "/Plugin.Activate", "/any/thing"} {
		path, fail, _ := strings.Cut(r, " ")
		req := httptest.NewRequest(http.MethodPost, path, nil)
		req.Header.Set("Fail", fail)
		handler.ServeHTTP(httptest.NewRecorder(), req)
	}
	got := values(a.scrape()["cadastre_docker_request_duration_seconds"])
	g.Expect(got).To(HaveLen(8))
	g.Expect(got).To(ContainElements("outcome=ok request=RequestAddress: 1", "outcome=error request=RequestAddress: 1", "outcome=ok request=ReleasePool: 0"))
}
