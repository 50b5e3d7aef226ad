// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// mainConfig is the configuration of a network whose main plugin is ours, with more keys.
func mainConfig(version, more string) string {
	return `{"cniVersion": "` + version + `", "name": "pods", "type": "cadastre-cni"` + more + `}`
}

// The type of the network decides: only with it the agent makes the interface.
func TestMainPlugin(t *testing.T) {
	for name, c := range map[string]struct {
		conf string
		main bool
		pool string
	}{
		"its own type":                   {mainConfig("1.1.0", ""), true, "default"},
		"with an ipam section":           {mainConfig("1.1.0", `, "ipam": {"type": "cadastre-cni", "pool": "blue"}`), true, "blue"},
		"with an ipam section, untyped":  {mainConfig("1.1.0", `, "ipam": {"pool": "blue"}`), true, "blue"},
		"with an empty ipam section":     {mainConfig("0.3.1", `, "ipam": {}`), true, "default"},
		"below another main plugin":      {config("1.1.0", "", ""), false, "default"},
		"a configuration without a type": {`{"cniVersion": "1.0.0", "name": "pods"}`, false, "default"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r, err := ask(g, c.conf, "")
			g.Expect(err).To(BeNil())
			g.Expect(r.Main).To(Equal(c.main))
			g.Expect(r.Pool).To(Equal(c.pool))
		})
	}
}

func TestMainConfigurationsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		more, saying string
	}{
		"the addresses of another plugin": {`, "ipam": {"type": "host-local"}`, `"host-local"`},
		"routes":                          {`, "ipam": {"routes": [{"dst": "0.0.0.0/0"}]}`, "ipam.routes"},
		"no routes":                       {`, "ipam": {"routes": []}`, "ipam.routes"},
		"an unknown key":                  {`, "ipam": {"subnet": "10.1.0.0/16"}`, "ipam.subnet"},
		"a plugin before it":              {`, "prevResult": {"ips": []}`, "first plugin"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			_, err := cni.ParseConfig([]byte(mainConfig("1.1.0", c.more)), "ADD")
			g.Expect(err).NotTo(BeNil())
			g.Expect(err.Code).To(BeNumerically("==", cni.CodeInvalidConfig))
			g.Expect(err.Msg).To(ContainSubstring(c.saying))
			_, err = cni.ParseConfig([]byte(mainConfig("1.1.0", c.more)), "DEL")
			g.Expect(err).To(BeNil(), "what was added before the configuration went bad can be deleted")
		})
	}
}

// The MAC address is taken from the runtime, else from args, else from CNI_ARGS.
func TestSourcesOfTheMACAddress(t *testing.T) {
	const runtime, args = `, "runtimeConfig": {"mac": "0A:00:00:00:00:01"}`, `, "args": {"cni": {"mac": "0a-00-00-00-00-02"}}`
	for name, c := range map[string]struct{ conf, args, want string }{
		"none":                       {mainConfig("1.0.0", ""), "", ""},
		"CNI_ARGS":                   {mainConfig("1.0.0", ""), "MAC=0a:00:00:00:00:03", "0a:00:00:00:00:03"},
		"args before CNI_ARGS":       {mainConfig("1.0.0", args), "MAC=0a:00:00:00:00:03", "0a:00:00:00:00:02"},
		"the runtime before both":    {mainConfig("1.0.0", args+runtime), "MAC=0a:00:00:00:00:03", "0a:00:00:00:00:01"},
		"that of another interface":  {config("1.0.0", "", args+runtime), "MAC=0a:00:00:00:00:03", ""},
		"a bad one of another's":     {config("1.0.0", "", ""), "MAC=x", ""},
		"an empty one is not wanted": {mainConfig("1.0.0", `, "runtimeConfig": {"mac": ""}`), "MAC=", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r, err := ask(g, c.conf, c.args)
			g.Expect(err).To(BeNil())
			g.Expect(r.MAC).To(Equal(c.want))
		})
	}
	for name, mac := range map[string]string{
		"too short": "0a:00:00:00:00", "too long": "0a:00:00:00:00:01:02", "not hexadecimal": "0a:00:00:00:00:0g", "a group": "01:00:5e:00:00:01",
		"all": "ff:ff:ff:ff:ff:ff", "zero": "00:00:00:00:00:00", "without colons": "0a0000000001", "signs": "+a:00:00:00:00:01", "short parts": "a:0:0:0:0:1",
	} {
		g := NewWithT(t)
		_, err := ask(g, mainConfig("1.0.0", ""), "MAC="+mac)
		g.Expect(err).NotTo(BeNil(), name)
		g.Expect(err.Code).To(BeNumerically("==", cni.CodeInvalidConfig), name)
		g.Expect(err.Msg).To(ContainSubstring(mac), name)
	}
}

func TestAMainADDNeedsANamespace(t *testing.T) {
	g := NewWithT(t)
	r, err := ask(g, mainConfig("1.0.0", ""), "")
	g.Expect(err).To(BeNil())
	r.Netns = ""
	g.Expect(r.CheckNames()).To(HaveField("Code", BeNumerically("==", cni.CodeEnvironment)))
	r.Main = false
	g.Expect(r.CheckNames()).To(BeNil())
}

// What other plugins of the list have added to prevResult does not concern the agent.
func TestPrevResultOfAList(t *testing.T) {
	g := NewWithT(t)
	const previous = `, "prevResult": {"cniVersion": "1.0.0",
		"interfaces": [{"name": "cad1", "mac": "0a:00:00:00:00:01"}, {"name": "eth0", "mac": "0a:00:00:00:00:02", "sandbox": "/run/netns/x"},
			{"name": "eth0", "mac": "0a:00:00:00:00:03"}, {"name": "bwp1"}],
		"ips": [{"address": "10.1.5.2/32", "gateway": "10.1.5.1", "interface": 1}, {"address": "10.9.0.1/24", "interface": 3}, {"address": "fd00::2/128"}],
		"routes": [{"dst": "0.0.0.0/0"}], "dns": {}}`
	request := func(conf string) cni.Request {
		c, err := cni.ParseConfig([]byte(conf), "CHECK")
		g.Expect(err).To(BeNil())
		inv, err := cni.FromEnv(environment("CHECK"))
		g.Expect(err).To(BeNil())
		r, err := cni.NewRequest(inv, c)
		g.Expect(err).To(BeNil())
		return r
	}
	r := request(mainConfig("1.0.0", previous))
	g.Expect(r.Previous).To(Equal([]string{"10.1.5.2/32", "fd00::2/128"}))
	g.Expect(r.Link).To(Equal(&cni.Interface{Name: "eth0", MAC: "0a:00:00:00:00:02", Sandbox: "/run/netns/x"}))
	r = request(config("1.0.0", "", previous))
	g.Expect(r.Previous).To(HaveLen(3))
	g.Expect(r.Link).To(BeNil(), "the interface is that of another plugin")
}

// The reference implementation reads the interfaces of each version.
func TestPrintInterfaces(t *testing.T) {
	reply := cni.Reply{
		Interfaces: []cni.Interface{{Name: "cad1", MAC: "0a:00:00:00:00:01", MTU: 1450}, {Name: "eth0", MAC: "0a:00:00:00:00:02", MTU: 1450, Sandbox: "/run/netns/x"}},
		IPs:        []cni.IP{{Interface: new(1), Address: "10.1.5.2/32", Gateway: "10.1.5.1"}, {Interface: new(1), Address: "fd00::2/128", Gateway: "fd00::1"}},
		Routes:     []cni.Route{{Dst: "0.0.0.0/0", GW: "10.1.5.1"}, {Dst: "::/0", GW: "fd00::1"}},
	}
	dns := cni.DNS{Nameservers: []string{"10.96.0.10"}, Domain: "a", Search: []string{"b"}, Options: []string{"ndots:5"}}
	for _, version := range cni.Versions() {
		t.Run(version, func(t *testing.T) {
			g := NewWithT(t)
			text, err := reply.Print(version, dns)
			g.Expect(err).NotTo(HaveOccurred())
			var result types.Result
			if version < "1" {
				result, err = types040.NewResult(text)
			} else {
				result, err = types100.NewResult(text)
			}
			g.Expect(err).NotTo(HaveOccurred())
			same, err := types100.NewResultFromResult(result)
			g.Expect(err).NotTo(HaveOccurred())
			mtu := 0
			if version == "1.1.0" {
				mtu = 1450
			}
			g.Expect(same.Interfaces).To(Equal([]*types100.Interface{
				{Name: "cad1", Mac: "0a:00:00:00:00:01", Mtu: mtu}, {Name: "eth0", Mac: "0a:00:00:00:00:02", Mtu: mtu, Sandbox: "/run/netns/x"}}))
			g.Expect(same.IPs).To(HaveEach(HaveField("Interface", HaveValue(Equal(1)))))
			g.Expect(same.IPs[1].Address.String()).To(Equal("fd00::2/128"))
			g.Expect(same.Routes).To(HaveLen(2))
			g.Expect(same.DNS).To(Equal(types.DNS(dns)))
			if version != "1.1.0" {
				g.Expect(string(text)).NotTo(ContainSubstring("mtu"), "the version does not have it")
			}
			out, err := json.Marshal(result)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(text).To(MatchJSON(out))
		})
	}
	NewWithT(t).Expect(reply.Interfaces[0].MTU).To(Equal(1450), "printing changes nothing")
}
