// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/cadastre/cadastre/internal/testkit/generated"
)

const page = "../../../docs/metrics.md"

// aliases returns the metric of ours that has the value of a metric with another manager's
// name; "" is for one that has no other name. ok is false if the name is unknown.
func aliases(name string) (ours string, ok bool) {
	ours, ok = map[string]string{
		"cilium_ip_addresses":                  "cadastre_ipam_addresses",
		"cilium_ipam_capacity":                 "cadastre_ipam_capacity",
		"cilium_ipam_events_total":             "cadastre_ipam_events_total",
		"cce_ipam_events_total":                "cadastre_ipam_events_total",
		"cce_ipam_error_counter":               "cadastre_ipam_errors_total",
		"cce_kubernetes_events_total":          "",
		"cce_kubernetes_events_received_total": "",

		"node_ipam_controller_cidrset_allocation_tries_per_request": "",
		"node_ipam_controller_cidrset_cidrs_allocations_total":      "",
		"node_ipam_controller_cidrset_cidrs_releases_total":         "",
		"node_ipam_controller_cidrset_usage_cidrs":                  "cadastre_node_cidr_blocks",
		"node_ipam_controller_cirdset_max_cidrs":                    "cadastre_node_cidr_blocks",
	}[name]
	return ours, ok
}

// TestNames lints every metric of ours with client_golang's linter, and knows every other one
// as an alias.
func TestNames(t *testing.T) {
	g := NewWithT(t)
	own := map[string]bool{}
	foreign := map[string]bool{}
	for _, r := range rooms(t) {
		all, families := r.metrics(t)
		sampled := map[string]bool{}
		var lint []*dto.MetricFamily
		for _, f := range families {
			if sampled[f.GetName()] = true; strings.HasPrefix(f.GetName(), "cadastre_") {
				lint = append(lint, f)
			}
		}
		for _, x := range all {
			if !strings.HasPrefix(x.Name, "cadastre_") {
				foreign[x.Name] = true
				continue
			}
			g.Expect(own).NotTo(HaveKey(x.Name), "two rooms have it")
			own[x.Name] = true
			g.Expect(x.Labels).NotTo(ContainElements("pod", "ip", "container"), "%s has a label with too many values", x.Name)
			if !sampled[x.Name] {
				kind := dto.MetricType(dto.MetricType_value[strings.ToUpper(x.Type)])
				lint = append(lint, &dto.MetricFamily{Name: &x.Name, Help: &x.Help, Type: &kind})
			}
		}
		problems, err := promlint.NewWithMetricFamilies(lint).Lint()
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(problems).To(BeEmpty(), r.Name)
	}
	for name := range foreign {
		ours, ok := aliases(name)
		g.Expect(ok).To(BeTrue(), "%s is neither under cadastre_ nor a known alias", name)
		if ours != "" {
			g.Expect(own).To(HaveKey(ours), "the metric that %s is an alias of", name)
		}
	}
}

// TestPage compares docs/metrics.md with the metrics and the alerts. make generate writes it.
func TestPage(t *testing.T) {
	g := NewWithT(t)
	text, err := os.ReadFile(page)
	g.Expect(err).NotTo(HaveOccurred())
	parts := map[string]string{"alerts": alertsPart(g)}
	var foreign []metric
	for _, r := range rooms(t) {
		all, _ := r.metrics(t)
		parts[r.Name] = table(slices.DeleteFunc(slices.Clone(all), func(x metric) bool { return !strings.HasPrefix(x.Name, "cadastre_") }))
		foreign = append(foreign, slices.DeleteFunc(all, func(x metric) bool { return strings.HasPrefix(x.Name, "cadastre_") })...)
	}
	parts["aliases"] = aliasTable(foreign)
	want := string(text)
	for name, part := range parts {
		want = replacePart(g, want, name, part)
	}
	generated.File(t, page, want)
}

// replacePart replaces the text between two marks.
func replacePart(g Gomega, text, name, part string) string {
	begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
	before, rest, ok := strings.Cut(text, begin)
	g.Expect(ok).To(BeTrue(), "docs/metrics.md lacks %q", begin)
	_, after, ok := strings.Cut(rest, end)
	g.Expect(ok).To(BeTrue(), "docs/metrics.md lacks %q", end)
	return before + begin + part + end + after
}

func table(all []metric) string {
	var s strings.Builder
	s.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, x := range all {
		fmt.Fprintf(&s, "| `%s` | %s | %s | %s |\n", x.Name, x.Type, code(x.Labels), x.Help)
	}
	return s.String()
}

func aliasTable(all []metric) string {
	slices.SortFunc(all, func(x, y metric) int { return strings.Compare(x.Name, y.Name) })
	all = slices.CompactFunc(all, func(x, y metric) bool { return x.Name == y.Name })
	var s strings.Builder
	s.WriteString("| alias | type | labels | Cadastre's metric | meaning |\n|---|---|---|---|---|\n")
	for _, x := range all {
		ours, _ := aliases(x.Name)
		if ours != "" {
			ours = "`" + ours + "`"
		}
		fmt.Fprintf(&s, "| `%s` | %s | %s | %s | %s |\n", x.Name, x.Type, code(x.Labels), ours, strings.TrimPrefix(x.Help, "Alias: "))
	}
	return s.String()
}

func code(words []string) string {
	var quoted []string
	for _, w := range words {
		quoted = append(quoted, "`"+w+"`")
	}
	return strings.Join(quoted, ", ")
}
