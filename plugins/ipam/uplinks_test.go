// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// onInterfaces returns a set with two interfaces, one of which has no address in the pool.
func onInterfaces() *kv.NetResourceSet {
	m := aSet("10.9.0.7", "10.9.0.16/28", "fd00::7")
	m.Pool["10.9.1.9"] = &kv.NetResource{Resource: "eni-3"} // the object does not have the interface
	m.Pool["10.9.1.10"] = &kv.NetResource{}
	m.Interfaces = map[string]*kv.NetResourceInterface{
		"eni-1": {Mac: "02:00:00:00:00:01", Device: 1, VpcCidrs: []string{"10.9.0.0/16", "nonsense", "fd00::/56"}, Ranges: []*kv.SubnetRange{
			{Cidr: "10.9.0.0/24", Gateway: "10.9.0.1"}, {Cidr: "fd00::/64"}, {Cidr: "nonsense"},
		}},
		"eni-2": {Mac: "02:00:00:00:00:02"},
	}
	return m
}

func TestUplinksAreTheInterfacesOfThePool(t *testing.T) {
	n := withSet(t, onInterfaces())
	n.g.Expect(n.Uplinks()).To(Equal([]ipam.Uplink{{
		Interface: "eni-1", MAC: "02:00:00:00:00:01", Device: 1, VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")},
		Ranges: []cloud.Range{
			{CIDR: netip.MustParsePrefix("10.9.0.0/24"), Gateway: mustAddr("10.9.0.1")},
		},
	}}), "contiv.conf has no IPv6")
	for a, want := range map[string]string{"10.9.0.7": "eni-1", "10.9.0.31": "eni-1", "fd00::7": "eni-1", "10.9.0.8": "", "10.9.1.9": "", "10.9.1.10": "", "::ffff:10.9.0.7": "eni-1"} {
		iface, ok := n.UplinkOf(mustAddr(a))
		n.g.Expect(iface).To(Equal(want), a)
		n.g.Expect(ok).To(Equal(want != ""), a)
	}
}

func TestAChangedInterfaceIsAnnounced(t *testing.T) {
	n := withSet(t, onInterfaces())
	m := onInterfaces()
	n.g.Expect(n.setTo(m)).To(BeEmpty(), "nothing has changed")
	m = onInterfaces()
	m.Interfaces["eni-1"].Mac = "02:00:00:00:00:09"
	n.g.Expect(n.setTo(m)).To(ContainElement(BeAssignableToTypeOf(&ipam.PodNetworkChange{})))
	n.g.Expect(n.Uplinks()[0].MAC).To(Equal("02:00:00:00:00:09"))
	m = onInterfaces()
	m.Pool["10.9.2.1"] = &kv.NetResource{Resource: "eni-2"}
	n.g.Expect(n.setTo(m)).NotTo(BeEmpty())
	n.g.Expect(n.Uplinks()).To(HaveLen(2))
}

func TestALeasedAddressThatLeftThePoolKeepsItsUplink(t *testing.T) {
	n := withSet(t, onInterfaces())
	n.g.Expect(n.add("a")).To(Equal("10.9.0.7"))
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	m := onInterfaces()
	delete(m.Pool, "10.9.0.7")
	m.Used = map[string]*kv.NetResource{"10.9.0.7": {Owner: "default/a", Resource: "eni-1"}} // as this node has reported
	n.setTo(m)
	iface, _ := n.UplinkOf(mustAddr("10.9.0.7"))
	n.g.Expect(iface).To(Equal("eni-1"))
}

// An object that was deleted takes no running pod off its interface. Nor does an operator that
// does not see an interface for a time. The pod's packets would leave through another link.
func TestALeasedAddressKeepsAnInterfaceThatTheSetLacks(t *testing.T) {
	for what, lack := range map[string]func() *kv.NetResourceSet{
		"the set is deleted": func() *kv.NetResourceSet { return nil },
		"a new set has claims alone": func() *kv.NetResourceSet {
			return &kv.NetResourceSet{Name: thisNode, Pool: map[string]*kv.NetResource{"10.9.0.7": {}}}
		},
		"the interface has left the status": func() *kv.NetResourceSet {
			m := onInterfaces()
			m.Interfaces = nil
			return m
		},
	} {
		t.Run(what, func(t *testing.T) {
			n := withSet(t, onInterfaces())
			n.g.Expect(n.add("a")).To(Equal("10.9.0.7"))
			n.g.Expect(n.Commit(context.Background())).To(Succeed())
			before := n.Uplinks()
			n.setTo(lack())
			iface, _ := n.UplinkOf(mustAddr("10.9.0.7"))
			n.g.Expect(iface).To(Equal("eni-1"))
			n.g.Expect(n.Uplinks()).To(Equal(before))
			_, other := n.UplinkOf(mustAddr("10.9.0.17"))
			n.g.Expect(other).To(BeFalse(), "no pod has it")
			n.g.Expect(n.resync()).To(Succeed())
			n.g.Expect(n.Commit(context.Background())).To(Succeed())
			n.g.Expect(n.Uplinks()).To(Equal(before))

			m := onInterfaces()
			m.Interfaces["eni-1"].Mac = "02:00:00:00:00:09"
			n.setTo(m)
			n.g.Expect(n.Uplinks()[0].MAC).To(Equal("02:00:00:00:00:09"), "the set counts")
			n.del("a")
			n.g.Expect(n.Commit(context.Background())).To(Succeed())
			n.clock.now = n.clock.now.Add(time.Hour)
			n.setTo(lack())
			n.g.Expect(n.Uplinks()).To(BeEmpty())
		})
	}
}

// A process that starts while the set is away knows the interfaces of the pods' addresses from the node's own file, until no pod has one of them.
func TestANewProcessKeepsTheInterfacesOfLeasedAddresses(t *testing.T) {
	n := withSet(t, onInterfaces())
	n.g.Expect(n.add("a")).To(Equal("10.9.0.7"))
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	before := n.Uplinks()
	for _, local := range []bool{false, true} {
		n.kube = controller.KubeStateData{}
		n.start(fromSet)
		n.g.Expect(n.resyncWith(&controller.DBResync{Local: local, KubeState: n.kube})).To(Succeed())
		n.g.Expect(n.Commit(context.Background())).To(Succeed())
		n.g.Expect(n.Uplinks()).To(Equal(before))
		iface, _ := n.UplinkOf(mustAddr("10.9.0.7"))
		n.g.Expect(iface).To(Equal("eni-1"))
		_, other := n.UplinkOf(mustAddr("10.9.0.17"))
		n.g.Expect(other).To(BeFalse(), "no pod has it")
	}
	n.del("a")
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	n.clock.now = n.clock.now.Add(time.Hour)
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	n.g.Expect(n.Uplinks()).To(BeEmpty())
	n.g.Expect(n.records.all).To(BeEmpty())
}

// An address on an interface is not answered before the interface is in the node's file.
func TestAnInterfaceIsDurableBeforeItsAddresses(t *testing.T) {
	n := withSet(t, nil)
	n.records.failed = errors.New("disk full")
	_, err := n.update(n.becomes(onInterfaces()))
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(n.Commit(context.Background())).To(MatchError(ContainSubstring("disk full")))
	n.g.Expect(n.add("a")).To(Equal("10.9.0.7"))
	n.g.Expect(n.Commit(context.Background())).To(MatchError(ContainSubstring("disk full")), "the loop reverts the ADD")
	n.records.failed = nil
	n.g.Expect(n.add("a")).To(Equal("10.9.0.7"))
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	writes := n.records.writes
	n.g.Expect(n.add("b")).To(Equal("10.9.0.16"))
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	n.g.Expect(n.records.writes).To(Equal(writes), "a pod writes its lease alone")

	n.kube = controller.KubeStateData{}
	n.start(fromSet)
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(n.Uplinks()).To(HaveLen(1))
}

// A record that cannot be read costs the interfaces alone: the set still has them.
func TestADamagedRecordOfInterfacesIsReplaced(t *testing.T) {
	n := withSet(t, onInterfaces())
	n.g.Expect(n.records.all).NotTo(BeEmpty())
	before := n.Uplinks()
	for key := range n.records.all {
		n.records.all[key] = []byte("{")
	}
	n.start(fromSet)
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(n.Commit(context.Background())).To(Succeed())
	n.g.Expect(n.Uplinks()).To(Equal(before))
	n.kube = controller.KubeStateData{}
	n.add("a")
	n.start(fromSet)
	n.g.Expect(n.resync()).To(Succeed())
	n.g.Expect(n.Uplinks()).To(Equal(before))
}
