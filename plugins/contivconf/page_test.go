// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/generated"
	"github.com/cadastre/cadastre/plugins/contivconf/yamldoc"
)

// pageFile is generated from the types, the defaults and the comments of reference.conf.
const pageFile = "../../docs/configuration.md"

// documented holds a key of reference.conf: TestReferenceHasEveryKey compares these with
// the types.
type documented struct {
	value   string // as written
	active  bool   // not commented out: the value is the default of the program
	comment string
}

// documentedKeys returns the keys and sections of reference.conf by their path.
func documentedKeys(data []byte) map[string]documented {
	type level struct {
		indent int
		path   string
	}
	all, open, comment := map[string]documented{}, []level(nil), []string(nil)
	for line := range strings.Lines(string(data)) {
		text := strings.TrimRight(line, "\n")
		bare := strings.TrimLeft(text, " ")
		active := !strings.HasPrefix(bare, "#")
		if bare == "" || strings.HasPrefix(bare, "# ---") {
			comment = nil
			continue
		}
		if strings.HasPrefix(bare, "# ") || bare == "#" {
			comment = append(comment, strings.TrimPrefix(strings.TrimPrefix(bare, "#"), " "))
			continue
		}
		indent := len(text) - len(bare)
		bare = strings.TrimPrefix(bare, "#")
		if item, ok := strings.CutPrefix(bare, "- "); ok {
			bare, indent = item, indent+2
		}
		for len(open) > 0 && open[len(open)-1].indent >= indent {
			open = open[:len(open)-1]
		}
		name, value, _ := strings.Cut(bare, ":")
		path := name
		if len(open) > 0 {
			path = open[len(open)-1].path + "." + name
		}
		if name == "pools" || name == "nodeConfig" || name == "otherVPPInterfaces" {
			path += "[]"
		}
		all[path] = documented{strings.TrimSpace(value), active, strings.Join(comment, " ")}
		open, comment = append(open, level{indent, path}), nil
	}
	return all
}

// examples returns values of keys whose default is empty, or shows too little.
func examples() map[string]string {
	return map[string]string{
		"ipamConfig.contivCIDR":          "10.128.0.0/14",
		"ipamConfig.defaultGateway":      "192.168.16.1",
		"ipamConfig.podSubnetCIDR":       `"10.1.0.0/16,fd00:1::/48"`,
		"cadastre.nodeID":                "5",
		"cadastre.instanceID":            "i-0a1b2c3d",
		"cadastre.staticPodCIDRs":        "[10.1.5.0/24]",
		"cadastre.allowOverlap":          "[podSubnetCIDR/vxlanCIDR]",
		"cadastre.kvdb.endpoints":        `["https://10.0.0.1:2379"]`,
		"cadastre.kvdb.ca":               "/etc/cadastre/etcd-ca.pem",
		"cadastre.kvdb.cert":             "/etc/cadastre/etcd.pem",
		"cadastre.kvdb.key":              "/etc/cadastre/etcd-key.pem",
		"cadastre.kvdb.username":         "cadastre",
		"cadastre.kvdb.passwordFile":     "/etc/cadastre/etcd-password",
		"cadastre.kvdb.kubeconfig":       "/etc/cadastre/kubeconfig",
		"cadastre.interfaces.checkpoint": "/var/run/aws-node/ipam.json",
		"cadastre.interfaces.export":     "/var/lib/cadastre/ipam.json",
		"cadastre.traces.endpoint":       `"http://127.0.0.1:4318/v1/traces"`,
		"cadastre.transport":             "vxlan",
		"cadastre.dataplane":             "linux",
		"cadastre.underlay.interface":    "eth1",
		"cadastre.underlay.cidrs":        "[192.168.0.0/16]",
		"cadastre.mtu":                   "1450",
		"cadastre.cni.confDir":           "/etc/cni/net.d",
		"cadastre.vpp.interface":         "eth1",
		"cadastre.rest.listen":           "0.0.0.0:10263",
		"cadastre.rest.cert":             "/etc/cadastre/rest.pem",
		"cadastre.rest.key":              "/etc/cadastre/rest-key.pem",
		"cadastre.rest.clientCA":         "/etc/cadastre/clients-ca.pem",
		"cadastre.metrics.listen":        `":10262"`,
		"cadastre.metrics.cert":          "/etc/cadastre/metrics.pem",
		"cadastre.metrics.key":           "/etc/cadastre/metrics-key.pem",
		"cadastre.metrics.clientCA":      "/etc/cadastre/scrapers-ca.pem",
		"cadastre.witnesses.runtime":     "unix:///run/containerd/containerd.sock",
		"cadastre.witnesses.engine":      "unix:///var/run/docker.sock",
	}
}

// users returns the programs and plugins that use the keys of a section, by the longest
// prefix of a path.
func users() map[string]string {
	return map[string]string{
		"ipamConfig.":                 "ipam, ipnet",
		"ipamConfig.useExternalIPAM":  "ipam",
		"ipamConfig.nodeInterconnect": "nodesync, ipnet",
		"ipamConfig.defaultGateway":   "nodesync, ipnet",
		"cadastre.nodeID":             "nodesync",
		"cadastre.instanceID":         "ipam, interfaces",
		"cadastre.podBlocks":          "ipam",
		"cadastre.staticPodCIDRs":     "ipam",
		"cadastre.waitForPodCIDR":     "ipam",
		"cadastre.coolDown":           "ledger",
		"cadastre.allowOverlap":       "contivconf",
		"cadastre.kvdb.":              "kubestate",
		"cadastre.netResource.":       "ipam",
		"cadastre.interfaces.":        "interfaces",
		"cadastre.nodeIDs.":           "nodesync",
		"cadastre.dataplane":          "ipnet, southbound",
		"cadastre.transport":          "ipnet",
		"cadastre.underlay.":          "nodesync, ipnet",
		"cadastre.mtu":                "ipnet",
		"cadastre.masquerade":         "ipnet",
		"cadastre.allowForward":       "ipnet",
		"cadastre.vni":                "ipnet",
		"cadastre.cni.":               "agent",
		"cadastre.vpp.":               "cadastre-agent-vpp",
		"cadastre.rest.":              "restapi",
		"cadastre.metrics.":           "agent",
		"cadastre.log.":               "agent",
		"cadastre.docker.":            "dockeripam",
		"cadastre.witnesses.":         "witness",
		"cadastre.reclaim.":           "reclaim",
		"cadastre.traces.":            "agent",
		"cadastre.controller.":        "controller",
		"cadastre.history.":           "ledger",
		"nodeConfig[].":               "nodesync, ipnet",
	}
}

func user(path string) string {
	best := ""
	for prefix := range users() {
		if strings.HasPrefix(path, prefix) && len(prefix) > len(best) {
			best = prefix
		}
	}
	return users()[best]
}

// typeText names the type of a key, with its unit.
func typeText(k yamldoc.Key) string {
	value, _ := sample(k.Path, k.Type)
	switch {
	case k.Type == reflect.TypeFor[time.Duration]() && value == "7":
		return "minutes"
	case k.Type == reflect.TypeFor[time.Duration]():
		return "duration"
	case k.Type.Kind() == reflect.Bool:
		return "bool"
	case k.Type.Kind() == reflect.Slice:
		return "list"
	case k.Type.Kind() == reflect.String && strings.HasSuffix(k.Path, "CIDR"):
		return "network"
	case k.Type.Kind() == reflect.String && k.Type != reflect.TypeFor[string]():
		return "word"
	case k.Type.Kind() == reflect.String:
		return "text"
	}
	return "number"
}

const pageHead = `# The configuration

The agent reads ` + "`/etc/cadastre/contiv.conf`" + ` once, at its start. This is a complete file:

` + "```yaml" + `
ipamConfig:
  podSubnetCIDR: 10.1.0.0/16
  serviceCIDR: 10.96.0.0/12
cadastre:
  coolDown: 2m
` + "```" + `

    $ cadastre plan --config contiv.conf --node-id 5     # what node 5 gets from it; problems, each with its key

A key that is missing has its default. Keys match in any case. An unknown key, and a value that could not work, is refused
([errors](errors.md#a-configuration-that-is-refused)); ` + "`cadastre plan`" + ` finds all problems at once. Types:

| type | is written |
|---|---|
| network | address/prefix length without host bits; in dual stack ` + "`v4,v6`" + ` or ` + "`v6,v4`" + `, in the same order everywhere |
| duration | ` + "`5s`, `1m30s`" + `; a bare number counts nanoseconds, as in Contiv's controller.conf |
| minutes | a whole number |
| word | one of the words in the text |
| list | ` + "`[a, b]`" + ` |

Without an example the default is one. "Used by" names the plugin (folder of [plugins](../plugins)) or program that acts on the key. This page is generated from
[conf/reference.conf](../conf/reference.conf) and the types: ` + "`make generate`" + ` writes it.
[contiv-vpp.md](contiv-vpp.md) has the keys of Contiv-VPP with their former names.
`

// pageSections returns the headings of the page by the prefix of the paths below.
func pageSections() [][2]string {
	return [][2]string{
		{"ipamConfig.", "Networks: ipamConfig"},
		{"cadastre.", "Cadastre: cadastre"},
		{"nodeConfig[].", "Single nodes: nodeConfig"},
		{"", "Keys of Contiv-VPP at the top level"},
	}
}

// onSection reports whether a path is in a section of the page.
func onSection(prefix, path string) bool {
	if prefix == "" {
		return !strings.Contains(path, ".")
	}
	return strings.HasPrefix(path, prefix)
}

// configurationPage returns the page.
func configurationPage(keys map[string]documented) string {
	var b strings.Builder
	b.WriteString(pageHead)
	escape := strings.NewReplacer("|", `\|`, "<", "&lt;").Replace
	for _, s := range pageSections() {
		fmt.Fprintf(&b, "\n## %s\n", s[1])
		if text := keys[strings.TrimSuffix(s[0], ".")].comment; text != "" {
			fmt.Fprintf(&b, "\n%s\n", text)
		}
		b.WriteString("\n| key | type | default | example | meaning | used by |\n|---|---|---|---|---|---|\n")
		unused := []string{}
		for _, k := range knownKeys() {
			d := keys[k.Path]
			switch {
			case !onSection(s[0], k.Path):
			case k.Section && d.comment != "":
				fmt.Fprintf(&b, "| **`%s`** | | | | %s | |\n", strings.TrimPrefix(k.Path, s[0]), escape(d.comment))
			case k.Section:
			case k.Unused:
				unused = append(unused, fmt.Sprintf("| `%s` | %s | %s |", strings.TrimPrefix(k.Path, s[0]), typeText(k), escape(d.comment)))
			default:
				value := ""
				if d.active && d.value != `""` && d.value != "[]" {
					value = "`" + d.value + "`"
				}
				example := cmp.Or(examples()[k.Path], d.value)
				if example = "`" + example + "`"; example == value || example == "`\"\"`" {
					example = ""
				}
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n",
					strings.TrimPrefix(k.Path, s[0]), typeText(k), value, example, escape(d.comment), cmp.Or(user(k.Path), "ipnet"))
			}
		}
		if len(unused) > 0 {
			b.WriteString("\nAccepted, and without effect in Linux ([what happens instead](contiv-vpp.md#keys-that-change-nothing)):\n\n")
			b.WriteString("| key | type | meaning in Contiv-VPP |\n|---|---|---|\n" + strings.Join(unused, "\n") + "\n")
		}
	}
	return b.String()
}

func TestConfigurationPage(t *testing.T) {
	g := gomega.NewWithT(t)
	reference, err := os.ReadFile("../../conf/reference.conf")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	keys := documentedKeys(reference)
	for _, k := range knownKeys() {
		if !k.Section {
			g.Expect(keys[k.Path].comment).NotTo(gomega.BeEmpty(), "reference.conf says nothing of %s", k.Path)
		}
		if !k.Section && !k.Unused && strings.Contains(k.Path, ".") {
			g.Expect(user(k.Path)).NotTo(gomega.BeEmpty(), "users() has no plugin that uses %s", k.Path)
		}
	}
	generated.File(t, pageFile, configurationPage(keys))
}

// TestExamplesOfKeysAreRead reads every example of the page with the type of its key.
func TestExamplesOfKeysAreRead(t *testing.T) {
	g := gomega.NewWithT(t)
	known := leaves()
	needsOthers := map[Rule]bool{ // a key that makes sense with another one only
		RuleKVDB: true, RuleREST: true, RuleMetrics: true, RuleDataplane: true, RuleFamily: true, RuleStaticBlocks: true, RuleInterfaces: true,
	}
	for path, value := range examples() {
		g.Expect(known).To(gomega.HaveKey(path))
		r := read([]byte(document(path, value)))
		g.Expect(r.Problems).To(gomega.BeEmpty(), "%s: %s", path, value)
		g.Expect(r.Given).To(gomega.HaveKey(path))
		_, _, err := Parse([]byte(document(path, value)))
		var problems yamldoc.Problems
		errors.As(err, &problems)
		for _, p := range problems {
			g.Expect(p.Field != path || needsOthers[p.Rule]).To(gomega.BeTrue(), "%s: %s", value, p)
		}
	}
}
