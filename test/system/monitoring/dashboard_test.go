// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// query is a query of the dashboard.
type query struct {
	Panel, Description, Expr string
}

// queries returns the queries of all panels, and those of the variables.
func queries(g Gomega) (all []query) {
	var dashboard struct {
		Panels []struct {
			Title, Description, Type string
			Datasource               struct{ UID string }
			Targets                  []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	g.Expect(json.Unmarshal([]byte(read(g, filepath.Join(folder, "dashboard.json"))), &dashboard)).To(Succeed())
	for _, p := range dashboard.Panels {
		if p.Type == "row" {
			continue
		}
		g.Expect(p.Description).NotTo(BeEmpty(), p.Title)
		g.Expect(p.Datasource.UID).To(Equal("${datasource}"), p.Title)
		g.Expect(p.Targets).NotTo(BeEmpty(), p.Title)
		for _, x := range p.Targets {
			all = append(all, query{p.Title, p.Description, x.Expr})
		}
	}
	for _, v := range dashboard.Templating.List {
		if v.Type == "query" { // label_values(METRIC, LABEL)
			expr := strings.NewReplacer("label_values(", "count by (", ")", "").Replace(v.Definition)
			metric, label, ok := strings.Cut(strings.TrimPrefix(expr, "count by ("), ", ")
			g.Expect(ok).To(BeTrue(), v.Definition)
			all = append(all, query{"$" + v.Name, "", fmt.Sprintf("count by (%s) (%s)", label, metric)})
		}
	}
	return all
}

// TestDashboard compares the metrics of the dashboard's queries with those that exist. Every
// metric of ours is in a query, or has a reason why it is not.
func TestDashboard(t *testing.T) {
	g := NewWithT(t)
	known := map[string]bool{"ALERTS": true, "process_cpu_seconds_total": true, "process_resident_memory_bytes": true, "up": true}
	for _, r := range rooms(t) {
		all, _ := r.metrics(t)
		for _, x := range all {
			known[x.Name] = true
		}
	}
	all := queries(g)
	g.Expect(len(all)).To(BeNumerically(">", 70))
	titles := map[string]bool{}
	for _, q := range all {
		titles[q.Panel] = true
		expr := strings.NewReplacer("$__rate_interval", "1m", "$__range", "1h").Replace(q.Expr)
		for _, name := range metricNames(expr) {
			if strings.HasSuffix(expr, name+")") && strings.HasPrefix(q.Panel, "$") {
				g.Expect(known).To(HaveKey(name), q.Panel)
				continue
			}
			g.Expect(known[name] || strings.Contains(expr, "by ("+name) || strings.Contains(expr, ", "+name)).To(BeTrue(), "%s of panel %q", name, q.Panel)
		}
	}
	g.Expect(len(titles)).To(BeNumerically(">", 50))
}

// server is a Prometheus that scrapes a cluster.
type server struct{ url string }

// startPrometheus runs Debian's Prometheus with the alerts. It scrapes each second.
func (c *cluster) startPrometheus(path string) server {
	type target struct {
		Job     string           `json:"job_name"`
		Targets []map[string]any `json:"static_configs"`
	}
	var jobs []target
	for job, addresses := range c.targets {
		jobs = append(jobs, target{Job: job, Targets: []map[string]any{{"targets": addresses}}})
	}
	rules, err := filepath.Abs(filepath.Join(folder, "rules.yaml"))
	c.g.Expect(err).NotTo(HaveOccurred())
	config, err := json.Marshal(map[string]any{
		"global":         map[string]any{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"scrape_configs": jobs,
		"rule_files":     []string{rules},
	})
	c.g.Expect(err).NotTo(HaveOccurred())
	c.write("prometheus.yaml", string(config))
	listen := c.address("none")
	c.start("prometheus", here, exec.Command(path, "--config.file="+c.path("prometheus.yaml"), "--storage.tsdb.path="+c.path("tsdb"), "--web.listen-address="+listen))
	return server{"http://" + listen}
}

// get asks the API of Prometheus.
func (p server) get(path string, values url.Values, into any) error {
	resp, err := http.Get(p.url + path + "?" + values.Encode())
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

// eval returns the number of samples of a query that are numbers.
func (p server) eval(expr string) (n int, err error) {
	var data struct {
		Result []struct{ Value [2]any } // time, text of the number
	}
	err = p.get("/api/v1/query", url.Values{"query": {expr}}, &data)
	for _, sample := range data.Result {
		if sample.Value[1] != "NaN" {
			n++
		}
	}
	return n, err
}

// TestDashboardWithPrometheus evaluates every query of the dashboard in a real Prometheus that
// scrapes a cluster: none fails, and none is without a value, unless the panel says why. The
// alerts are loaded and evaluated, too, and what was scraped is what docs/metrics.md lists.
func TestDashboardWithPrometheus(t *testing.T) {
	path := program(t, "prometheus")
	c := startCluster(t)
	c.startDemo()
	p := c.startPrometheus(path)
	c.g.Eventually(func() (int, error) { return p.eval("up == 1") }, patience, pace).Should(Equal(5))
	for _, q := range queries(c.g) {
		expr := strings.NewReplacer("$__rate_interval", "30s", "$__range", "1h", "$instance", ".*", "$pool", ".*").Replace(q.Expr)
		c.g.Expect(expr).NotTo(ContainSubstring("$"), q.Panel)
		if strings.Contains(q.Description, "Without a cloud this panel is empty.") {
			c.g.Expect(p.eval(expr)).To(BeZero(), "%s: %s: there is no cloud", q.Panel, q.Expr)
			continue
		}
		c.g.Eventually(func() (int, error) { return p.eval(expr) }, patience, pace).Should(BeNumerically(">", 0), "%s: %s", q.Panel, q.Expr)
	}
	for expr, n := range map[string]int{
		`count by (phase) (cadastre_allocation_duration_seconds_count{outcome="ok"} > 0)`: 4,
		`cadastre_allocations_total{reason="invalid_request"} > 0`:                        2,
		`cadastre_southbound_values{state="made"} > 0`:                                    1,
		`cadastre_operator_leader == 1`:                                                   2,
	} {
		c.g.Eventually(func() (int, error) { return p.eval(expr) }, patience, pace).Should(Equal(n), expr)
	}
	c.checkRules(p)
	c.checkScrapes()
}

// checkRules waits until every alert was evaluated without an error.
func (c *cluster) checkRules(p server) {
	c.g.Eventually(func(g Gomega) {
		var data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		g.Expect(p.get("/api/v1/rules", nil, &data)).To(Succeed())
		count := 0
		for _, group := range data.Groups {
			for _, r := range group.Rules {
				count++
				g.Expect(r.Health).To(Equal("ok"), "%s: %s", r.Name, r.LastError)
			}
		}
		g.Expect(count).To(Equal(len(alerts(g))))
	}, patience, pace).Should(Succeed())
}

// checkScrapes compares what each program serves with the metrics of the page.
func (c *cluster) checkScrapes() {
	known := map[string]metric{}
	for _, r := range rooms(c.t) {
		all, _ := r.metrics(c.t)
		for _, x := range all {
			known[x.Name] = x
		}
	}
	for _, job := range []string{"cadastre-agent", "cadastre-operator"} {
		for _, address := range c.targets[job] {
			families := c.scrape(address)
			c.g.Expect(len(families)).To(BeNumerically(">", 30), address)
			for name, f := range families {
				if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
					continue
				}
				c.g.Expect(known).To(HaveKey(name), "a metric of %s that is not in docs/metrics.md", job)
				c.compare(f, known[name])
			}
		}
	}
}

// compare compares a scraped metric with its line of the page.
func (c *cluster) compare(f *dto.MetricFamily, want metric) {
	c.g.Expect(strings.ToLower(f.GetType().String())).To(Equal(want.Type), want.Name)
	if !strings.HasPrefix(want.Name, "cilium_ip") { // the library has other words for it
		c.g.Expect(f.GetHelp()).To(Equal(want.Help), want.Name)
	}
	for _, m := range f.GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetName())
		}
		slices.Sort(labels)
		c.g.Expect(labels).To(Equal(want.Labels), want.Name)
	}
}

func (c *cluster) scrape(address string) map[string]*dto.MetricFamily {
	resp, err := http.Get("http://" + address + "/metrics")
	c.g.Expect(err).NotTo(HaveOccurred())
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	c.g.Expect(err).NotTo(HaveOccurred())
	return families
}
