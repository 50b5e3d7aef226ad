// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
)

// numbered has a foreign controller give a Node its podCIDR.
func numbered(cidr string) func(*v1.Node) {
	return func(n *v1.Node) { n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr} }
}

// held returns the condition by which an agent says whether it holds its claims.
func (c *cluster) held(node string) v1.NodeCondition {
	for _, condition := range c.node(node).Status.Conditions {
		if condition.Type == "CadastrePrefixesHeld" {
			return condition
		}
	}
	return v1.NodeCondition{}
}

// TestAPodCIDRTwice: the Node object of a is made again with another podCIDR. A
// controller that is not ours gives the old one to b, while a pod of a lives in
// it. The agents have the tokens and the policies of the manifests.
func TestAPodCIDRTwice(t *testing.T) {
	mayRun(t)
	c := openCluster(t, newPlane(t).kubeconfig)
	g := c.g
	_, err := c.apply(filepath.Join("..", "..", "..", "k8s", "external-kubernetes"))
	g.Expect(err).NotTo(HaveOccurred())
	_, err = c.kubectl("wait", "--for=condition=Established", "--all", "crd")
	g.Expect(err).NotTo(HaveOccurred())
	c.awaitRoles()
	start := func(name string) *agent {
		conf := c.agentConf(map[string]any{"type": "kubernetes", "kubeconfig": c.agentAccount(name)})
		return newAgent(t, name, strings.Replace(conf, "cadastre:\n", "cadastre:\n  coolDown: 2s\n", 1))
	}
	c.create("a", numbered("10.1.77.0/24"))
	a := start("a")
	a.awaitBlocks("10.1.77.0/24 active")
	g.Expect(a.add("web")).To(Equal("10.1.77.2/24"))
	g.Eventually(func() v1.ConditionStatus { return c.held("a").Status }, patience, pace).Should(Equal(v1.ConditionTrue))

	c.remove("a")
	c.create("a", numbered("10.1.78.0/24"))
	c.create("b", numbered("10.1.77.0/24"))
	b := start("b")
	a.awaitBlocks("10.1.77.0/24 draining", "10.1.78.0/24 active")
	g.Eventually(func() v1.NodeCondition { return c.held("b") }, patience, pace).Should(And(
		HaveField("Status", v1.ConditionFalse), HaveField("Reason", "WaitingForClaim"),
		HaveField("Message", And(ContainSubstring("node a holds 10.1.77.0/24"), ContainSubstring("cadastre node release a")))))
	_, err = b.pod("ADD", "web")
	g.Expect(err).To(MatchError(ContainSubstring("node a holds 10.1.77.0/24")))
	b.awaitBlocks()

	_, err = a.pod("DEL", "web")
	g.Expect(err).NotTo(HaveOccurred())
	b.awaitBlocks("10.1.77.0/24 active")
	g.Eventually(func() v1.ConditionStatus { return c.held("b").Status }, patience, pace).Should(Equal(v1.ConditionTrue))
	a.awaitBlocks("10.1.78.0/24 active")
}
