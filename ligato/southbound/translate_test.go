// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package southbound

import (
	"maps"
	"slices"
	"testing"

	linux_interfaces "github.com/ligato/vpp-agent/api/models/linux/interfaces"
	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/plugins/contivconf"
)

func wired() *kv.PodNetwork {
	return &kv.PodNetwork{
		IfName:    "eth0",
		Addresses: []string{"10.1.5.2/24", "fd00:1::2/64"},
		Gateways:  []string{"10.1.5.1", "fd00:1::1"},
		Routes:    []*kv.Route{{Dst: "0.0.0.0/0"}, {Dst: "::/0", Gateway: "fd00:1::1"}},
		Wire: &kv.Wire{
			Netns:      "/run/netns/x",
			HostIfName: "cad1",
			Mtu:        1450,
			HostMac:    "0e:00:00:00:00:01",
			PodMac:     "0e:00:00:00:00:02",
		},
	}
}

func TestAWireBecomesValuesOfLigato(t *testing.T) {
	g := NewWithT(t)
	v, err := podValues(wired())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(slices.Sorted(maps.Keys(v))).To(Equal([]string{
		"config/linux/interfaces/v2/interface/cad1",
		"config/linux/interfaces/v2/interface/pod-cad1",
		"config/linux/l3/v2/arp/cad1/10.1.5.2",
		"config/linux/l3/v2/arp/cad1/fd00:1::2",
		"config/linux/l3/v2/arp/pod-cad1/10.1.5.1",
		"config/linux/l3/v2/arp/pod-cad1/fd00:1::1",
		"config/linux/l3/v2/route/0.0.0.0/0/pod-cad1",
		"config/linux/l3/v2/route/10.1.5.1/32/pod-cad1",
		"config/linux/l3/v2/route/10.1.5.2/32/cad1",
		"config/linux/l3/v2/route/::/0/pod-cad1",
		"config/linux/l3/v2/route/fd00:1::1/128/pod-cad1",
		"config/linux/l3/v2/route/fd00:1::2/128/cad1",
	}))
	end := v["config/linux/interfaces/v2/interface/pod-cad1"].(*linux_interfaces.Interface)
	g.Expect(end.GetNamespace().GetReference()).To(Equal("/run/netns/x"))
	g.Expect(end.GetIpAddresses()).To(Equal([]string{"10.1.5.2/32", "fd00:1::2/128"}))
	g.Expect(end.GetMtu()).To(Equal(uint32(1450)))

	two := wired() // a gateway that two addresses share is one address of the host end
	two.Addresses[1], two.Gateways[1], two.Routes = "10.1.5.3/24", "10.1.5.1", two.Routes[:1]
	v, err = podValues(two)
	g.Expect(err).NotTo(HaveOccurred())
	host := v["config/linux/interfaces/v2/interface/cad1"].(*linux_interfaces.Interface)
	g.Expect(host.GetIpAddresses()).To(Equal([]string{"10.1.5.1/32"}))

	v, err = podValues(&kv.PodNetwork{IfName: "eth0"})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v).To(BeEmpty(), "another plugin makes the interface")
}

func TestAValueThatLigatoCannotMakeIsRefused(t *testing.T) {
	pod := func(change func(*kv.PodNetwork)) *kv.PodNetwork {
		p := wired()
		change(p)
		return p
	}
	for want, x := range map[string]struct {
		key     string
		message proto.Message
	}{
		"netns is empty":             {"pod/x", pod(func(p *kv.PodNetwork) { p.Wire.Netns = "" })},
		"table 9 of network":         {"pod/x", pod(func(p *kv.PodNetwork) { p.Wire.Table = 9 })},
		`host_if_name "a/b"`:         {"pod/x", pod(func(p *kv.PodNetwork) { p.Wire.HostIfName = "a/b" })},
		`if_name ""`:                 {"pod/x", pod(func(p *kv.PodNetwork) { p.IfName = "" })},
		"2 addresses and 1 gateways": {"pod/x", pod(func(p *kv.PodNetwork) { p.Gateways = p.Gateways[:1] })},
		`address "x"`:                {"pod/x", pod(func(p *kv.PodNetwork) { p.Addresses[0] = "x" })},
		`gateway "x"`:                {"pod/x", pod(func(p *kv.PodNetwork) { p.Gateways[0] = "x" })},
		"want another address":       {"pod/x", pod(func(p *kv.PodNetwork) { p.Gateways[0] = "10.1.5.2" })},
		"gateway fe80::1":            {"pod/x", pod(func(p *kv.PodNetwork) { p.Gateways[1] = "fe80::1" })},
		`route to "x"`:               {"pod/x", pod(func(p *kv.PodNetwork) { p.Routes[0].Dst = "x" })},
		"no gateway of its family": {"pod/x", pod(func(p *kv.PodNetwork) {
			p.Addresses, p.Gateways = p.Addresses[:1], p.Gateways[:1]
			p.Routes[1].Gateway = ""
		})},
		"transport VXLAN":        {"route/10.1.7.0/24", &kv.NodeRoute{Transport: kv.Transport_VXLAN}},
		"table 8":                {"route/8/10.1.7.0/24", &kv.NodeRoute{Table: 8}},
		`dst "x"`:                {"route/x", &kv.NodeRoute{Dst: "x", Gateway: "192.0.2.1"}},
		`gateway "y"`:            {"route/10.1.7.0/24", &kv.NodeRoute{Dst: "10.1.7.0/24", Gateway: "y"}},
		"gateway fe80::7":        {"route/10.1.7.0/24", &kv.NodeRoute{Dst: "fd00::/64", Gateway: "fe80::7"}},
		"table 7":                {"network/blue", &kv.Network{Table: 7}},
		"tunnel (*kv.NodeTunnel": {"tunnel/7", &kv.NodeTunnel{}},
		"egress (*kv.Egress":     {"egress", &kv.Egress{}},
		"link (*kv.NetworkLink":  {"link/blue", &kv.NetworkLink{}},
		"uplink (*kv.Uplink":     {"uplink/eni-1", &kv.Uplink{}},
	} {
		t.Run(want, func(t *testing.T) {
			g := NewWithT(t)
			_, _, err := NewSink(nil, nil).translate(x.key, x.message)
			g.Expect(err).To(MatchError(ContainSubstring(want)))
		})
	}
}

func TestARouteWaitsForItsGateway(t *testing.T) {
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	g := NewWithT(t)
	empty, err := netlab.New()
	g.Expect(err).NotTo(HaveOccurred())
	defer empty.Close()
	for want, r := range map[string]*kv.NodeRoute{
		"has not published its address": {Dst: "10.1.7.0/24", NodeName: "b"},
		"is on no link of this node":    {Dst: "10.1.7.0/24", Gateway: "192.0.2.77"},
	} {
		g.Expect(empty.Do(func() error {
			v, pending, err := NewSink(nil, nil).translate("route/10.1.7.0/24", r)
			g.Expect(v).To(BeEmpty())
			g.Expect(pending).To(ContainSubstring(want))
			return err
		})).To(Succeed())
	}
}

func TestTheConfigurationIsCheckedBeforeTheStart(t *testing.T) {
	for conf, want := range map[string]string{
		"dataplane: linux, masquerade: false":                    "",
		"dataplane: linux, masquerade: false, transport: nodeip": "",
		"dataplane: none": "",
		"dataplane: vpp":  `cadastre.dataplane "vpp"`,
		"dataplane: linux, masquerade: false, transport: vxlan":                                 `cadastre.transport "vxlan"`,
		"dataplane: linux, masquerade: false, transport: wireguard":                             `cadastre.transport "wireguard"`,
		"dataplane: linux, masquerade: true, transport: none":                                   `cadastre.masquerade "true"`,
		"dataplane: linux, masquerade: false, allowForward: true":                               `cadastre.allowForward "true"`,
		"dataplane: linux, masquerade: false, podBlocks: interfaces":                            `cadastre.podBlocks "interfaces"`,
		"dataplane: linux, masquerade: false, podBlocks: netresource, kvdb: {type: kubernetes}": `cadastre.podBlocks "netresource"`,
	} {
		t.Run(conf, func(t *testing.T) {
			g := NewWithT(t)
			parsed, _, err := contivconf.Parse([]byte("cadastre: {" + conf + "}"))
			g.Expect(err).NotTo(HaveOccurred())
			err = CheckConfig(parsed, "node-a")
			if want == "" {
				g.Expect(err).NotTo(HaveOccurred())
				return
			}
			g.Expect(err).To(MatchError(ContainSubstring(want)))
		})
	}
	g := NewWithT(t)
	parsed, _, err := contivconf.Parse([]byte("podVRFID: 12\ncadastre: {dataplane: linux, masquerade: false}"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(CheckConfig(parsed, "node-a")).To(MatchError(ContainSubstring(`podVRFID "12"`)))
}
