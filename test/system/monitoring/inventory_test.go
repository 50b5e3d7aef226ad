// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/cloud/budget"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/ipam"
	"github.com/cadastre/cadastre/kvdb/bolt"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/operator/audit"
	"github.com/cadastre/cadastre/operator/blocks"
	"github.com/cadastre/cadastre/operator/ksr"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/nodeipam"
	"github.com/cadastre/cadastre/plugins/interfaces"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/reclaim"
	"github.com/cadastre/cadastre/plugins/restapi"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
	"github.com/cadastre/cadastre/witness"
)

// metric describes a metric as the tables of docs/metrics.md do.
type metric struct {
	Name   string
	Type   string
	Labels []string // sorted
	Help   string
}

// room holds the metrics of one part of the programs or of one library.
type room struct {
	Name     string // as in docs/metrics.md
	register []prometheus.Collector
	// types has the types of metrics that no public method of the room gives a value.
	types map[string]string
}

// rooms returns all collectors, each with at least one value of every metric that a public
// method can give one.
func rooms(t *testing.T) []room {
	t.Helper()
	g := NewWithT(t)
	allocator, err := nodeipam.NewAllocator(
		nodeipam.Deps{Client: fake.NewClientset(), Log: slog.New(slog.DiscardHandler)},
		nodeipam.Settings{Type: nodeipam.RangeAllocatorType, Ranges: []blocks.Range{{Prefix: netip.MustParsePrefix("10.0.0.0/16"), Bits: 24}}},
	)
	g.Expect(err).NotTo(HaveOccurred())
	sets := filledSets()
	return []room{
		{Name: "agent", register: []prometheus.Collector{filledAgent(t).Registry}},
		{Name: "interfaces", register: []prometheus.Collector{filledInterfaces(t)}},
		{Name: "cloud", register: []prometheus.Collector{filledBudget(t)}},
		{Name: "operator", register: []prometheus.Collector{
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "cadastre_operator_leader", Help: "1 while this process leads and its controllers run, else 0."}, func() float64 { return 0 }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "cadastre_operator_build_info", Help: "Version of this program and of Go; always 1.",
				ConstLabels: prometheus.Labels{"version": "", "go_version": ""}}, func() float64 { return 1 }),
		}},
		{Name: "nodeipam", register: []prometheus.Collector{allocator.Metrics()}},
		{Name: "netresource", register: []prometheus.Collector{sets}},
		{Name: "ksr", register: []prometheus.Collector{ksr.New(ksr.Deps{Log: slog.New(slog.DiscardHandler)}).Metrics(), ksr.NewReleaser(ksr.ReleaserDeps{}).Metrics()}},
		{Name: "audit", register: []prometheus.Collector{audit.New(audit.Deps{Log: slog.New(slog.DiscardHandler)}).Metrics()}},
		{Name: "library", register: []prometheus.Collector{ipam.NewMetrics()}, types: map[string]string{
			"cadastre_ipam_events_total": "counter", "cilium_ipam_events_total": "counter", "cce_ipam_events_total": "counter",
			"cadastre_ipam_errors_total": "counter", "cce_ipam_error_counter": "counter",
			"cce_kubernetes_events_total": "counter", "cce_kubernetes_events_received_total": "counter",
			"cadastre_ipam_addresses": "gauge", "cilium_ip_addresses": "gauge", "cadastre_ipam_cooling_addresses": "gauge",
			"cadastre_ipam_capacity": "gauge", "cilium_ipam_capacity": "gauge",
		}},
	}
}

func filledAgent(t *testing.T) *restapi.Metrics {
	book, err := ledger.Open(t.Context(), ledger.NullJournal{}, ledger.Options{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	st := book.Begin()
	NewWithT(t).Expect(errors.Join(st.SetPool(ledger.Pool{Name: "default"}), st.SetBlocks("default", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}), st.Commit(t.Context()))).To(Succeed())
	m := restapi.NewMetrics(book.Stats, func() controller.Status { return controller.Status{} })
	m.About(func() localapi.Status { return localapi.Status{} })
	m.Watch(func() restapi.ClusterState { return restapi.ClusterState{} })
	m.WatchReclaims(func() reclaim.Counts { return reclaim.Counts{} }, func() []witness.Report {
		return []witness.Report{{Name: "kernel", State: witness.Present, Read: time.Now()}}
	}, time.Now)
	m.WatchSouthbound("linux", "vxlan", func() localapi.Southbound { return localapi.Southbound{} })
	m.WatchDocker(time.Now)
	m.Event(&controller.Record{Name: "Add Pod", Handlers: []controller.HandlerRecord{{Handler: "ipam"}}})
	m.Served(podmanager.Served{Command: "ADD"})
	m.PodEvent("written")
	m.Request("get", time.Second, nil)
	return m
}

func filledInterfaces(t *testing.T) prometheus.Collector {
	t.Helper()
	g := NewWithT(t)
	book, err := ledger.Open(t.Context(), ledger.NullJournal{}, ledger.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	file, err := bolt.OpenFile(filepath.Join(t.TempDir(), "cadastre.db"), bolt.FileOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = file.Close() })
	ended, cancel := context.WithCancel(t.Context())
	plugin, err := interfaces.New(t.Context(), interfaces.Deps{
		Log:      slog.New(slog.DiscardHandler),
		Families: []ledger.Family{ledger.IPv4},
		Ledger:   book,
		Records:  file.Records("interfaces"),
		Open:     func(context.Context) (cloud.Cloud, error) { return memcloud.New(memcloud.Config{}), nil },
		Instance: func(context.Context) (string, error) { return "no-machine", nil },
		Now:      time.Now,
		Uptime:   func() time.Duration { return time.Hour },
		After: func(time.Duration) <-chan time.Time { // one round, whose reading fails
			cancel()
			return nil
		},
	})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(plugin.Run(ended)).To(Succeed())
	return plugin.Metrics()
}

func filledBudget(t *testing.T) prometheus.Collector {
	b := budget.New(budget.Config{Cloud: "ec2"})
	server := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	client := http.Client{Transport: b.Transport(http.DefaultTransport, func(*http.Request) string { return "DescribeInstances" })}
	answer, err := client.Get(server.URL)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(answer.Body.Close()).To(Succeed())
	return b
}

func filledSets() *netresource.Metrics {
	m := netresource.NewMetrics("cadastre_operator")
	m.SetOverdueCalls("Resync", 1)
	m.IncAllocationAttempt("success", "s")
	m.AddIPAllocation("s", 1)
	m.AddIPRelease("s", 1)
	m.SetAllocatedIPs("used", 1)
	m.SetAvailableIPsPerSubnet("s", "z", 1)
	m.SetNetResourceSets("total", 1)
	return m
}

// metrics returns the metrics of a room, and its families with their values.
func (r room) metrics(t *testing.T) (all []metric, families []*dto.MetricFamily) {
	t.Helper()
	g := NewWithT(t)
	descText := regexp.MustCompile(`^Desc\{fqName: "(.*?)", help: "(.*)", unit: ".*?", constLabels: \{(.*?)\}, variableLabels: \{(.*?)\}\}$`)
	registry := prometheus.NewRegistry()
	for _, c := range r.register {
		g.Expect(registry.Register(c)).To(Succeed(), r.Name)
	}
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred(), r.Name)
	types := map[string]string{}
	for _, f := range families {
		types[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	descs := make(chan *prometheus.Desc, 1000)
	registry.Describe(descs)
	close(descs)
	for d := range descs {
		part := descText.FindStringSubmatch(d.String())
		g.Expect(part).NotTo(BeNil(), d.String())
		if strings.HasPrefix(part[1], "go_") || strings.HasPrefix(part[1], "process_") {
			continue
		}
		x := metric{Name: part[1], Type: types[part[1]], Help: part[2]}
		for _, l := range strings.Split(part[3], ",") {
			if name, _, ok := strings.Cut(l, "="); ok {
				x.Labels = append(x.Labels, name)
			}
		}
		if part[4] != "" {
			x.Labels = append(x.Labels, strings.Split(part[4], ",")...)
		}
		slices.Sort(x.Labels)
		if x.Type == "" {
			x.Type = r.types[x.Name]
		} else {
			g.Expect(r.types).NotTo(HaveKey(x.Name), "it has a value: take it out of types")
		}
		g.Expect(x.Type).NotTo(BeEmpty(), "%s of room %s has no value: give it one in this file", x.Name, r.Name)
		all = append(all, x)
	}
	slices.SortFunc(all, func(x, y metric) int { return strings.Compare(x.Name, y.Name) })
	return all, families
}

func (x metric) String() string {
	return fmt.Sprintf("%s %s {%s} %s", x.Name, x.Type, strings.Join(x.Labels, ","), x.Help)
}
