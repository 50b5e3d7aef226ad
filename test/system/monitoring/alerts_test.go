// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/internal/testkit/generated"
)

const (
	folder     = "../../../deploy/monitoring"
	runbook    = "https://github.com/cadastre/cadastre/blob/main/docs/metrics.md#"
	alertTests = "testdata/alerts.yaml"
)

// alert is an alert of rules.yaml.
type alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// alerts returns all alerts.
func alerts(g Gomega) (all []alert) {
	var file struct {
		Groups []struct {
			Name  string  `json:"name"`
			Rules []alert `json:"rules"`
		} `json:"groups"`
	}
	g.Expect(yaml.UnmarshalStrict([]byte(read(g, filepath.Join(folder, "rules.yaml"))), &file)).To(Succeed())
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// alertsPart returns the part of docs/metrics.md about alerts.
func alertsPart(g Gomega) string {
	var s strings.Builder
	for _, a := range alerts(g) {
		note := a.Annotations
		fmt.Fprintf(&s, "### %s\n\n%s, after %s: %s\n\n    %s\n\n**Cause**: %s\n\n**Remedy**: %s\n\n",
			a.Alert, a.Labels["severity"], a.For, placeholders(note["summary"]), a.Expr, note["cause"], note["remedy"])
	}
	return s.String()
}

// placeholders replaces the templates of a text by the names of their labels.
func placeholders(text string) string {
	placeholder := regexp.MustCompile(`\{\{ \$(?:labels\.)?(\w+).*?\}\}`)
	return placeholder.ReplaceAllStringFunc(text, func(p string) string {
		return strings.ToUpper(placeholder.FindStringSubmatch(p)[1])
	})
}

// TestAlerts checks the form of each alert, and that its link leads to its part of the page.
func TestAlerts(t *testing.T) {
	g := NewWithT(t)
	text, err := os.ReadFile(page)
	g.Expect(err).NotTo(HaveOccurred())
	tests, err := os.ReadFile(alertTests)
	g.Expect(err).NotTo(HaveOccurred())
	known := map[string]bool{"up": true}
	for _, r := range rooms(t) {
		all, _ := r.metrics(t)
		for _, x := range all {
			known[x.Name] = true
		}
	}
	seen := map[string]bool{}
	for _, a := range alerts(g) {
		g.Expect(a.Alert).To(MatchRegexp("^Cadastre[A-Z]"))
		g.Expect(seen).NotTo(HaveKey(a.Alert), "two alerts have one name")
		seen[a.Alert] = true
		g.Expect(a.Labels["severity"]).To(BeElementOf("info", "warning", "critical"), a.Alert)
		for _, part := range []string{"summary", "cause", "remedy"} {
			g.Expect(a.Annotations[part]).To(HaveSuffix("."), "%s of %s is a sentence", part, a.Alert)
		}
		g.Expect(a.Annotations).To(HaveKeyWithValue("runbook_url", runbook+strings.ToLower(a.Alert)))
		g.Expect(string(text)).To(ContainSubstring("\n### "+a.Alert+"\n"), "the heading that the link leads to")
		for _, test := range []string{" fires\n", " does not fire\n"} {
			g.Expect(string(tests)).To(ContainSubstring("  - name: "+a.Alert+test), "a unit test")
		}
		for _, name := range metricNames(a.Expr) {
			g.Expect(known).To(HaveKey(name), "a metric of %s", a.Alert)
		}
	}
	g.Expect(len(seen)).To(BeNumerically(">", 30))
}

// metricNames returns the metrics of a query. A label or a function that looks like one is
// left out.
func metricNames(query string) (all []string) {
	quoted, derived := regexp.MustCompile(`"[^"]*"`), regexp.MustCompile(`_(bucket|count|sum)$`)
	names := regexp.MustCompile(`\b(?:up|[a-z]+_[a-z0-9_]+)\b`)
	for _, name := range names.FindAllString(quoted.ReplaceAllString(query, ""), -1) {
		switch name {
		case "histogram_quantile", "label_values", "group_left", "group_right", "clusterCIDR", "sort_desc", "subnet_id", "go_version", "query_result":
			continue
		}
		if strings.HasSuffix(derived.ReplaceAllString(name, ""), "_seconds") {
			name = derived.ReplaceAllString(name, "")
		}
		all = append(all, name)
	}
	return all
}

// program returns the path of Debian's promtool or prometheus, or skips the test.
func program(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path, err := filepath.Abs(filepath.Join("../../../.cache/prometheus/usr/bin", name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Skipf("NOT RUN: %s is missing (Debian's package prometheus): make ci SUITE=e2e-metrics unpacks it into .cache/prometheus", name)
	}
	return path
}

// TestAlertsFire runs the unit tests of the alerts.
func TestAlertsFire(t *testing.T) {
	g := NewWithT(t)
	for _, args := range [][]string{{"check", "rules", filepath.Join(folder, "rules.yaml")}, {"test", "rules", alertTests}} {
		out, err := exec.CommandContext(t.Context(), program(t, "promtool"), args...).CombinedOutput()
		g.Expect(err).NotTo(HaveOccurred(), string(out))
	}
}

// TestPrometheusRule compares prometheusrule.yaml with rules.yaml. make generate makes it.
func TestPrometheusRule(t *testing.T) {
	g := NewWithT(t)
	generated.File(t, filepath.Join(folder, "prometheusrule.yaml"), prometheusRule(g))
}

func read(g Gomega, path string) string {
	text, err := os.ReadFile(path)
	g.Expect(err).NotTo(HaveOccurred())
	return string(text)
}

// prometheusRule returns the object with the content of rules.yaml.
func prometheusRule(g Gomega) string {
	text := read(g, filepath.Join(folder, "rules.yaml"))
	_, groups, ok := strings.Cut(text, "\ngroups:\n")
	g.Expect(ok).To(BeTrue())
	return `# SPDX-FileCopyrightText: The Cadastre Authors
# SPDX-License-Identifier: Apache-2.0
# Made from rules.yaml: make generate
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: cadastre
  namespace: cadastre-system
  labels:
    app.kubernetes.io/part-of: cadastre
spec:
  groups:
` + "  " + strings.ReplaceAll(strings.TrimRight(groups, "\n"), "\n", "\n  ") + "\n"
}
