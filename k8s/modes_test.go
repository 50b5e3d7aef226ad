// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package k8s

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/cadastre/cadastre/internal/testkit/generated"
	"github.com/cadastre/cadastre/internal/version"
)

// mode is a row of modes.yaml.
type mode struct {
	About         string   `json:"about"`
	Store         string   `json:"store"`
	Controllers   []string `json:"controllers"`
	Nodeipam      bool     `json:"nodeipam"`
	Allocator     string   `json:"allocator"`
	Netresource   string   `json:"netresource"`
	OperatorCloud string   `json:"operatorCloud"`
	AgentCloud    string   `json:"agentCloud"`
	AgentImage    string   `json:"agentImage"`
}

// argument is one of the operator, and the lines that say why it is there.
type argument struct {
	Text string
	Why  []string
}

// The templates read these beside the fields.

// Version is that of the images.
func (m mode) Version() string { return version.Next }

// VPP reports whether the network of the pods is in VPP.
func (m mode) VPP() bool { return m.AgentImage == "vpp" }

// Cloud returns the cloud of the agent or the operator, "" if there is none.
func (m mode) Cloud() string { return cmp.Or(m.AgentCloud, m.OperatorCloud) }

// PodsHaveAddressesOfTheCloud reports whether the cloud routes to each pod.
func (m mode) PodsHaveAddressesOfTheCloud() bool { return m.Cloud() != "" && !m.Nodeipam }

// Transport returns the value of cadastre.transport.
func (m mode) Transport() string {
	switch {
	case m.PodsHaveAddressesOfTheCloud():
		return "none"
	case m.Cloud() != "":
		return "nodeip"
	}
	return "vxlan"
}

// AgentProgram returns the name of the agent's image.
func (m mode) AgentProgram() string {
	return program("cadastre-agent", cmp.Or(m.AgentCloud, m.AgentImage))
}

// OperatorProgram returns the name of the operator's image.
func (m mode) OperatorProgram() string { return program("cadastre-operator", m.OperatorCloud) }

func program(name, variant string) string { return strings.TrimSuffix(name+"-"+variant, "-") }

// Components returns the names of the components below k8s/components.
func (m mode) Components() []string {
	all := []string{m.Store}
	for _, c := range []struct {
		name string
		has  bool
	}{
		{"nodeipam", m.Nodeipam},
		{"netresource", m.Netresource != ""},
		{m.OperatorCloud, m.OperatorCloud != ""},
		{m.AgentCloud + "-agent", m.AgentCloud != ""},
		{m.AgentImage, m.AgentImage != ""},
	} {
		if c.has {
			all = append(all, c.name)
		}
	}
	return all
}

// Arguments returns the arguments of the operator.
func (m mode) Arguments() []argument {
	all := []argument{{Text: "--controllers=" + strings.Join(m.Controllers, ",")}}
	add := func(text string, why ...string) { all = append(all, argument{text, why}) }
	if !m.Nodeipam { // its component has the same
		add("--service-cluster-ip-range=10.96.0.0/12 # serviceCIDR of contiv.conf")
	}
	if m.Store == "etcd" {
		add("--kvdb-endpoints=https://192.0.2.10:2379 # as in contiv.conf")
		add("--kvdb-ca=/etc/cadastre-etcd/ca.crt")
		add("--kvdb-cert=/etc/cadastre-etcd/tls.crt")
		add("--kvdb-key=/etc/cadastre-etcd/tls.key")
	} else {
		add("--kvdb-type=" + m.Store)
	}
	if m.Allocator != "" {
		add("--cidr-allocator-type=" + m.Allocator)
	}
	if m.Nodeipam {
		add("--node-id-expire=6m", "A bit more than the agents' cadastre.nodeIDs.expire, which is 5 minutes",
			"with podBlocks: podcidr.")
	}
	switch m.Netresource {
	case "":
	case "clusterpool":
		add("--netresource-provider=clusterpool", "Blocks of AddressPools, of which there must be one: addresspool.yaml.")
	default:
		add("--netresource-provider=" + m.Netresource)
	}
	return all
}

// comment returns a text as lines of a comment.
func comment(text string) string {
	line, all := "#", ""
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > 100 {
			all, line = all+line+"\n", "#"
		}
		line += " " + word
	}
	return all + line
}

// TestModes compares the folder of each mode with modes.yaml. make generate writes it.
func TestModes(t *testing.T) {
	g := NewWithT(t)
	text, err := os.ReadFile("modes.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	modes := map[string]mode{}
	g.Expect(yaml.UnmarshalStrict(text, &modes)).To(Succeed())
	folders, err := filepath.Glob("*/contiv.conf")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(modes).To(HaveLen(len(folders)))
	templates, err := template.New("").Funcs(template.FuncMap{"comment": comment}).ParseGlob("testdata/*.tmpl")
	g.Expect(err).NotTo(HaveOccurred())
	for name, m := range modes {
		for _, file := range []string{"kustomization.yaml", "contiv.conf"} {
			var made strings.Builder
			g.Expect(templates.ExecuteTemplate(&made, file+".tmpl", m)).To(Succeed(), name)
			generated.File(t, filepath.Join(name, file), made.String())
		}
	}
}
