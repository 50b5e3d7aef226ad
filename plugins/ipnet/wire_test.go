// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"testing"
	"testing/synctest"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// blue makes the custom network blue.
func (a *agent) blue(cidrs string) {
	key := kv.PoolKey("blue")
	m := &kv.Pool{Name: "blue", Network: "blue", Generation: 1, Ranges: []*kv.PoolRange{{Cidr: cidrs, OneNodePrefixLen: 24}}}
	a.changed(kv.PoolResource, key, m)
}

// changed changes the cluster's state, and waits until the loop has followed it.
func (a *agent) changed(resource, key string, m proto.Message) {
	if a.kube[resource] == nil {
		a.kube[resource] = map[string]proto.Message{}
	}
	prev := a.kube[resource][key]
	if a.kube[resource][key] = m; m == nil {
		delete(a.kube[resource], key)
	}
	a.g.Expect(a.loop.PushEvent(&controller.KubeStateChange{Key: key, Resource: resource, Prev: prev, New: m})).To(Succeed())
	synctest.Wait()
}

func inPool(r cni.Request, pool string) cni.Request {
	r.Pool = pool
	return r
}

// A wire is in the value if the request asks for one, and the event has the same.
func TestWireOfAPod(t *testing.T) {
	running(t, dual, func(g Gomega, a *agent) {
		a.plane.MTU = 1400
		a.resync()
		a.add("w1", "web-0")
		w := a.podNetwork("w1").Wire
		g.Expect(w.HostIfName).To(MatchRegexp("^cad[0-9a-f]{12}$"))
		g.Expect(w.HostMac).NotTo(Equal(w.PodMac))
		g.Expect([]any{w.Netns, w.Mtu, w.Pool, w.Table}).To(Equal([]any{"/run/netns/w1", uint32(1400), "default", uint32(0)}))
		g.Expect(a.podNetwork("w1").Gateways).To(Equal([]string{"10.1.5.1", "fd00:1:0:5::1"}))
		g.Expect(proto.Equal(a.wirer.last.Wire, w)).To(BeTrue())

		a.add("c2", "web-1")
		g.Expect(a.podNetwork("c2").Wire).To(BeNil(), "another plugin makes the interface")
		g.Expect(a.podNetwork("c2").Gateways).To(HaveLen(2))
		g.Expect(a.wirer.last.Wire).To(BeNil())

		a.wirer.mac = "02:00:00:00:00:09"
		a.add("w3", "web-2")
		g.Expect(a.podNetwork("w3").Wire.PodMac).To(Equal("02:00:00:00:00:09"))
		g.Expect(a.podNetwork("w3").Wire.HostIfName).NotTo(Equal(w.HostIfName))
		byUpdates := a.wanted()
		a.resync()
		g.Expect(a.wanted()).To(Equal(byUpdates))
	})
}

// A wired pod in a custom network has routes to the ranges of that network, and its wire
// has the table of the network. Another plugin's interface there has no routes.
func TestWireInACustomNetwork(t *testing.T) {
	running(t, single, func(g Gomega, a *agent) {
		a.network.Transport = contivconf.TransportVXLAN
		a.blue("10.5.0.0/16")
		_, err := a.serve(inPool(request("ADD", "w1", "web-0"), "blue"))
		g.Expect(err).NotTo(HaveOccurred())
		m := a.podNetwork("w1")
		g.Expect(routes(m.Routes)).To(Equal("[10.5.0.0/16 via 10.5.5.1]"))
		g.Expect(m.Wire.Pool).To(Equal("blue"))
		g.Expect(m.Wire.Table).To(BeNumerically(">", 0x0C000000))

		reply, err := a.serve(inPool(request("ADD", "c2", "web-1"), "blue"))
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(reply.Routes).To(BeEmpty())
		g.Expect(a.podNetwork("c2").Routes).To(BeEmpty())
	})
}

// Each input of a value that changes between two resyncs changes the value.
func TestAResyncFollowsTheMTUAndTheNetworks(t *testing.T) {
	running(t, single, func(g Gomega, a *agent) {
		a.network.Transport = contivconf.TransportVXLAN
		a.blue("10.5.0.0/16")
		_, err := a.serve(inPool(request("ADD", "w1", "web-0"), "blue"))
		g.Expect(err).NotTo(HaveOccurred())
		a.resync()
		a.plane.MTU = 1380
		a.resync()
		g.Expect(a.podNetwork("w1").Wire.Mtu).To(BeEquivalentTo(1380))
		more := &kv.Pool{Name: "more", Network: "blue", Generation: 1, Ranges: []*kv.PoolRange{{Cidr: "10.6.0.0/16", OneNodePrefixLen: 24}}}
		a.changed(kv.PoolResource, kv.PoolKey("more"), more)
		g.Expect(routes(a.podNetwork("w1").Routes)).To(Equal("[10.5.0.0/16 via 10.5.5.1 10.6.0.0/16 via 10.5.5.1]"), "without a resync")
		table := a.podNetwork("w1").Wire.Table
		a.plane.VNI = table & (1<<24 - 1)
		a.resync()
		g.Expect(a.podNetwork("w1").Wire.Table).NotTo(Equal(table), "the number is that of the nodes' link")
	})
}
