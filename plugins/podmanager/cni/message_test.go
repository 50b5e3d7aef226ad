// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cni_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// ask is the request for an ADD with a configuration and CNI_ARGS.
func ask(g Gomega, conf, args string) (cni.Request, *cni.Error) {
	c, err := cni.ParseConfig([]byte(conf), "ADD")
	g.Expect(err).To(BeNil())
	inv, err := cni.FromEnv(environment("ADD", "CNI_ARGS="+args))
	g.Expect(err).To(BeNil())
	return cni.NewRequest(inv, c)
}

// A wanted address is taken from the runtime's ips, else those of args, else CNI_ARGS.
func TestSourcesOfTheWantedAddress(t *testing.T) {
	const runtime, args = `"runtimeConfig": {"ips": ["10.1.5.7/24"]}`, `"args": {"cni": {"ips": ["10.1.5.8"]}}`
	for _, c := range []struct {
		name, more, args string
		want             []string
	}{
		{"none", "", "", nil},
		{"CNI_ARGS", "", "IP=10.1.5.9", []string{"10.1.5.9"}},
		{"CNI_ARGS with a mask", "", "IP=10.1.5.9/24", []string{"10.1.5.9"}},
		{"CNI_ARGS with one of each family", "", "IP=10.1.5.9,fd00::9/64", []string{"10.1.5.9", "fd00::9"}},
		{"args before CNI_ARGS", ", " + args, "IP=10.1.5.9", []string{"10.1.5.8"}},
		{"the runtime before both", ", " + args + ", " + runtime, "IP=10.1.5.9", []string{"10.1.5.7"}},
		{"CNI_ARGS with an empty address", "", "IP=", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			r, err := ask(g, config("1.0.0", "", c.more), c.args)
			g.Expect(err).To(BeNil())
			g.Expect(r.Wanted).To(Equal(c.want))
		})
	}
}

func TestInvalidWantedAddresses(t *testing.T) {
	for name, c := range map[string]struct{ more, args string }{
		"a name":        {"", "IP=web-0"},
		"a list's end":  {"", "IP=10.1.5.9,"},
		"an empty text": {`, "runtimeConfig": {"ips": [""]}`, ""},
		"a long length": {`, "runtimeConfig": {"ips": ["10.1.0.160/99"]}`, ""},
		"no length":     {"", "IP=10.1.0.160/"},
		"two lengths":   {"", "IP=10.1.0.160/24/24"},
		"a mask":        {"", "IP=10.1.0.160/255.255.255.0"},
		"a zone":        {"", "IP=fe80::1%eth0"},
		"a network":     {`, "args": {"cni": {"ips": ["10.1.5"]}}`, ""},
	} {
		g := NewWithT(t)
		_, err := ask(g, config("1.0.0", "", c.more), c.args)
		g.Expect(err).NotTo(BeNil(), name)
		g.Expect(err.Code).To(BeNumerically("==", cni.CodeInvalidConfig), name)
	}
	g := NewWithT(t)
	_, err := ask(g, config("1.0.0", "", ""), "K8S_POD_NAME")
	g.Expect(err.Code).To(BeNumerically("==", cni.CodeEnvironment))
}

// Only an ADD wants addresses; what it was given is nothing to refuse a DEL for.
func TestWantedAddressesAreForAdd(t *testing.T) {
	for _, command := range []string{"DEL", "CHECK"} {
		g := NewWithT(t)
		c, err := cni.ParseConfig([]byte(config("1.0.0", "", `, "runtimeConfig": {"ips": ["x"]}`)), command)
		g.Expect(err).To(BeNil())
		inv, err := cni.FromEnv(environment(command, "CNI_ARGS=IP=y;z"))
		g.Expect(err).To(BeNil())
		r, err := cni.NewRequest(inv, c)
		g.Expect(err).To(BeNil(), command)
		g.Expect(r.Wanted).To(BeEmpty())
		g.Expect(r.ContainerID).To(Equal("4f1c"))
	}
}

func TestARequestHasAllValues(t *testing.T) {
	g := NewWithT(t)
	r, err := ask(g, config("1.1.0", `, "pool": "blue", "routes": []`,
		`, "prevResult": {"ips": [{"address": "10.1.5.2/24"}]}, "cni.dev/valid-attachments": []`), "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_UID=u")
	g.Expect(err).To(BeNil())
	want := cni.Request{
		Command: "ADD", Network: "pods", ContainerID: "4f1c", IfName: "eth0", Netns: "/run/netns/x", Pod: cni.Pod{Namespace: "ns", Name: "web-0", UID: "u"},
		Pool: "blue", Previous: []string{"10.1.5.2/24"}, Routes: []cni.Route{}, Attachments: []cni.Attachment{},
	}
	g.Expect(r).To(Equal(want), "an empty list is not the same as none")

	r, err = ask(g, config("1.1.0", "", ""), "")
	g.Expect(err).To(BeNil())
	g.Expect(r.Routes).To(BeNil())
	g.Expect(r.Attachments).To(BeNil())
	g.Expect(r.Pool).To(Equal(cni.DefaultPool))
}

// reply is an answer with both families.
func reply() cni.Reply {
	return cni.Reply{
		IPs:    []cni.IP{{Address: "10.1.5.2/24", Gateway: "10.1.5.1"}, {Address: "fd00:1:0:5::2/64", Gateway: "fd00:1:0:5::1"}},
		Routes: []cni.Route{{Dst: "0.0.0.0/0", GW: "10.1.5.1"}, {Dst: "::/0", GW: "fd00:1:0:5::1"}},
	}
}

const old = `{"cniVersion": "%s", "ips": [
	{"version": "4", "address": "10.1.5.2/24", "gateway": "10.1.5.1"}, {"version": "6", "address": "fd00:1:0:5::2/64", "gateway": "fd00:1:0:5::1"}],
	"routes": [{"dst": "0.0.0.0/0", "gw": "10.1.5.1"}, {"dst": "::/0", "gw": "fd00:1:0:5::1"}], "dns": {}}`

const current = `{"cniVersion": "%s", "ips": [
	{"address": "10.1.5.2/24", "gateway": "10.1.5.1"}, {"address": "fd00:1:0:5::2/64", "gateway": "fd00:1:0:5::1"}],
	"routes": [{"dst": "0.0.0.0/0", "gw": "10.1.5.1"}, {"dst": "::/0", "gw": "fd00:1:0:5::1"}], "dns": {}}`

// The JSON of each version, and what the reference implementation reads in it.
func TestPrint(t *testing.T) {
	for version, want := range map[string]string{"0.3.1": old, "0.4.0": old, "1.0.0": current, "1.1.0": current} {
		t.Run(version, func(t *testing.T) {
			g := NewWithT(t)
			r := reply()
			text, err := r.Print(version, cni.DNS{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(text).To(MatchJSON(fmt.Sprintf(want, version)))
			g.Expect(r).To(Equal(reply()), "printing changes nothing")
			var result types.Result
			if version < "1" {
				result, err = types040.NewResult(text)
			} else {
				result, err = types100.NewResult(text)
			}
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(result.Version()).To(Equal(version))
			same, err := types100.NewResultFromResult(result)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(same.IPs).To(HaveLen(2))
			for i, ip := range same.IPs {
				g.Expect(ip.Address.String()).To(Equal(reply().IPs[i].Address))
				g.Expect(ip.Gateway.String()).To(Equal(reply().IPs[i].Gateway))
				g.Expect(ip.Interface).To(BeNil(), "an IPAM plugin has no interfaces")
				g.Expect(same.Routes[i].Dst.String()).To(Equal(reply().Routes[i].Dst))
				g.Expect(same.Routes[i].GW.String()).To(Equal(reply().Routes[i].GW))
			}
			g.Expect(same.Interfaces).To(BeEmpty())
		})
	}
}

func TestPrintWithoutRoutesOrGateways(t *testing.T) {
	g := NewWithT(t)
	text, err := cni.Reply{IPs: []cni.IP{{Address: "10.1.5.2/24"}}}.Print("1.1.0", cni.DNS{})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(MatchJSON(`{"cniVersion": "1.1.0", "ips": [{"address": "10.1.5.2/24"}], "dns": {}}`))
}

func TestPrintVersions(t *testing.T) {
	g := NewWithT(t)
	text, err := cni.PrintVersions()
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(MatchJSON(`{"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]}`))
}

func TestErrors(t *testing.T) {
	g := NewWithT(t)
	e := cni.Errorf(cni.CodeInvalidConfig, "ipam.%s is unknown", "subnet")
	g.Expect(e.Error()).To(Equal("ipam.subnet is unknown"))
	e.CNIVersion, e.Details = "1.0.0", "more"
	g.Expect(e.Error()).To(Equal("ipam.subnet is unknown; more"))
	text, err := json.Marshal(e)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(text).To(MatchJSON(`{"cniVersion": "1.0.0", "code": 7, "msg": "ipam.subnet is unknown", "details": "more"}`))
	var theirs types.Error
	g.Expect(json.Unmarshal(text, &theirs)).To(Succeed())
	g.Expect(theirs.Code).To(BeNumerically("==", types.ErrInvalidNetworkConfig))
}

// The codes are those of the reference implementation.
func TestCodes(t *testing.T) {
	g := NewWithT(t)
	for ours, theirs := range map[uint]uint{
		cni.CodeVersion: types.ErrIncompatibleCNIVersion, cni.CodeUnsupported: types.ErrUnsupportedField, cni.CodeUnknown: types.ErrUnknownContainer,
		cni.CodeEnvironment: types.ErrInvalidEnvironmentVariables, cni.CodeIO: types.ErrIOFailure, cni.CodeDecode: types.ErrDecodingFailure,
		// the library has no name for it yet
		cni.CodeInvalidConfig: types.ErrInvalidNetworkConfig, cni.CodeTryAgain: types.ErrTryAgainLater, cni.CodeNotAvailable: 50,
		cni.CodeInternal: types.ErrInternal,
	} {
		g.Expect(ours).To(Equal(theirs))
	}
	g.Expect([]int{cni.CodeDiffers, cni.CodeRefused}).To(HaveEach(BeNumerically(">=", 100)))
}
