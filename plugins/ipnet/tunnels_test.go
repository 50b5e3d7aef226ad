// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipnet"
)

// values returns the values that the southbound should have, one line each.
func (w *world) values() []string {
	values, err := w.sink.Dump(context.Background())
	w.g.Expect(err).NotTo(HaveOccurred())
	var all []string
	for k, m := range values {
		all = append(all, k+" "+prototext.MarshalOptions{}.Format(m))
	}
	slices.Sort(all)
	return all
}

// published makes the record of a node that has published its underlay.
func published(id uint32, name, key string, underlay ...string) *kv.NodeRecord {
	return &kv.NodeRecord{
		Id: id, Name: name, Generation: 1, Underlay: underlay, PublicKey: key,
		IpAddresses: []string{fmt.Sprintf("192.168.16.%d/24", id)}, MgmtAddresses: []string{fmt.Sprintf("172.19.0.%d", id)},
	}
}

// The gateway of a route and the tunnel below it are those of the transport.
func TestRoutesByTransport(t *testing.T) {
	for _, c := range []struct {
		transport, gateway4, gateway6 string
		kind                          kv.Transport
	}{
		{"hostgw", "192.168.16.7", "", kv.Transport_DIRECT},
		{"nodeip", "172.18.0.7", "fd18::7", kv.Transport_DIRECT},
		{"vxlan", "192.168.30.7", "fd00:4::7", kv.Transport_VXLAN},
		{"wireguard", "", "", kv.Transport_WIREGUARD},
	} {
		t.Run(c.transport, func(t *testing.T) {
			inWorld(t, dual+"\n"+conf(c.transport, map[bool]string{true: ", vni: 99"}[c.transport == "vxlan"]), func(w *world) {
				w.set(kv.NodeRecordKey(7), published(7, "node-g", "key", "172.18.0.7", "fd18::7"))
				for dst, gateway := range map[string]string{"10.1.7.0/24": c.gateway4, "fd00:1:0:7::/64": c.gateway6} {
					r := value[*kv.NodeRoute](w, "route/"+dst)
					w.g.Expect([]any{r.Gateway, r.NodeId, r.Transport, r.Table}).To(Equal([]any{gateway, uint32(7), c.kind, uint32(0)}))
				}
				node, tunnel := value[*kv.NodeNetwork](w, kv.SinkNode), value[*kv.NodeTunnel](w, "tunnel/7")
				w.g.Expect(node.Transport).To(Equal(c.kind))
				if c.kind == kv.Transport_DIRECT {
					w.g.Expect(tunnel).To(BeNil())
					w.g.Expect([]any{node.VxlanMac, node.Vni}).To(Equal([]any{"", uint32(0)}))
					return
				}
				want := &kv.NodeTunnel{
					NodeId: 7, NodeName: "node-g", Transport: c.kind, Underlay: []string{"172.18.0.7", "fd18::7"},
					VxlanIps: []string{"192.168.30.7", "fd00:4::7"}, Subnets: []string{"10.1.7.0/24", "fd00:1:0:7::/64"},
				}
				if c.kind == kv.Transport_VXLAN {
					want.Mac = "0a:ca:00:00:00:07"
					w.g.Expect([]any{node.VxlanMac, node.Vni}).To(Equal([]any{"0a:ca:00:00:00:05", uint32(99)}))
				} else {
					want.PublicKey = "key"
				}
				w.g.Expect(proto.Equal(tunnel, want)).To(BeTrue(), "%v", tunnel)
			})
		})
	}
}

// Without a transport the data plane makes no routes to other nodes.
func TestNoTransportNoRoutes(t *testing.T) {
	inWorld(t, conf("none", ""), func(w *world) {
		w.set(kv.NodeRecordKey(7), published(7, "node-g", "", "172.18.0.7"))
		w.has()
		w.g.Expect(value[*kv.NodeNetwork](w, kv.SinkNode)).NotTo(BeNil())
	})
}

// A node that publishes no underlay is reached by the addresses of its Node object.
func TestRoutesToANodeWithoutADataPlane(t *testing.T) {
	inWorld(t, conf("nodeip", ""), func(w *world) {
		w.set(kv.NodeRecordKey(7), published(7, "node-g", ""))
		w.has("10.1.7.0/24 via 172.19.0.7 to 7 node-g")
		w.set(kv.NodeRecordKey(7), published(7, "node-g", "", "172.18.0.7"))
		w.has("10.1.7.0/24 via 172.18.0.7 to 7 node-g")
	})
}

// The route to a node that has not published what a tunnel needs is there, and waits for
// the tunnel.
func TestATunnelWaitsForTheOtherNode(t *testing.T) {
	for _, c := range []struct {
		transport string
		records   []*kv.NodeRecord // the last one is enough
	}{
		{"vxlan", []*kv.NodeRecord{published(7, "node-g", ""), published(7, "node-g", "", "172.18.0.7")}},
		{"wireguard", []*kv.NodeRecord{published(7, "node-g", "key"), published(7, "node-g", "", "172.18.0.7"), published(7, "node-g", "key", "172.18.0.7")}},
	} {
		t.Run(c.transport, func(t *testing.T) {
			inWorld(t, conf(c.transport, ""), func(w *world) {
				for i, r := range c.records {
					w.set(kv.NodeRecordKey(7), r)
					for range 2 {
						w.g.Expect(value[*kv.NodeRoute](w, "route/10.1.7.0/24")).NotTo(BeNil())
						w.g.Expect(value[*kv.NodeTunnel](w, "tunnel/7") != nil).To(Equal(i == len(c.records)-1), "%v", r)
						w.resync()
					}
				}
				w.set(kv.NodeRecordKey(7), c.records[0]) // its agent has another transport now
				w.g.Expect(value[*kv.NodeTunnel](w, "tunnel/7")).To(BeNil())
				w.set(kv.NodeRecordKey(7), c.records[len(c.records)-1])
				w.set(kv.NodeRecordKey(7), nil)
				w.g.Expect(value[*kv.NodeTunnel](w, "tunnel/7")).To(BeNil())
				w.has()
			})
		})
	}
}

// An ID that goes to another name keeps its tunnel, which leads to the new node.
func TestTheTunnelOfAnIDThatChangesHands(t *testing.T) {
	for _, names := range [][2]string{{"node-a", "node-b"}, {"node-b", "node-a"}} {
		inWorld(t, conf("vxlan", ""), func(w *world) {
			w.set(kv.NodeRecordKey(7), published(7, names[0], "", "172.18.0.7"))
			w.set(kv.NodeRecordKey(7), published(7, names[1], "", "172.18.0.77"))
			m := value[*kv.NodeTunnel](w, "tunnel/7")
			w.g.Expect([]any{m.NodeName, m.Underlay}).To(Equal([]any{names[1], []string{"172.18.0.77"}}))
			byUpdates := w.values()
			w.resync()
			w.g.Expect(w.values()).To(Equal(byUpdates))
		})
	}
}

// A tunnel takes packets of the subnets alone that are routed to its node.
func TestTheSubnetsOfATunnel(t *testing.T) {
	inWorld(t, external+"\n"+conf("wireguard", ", podBlocks: podcidr"), func(w *world) {
		w.set(kv.NodeRecordKey(7), published(7, "node-g", "g", "172.18.0.7"))
		w.set(kv.NodeRecordKey(8), published(8, "node-h", "h", "172.18.0.8"))
		w.podCIDRs("node-h", "10.1.98.0/24", "10.1.99.0/24")
		subnets := func() string {
			return fmt.Sprint(value[*kv.NodeTunnel](w, "tunnel/7").Subnets, value[*kv.NodeTunnel](w, "tunnel/8").Subnets)
		}
		w.g.Expect(subnets()).To(Equal("[] [10.1.98.0/24 10.1.99.0/24]"))
		w.podCIDRs("node-g", "10.1.99.0/24") // the smaller ID has it
		w.g.Expect(subnets()).To(Equal("[10.1.99.0/24] [10.1.98.0/24]"))
		w.set(kv.NodeKey("node-g"), nil)
		w.g.Expect(subnets()).To(Equal("[] [10.1.98.0/24 10.1.99.0/24]"))
	})
}

// Each pod network has a table and a VNI of its own, which the routes to its blocks have.
func TestNetworksHaveTables(t *testing.T) {
	inWorld(t, conf("vxlan", ", vni: 99"), func(w *world) {
		w.set(kv.NodeRecordKey(7), published(7, "node-g", "", "172.18.0.7"))
		w.set(kv.PoolKey("blue"), w.pool("blue", "blue", "10.5.0.0/16", 1))
		blue, red := value[*kv.Network](w, "network/blue"), func() *kv.Network { return value[*kv.Network](w, "network/red") }
		w.g.Expect(blue.Subnets).To(Equal([]string{"10.5.0.0/16"}))
		w.g.Expect(blue.Vni).NotTo(Or(BeZero(), BeEquivalentTo(99)))
		w.g.Expect(blue.Table).To(Equal(0x0C000000 + blue.Vni))
		route := value[*kv.NodeRoute](w, kv.SinkRouteKey("10.5.7.0/24", blue.Table))
		w.g.Expect([]any{route.Table, route.Network, route.Vni, route.Gateway}).To(Equal([]any{blue.Table, "blue", blue.Vni, "192.168.30.7"}))
		link, tunnel := value[*kv.NetworkLink](w, "link/blue"), value[*kv.NodeTunnel](w, "tunnel/7/blue")
		w.g.Expect(proto.Equal(link, &kv.NetworkLink{
			Network: "blue", Vni: blue.Vni, Table: blue.Table, Underlay: []string{"172.18.0.5"}, Mac: "0a:ca:00:00:00:05", Mtu: 1450,
		})).To(BeTrue(), "%v", link)
		w.g.Expect(proto.Equal(tunnel, &kv.NodeTunnel{
			NodeId: 7, NodeName: "node-g", Transport: kv.Transport_VXLAN, Underlay: []string{"172.18.0.7"}, Mac: "0a:ca:00:00:00:07",
			VxlanIps: []string{"192.168.30.7", "fe80::8ca:ff:fe00:7"}, Network: "blue", Vni: blue.Vni,
		})).To(BeTrue(), "%v", tunnel)
		w.g.Expect(value[*kv.NodeRoute](w, "route/10.1.7.0/24").Table).To(BeZero())
		w.g.Expect(proto.Equal(value[*kv.Network](w, "network/default"), &kv.Network{Name: "default", Subnets: []string{"10.1.0.0/16"}, Closed: true})).To(BeTrue())
		w.set(kv.PoolKey("red"), w.pool("red", "red", "10.6.0.0/16", 1))
		w.g.Expect(red().Table).NotTo(Equal(blue.Table))
		gone := w.pool("red", "red", "10.6.0.0/16", 2)
		gone.Removed, gone.Draining = true, true
		w.set(kv.PoolKey("red"), gone)
		w.g.Expect(red()).To(BeNil())
		w.g.Expect(value[*kv.NodeTunnel](w, "tunnel/7/red")).To(BeNil())
		w.set(kv.NodeRecordKey(7), nil)
		w.g.Expect(value[*kv.NodeTunnel](w, "tunnel/7/blue")).To(BeNil())
	})
}

// Only VXLAN tells packets of two networks apart on their way.
func TestNetworksWithoutVXLANAreInTheMainTable(t *testing.T) {
	for _, transport := range []string{"none", "nodeip", "hostgw", "wireguard"} {
		inWorld(t, conf(transport, ""), func(w *world) {
			w.set(kv.NodeRecordKey(7), published(7, "node-g", "key", "172.18.0.7"))
			w.set(kv.PoolKey("blue"), w.pool("blue", "blue", "10.5.0.0/16", 1))
			blue := value[*kv.Network](w, "network/blue")
			w.g.Expect([]uint32{blue.Table, blue.Vni}).To(Equal([]uint32{0, 0}), transport)
			w.g.Expect(value[*kv.NetworkLink](w, "link/blue")).To(BeNil(), transport)
			r := value[*kv.NodeRoute](w, "route/10.5.7.0/24")
			w.g.Expect(r != nil).To(Equal(transport != "none"), transport)
			w.g.Expect([]any{r.GetTable(), r.GetNetwork(), r.GetVni()}).To(Equal([]any{uint32(0), "", uint32(0)}), transport)
		})
	}
}

// The default network may have a table too, and no custom network gets the same one.
func TestTheTableOfTheDefaultNetwork(t *testing.T) {
	running(t, single, func(g Gomega, a *agent) {
		a.network.Transport = contivconf.TransportVXLAN
		a.blue("10.5.0.0/16")
		_, err := a.serve(inPool(request("ADD", "w2", "web-1"), "blue"))
		g.Expect(err).NotTo(HaveOccurred())
		table := func() uint32 { return a.podNetwork("w2").Wire.Table }
		before := table()
		a.plane.PodTable = before
		a.resync()
		a.add("w1", "web-0")
		g.Expect(a.podNetwork("w1").Wire.Table).To(Equal(before))
		g.Expect(table()).NotTo(Equal(before))
	})
	inWorld(t, conf("vxlan", "")+"podVRFID: 77\n", func(w *world) {
		w.set(kv.NodeRecordKey(7), published(7, "node-g", "", "172.18.0.7"))
		w.g.Expect(value[*kv.Network](w, "network/default").Table).To(BeEquivalentTo(77))
		w.g.Expect(value[*kv.NodeRoute](w, kv.SinkRouteKey("10.1.7.0/24", 77)).Table).To(BeEquivalentTo(77))
	})
}

// Pods leave the cluster with the node's address, and no pod sees another one's so.
func TestEgress(t *testing.T) {
	inWorld(t, dual+"\n"+conf("vxlan", ", masquerade: true"), func(w *world) {
		w.set(kv.PoolKey("blue"), w.pool("blue", "blue", "10.5.0.0/16", 1))
		m := value[*kv.Egress](w, kv.SinkEgress)
		w.g.Expect(m.Sources).To(Equal([]string{"10.1.0.0/16", "fd00:1::/48"}))
		w.g.Expect(m.Direct).To(Equal([]string{"10.1.0.0/16", "10.5.0.0/16", "fd00:1::/48"}))
	})
	inWorld(t, conf("vxlan", ", masquerade: false"), func(w *world) { w.g.Expect(value[*kv.Egress](w, kv.SinkEgress)).To(BeNil()) })
}

// disturb makes one random change of the nodes, the pools or the links.
func (w *world) disturb(rnd *rand.Rand) (text string) {
	id := uint32(5 + rnd.IntN(6))
	name := fmt.Sprint("node-", string(rune('e'+rnd.IntN(6))))
	some := func(texts ...string) []string { return texts[:rnd.IntN(len(texts)+1)] }
	switch rnd.IntN(9) {
	case 0, 1, 2:
		r := published(id, name, []string{"", "k1", "k2"}[rnd.IntN(3)], some(fmt.Sprintf("172.18.%d.%d", rnd.IntN(2), id), "fd18::7")...)
		w.set(kv.NodeRecordKey(id), r)
		return fmt.Sprint(r)
	case 3:
		w.set(kv.NodeRecordKey(id), nil)
		return fmt.Sprint("no record ", id)
	case 4:
		cidrs := some(fmt.Sprintf("10.1.%d.0/24", rnd.IntN(8)), fmt.Sprintf("10.1.%d.0/24", rnd.IntN(8)))
		w.set(kv.NodeKey(name), &kv.Node{Name: name, PodCidrs: cidrs, Addresses: some(fmt.Sprintf("172.18.9.%d", rnd.IntN(3)), "fd18::9")})
		return fmt.Sprint(name, " ", cidrs)
	case 5:
		w.set(kv.NodeKey(name), nil)
		return "no " + name
	case 6:
		network := []string{"default", "blue", "red"}[rnd.IntN(3)]
		p := w.pool(fmt.Sprint(network, "-", rnd.IntN(2)), network, "", 1)
		p.Ranges[0].Cidr = fmt.Sprintf("10.%d.0.0/16", 20+len(network)*2+int(p.Name[len(p.Name)-1]-'0'))
		have, _ := w.kube[kv.PoolResource][kv.PoolKey(p.Name)].(*kv.Pool)
		p.Generation = have.GetGeneration() + 1
		p.Draining = have != nil && rnd.IntN(2) == 0
		p.Removed = p.Draining && network != "default" && rnd.IntN(2) == 0
		w.set(kv.PoolKey(p.Name), p)
		return fmt.Sprint(p)
	case 7:
		w.underlay.shows(uint32(1400+rnd.IntN(3)), some("172.18.0.5", "fd18::5")...)
	default:
		w.underlay.fails([]string{"no link", "no address"}[rnd.IntN(2)])
	}
	w.g.Expect(w.loop.PushEvent(&ipnet.UnderlayChange{})).To(Succeed())
	return fmt.Sprint("underlay ", w.underlay.found, w.underlay.err)
}

// However nodes come, go, publish and change IDs, networks appear and the links change:
// the values end where one resync ends, and each tunnel's subnets are routed to its node.
func TestValuesEndWhereAResyncEnds(t *testing.T) {
	for _, transport := range []string{"none", "hostgw", "nodeip", "vxlan", "wireguard"} {
		for _, base := range []string{single, dual, external} {
			for seed := range uint64(6) {
				t.Run(fmt.Sprint(transport, " ", base == external, seed), func(t *testing.T) {
					text := conf(transport, ", masquerade: true")
					if base != single {
						text = base + "\n" + text
					}
					inWorld(t, text, func(w *world) {
						rnd := rand.New(rand.NewPCG(seed, 47))
						var log []string
						for range 60 {
							log = append(log, w.disturb(rnd))
							w.soundTunnels()
						}
						w.set(kv.NodeKey("last"), &kv.Node{Name: "last"})
						byUpdates := w.values()
						w.resync()
						w.g.Expect(w.values()).To(Equal(byUpdates), "%s", strings.Join(log, "\n"))
						w.soundTunnels()
					})
				})
			}
		}
	}
}

// soundTunnels expects that tunnels and routes fit each other.
func (w *world) soundTunnels() {
	values, err := w.sink.Dump(context.Background())
	w.g.Expect(err).NotTo(HaveOccurred())
	subnets := map[uint32][]string{}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if r, ok := values[key].(*kv.NodeRoute); ok && r.Transport != kv.Transport_DIRECT {
			subnets[r.NodeId] = append(subnets[r.NodeId], r.Dst)
		}
	}
	for key, m := range values {
		if tunnel, ok := m.(*kv.NodeTunnel); ok {
			w.g.Expect(key).To(Equal(kv.SinkTunnelKey(tunnel.NodeId, tunnel.Network)))
			w.g.Expect(tunnel.Underlay).NotTo(BeEmpty())
			if tunnel.Network != "" {
				network := values["network/"+tunnel.Network].(*kv.Network)
				w.g.Expect(tunnel.Vni).To(Equal(network.Vni))
				if link, ok := values["link/"+tunnel.Network].(*kv.NetworkLink); ok {
					w.g.Expect([]uint32{link.Vni, link.Table}).To(Equal([]uint32{network.Vni, network.Table}))
				}
				continue
			}
			slices.Sort(subnets[tunnel.NodeId])
			w.g.Expect(tunnel.Subnets).To(Equal(subnets[tunnel.NodeId]))
		}
	}
}

// A node that starts before its underlay has an address makes all but its tunnels. These
// come as soon as Watch finds the address, without a resync.
func TestTunnelsWaitForTheUnderlayOfThisNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, conf("vxlan", ""))
		w.underlay.fails("eth0 has no address")
		w.runs(func() {
			w.set(kv.NodeRecordKey(7), published(7, "node-g", "", "172.18.0.7"))
			w.g.Expect(value[*kv.NodeNetwork](w, kv.SinkNode).Transport).To(Equal(kv.Transport_DIRECT), "a link needs the underlay")
			w.g.Expect(value[*kv.NodeTunnel](w, "tunnel/7")).To(BeNil())
			w.g.Expect(value[*kv.NodeRoute](w, "route/10.1.7.0/24").Transport).To(Equal(kv.Transport_VXLAN), "it waits for the tunnel")
			w.underlay.shows(1500, "172.18.0.5")
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			w.g.Expect(w.network.Watch(ctx, w, time.After)).To(Succeed())
			synctest.Wait()
			w.g.Expect(value[*kv.NodeNetwork](w, kv.SinkNode).Transport).To(Equal(kv.Transport_VXLAN))
			w.g.Expect(value[*kv.NodeTunnel](w, "tunnel/7")).NotTo(BeNil())
			byUpdates := w.values()
			w.resync()
			w.g.Expect(w.values()).To(Equal(byUpdates))
		})
	})
}
