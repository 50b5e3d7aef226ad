// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authorization "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
)

// namespace is the namespace of all objects of the manifests.
const namespace = "cadastre-system"

// TestManifests applies every mode of k8s/ to an API server of its own, with
// strict validation. It runs operator and agent with what was applied: their
// flags, their configuration, and exactly their roles. What differs is where
// things are, and that no routes are made on this machine.
func TestManifests(t *testing.T) {
	mayRun(t)
	for _, x := range []struct {
		mode           string
		etcd, external bool
		first          string // address of a pod
	}{
		{"derived-kubernetes", false, false, "10.1.1.2/24"}, {"derived-etcd", true, false, "10.1.1.2/24"}, {"external-kubernetes", false, true, "10.1.0.2/24"},
		{"external-etcd", true, true, "10.1.0.2/24"}, {"netresource-kubernetes", false, false, "10.1.0.2/28"},
	} {
		t.Run(x.mode, func(t *testing.T) {
			c := openCluster(t, newPlane(t).kubeconfig)
			g := c.g
			c.applyMode(x.mode)
			store := map[string]any{"type": "kubernetes", "kubeconfig": c.agentAccount("n1")}
			args := c.operatorArgs()
			if x.etcd {
				server := etcdtest.Start(t)
				store = map[string]any{"type": "etcd", "endpoints": []string{server.Endpoint()}}
				args = append(args, "--kvdb-endpoints="+server.Endpoint())
			}
			operator := newOperator(t, c.mustAccount("cadastre-operator"), args...)
			if x.mode == "netresource-kubernetes" {
				_, err := c.kubectl("apply", "--validate=strict", "--filename="+filepath.Join("..", "..", "..", "k8s", x.mode, "addresspool.yaml"))
				g.Expect(err).NotTo(HaveOccurred())
			}
			c.create("n1")
			a := newAgent(t, "n1", c.agentConf(store))
			if x.external {
				g.Expect(first(c.awaitNumbered("n1"))).To(Equal([]string{"10.1.0.0/24"}))
			} else {
				g.Expect(c.node("n1").Spec.PodCIDRs).To(BeEmpty(), "no controller sets them")
			}
			subnet := netip.MustParsePrefix(x.first).Masked()
			a.awaitBlocks(subnet.String() + " active")
			g.Expect(a.add("p1")).To(Equal(x.first))
			c.g.Expect(c.createPod("p1", "n1")).To(Succeed()) // which reflector and agent see
			operator.stop(g)
			a.process.stop(g)
			for _, p := range []*process{operator, a.process} {
				said, err := os.ReadFile(p.log)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(string(said)).NotTo(ContainSubstring("forbidden"), "%s needs what its role does not say", p.name)
			}
		})
	}
}

// TestManifestsOfClouds applies the modes with a cloud one after the other, with strict
// validation. The programs with a cloud are tested in its module.
func TestManifestsOfClouds(t *testing.T) {
	mayRun(t)
	c := openCluster(t, newPlane(t).kubeconfig)
	for _, mode := range []string{"netresource-openstack", "netresource-ec2", "external-openstack", "interfaces-openstack", "interfaces-ec2"} {
		c.applyMode(mode)
		c.g.Expect(c.operatorArgs()).To(ContainElement("--kvdb-type=kubernetes"), mode)
	}
}

// awaitRoles waits until the authorizer knows the roles that were applied, which
// it reads a little later.
func (c *cluster) awaitRoles() {
	c.t.Helper()
	bindings, err := c.client.RbacV1().ClusterRoleBindings().List(c.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=cadastre"})
	c.g.Expect(err).NotTo(HaveOccurred())
	c.g.Expect(bindings.Items).NotTo(BeEmpty())
	for _, b := range bindings.Items {
		role, err := c.client.RbacV1().ClusterRoles().Get(c.t.Context(), b.RoleRef.Name, getOptions())
		c.g.Expect(err).NotTo(HaveOccurred())
		client, err := as(c.mustAccount(b.Subjects[0].Name))
		c.g.Expect(err).NotTo(HaveOccurred())
		for _, r := range role.Rules {
			c.g.Eventually(can, patience, pace).
				WithArguments(c.t, client, authorization.ResourceAttributes{Verb: r.Verbs[0], Group: r.APIGroups[0], Resource: r.Resources[0]}).
				Should(BeTrue(), "%s of %s", role.Name, b.Subjects[0].Name)
		}
	}
}

// TestRolesSayNoMore: what the accounts of the largest modes may not do.
func TestRolesSayNoMore(t *testing.T) {
	mayRun(t)
	for mode, more := range map[string][]denied{
		"external-kubernetes": nil,
		"netresource-kubernetes": {
			{"cadastre-agent", "update", "cadastre.dev", "netresourcesets"},
			{"cadastre-agent", "delete", "cadastre.dev", "netresourcesets"},
			{"cadastre-agent", "get", "cadastre.dev", "addresspools"},
			{"cadastre-operator", "create", "cadastre.dev", "netresourcesets"},
			{"cadastre-operator", "update", "cadastre.dev", "addresspools"},
			{"cadastre-operator", "update", "", "pods"},
			{"cadastre-operator", "patch", "", "nodes"},
		},
	} {
		t.Run(mode, func(t *testing.T) { rolesSayNoMore(t, mode, more) })
	}
}

// denied holds a request that an account may not make.
type denied struct{ account, verb, group, resource string }

func rolesSayNoMore(t *testing.T, mode string, more []denied) {
	c := openCluster(t, newPlane(t).kubeconfig)
	g := c.g
	c.applyMode(mode)
	for _, x := range append(more, []denied{
		{"cadastre-agent", "patch", "", "nodes"},
		{"cadastre-agent", "update", "", "pods"},
		{"cadastre-agent", "get", "", "secrets"},
		{"cadastre-agent", "delete", "cadastre.dev", "nodeids"},
		{"cadastre-agent", "update", "cadastre.dev", "nodeconfigs"},
		{"cadastre-agent", "update", "cadastre.dev", "clusterchecks"},
		{"cadastre-agent", "create", "cadastre.dev", "clusterchecks"},
		{"cadastre-agent", "update", "coordination.k8s.io", "leases"},
		{"cadastre-operator", "delete", "", "nodes"},
		{"cadastre-operator", "create", "", "nodes"},
		{"cadastre-operator", "get", "", "secrets"},
		{"cadastre-operator", "delete", "cadastre.dev", "nodeids"},
		{"cadastre-operator", "create", "rbac.authorization.k8s.io", "clusterrolebindings"},
	}...) {
		client, err := as(c.mustAccount(x.account))
		g.Expect(err).NotTo(HaveOccurred())
		may, err := can(t, client, authorization.ResourceAttributes{Verb: x.verb, Group: x.group, Resource: x.resource, Namespace: ""})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(may).To(BeFalse(), "%s may %s %s.%s", x.account, x.verb, x.resource, x.group)
	}
}

// mustAccount is a kubeconfig of an account of the manifests.
func (c *cluster) mustAccount(name string) string {
	c.t.Helper()
	kubeconfig, err := c.account(namespace, name)
	c.g.Expect(err).NotTo(HaveOccurred())
	return kubeconfig
}

// operatorArgs are the flags of the Deployment that was applied, without where
// its etcd is and where it listens.
func (c *cluster) operatorArgs() []string {
	c.t.Helper()
	d, err := c.client.AppsV1().Deployments(namespace).Get(c.t.Context(), "cadastre-operator", getOptions())
	c.g.Expect(err).NotTo(HaveOccurred())
	args := d.Spec.Template.Spec.Containers[0].Args
	c.g.Expect(args).NotTo(BeEmpty())
	return slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return slices.Contains([]string{"--bind-address", "--kvdb-endpoints", "--kvdb-ca", "--kvdb-cert", "--kvdb-key"}, name)
	})
}

// agentConf is the contiv.conf that was applied, with another store, without links and
// routes, with less patience, and with metrics at a port of its own.
func (c *cluster) agentConf(store map[string]any) string {
	c.t.Helper()
	set, err := c.client.AppsV1().DaemonSets(namespace).Get(c.t.Context(), "cadastre-agent", getOptions())
	c.g.Expect(err).NotTo(HaveOccurred())
	for _, v := range set.Spec.Template.Spec.Volumes {
		if v.Name != "config" {
			continue
		}
		m, err := c.client.CoreV1().ConfigMaps(namespace).Get(c.t.Context(), v.ConfigMap.Name, getOptions())
		c.g.Expect(err).NotTo(HaveOccurred())
		text := m.Data["contiv.conf"]
		var conf map[string]map[string]any
		c.g.Expect(yaml.UnmarshalStrict([]byte(text), &conf)).To(Succeed())
		c.g.Expect(conf["cadastre"]["kvdb"]).To(HaveKeyWithValue("type", store["type"]))
		conf["cadastre"]["kvdb"] = store
		conf["cadastre"]["dataplane"], conf["cadastre"]["transport"] = "none", "none"
		delete(conf["cadastre"], "cni")
		// the first node waits for others by it
		conf["cadastre"]["controller"] = map[string]any{"remoteDBProbingInterval": "1s"}
		// the store is new, and known to be
		conf["cadastre"]["nodeIDs"] = map[string]any{"quarantine": "0s"}
		metrics, ok := conf["cadastre"]["metrics"].(map[string]any)
		c.g.Expect(ok).To(BeTrue(), "agents of the manifests have metrics")
		metrics["listen"] = fmt.Sprint("127.0.0.1:", freePort(c.t))
		out, err := yaml.Marshal(conf)
		c.g.Expect(err).NotTo(HaveOccurred())
		return string(out)
	}
	c.t.Fatal("the agents have no volume with a contiv.conf")
	return ""
}
