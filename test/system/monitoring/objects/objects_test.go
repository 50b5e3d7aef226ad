// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package objects decodes the objects of deploy/monitoring with the types of the Prometheus
// operator, which are a module of their own here, and compares them with the manifests.
package objects

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const root = "../../../../"

func read(g Gomega, path string) string {
	text, err := os.ReadFile(filepath.Join(root, path))
	g.Expect(err).NotTo(HaveOccurred())
	return string(text)
}

func TestObjects(t *testing.T) {
	g := NewWithT(t)
	decode := func(name string, into any) {
		g.Expect(yaml.UnmarshalStrict([]byte(read(g, "deploy/monitoring/"+name)), into)).To(Succeed(), name)
	}
	var rule monitoringv1.PrometheusRule
	var plain monitoringv1.PrometheusRuleSpec
	var pods monitoringv1.PodMonitor
	var services monitoringv1.ServiceMonitor
	var service corev1.Service
	decode("prometheusrule.yaml", &rule)
	decode("rules.yaml", &plain)
	decode("podmonitor.yaml", &pods)
	decode("servicemonitor.yaml", &services)
	decode("service.yaml", &service)
	g.Expect(plain.Groups).NotTo(BeEmpty())
	g.Expect(rule.Spec).To(Equal(plain))
	g.Expect(services.Spec.Selector.MatchLabels).To(Equal(map[string]string{"app.kubernetes.io/name": service.Labels["app.kubernetes.io/name"]}))
	for manifest, labels := range map[string]map[string]string{
		"k8s/base/agent.yaml":        pods.Spec.Selector.MatchLabels,
		"k8s/operator/operator.yaml": service.Spec.Selector,
	} {
		g.Expect(labels).NotTo(BeEmpty())
		for name, value := range labels {
			g.Expect(read(g, manifest)).To(ContainSubstring(name+": "+value), manifest)
		}
	}
	for _, job := range []string{pods.Spec.JobLabel, services.Spec.JobLabel} {
		g.Expect(job).To(Equal("app.kubernetes.io/name"), "the alert CadastreTargetDown selects by it")
	}
	metrics := read(g, "k8s/components/metrics/kustomization.yaml")
	g.Expect(metrics).To(ContainSubstring("{name: " + *pods.Spec.PodMetricsEndpoints[0].Port + ", containerPort: 10262}"))
	g.Expect(metrics).To(ContainSubstring("--bind-address=:10261"))
	g.Expect(service.Spec.Ports[0].Port).To(BeEquivalentTo(10261))
	g.Expect(read(g, "k8s/operator/operator.yaml")).To(ContainSubstring("{name: " + service.Spec.Ports[0].TargetPort.StrVal + ", containerPort: 10261}"))
	g.Expect(services.Spec.Endpoints[0].Port).To(Equal(service.Spec.Ports[0].Name))
	files := strings.Fields(read(g, "deploy/monitoring/kustomization.yaml"))
	for _, name := range []string{"podmonitor.yaml", "servicemonitor.yaml", "prometheusrule.yaml", "service.yaml"} {
		g.Expect(slices.Contains(files, name)).To(BeTrue(), name)
	}
}
