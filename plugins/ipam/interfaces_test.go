// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/ipam"
)

const fromInterfaces = "cadastre: {podBlocks: interfaces, coolDown: 60s}"

// interfaces is a source of blocks that never changes by itself.
type interfaces struct{ known ipam.InterfaceState }

func (s *interfaces) Known() ipam.InterfaceState { return s.known }
func (s *interfaces) Shortage() string           { return "" }

// two returns two interfaces with one address each. usable reports whether pods get new
// addresses of the second one.
func two(usable bool) ipam.InterfaceState {
	s := ipam.InterfaceState{}
	for _, x := range []struct {
		id, address string
		usable      bool
	}{{"eni-1", "10.9.0.7/32", true}, {"eni-2", "10.9.0.8/32", usable}} {
		s.Uplinks = append(s.Uplinks, ipam.Uplink{
			Interface: x.id, MAC: "02:00:00:00:00:01", Ranges: []cloud.Range{{CIDR: netip.MustParsePrefix("10.9.0.0/24")}},
		})
		s.Blocks = append(s.Blocks, ipam.InterfaceBlock{Prefix: netip.MustParsePrefix(x.address), Interface: x.id, Usable: x.usable})
	}
	return s
}

func withInterfaces(t *testing.T, s ipam.InterfaceState) *node {
	t.Helper()
	n := newNode(t, fromInterfaces, 5)
	n.Interfaces = &interfaces{s}
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	return n
}

func (n *node) ids() (all []string) {
	for _, u := range n.Uplinks() {
		all = append(all, u.Interface)
	}
	return all
}

// interfacesAre makes the interfaces those of s, as an InterfaceChange does.
func (n *node) interfacesAre(s ipam.InterfaceState) []controller.Event {
	follow, err := n.update(&ipam.InterfaceChange{
		InterfaceState: s, OnDone: func(error) {},
	})
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	return follow
}

// An administrator keeps an interface for another program: its link stays as it is.
func TestAnInterfaceThatPodsDoNotUseIsNoUplink(t *testing.T) {
	n := withInterfaces(t, two(false))
	n.g.Expect(n.ids()).To(Equal([]string{"eni-1"}))
	n.interfacesAre(two(true))
	n.g.Expect(n.ids()).To(Equal([]string{"eni-1", "eni-2"}))
	n.g.Expect(n.add("a")).To(Equal("10.9.0.7"))
	n.g.Expect(n.add("b")).To(Equal("10.9.0.8"))
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	n.interfacesAre(two(false))
	n.g.Expect(n.ids()).To(Equal([]string{"eni-1", "eni-2"}), "pod b has its address")
	n.del("b")
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(n.ids()).To(Equal([]string{"eni-1"}))
}

// A block that overlaps a network of the configuration, or a pool, does not keep the other
// blocks from pods. The node reports it with its interface.
func TestABlockThatPodsCannotHaveStopsNoOther(t *testing.T) {
	for _, found := range []bool{false, true} {
		t.Run(fmt.Sprintf("found %t", found), func(t *testing.T) {
			n := withInterfaces(t, ipam.InterfaceState{})
			n.pools(in("blue", aPool("blue", 1, "10.9.7.0/24 28")))
			s := two(true)
			for _, bad := range []string{"10.96.0.9/32", "10.9.7.200/32"} {
				s.Blocks = append(s.Blocks, ipam.InterfaceBlock{Prefix: netip.MustParsePrefix(bad), Interface: "eni-2", Usable: true})
			}
			ev := &ipam.InterfaceChange{
				InterfaceState: s, Found: found, OnDone: func(error) {},
			}
			if found {
				n.g.Expect(n.resyncWith(ev)).To(Succeed())
			} else {
				_, err := n.update(ev)
				n.g.Expect(err).NotTo(HaveOccurred())
			}
			n.g.Expect(n.Commit(context.Background())).To(Succeed())
			n.g.Expect(ev.Refused).To(HaveLen(2))
			n.g.Expect(ev.Refused[0].String()).To(And(HavePrefix("10.96.0.9/32 of interface eni-2"), ContainSubstring("serviceCIDR 10.96.0.0/12")))
			n.g.Expect(n.open()).To(Equal([]string{"10.9.0.7/32", "10.9.0.8/32"}))
			n.g.Expect(n.add("a")).To(Equal("10.9.0.7"))
			n.g.Expect(n.add("b")).To(Equal("10.9.0.8"))
			n.g.Expect(n.Commit(context.Background())).To(Succeed())
			n.g.Expect(n.troubles()).To(ConsistOf(
				HavePrefix("interface/eni-2: 10.96.0.9/32 cannot be used: it overlaps ipamConfig.serviceCIDR 10.96.0.0/12"),
				And(HavePrefix("interface/eni-2: 10.9.7.200/32 cannot be used: it overlaps"), ContainSubstring("blue")),
			))
			n.g.Expect(n.resync()).To(Succeed())
			n.g.Expect(n.troubles()).To(HaveLen(2))

			n.pools(removed(in("blue", aPool("blue", 2, "10.9.7.0/24 28"))))
			n.g.Expect(n.open()).To(ContainElement("10.9.7.200/32"), "the pool is removed")
			n.g.Expect(n.troubles()).To(HaveLen(1))
		})
	}
}
