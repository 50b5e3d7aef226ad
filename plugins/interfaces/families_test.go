// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
)

// One family has its free addresses on one interface, the other family on another one.
func TestAnInterfaceWithTheFreeAddressesOfOneFamilyStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newDualRig(t, conf, memcloud.Config{
			Subnets: map[string]netip.Prefix{
				"subnet-1": netip.MustParsePrefix("10.0.0.0/31"),
				"subnet-2": netip.MustParsePrefix("10.0.4.0/24"),
			},
			Second:   map[string]netip.Prefix{"subnet-1": netip.MustParsePrefix("fd00::/64"), "subnet-2": netip.MustParsePrefix("fd01::/64")},
			Unusable: []string{"subnet-1"},
		})
		r.start()
		defer func() { r.end() }()
		r.pass(5 * time.Minute)
		made := r.cloud.Calls()["create"]
		r.pass(20 * time.Minute)
		r.g.Expect(r.cloud.Calls()["create"]).To(Equal(made), "the interface stays")
	})
}

// The machine's first interface is in a subnet without IPv6, and the cloud refuses IPv6
// addresses there as a wrong request.
func TestAFamilyThatTheFirstSubnetLacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		r := newDualRig(t, conf, memcloud.Config{
			Interfaces: 2,
			Subnets: map[string]netip.Prefix{
				"subnet-1": netip.MustParsePrefix("10.0.0.0/24"),
				"subnet-2": netip.MustParsePrefix("10.0.4.0/24"),
			},
			Second: map[string]netip.Prefix{"subnet-2": netip.MustParsePrefix("fd01::/64")},
		})
		r.refuseFamily = func(i *cloud.Interface, ipv6 bool) bool { return ipv6 && i.Subnet == "subnet-1" }
		r.start()
		defer func() { r.end() }()
		r.pass(2 * time.Minute)
		r.g.Expect(r.add(0, 2)).To(Equal(2), r.process.plugin.Shortage())
		r.pass(5 * time.Minute)
		r.agree()
	})
}

// OpenStack's subnets of IPv4 share the IPv6 subnet of their network. The machine's port has
// an address in two of them. No uplink is made of ranges of which one is there twice.
func TestARangeOfTwoSubnetsIsInTheUplinkOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conf := defaults()
		conf.WarmIPs = 2
		shared := netip.MustParsePrefix("fd00::/64")
		r := newDualRig(t, conf, memcloud.Config{
			Subnets: map[string]netip.Prefix{
				"subnet-1": netip.MustParsePrefix("10.0.0.0/24"),
				"subnet-2": netip.MustParsePrefix("10.0.4.0/24"),
			},
			Second: map[string]netip.Prefix{"subnet-1": shared, "subnet-2": shared},
		})
		r.cloud.Change(instance, r.first().ID, func(i *cloud.Interface) {
			own := netip.MustParsePrefix("10.0.4.77/32")
			i.Blocks = append(i.Blocks, cloud.Block{Prefix: own, Subnet: "subnet-2", Primary: true})
		})
		r.start()
		defer func() { r.end() }()
		r.addAll(0, 1)
		var ranges []string
		for _, x := range r.process.uplinks()[0].Ranges {
			ranges = append(ranges, x.CIDR.String())
		}
		r.g.Expect(ranges).To(ConsistOf("10.0.0.0/24", "10.0.4.0/24", "fd00::/64"))
	})
}
