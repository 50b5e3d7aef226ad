// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"path/filepath"

	. "github.com/onsi/gomega"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cadastre/cadastre/api/v1alpha1"
)

// applyMode applies a mode of k8s/, and waits until its definitions, roles and
// policies are known.
func (c *cluster) applyMode(mode string) {
	c.t.Helper()
	c.applyModeOf(filepath.Join("..", "..", ".."), mode)
}

// applyModeOf applies a mode of another version's k8s/.
func (c *cluster) applyModeOf(root, mode string) {
	c.t.Helper()
	_, err := c.apply(filepath.Join(root, "k8s", mode))
	c.g.Expect(err).NotTo(HaveOccurred())
	_, err = c.kubectl("wait", "--for=condition=Established", "--all", "crd")
	c.g.Expect(err).NotTo(HaveOccurred())
	c.awaitRoles()
	c.awaitPolicies()
}

// ofNoNode is a part of the refusal of a token that names no node.
const ofNoNode = "the token does not say on which node the agent is"

// awaitPolicies waits until the API server applies the policies of the mode, which
// it reads a little later: each refuses a token that names no node.
func (c *cluster) awaitPolicies() {
	c.t.Helper()
	all, err := c.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(c.t.Context(), metav1.ListOptions{})
	c.g.Expect(err).NotTo(HaveOccurred())
	if len(all.Items) == 0 { // the store is an etcd
		return
	}
	unbound := newWriter(c.t, c.mustAccount("cadastre-agent"))
	for _, w := range []write{
		create(v1alpha1.NodeIDs, "NodeID", "1", fields{"nodeName": "n", "instance": "i", "generation": int64(1)}),
		create(v1alpha1.NodeNames, "NodeName", "n", fields{"id": int64(1), "instance": "i", "writes": int64(1)}),
		beat("1", "n"),
		create(v1alpha1.Pools, "Pool", "p", fields{"network": "p", "ranges": []any{}, "generation": int64(1)}),
		create(v1alpha1.PoolChanges, "PoolChange", v1alpha1.PoolChangeName, fields{"writes": int64(1)}),
		prefixClaim("10.1.77.0/24", "n", nil), nodeEvent("n"),
	} {
		c.g.Eventually(w, patience, pace).WithArguments(unbound, true).Should(beRefused(ofNoNode))
	}
}

// allowAgents gives the agents every right to the objects that a policy is about.
func (c *cluster) allowAgents() {
	c.t.Helper()
	meta := metav1.ObjectMeta{Name: "e2e-agents"}
	_, err := c.client.RbacV1().ClusterRoles().Create(c.t.Context(), &rbac.ClusterRole{ObjectMeta: meta, Rules: []rbac.PolicyRule{
		{APIGroups: []string{"cadastre.dev"}, Resources: []string{"*"}, Verbs: []string{"*"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status", "events"}, Verbs: []string{"*"}},
	}}, createOptions())
	c.g.Expect(err).NotTo(HaveOccurred())
	_, err = c.client.RbacV1().ClusterRoleBindings().Create(c.t.Context(), &rbac.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbac.Subject{{Kind: rbac.ServiceAccountKind, Name: "cadastre-agent", Namespace: namespace}},
	}, createOptions())
	c.g.Expect(err).NotTo(HaveOccurred())
}
