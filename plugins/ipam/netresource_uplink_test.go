// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// onUplink is a set whose blocks are prefixes of an interface.
func onUplink(keys ...string) *kv.NetResourceSet {
	m := aSet(keys...)
	m.Interfaces = map[string]*kv.NetResourceInterface{
		"eni-1": {Mac: "02:00:00:00:00:01", Ranges: []*kv.SubnetRange{{Cidr: "10.9.0.0/16", Gateway: "10.9.0.1"}}},
	}
	return m
}

// TestAllAddressesOfADelegatedPrefixAreAllocated: its subnet has the gateway, and the cloud routes each of its addresses to the interface.
func TestAllAddressesOfADelegatedPrefixAreAllocated(t *testing.T) {
	n := withSet(t, onUplink("10.9.0.16/28"))
	n.g.Expect(n.Pending()).To(BeEmpty())
	for i := range 16 {
		n.g.Expect(n.add(fmt.Sprint("pod", i))).To(Equal(fmt.Sprintf("10.9.0.%d", 16+i)))
	}
	_, err := n.update(add("more"))
	n.g.Expect(err).To(MatchError(ledger.ErrExhausted))
	n.g.Expect(n.PodSubnetThisNode()).To(BeNil())
	n.g.Expect(n.BlockGateway(netip.MustParsePrefix("10.9.0.16/28")).String()).To(Equal("172.30.5.1"))
	n.sound()

	n.setTo(onUplink("10.9.0.16/28", "10.9.0.32/28")) // beside one that is not of an interface
	m := onUplink("10.9.0.16/28", "10.9.0.32/28", "10.9.0.48/28")
	m.Pool["10.9.0.48/28"].Resource = ""
	n.setTo(m)
	for i := range 28 {
		n.add(fmt.Sprint("further", i))
	}
	_, err = n.update(add("more"))
	n.g.Expect(err).To(MatchError(ledger.ErrExhausted))
	for _, edge := range []string{"10.9.0.48", "10.9.0.49", "10.9.0.62", "10.9.0.63"} {
		_, err := n.update(add("edge", edge))
		n.g.Expect(err).To(HaveOccurred(), edge)
	}
	n.sound()
}

// TestABlockWithPodsKeepsItsGateway: pods have the gateway in their routes. A block becomes a delegated prefix, or is none any more, without its pods noticing it.
func TestABlockWithPodsKeepsItsGateway(t *testing.T) {
	n := withSet(t, aSet("10.9.0.16/28"))
	block := netip.MustParsePrefix("10.9.0.16/28")
	n.g.Expect(n.add("a")).To(Equal("10.9.0.18"))
	gateway := func() string { return n.BlockGateway(block).String() }
	for _, restart := range []bool{false, true} {
		if restart {
			n.start(fromSet)
			n.g.Expect(n.resync()).To(Succeed())
		}
		n.setTo(onUplink("10.9.0.16/28"))
		n.g.Expect(gateway()).To(Equal("10.9.0.17"))
		_, err := n.update(add("b", "10.9.0.17"))
		n.g.Expect(err).To(HaveOccurred())
		n.sound()
	}
	n.del("a")
	n.clock.now = n.clock.now.Add(time.Hour)
	n.setTo(onUplink("10.9.0.16/28", "10.9.7.7")) // the pods are gone
	n.g.Expect(gateway()).To(Equal("172.30.5.1"))
	for i := range 16 {
		n.g.Expect(n.add(fmt.Sprint("pod", i))).To(Equal(fmt.Sprintf("10.9.0.%d", 16+i)))
	}
	n.sound()
	for _, restart := range []bool{false, true} {
		n.setTo(aSet("10.9.0.16/28"))
		if restart {
			n.start(fromSet)
			n.g.Expect(n.resync()).To(Succeed())
		}
		n.g.Expect(gateway()).To(Equal("172.30.5.1"))
		n.g.Expect(n.add("pod1")).To(Equal("10.9.0.17"))
		n.sound()
	}
	for i := range 16 {
		n.del(fmt.Sprint("pod", i))
	}
	n.clock.now = n.clock.now.Add(time.Hour)
	n.setTo(aSet("10.9.0.16/28", "10.9.7.8"))
	n.g.Expect(gateway()).To(Equal("10.9.0.17"))
	n.setTo(aSet("10.9.0.16/28"))
	n.g.Expect(n.add("last")).To(Equal("10.9.0.18"))
	n.sound()
}

// TestAnInterfacesModeKeepsTheGatewaysOfPods: podBlocks changes while pods run.
func TestAnInterfacesModeKeepsTheGatewaysOfPods(t *testing.T) {
	n := withSet(t, aSet("192.168.77.16/28"))
	n.g.Expect(n.add("a")).To(Equal("192.168.77.18"))
	n.start("cadastre: {podBlocks: interfaces, coolDown: 60s}")
	n.g.Expect(n.resyncWith(&controller.DBResync{})).To(Succeed())
	gives := func(blocks ...string) {
		ev := &ipam.InterfaceChange{OnDone: func(error) {}}
		ev.Uplinks = []ipam.Uplink{{Interface: "eni-1"}}
		for _, b := range blocks {
			ev.Blocks = append(ev.Blocks, ipam.InterfaceBlock{Prefix: netip.MustParsePrefix(b), Interface: "eni-1", Usable: true})
		}
		_, err := n.update(ev)
		n.g.Expect(err).NotTo(HaveOccurred())
	}
	gives("192.168.77.16/28", "192.168.77.32/28")
	n.g.Expect(n.BlockGateway(netip.MustParsePrefix("192.168.77.16/28")).String()).To(Equal("192.168.77.17"))
	n.g.Expect(n.BlockGateway(netip.MustParsePrefix("192.168.77.32/28")).String()).To(Equal("172.30.5.1"))
	for _, edge := range []string{"192.168.77.16", "192.168.77.17", "192.168.77.30", "192.168.77.31"} {
		_, err := n.update(add("edge", edge))
		n.g.Expect(err).To(HaveOccurred(), edge)
	}
	for i := range 11 + 16 {
		n.add(fmt.Sprint("pod", i))
	}
	_, err := n.update(add("more"))
	n.g.Expect(err).To(MatchError(ledger.ErrExhausted))
	n.sound()
}
