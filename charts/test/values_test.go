// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package charts

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/plugins/contivconf"
)

// find returns the object of a kind and name.
func find(g *WithT, all []unstructured.Unstructured, kind, name string) map[string]any {
	for _, u := range all {
		if u.GetKind() == kind && u.GetName() == name {
			return u.Object
		}
	}
	g.Expect(all).To(BeNil(), "there is no %s %s", kind, name)
	return nil
}

// confOf returns contiv.conf of a rendering.
func confOf(g *WithT, all []unstructured.Unstructured) string {
	text, found, err := unstructured.NestedString(find(g, all, "ConfigMap", "cadastre-config"), "data", "contiv.conf")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeTrue())
	return text
}

// container returns the first container of a workload.
func container(g *WithT, all []unstructured.Unstructured, kind, name string) map[string]any {
	list, found, err := unstructured.NestedSlice(find(g, all, kind, name), "spec", "template", "spec", "containers")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(BeTrue())
	return list[0].(map[string]any)
}

// TestModesAreThoseOfKustomize compares the folders of k8s/ with the schema and the chart's
// own list.
func TestModesAreThoseOfKustomize(t *testing.T) {
	g := NewWithT(t)
	want := modes(t)
	var schema struct {
		Properties struct{ Mode struct{ Enum []string } }
	}
	text, err := os.ReadFile(filepath.Join("..", "cadastre", "values.schema.json"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(text, &schema)).To(Succeed())
	g.Expect(schema.Properties.Mode.Enum).To(ConsistOf(want))
	var parts map[string]any
	text, err = os.ReadFile(filepath.Join("..", "..", "k8s", "modes.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(sigsyaml.UnmarshalStrict(text, &parts)).To(Succeed())
	g.Expect(slices.Collect(maps.Keys(parts))).To(ConsistOf(want))
}

// TestAgentAcceptsTheConfiguration reads contiv.conf of each mode as an agent does.
func TestAgentAcceptsTheConfiguration(t *testing.T) {
	g := NewWithT(t)
	for _, mode := range modes(t) {
		_, unused, err := contivconf.Parse([]byte(confOf(g, mustRender(t, valuesOf(mode)))))
		g.Expect(err).NotTo(HaveOccurred(), mode)
		g.Expect(unused).To(BeEmpty(), mode)
	}
}

// TestSchemaKnowsTheKeys compares the keys of the schema with those that an agent accepts,
// and with those of conf/reference.conf.
func TestSchemaKnowsTheKeys(t *testing.T) {
	g := NewWithT(t)
	type section struct{ Properties map[string]any }
	var schema struct {
		Properties struct {
			Config struct {
				Properties map[string]json.RawMessage
			}
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "cadastre", "values.schema.json"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(json.Unmarshal(text, &schema)).To(Succeed())
	reference, err := os.ReadFile(filepath.Join("..", "..", "conf", "reference.conf"))
	g.Expect(err).NotTo(HaveOccurred())
	var all map[string]any
	g.Expect(sigsyaml.UnmarshalStrict(reference, &all)).To(Succeed())
	for key := range all {
		g.Expect(schema.Properties.Config.Properties).To(HaveKey(key))
	}
	for _, name := range []string{"ipamConfig", "cadastre"} {
		var known section
		g.Expect(json.Unmarshal(schema.Properties.Config.Properties[name], &known)).To(Succeed())
		for key := range all[name].(map[string]any) {
			if key != "nodeID" && key != "instanceID" { // of one node
				g.Expect(known.Properties).To(HaveKey(key), name)
			}
		}
		for key := range known.Properties {
			_, _, err := contivconf.Parse([]byte(name + ": {" + key + ": {nonsense: 1}}"))
			g.Expect(err).NotTo(MatchError(ContainSubstring(name+"."+key+": unknown")), "an agent does not know it")
		}
	}
	_, _, err = contivconf.Parse([]byte("cadastre: {nonsense: 1}"))
	g.Expect(err).To(MatchError(ContainSubstring("nonsense")))
}

// TestRefusals has values that are wrong: each refusal names the key, the value, and what
// would be right.
func TestRefusals(t *testing.T) {
	config := func(section string, v values) values { return values{"config": values{section: v}} }
	with := func(mode string, v values) values {
		all := values{"mode": mode}
		maps.Copy(all, v)
		return all
	}
	for name, x := range map[string]struct {
		values values
		want   []string
	}{
		"unknown mode":    {values{"mode": "derived"}, []string{"/mode", "derived-kubernetes"}},
		"unknown key":     {values{"replicas": 3}, []string{"replicas"}},
		"key of operator": {values{"operator": values{"replica": 3}}, []string{"/operator", "replica"}},
		"network":         {config("ipamConfig", values{"podSubnetCIDR": "10.1.0.0"}), []string{"/config/ipamConfig/podSubnetCIDR", "10.1.0.0"}},
		"length":          {config("ipamConfig", values{"podSubnetOneNodePrefixLen": 240}), []string{"podSubnetOneNodePrefixLen", "128"}},
		"key of conf":     {config("cadastre", values{"transprot": "vxlan"}), []string{"/config/cadastre", "transprot"}},
		"node's own key":  {config("cadastre", values{"nodeID": 7}), []string{"/config/cadastre", "nodeID"}},
		"transport":       {config("cadastre", values{"transport": "geneve"}), []string{"/config/cadastre/transport", "vxlan"}},
		"digest":          {values{"images": values{"agent": values{"digest": "latest"}}}, []string{"/images/agent/digest", "sha256:"}},
		"argument":        {values{"operator": values{"extraArgs": []string{"v=2"}}}, []string{"/operator/extraArgs/0", "v=2"}},
		"distribution":    {values{"distribution": "openshift"}, []string{"/distribution", "k3s"}},
		"no peers": {
			values{"policiesEnforced": true, "networkPolicy": values{"enabled": true, "from": []any{}}},
			[]string{"/networkPolicy/from", "minItems"},
		},
		"no endpoints": {
			with("external-etcd", nil),
			[]string{"config.cadastre.kvdb.endpoints is empty", "mode external-etcd", "https://192.0.2.10:2379"},
		},
		"another store": {
			config("cadastre", values{"kvdb": values{"type": "etcd"}}),
			[]string{`config.cadastre.kvdb.type is "etcd"`, "mode derived-kubernetes", "ends in etcd"},
		},
		"other blocks": {
			config("cadastre", values{"podBlocks": "netresource"}),
			[]string{`config.cadastre.podBlocks is "netresource"`, `"nodeid"`, "choose the mode"},
		},
		"external": {
			config("ipamConfig", values{"useExternalIPAM": true}),
			[]string{"config.ipamConfig.useExternalIPAM is true", "external-*"},
		},
		"not external": {
			with("external-kubernetes", config("ipamConfig", values{"useExternalIPAM": false})),
			[]string{"config.ipamConfig.useExternalIPAM is false", "external-*"},
		},
		"no pod network": {
			with("external-kubernetes", config("ipamConfig", values{"podSubnetCIDR": nil})),
			[]string{"config.ipamConfig.podSubnetCIDR is empty", "10.1.0.0/16"},
		},
		"no node CIDRs": {
			values{"operator": values{"nodeCIDRs": false}},
			[]string{"operator.nodeCIDRs is false", "external-kubernetes"},
		},
		"policy": {
			values{"networkPolicy": values{"enabled": true}},
			[]string{"networkPolicy.enabled is true", "policiesEnforced: true"},
		},
		"address pools": {
			values{"addressPools": values{"pods": values{"cidrs": []any{values{"cidr": "10.1.0.0/16"}}}}},
			[]string{"addressPools has pods", "netresource-kubernetes"},
		},
		"links of VPP":        {with("vpp", config("cadastre", values{"dataplane": "linux"})), []string{`config.cadastre.dataplane is "linux"`, "derived-kubernetes"}},
		"bridge with VPP":     {with("vpp", values{"mainPlugin": "bridge"}), []string{"mode vpp has vpp"}},
		"links without image": {config("cadastre", values{"dataplane": "vpp"}), []string{`config.cadastre.dataplane is "vpp"`, "choose vpp"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := render(t, "cadastre", x.values)
			for _, part := range x.want {
				g.Expect(err).To(MatchError(ContainSubstring(part)))
			}
		})
	}
}

// TestFlagsFollowTheConfiguration writes networks, lengths and endpoints once: the operator's
// flags and the agents' contiv.conf have them.
func TestFlagsFollowTheConfiguration(t *testing.T) {
	g := NewWithT(t)
	args := func(v values) any { return container(g, mustRender(t, v), "Deployment", "cadastre-operator")["args"] }
	g.Expect(args(values{"mode": "external-kubernetes", "config": values{"ipamConfig": values{
		"podSubnetCIDR": "10.8.0.0/14, fd01::/48", "podSubnetOneNodePrefixLen": 25, "serviceCIDR": "10.64.0.0/12",
	}}})).To(ContainElements("--cluster-cidr=10.8.0.0/14,fd01::/48", "--node-cidr-mask-size-ipv4=25",
		"--node-cidr-mask-size-ipv6=64", "--service-cluster-ip-range=10.64.0.0/12"))
	g.Expect(args(values{"mode": "external-kubernetes", "operator": values{"nodeCIDRs": false}})).To(And(
		ContainElement("--controllers=nodeids,audit"), Not(ContainElement("--allocate-node-cidrs"))))
	g.Expect(args(values{"mode": "derived-etcd", "config": values{"cadastre": values{"kvdb": values{
		"endpoints": []string{"https://a:2379", "https://b:2379"}, "prefix": "/mine/", "username": "cadastre", "cert": nil, "key": nil,
		"passwordFile": "/etc/cadastre-etcd/password",
	}}}})).To(And(
		ContainElements("--kvdb-endpoints=https://a:2379,https://b:2379", "--kvdb-prefix=/mine/", "--kvdb-username=cadastre",
			"--kvdb-password-file=/etc/cadastre-etcd/password", "--kvdb-ca=/etc/cadastre-etcd/ca.crt"),
		Not(ContainElement(HavePrefix("--kvdb-cert"))), Not(ContainElement(HavePrefix("--kvdb-key")))))
	g.Expect(args(values{"mode": "netresource-ec2", "cloud": values{"ec2Cluster": "blue"}})).To(ContainElement("--ec2-cluster=blue"))
	g.Expect(args(values{"policiesEnforced": true, "operator": values{"extraArgs": []string{"--v=2"}}})).To(And(
		ContainElement("--v=2"), Not(ContainElement("--policies-not-enforced"))))
}

// TestConfigurationIsOverlaid: false replaces true, null removes a key, a list replaces a
// list, and a change restarts the agents.
func TestConfigurationIsOverlaid(t *testing.T) {
	g := NewWithT(t)
	sum := func(all []unstructured.Unstructured) string {
		s, _, err := unstructured.NestedString(find(g, all, "DaemonSet", "cadastre-agent"), "spec", "template", "metadata", "annotations", "checksum/config")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s).NotTo(BeEmpty())
		return s
	}
	before := mustRender(t, values{})
	after := mustRender(t, values{"config": values{
		"ipamConfig": values{"vxlanCIDR": nil, "podSubnetCIDR": "10.2.0.0/16"},
		"cadastre":   values{"metrics": values{"enabled": false}, "transport": "nodeip", "allowOverlap": []string{"a"}},
	}})
	g.Expect(sum(before)).NotTo(Equal(sum(after)))
	var conf struct {
		IPAMConfig, Cadastre map[string]any
	}
	g.Expect(sigsyaml.Unmarshal([]byte(confOf(g, after)), &conf)).To(Succeed())
	g.Expect(conf.IPAMConfig).To(And(Not(HaveKey("vxlanCIDR")), HaveKeyWithValue("podSubnetCIDR", "10.2.0.0/16"),
		HaveKeyWithValue("serviceCIDR", "10.96.0.0/12")))
	g.Expect(conf.Cadastre).To(And(HaveKeyWithValue("metrics", HaveKeyWithValue("enabled", false)),
		HaveKeyWithValue("transport", "nodeip"), HaveKeyWithValue("dataplane", "linux"), HaveKeyWithValue("allowOverlap", HaveLen(1))))
}

// TestImages has registry, repository, tag and digest.
func TestImages(t *testing.T) {
	g := NewWithT(t)
	digest := "sha256:" + "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	all := mustRender(t, values{"mode": "interfaces-openstack", "images": values{
		"registry": "registry.example/cadastre/", "agent": values{"digest": digest}, "operator": values{"repository": "mine", "tag": "v7"},
	}})
	g.Expect(container(g, all, "DaemonSet", "cadastre-agent")["image"]).To(Equal("registry.example/cadastre/cadastre-agent-openstack@" + digest))
	g.Expect(container(g, all, "Deployment", "cadastre-operator")["image"]).To(Equal("registry.example/cadastre/mine:v7"))
}
