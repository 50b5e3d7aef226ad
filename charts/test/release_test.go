// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"maps"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// nodeIDs and definitions are resources of the API server.
var (
	nodeIDs     = schema.GroupVersionResource{Group: "cadastre.dev", Version: "v1alpha1", Resource: "nodeids"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

// TestAPIServerAcceptsEveryMode applies every mode of both renderings with strict
// validation.
func TestAPIServerAcceptsEveryMode(t *testing.T) {
	c := newCluster(t)
	crds, err := render(t, "cadastre-crds", nil)
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(c.accepts(crds)).To(Succeed())
	c.Expect(c.install("cadastre-crds", nil)).To(Succeed())
	c.awaitDefinitions(len(crds))
	everything := values{
		"metrics": values{"tlsSecret": "cadastre-metrics-tls"}, "networkPolicy": values{"enabled": true}, "policiesEnforced": true,
		"images": values{"pullPolicy": "IfNotPresent", "pullSecrets": []string{"login"}},
	}
	for _, mode := range modes(t) {
		v := valuesOf(mode)
		c.Expect(c.accepts(mustRender(t, v))).To(Succeed(), "the chart with mode %s", mode)
		maps.Copy(v, everything)
		if mode == "netresource-kubernetes" {
			v["addressPools"] = values{"pods": values{"cidrs": []any{values{"cidr": "10.1.0.0/16", "blockPrefixLen": 28}}}}
		}
		c.Expect(c.accepts(mustRender(t, v))).To(Succeed(), "the chart with mode %s and all options", mode)
		c.Expect(c.accepts(built(t, mode))).To(Succeed(), "the kustomization %s", mode)
	}
	for _, components := range [][]string{{"bridge"}, {"gke"}, {"k3s"}, {"metrics", "networkpolicy"}} {
		c.Expect(c.accepts(built(t, "derived-kubernetes", components...))).To(Succeed(), "%v", components)
	}
	wrong := mustRender(t, values{"agent": values{"resources": values{"claims": []any{values{"nam": "x"}}}}})
	c.Expect(c.accepts(wrong)).To(MatchError(ContainSubstring("nam")), "the validation is not strict")
}

// TestUninstallKeepsNodeIDs installs, upgrades, rolls back, removes and installs again: node
// IDs survive, and nothing else stays.
func TestUninstallKeepsNodeIDs(t *testing.T) {
	c := newCluster(t)
	crds, err := render(t, "cadastre-crds", nil)
	c.Expect(err).NotTo(HaveOccurred())
	refused := c.install("cadastre", nil)
	c.Expect(refused).To(MatchError(ContainSubstring("upgrade the chart cadastre-crds")))
	for _, crd := range crds {
		kind, _, err := unstructured.NestedString(crd.Object, "spec", "names", "kind")
		c.Expect(err).NotTo(HaveOccurred())
		c.Expect(refused).To(MatchError(MatchRegexp(`\b` + kind + `\b`)))
	}
	c.Expect(c.install("cadastre-crds", nil)).To(Succeed())
	c.awaitDefinitions(len(crds))
	c.Expect(c.install("cadastre", nil)).To(Succeed())
	c.claim("7", "n7")

	conf := func() string {
		m, err := c.client.CoreV1().ConfigMaps(namespace).Get(t.Context(), "cadastre-config", metav1.GetOptions{})
		c.Expect(err).NotTo(HaveOccurred())
		return m.Data["contiv.conf"]
	}
	sum := func() string {
		set, err := c.client.AppsV1().DaemonSets(namespace).Get(t.Context(), "cadastre-agent", metav1.GetOptions{})
		c.Expect(err).NotTo(HaveOccurred())
		return set.Spec.Template.Annotations["checksum/config"]
	}
	before, sumBefore := conf(), sum()
	c.Expect(c.upgrade("cadastre", values{"config": values{"cadastre": values{"transport": "nodeip"}}})).To(Succeed())
	c.Expect(conf()).To(ContainSubstring("transport: nodeip"))
	c.Expect(sum()).NotTo(Equal(sumBefore), "the agents are to be replaced")
	c.Expect(c.upgrade("cadastre", values{"mode": "external-kubernetes"})).To(Succeed())
	_, err = c.client.RbacV1().ClusterRoles().Get(t.Context(), "cadastre-operator-nodeipam", metav1.GetOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(c.rollback("cadastre", 1)).To(Succeed())
	c.Expect(conf()).To(Equal(before))
	c.Expect(sum()).To(Equal(sumBefore))
	_, err = c.client.RbacV1().ClusterRoles().Get(t.Context(), "cadastre-operator-nodeipam", metav1.GetOptions{})
	c.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "a right of another mode is left")
	c.Expect(c.upgrade("cadastre-crds", nil)).To(Succeed())

	c.namespace("second")
	c.Expect(c.installIn("second", "cadastre", nil)).To(MatchError(ContainSubstring("cadastre-agent")), "one release a cluster")

	c.Expect(c.uninstall("cadastre")).To(Succeed())
	c.Expect(c.left()).To(BeEmpty())
	c.Expect(c.uninstall("cadastre-crds")).To(Succeed())
	c.Expect(c.holder("7")).To(Equal("n7"))
	c.Expect(c.install("cadastre-crds", nil)).To(Succeed(), "it adopts what it has left")
	c.Expect(c.install("cadastre", nil)).To(Succeed())
	c.Expect(c.holder("7")).To(Equal("n7"))

	c.Expect(c.uninstall("cadastre")).To(Succeed())
	c.Expect(c.upgrade("cadastre-crds", values{"keep": false})).To(Succeed())
	c.Expect(c.uninstall("cadastre-crds")).To(Succeed())
	c.Eventually(func() ([]unstructured.Unstructured, error) {
		all, err := c.objects.Resource(definitions).List(t.Context(), metav1.ListOptions{})
		return all.Items, err
	}, patience, pace).Should(BeEmpty(), "keep: false deletes them")
}

// awaitDefinitions waits until the API server serves a number of definitions.
func (c *cluster) awaitDefinitions(n int) {
	c.t.Helper()
	c.Eventually(func() (established int, err error) {
		all, err := c.objects.Resource(definitions).List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			return 0, err
		}
		for _, d := range all.Items {
			conditions, _, err := unstructured.NestedSlice(d.Object, "status", "conditions")
			if err != nil {
				return 0, err
			}
			if slices.ContainsFunc(conditions, func(x any) bool {
				m := x.(map[string]any)
				return m["type"] == "Established" && m["status"] == "True"
			}) {
				established++
			}
		}
		return established, nil
	}, patience, pace).Should(Equal(n))
	c.Eventually(func() error {
		_, err := c.objects.Resource(nodeIDs).List(c.t.Context(), metav1.ListOptions{})
		return err
	}, patience, pace).Should(Succeed())
}

// claim writes the NodeID of a node, as its agent does.
func (c *cluster) claim(id, node string) {
	c.t.Helper()
	_, err := c.objects.Resource(nodeIDs).Create(c.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cadastre.dev/v1alpha1", "kind": "NodeID", "metadata": map[string]any{"name": id},
		"spec": map[string]any{"nodeName": node, "instance": "i", "generation": int64(1)},
	}}, metav1.CreateOptions{})
	c.Expect(err).NotTo(HaveOccurred())
}

// holder returns the node that holds a node ID.
func (c *cluster) holder(id string) string {
	c.t.Helper()
	u, err := c.objects.Resource(nodeIDs).Get(c.t.Context(), id, metav1.GetOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	name, _, err := unstructured.NestedString(u.Object, "spec", "nodeName")
	c.Expect(err).NotTo(HaveOccurred())
	return name
}

// left returns the objects that carry the label of the project, without the definitions.
func (c *cluster) left() (names []string) {
	c.t.Helper()
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=cadastre"}
	for _, r := range []schema.GroupVersionResource{
		{Group: "apps", Version: "v1", Resource: "daemonsets"}, {Group: "apps", Version: "v1", Resource: "deployments"},
		{Version: "v1", Resource: "serviceaccounts"}, {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
	} {
		all, err := c.objects.Resource(r).List(c.t.Context(), ours)
		c.Expect(err).NotTo(HaveOccurred())
		for _, u := range all.Items {
			names = append(names, u.GetKind()+" "+u.GetName())
		}
	}
	return names
}
