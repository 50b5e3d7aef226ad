// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAConfigurationThatDiffers: an agent with the token and the policies of the
// manifests has another podSubnetCIDR than the cluster. Its Node has a condition and
// a warning event that kubectl describe shows.
func TestAConfigurationThatDiffers(t *testing.T) {
	mayRun(t)
	c := openCluster(t, newPlane(t).kubeconfig)
	g := c.g
	c.applyMode("derived-kubernetes")
	conf := c.agentConf(map[string]any{"type": "kubernetes", "kubeconfig": c.agentAccount("a")})
	c.create("a")
	configured := func() (found v1.NodeCondition) {
		for _, condition := range c.node("a").Status.Conditions {
			if condition.Type == "CadastreConfigurationApplied" {
				found = condition
			}
		}
		return found
	}
	a := newAgent(t, "a", conf)
	g.Eventually(configured, patience, pace).Should(HaveField("Status", v1.ConditionTrue))
	a.process.stop(g)

	g.Expect(os.WriteFile(a.conf, []byte(strings.Replace(conf, "podSubnetCIDR: 10.1.", "podSubnetCIDR: 10.9.", 1)), 0o600)).To(Succeed())
	a.run()
	g.Eventually(configured, patience, pace).Should(And(HaveField("Status", v1.ConditionFalse), HaveField("Message", ContainSubstring("contiv.conf has podSubnetCIDR 10.9."))), a.process.said())
	g.Eventually(func(g Gomega) {
		events, err := c.client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=a,reason=ConfigurationDiffers"})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(events.Items).To(ConsistOf(And(HaveField("Type", v1.EventTypeWarning), HaveField("Message", ContainSubstring("contiv.conf has podSubnetCIDR 10.9.")))))
	}, patience, pace).Should(Succeed())
	out, err := c.kubectl("describe", "node", "a")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out).To(ContainSubstring("ConfigurationDiffers"))
}
