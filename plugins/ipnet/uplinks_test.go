// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// onCloud is a node whose blocks are those of its NetResourceSet.
const onCloud = dual + "\ncadastre: {podBlocks: netresource, kvdb: {type: kubernetes}, coolDown: 0s}"

// cloudSet returns a NetResourceSet with n addresses of each family on each of two
// interfaces.
func cloudSet(n int) *kv.NetResourceSet {
	m := &kv.NetResourceSet{Name: "node-a", Pool: map[string]*kv.NetResource{}, Interfaces: map[string]*kv.NetResourceInterface{}}
	for s := 1; s <= 2; s++ {
		eni := fmt.Sprint("eni-", s)
		m.Interfaces[eni] = &kv.NetResourceInterface{
			Mac: fmt.Sprintf("02:00:00:00:00:%02x", s), VpcCidrs: []string{"10.77.0.0/16", "fd77::/32"},
			Ranges: []*kv.SubnetRange{
				{Cidr: fmt.Sprintf("10.77.%d.0/24", s), Gateway: fmt.Sprintf("10.77.%d.1", s)},
				{Cidr: fmt.Sprintf("fd77:0:%d::/64", s), Gateway: fmt.Sprintf("fd77:0:%d::1", s)},
			},
		}
		for i := range n {
			m.Pool[fmt.Sprintf("10.77.%d.%d", s, 10+i)] = &kv.NetResource{Resource: eni}
			m.Pool[fmt.Sprintf("fd77:0:%d::%x", s, 16+i)] = &kv.NetResource{Resource: eni}
		}
	}
	return m
}

// setCloud changes the NetResourceSet of the node; nil deletes it.
func (a *agent) setCloud(m *kv.NetResourceSet) {
	if m == nil {
		a.changed(kv.NetResourceSetResource, kv.NetResourceSetKey("node-a"), nil)
		return
	}
	a.changed(kv.NetResourceSetResource, kv.NetResourceSetKey("node-a"), m)
}

// value returns the wanted value of a key, nil for none.
func (a *agent) value(key string) proto.Message {
	values, err := a.sink.Dump(context.Background())
	a.g.Expect(err).NotTo(HaveOccurred())
	return values[key]
}

// keysOf returns the wanted keys with a prefix.
func (a *agent) keysOf(prefix string) []string {
	values, err := a.sink.Dump(context.Background())
	a.g.Expect(err).NotTo(HaveOccurred())
	keys := slices.Sorted(maps.Keys(values))
	return slices.DeleteFunc(keys, func(k string) bool { return !strings.HasPrefix(k, prefix) })
}

func TestUplinksAreTheInterfacesOfTheNode(t *testing.T) {
	running(t, onCloud, func(g Gomega, a *agent) {
		g.Expect(a.keysOf(kv.SinkUplinkPrefix)).To(BeEmpty(), "a node without interfaces")
		a.setCloud(cloudSet(4))
		g.Expect(a.keysOf(kv.SinkUplinkPrefix)).To(Equal([]string{"uplink/eni-1", "uplink/eni-2"}))
		one, two := a.value("uplink/eni-1").(*kv.Uplink), a.value("uplink/eni-2").(*kv.Uplink)
		g.Expect(fmt.Sprint(one.Mac, one.Ranges, one.VpcCidrs)).To(Equal(fmt.Sprint(
			"02:00:00:00:00:01", []*kv.SubnetRange{{Cidr: "10.77.1.0/24", Gateway: "10.77.1.1"}, {Cidr: "fd77:0:1::/64", Gateway: "fd77:0:1::1"}},
			[]string{"10.77.0.0/16", "fd77::/32"})))
		g.Expect(kv.IsUplinkTable(one.Table) && kv.IsUplinkTable(two.Table)).To(BeTrue())
		g.Expect(one.Table).NotTo(Equal(two.Table))
		g.Expect(one.Table).To(BeEquivalentTo(kv.UplinkTables+0xa494aa), "the same on every node and version")

		a.setCloud(nil)
		g.Expect(a.keysOf(kv.SinkUplinkPrefix)).To(BeEmpty())
	})
}

func TestEachLeasedAddressHasItsUplink(t *testing.T) {
	running(t, onCloud, func(g Gomega, a *agent) {
		a.setCloud(cloudSet(4))
		a.add("w1", "web-1")
		want := []string{}
		for _, text := range a.podNetwork("w1").Addresses {
			p := netip.MustParsePrefix(text)
			want = append(want, "uplinkaddress/"+p.Addr().String())
			m := a.value("uplinkaddress/" + p.Addr().String()).(*kv.UplinkAddress)
			iface, _ := a.ipam.UplinkOf(p.Addr())
			g.Expect(m.Interface).To(Equal(iface))
			g.Expect(m.Table).To(Equal(a.value("uplink/" + iface).(*kv.Uplink).Table))
		}
		g.Expect(want).To(HaveLen(2), "one of each family")
		g.Expect(a.keysOf(kv.SinkSourcePrefix)).To(ConsistOf(want))
		_, err := a.serve(request("DEL", "w1", ""))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(a.keysOf(kv.SinkSourcePrefix)).To(BeEmpty(), "the node does not answer for a free address")
	})
}

// TestTheCloudRoutesToAddressesOfInterfaces: no route and no tunnel of this node captures
// them, and they leave with their own address.
func TestTheCloudRoutesToAddressesOfInterfaces(t *testing.T) {
	running(t, onCloud, func(g Gomega, a *agent) {
		a.plane.Masquerade, a.plane.PodTable = true, 77
		a.cluster.nodes = nodesync.Nodes{"b": {Name: "b", ID: 7, PodCIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.77.1.99/32"), netip.MustParsePrefix("10.8.8.8/32"), netip.MustParsePrefix("fd77:0:9::9/128"),
		}}}
		a.resync()
		g.Expect(a.keysOf(kv.SinkRoutePrefix)).To(HaveLen(3), "without uplinks")
		g.Expect(a.value("network/default")).To(HaveField("Table", BeEquivalentTo(77)))
		g.Expect(a.value("network/default")).To(HaveField("Closed", BeTrue()))

		set := cloudSet(4)
		set.Pool["10.200.0.16/28"] = &kv.NetResource{}
		a.setCloud(set)
		g.Expect(a.keysOf(kv.SinkRoutePrefix)).To(ConsistOf(ContainSubstring("10.8.8.8")))
		g.Expect(a.value("network/default")).To(HaveField("Table", BeEquivalentTo(0)), "its pods leave by the tables of uplinks")
		g.Expect(a.value("network/default")).To(HaveField("Closed", BeFalse()))
		egress := a.value(kv.SinkEgress).(*kv.Egress)
		g.Expect(egress.Sources).To(ConsistOf("10.1.0.0/16", "fd00:1::/48", "10.200.0.16/28"))

		a.plane.MasqueradeUplinks = true
		a.resync()
		egress = a.value(kv.SinkEgress).(*kv.Egress)
		g.Expect(egress.Sources).To(ContainElements("10.77.1.10/32", "fd77:0:2::10/128"))
		g.Expect(egress.Direct).To(ContainElements("10.77.0.0/16", "fd77::/32", "10.77.1.0/24"))

		a.setCloud(nil)
		g.Expect(a.keysOf(kv.SinkRoutePrefix)).To(HaveLen(3))
		g.Expect(a.value("network/default")).To(HaveField("Table", BeEquivalentTo(77)))
	})
}

// TestUplinksByUpdatesEndWhereAResyncEnds changes interfaces, and the interfaces of
// addresses, while pods come and go.
func TestUplinksByUpdatesEndWhereAResyncEnds(t *testing.T) {
	for _, faults := range []bool{false, true} {
		for seed := range uint64(24) {
			t.Run(fmt.Sprint("faults ", faults, " seed ", seed), func(t *testing.T) {
				running(t, onCloud, func(g Gomega, a *agent) {
					links := newKernel()
					a.plane.Underlay, a.plane.Masquerade = links.read, true
					a.resync()
					a.setCloud(cloudSet(8))
					c := &chaos{agent: a, kernel: links, rnd: rand.New(rand.NewPCG(seed, 60)), faults: faults}
					for range 40 {
						c.step()
						if c.rnd.IntN(4) == 0 {
							a.journal.Plan, a.sink.Fault = nil, nil
							a.setCloud(c.otherCloud())
						}
					}
					a.journal.Plan, a.sink.Fault = nil, nil
					a.setCloud(cloudSet(32))
					a.add("wlast", "web-9")
					byUpdates := a.wanted()
					a.resync()
					g.Expect(a.wanted()).To(Equal(byUpdates), "%v", c.log)
					for container, n := range c.attachments() {
						for _, text := range n.Addresses {
							address := netip.MustParsePrefix(text).Addr()
							_, on := a.ipam.UplinkOf(address)
							g.Expect(a.value("uplinkaddress/"+address.String()) != nil).To(Equal(on), "%s of %s", text, container)
						}
					}
				})
			})
		}
	}
}

// otherCloud returns a NetResourceSet in which some interfaces and addresses differ.
func (c *chaos) otherCloud() *kv.NetResourceSet {
	m := cloudSet(8)
	for _, key := range slices.Sorted(maps.Keys(m.Pool)) {
		switch c.rnd.IntN(8) {
		case 0:
			delete(m.Pool, key)
		case 1:
			m.Pool[key].Resource = fmt.Sprint("eni-", 1+c.rnd.IntN(3))
		}
	}
	for _, eni := range []string{"eni-1", "eni-2"} {
		switch c.rnd.IntN(6) {
		case 0:
			delete(m.Interfaces, eni)
		case 1:
			m.Interfaces[eni].Mac = fmt.Sprintf("02:00:00:00:00:%02x", 9+c.rnd.IntN(2))
		case 2:
			m.Interfaces["eni-3"] = m.Interfaces[eni]
		}
	}
	c.log = append(c.log, fmt.Sprint(m.Interfaces))
	return m
}

// attachments returns the wanted values of pods, by key.
func (c *chaos) attachments() map[string]*kv.PodNetwork {
	values, err := c.sink.Dump(context.Background())
	c.g.Expect(err).NotTo(HaveOccurred())
	all := map[string]*kv.PodNetwork{}
	for key, m := range values {
		if n, ok := m.(*kv.PodNetwork); ok {
			all[key] = n
		}
	}
	return all
}
