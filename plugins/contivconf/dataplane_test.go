// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/contivconf"
)

// A file of defaults leaves links and routes to other programs.
func TestDataplaneDefaults(t *testing.T) {
	g := NewWithT(t)
	c := mustParse(t, "{}").Cadastre
	g.Expect(c.Dataplane).To(Equal(contivconf.DataplaneNone))
	g.Expect(c.Transport).To(Equal(contivconf.TransportNone))
	g.Expect(c.Masquerade).To(BeTrue())
	g.Expect(c.AllowForward).To(BeFalse())
	g.Expect(c.MTU).To(BeZero())
	g.Expect(c.VNI).To(BeNumerically("==", 10))
	g.Expect(c.CNI).To(Equal(contivconf.CNI{Network: "cadastre", BinDir: "/opt/cni/bin"}))
	g.Expect(c.Underlay).To(Equal(contivconf.Underlay{}))
}

func TestDataplaneValues(t *testing.T) {
	g := NewWithT(t)
	c := mustParse(t, `cadastre: {dataplane: linux, transport: vxlan, vni: 4097, mtu: 1400, masquerade: false, allowForward: true,
  underlay: {interface: eth1, cidrs: [10.20.0.0/16, "fd20::/64"]}, cni: {confDir: /etc/cni/net.d, network: pods, binDir: /usr/lib/cni}}`).Cadastre
	g.Expect(c.Dataplane).To(Equal(contivconf.DataplaneLinux))
	g.Expect(c.Transport).To(Equal(contivconf.TransportVXLAN))
	g.Expect(c.Masquerade).To(BeFalse())
	g.Expect(c.AllowForward).To(BeTrue())
	g.Expect(c.MTU).To(Equal(1400))
	g.Expect(c.VNI).To(BeNumerically("==", 4097))
	g.Expect(c.CNI).To(Equal(contivconf.CNI{ConfDir: "/etc/cni/net.d", Network: "pods", BinDir: "/usr/lib/cni"}))
	g.Expect(c.Underlay).To(Equal(contivconf.Underlay{
		Interface: "eth1",
		CIDRs:     []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("fd20::/64")},
	}))
}

// TestTheMasqueradeOfUplinksIsAskedFor: the default is not for pods whose addresses the cloud knows.
func TestTheMasqueradeOfUplinksIsAskedFor(t *testing.T) {
	g := NewWithT(t)
	for conf, want := range map[string]bool{
		"cadastre: {dataplane: linux}":                           false,
		"cadastre: {dataplane: linux, masquerade: true}":         true,
		"cadastre: {dataplane: linux, masquerade: false}":        false,
		"natExternalTraffic: true\ncadastre: {dataplane: linux}": false,
	} {
		g.Expect(mustParse(t, conf).Cadastre.MasqueradeUplinks).To(Equal(want), conf)
	}
}
