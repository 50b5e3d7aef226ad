// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// config is a network configuration of a version with an ipam section and more keys.
func config(version, ipam, more string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": "pods", "type": "bridge", "ipam": {"type": "cadastre-cni"%s}%s}`, version, ipam, more)
}

func TestParseConfig(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		want       cni.Config
	}{
		{"the least there is", `{"cniVersion": "1.0.0", "name": "pods"}`, cni.Config{Pool: "default"}},
		{"its own keys", config("1.0.0", `, "socket": "/run/a.sock", "pool": "blue", "routes": [{"dst": "10.0.0.0/8", "gw": "10.1.5.1"}, {"dst": "::/0"}]`, ""),
			cni.Config{Pool: "blue", Routes: []cni.Route{{Dst: "10.0.0.0/8", GW: "10.1.5.1"}, {Dst: "::/0"}}}},
		{"an empty list of routes", config("1.0.0", `, "routes": []`, ""), cni.Config{Pool: "default", Routes: []cni.Route{}}},
		{"null for routes is none", config("1.0.0", `, "routes": null`, ""), cni.Config{Pool: "default"}},
		{"keys of the main plugin", config("1.0.0", "", `, "bridge": "cni0", "isGateway": true, "capabilities": {"ips": true}`), cni.Config{Pool: "default"}},
		{"ips of the runtime", config("1.0.0", "", `, "runtimeConfig": {"ips": ["10.1.5.9"], "mac": "x"}`), cni.Config{Pool: "default", Wanted: []string{"10.1.5.9"}, MAC: "x"}},
		{"ips of args", config("1.0.0", "", `, "args": {"cni": {"ips": ["10.1.5.8"], "labels": []}}`), cni.Config{Pool: "default", Wanted: []string{"10.1.5.8"}}},
		{"the runtime's before those of args", config("1.0.0", "", `, "runtimeConfig": {"ips": ["10.1.5.9"]}, "args": {"cni": {"ips": ["10.1.5.8"]}}`),
			cni.Config{Pool: "default", Wanted: []string{"10.1.5.9"}}},
		{"an empty list of the runtime's says nothing", config("1.0.0", "", `, "runtimeConfig": {"ips": []}, "args": {"cni": {"ips": ["10.1.5.8"]}}`),
			cni.Config{Pool: "default", Wanted: []string{"10.1.5.8"}}},
		{"prevResult", config("1.0.0", "", `, "prevResult": {"ips": [{"address": "10.1.5.2/24", "gateway": "10.1.5.1", "interface": 1}], "dns": {}}`),
			cni.Config{Pool: "default", Previous: &cni.Result{IPs: []cni.IP{{Interface: new(1), Address: "10.1.5.2/24", Gateway: "10.1.5.1"}}}}},
		{"attachments", config("1.1.0", "", `, "cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]`),
			cni.Config{Pool: "default", Attachments: []cni.Attachment{{ContainerID: "c1", IfName: "eth0"}}}},
		{"attachments under their old name", config("1.1.0", "", `, "cni.dev/attachments": [{"containerID": "c1", "ifname": "eth0"}]`),
			cni.Config{Pool: "default", Attachments: []cni.Attachment{{ContainerID: "c1", IfName: "eth0"}}}},
		{"an empty list of attachments is one", config("1.1.0", "", `, "cni.dev/valid-attachments": [], "cni.dev/attachments": [{"containerID": "c1"}]`),
			cni.Config{Pool: "default", Attachments: []cni.Attachment{}}},
		{"null is none", config("1.1.0", "", `, "cni.dev/valid-attachments": null`), cni.Config{Pool: "default"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			got, err := cni.ParseConfig([]byte(c.conf), "ADD")
			g.Expect(err).To(BeNil())
			c.want.Name, c.want.CNIVersion = "pods", got.CNIVersion
			g.Expect(*got).To(Equal(c.want))
		})
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		code       uint
		saying     string
	}{
		{"nothing", "", cni.CodeDecode, "network config"},
		{"no JSON", "{", cni.CodeDecode, "network config"},
		{"JSON of another kind", "[]", cni.CodeDecode, "network config"},
		{"a section of another kind", `{"cniVersion": "1.0.0", "name": "pods", "ipam": []}`, cni.CodeDecode, "ipam"},
		{"a number for a name", `{"cniVersion": "1.0.0", "name": 5}`, cni.CodeDecode, "name"},
		{"no name", `{"cniVersion": "1.0.0"}`, cni.CodeInvalidConfig, "network name"},
		{"a bad name", `{"cniVersion": "1.0.0", "name": "a/b"}`, cni.CodeInvalidConfig, `"a/b"`},
		{"a name that begins badly", `{"cniVersion": "1.0.0", "name": "-a"}`, cni.CodeInvalidConfig, `"-a"`},
		{"no version", `{"name": "pods"}`, cni.CodeVersion, "incompatible CNI versions"},
		{"a version too old", config("0.2.0", "", ""), cni.CodeVersion, "0.2.0"},
		{"a version too new", config("1.2.0", "", ""), cni.CodeVersion, "1.2.0"},
		{"an unknown key", config("1.0.0", `, "subnet": "10.1.0.0/16"`, ""), cni.CodeInvalidConfig, "ipam.subnet"},
		{"a key of the same name in other letters", config("1.0.0", `, "Pool": "blue"`, ""), cni.CodeInvalidConfig, "ipam.Pool"},
		{"a number for a socket", config("1.0.0", `, "socket": 5`, ""), cni.CodeInvalidConfig, "ipam.socket"},
		{"an empty pool", config("1.0.0", `, "pool": ""`, ""), cni.CodeInvalidConfig, "ipam.pool"},
		{"routes that are none", config("1.0.0", `, "routes": "10.0.0.0/8"`, ""), cni.CodeInvalidConfig, "ipam.routes"},
		{"a route with an unknown key", config("1.0.0", `, "routes": [{"dst": "10.0.0.0/8", "colour": 9}]`, ""), cni.CodeInvalidConfig, "colour"},
		{"a route to an address", config("1.0.0", `, "routes": [{"dst": "10.0.0.1"}]`, ""), cni.CodeInvalidConfig, `"10.0.0.1"`},
		{"a route with host bits", config("1.0.0", `, "routes": [{"dst": "10.0.0.1/8"}]`, ""), cni.CodeInvalidConfig, `"10.0.0.1/8"`},
		{"a route to nowhere", config("1.0.0", `, "routes": [{"gw": "10.1.5.1"}]`, ""), cni.CodeInvalidConfig, "dst"},
		{"a route over no address", config("1.0.0", `, "routes": [{"dst": "10.0.0.0/8", "gw": "10.1.5.1/24"}]`, ""), cni.CodeInvalidConfig, `"10.1.5.1/24"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := cni.ParseConfig([]byte(c.conf), "ADD")
			g.Expect(err).NotTo(BeNil())
			g.Expect(err.Code).To(Equal(c.code), err.Msg)
			g.Expect(err.Error()).To(ContainSubstring(c.saying))
		})
	}
}

// A route has the fields of the specification, and they are handed on.
func TestAllFieldsOfARoute(t *testing.T) {
	g := NewWithT(t)
	const route = `{"dst": "10.0.0.0/8", "gw": "10.1.5.1", "mtu": 1400, "advmss": 1360, "priority": 5, "table": 0, "scope": 253}`
	c, err := cni.ParseConfig([]byte(config("1.1.0", `, "routes": [`+route+`]`, "")), "ADD")
	g.Expect(err).To(BeNil())
	g.Expect(c.Routes).To(HaveLen(1))
	text, jerr := json.Marshal(c.Routes[0])
	g.Expect(jerr).NotTo(HaveOccurred())
	g.Expect(text).To(MatchJSON(route))
}

// What was added before its configuration went bad can still be deleted.
func TestABadIPAMSectionDoesNotStopADel(t *testing.T) {
	for command, refused := range map[string]bool{"ADD": true, "CHECK": true, "STATUS": true, "DEL": false, "GC": false} {
		g := NewWithT(t)
		c, err := cni.ParseConfig([]byte(config("1.1.0", `, "subnet": "10.1.0.0/16"`, "")), command)
		g.Expect(err != nil).To(Equal(refused), command)
		g.Expect(c.Name).To(Equal("pods"))
	}
}

// Which command is known in which version of the specification.
func TestVersionsAndCommands(t *testing.T) {
	allowed := map[string]string{
		"0.3.1": "ADD DEL VERSION", "0.4.0": "ADD DEL CHECK VERSION", "1.0.0": "ADD DEL CHECK VERSION", "1.1.0": "ADD DEL CHECK GC STATUS VERSION",
	}
	for _, version := range cni.Versions() {
		for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
			g := NewWithT(t)
			conf, err := cni.ParseConfig([]byte(config(version, "", "")), command)
			if strings.Contains(allowed[version], command) {
				g.Expect(err).To(BeNil(), version+" "+command)
				g.Expect(conf.CNIVersion).To(Equal(version))
				continue
			}
			g.Expect(err).NotTo(BeNil(), version+" "+command)
			g.Expect(err.Code).To(BeNumerically("==", cni.CodeVersion))
			g.Expect(err.Msg).To(And(ContainSubstring(command), ContainSubstring(version)))
			g.Expect(conf).NotTo(BeNil(), "the version for the error's own JSON")
		}
	}
	NewWithT(t).Expect(cni.Versions()).To(Equal([]string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}))
}
