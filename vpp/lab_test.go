// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package vpp_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/vishvananda/netlink"
	"google.golang.org/protobuf/proto"

	"net/netip"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/netlab"
	"github.com/cadastre/cadastre/southbound"
	"github.com/cadastre/cadastre/vpp"
	"github.com/cadastre/cadastre/vpp/vppmodel"
	"github.com/cadastre/cadastre/vpp/vpptest"
	"github.com/cadastre/cadastre/witness/kernel"
)

// vswitch is the VPP of a test: a model, or a real one.
type vswitch interface {
	Dump() string
	RemoveInterface(name string) bool
	Foreign(address, dst netip.Prefix)
	ForeignPacketLink(link string)
	ForeignTunnel(instance uint32)
	ForeignBridge(id uint32)
}

// lab is a node with a network namespace of its own, and a VPP.
type lab struct {
	Gomega
	vswitch
	t     testing.TB
	host  *netlab.Namespace
	pods  []*netlab.Namespace
	model *vppmodel.Model // nil: VPP is a real one
	opt   vpp.Options
	*node
}

// node is one process: descriptors with their scheduler.
type node struct {
	scheduler   *southbound.Scheduler
	descriptors []*southbound.Descriptor
}

// needsModel skips a test that the VPP at VPP_API_SOCKET cannot have.
func needsModel(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(vpptest.SocketEnv) != "" {
		t.Skipf("NOT RUN on the VPP at %s, only on the model: %s", vpptest.SocketEnv, why)
	}
}

// newLab returns a lab with the VPP at VPP_API_SOCKET, or with a model of one.
func newLab(t testing.TB) *lab {
	t.Helper()
	if err := netlab.Try(); err != nil {
		t.Skipf("NOT RUN: this process cannot make network namespaces: %v", err)
	}
	l := &lab{Gomega: NewWithT(t), t: t}
	if running := vpptest.Attach(t); running != nil {
		l.onReal(running)
	} else {
		l.onModel()
	}
	for range 3 {
		l.pods = append(l.pods, l.namespace())
	}
	l.opt.Namespace = l.host.Path()
	l.opt.Main = vpp.MainInterface{Name: "eth1", Gateways: []netip.Addr{netip.MustParseAddr("192.168.16.100")}}
	l.start()
	t.Cleanup(func() { _ = l.scheduler.Close() })
	return l
}

// onModel makes a namespace and a model of VPP.
func (l *lab) onModel() {
	l.t.Helper()
	l.host, l.model = l.namespace(), vppmodel.New()
	l.vswitch = l.model
	l.must(l.host.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1"}, PeerName: "wire"})
	}))
	l.model.LinksOf(func(name string) bool {
		return l.host.Do(func() error { _, err := netlink.LinkByName(name); return err }) == nil
	})
	l.opt.Socket = "/run/model.sock"
	l.opt.Open = func(context.Context) (vpp.Transport, error) { return l.model.Adapter(), nil }
}

// onReal takes a real VPP with its namespace. The agent's objects end with the test.
func (l *lab) onReal(running *vpptest.Running) {
	l.t.Helper()
	l.vswitch, l.host = running, running.Namespace()
	running.AddLink("eth1")
	l.opt.Socket = running.Socket()
	l.t.Cleanup(func() {
		l.start()
		if err := l.resync(wanted{}); err != nil {
			l.t.Errorf("remove all values from VPP: %v", err)
		}
		_ = l.scheduler.Close() // nothing is left to tell
	})
}

// empty takes all objects from VPP, and starts another process. The model is restarted for this.
func (l *lab) empty() {
	l.t.Helper()
	if l.model != nil {
		l.model.Restart()
	} else {
		l.must(l.resync(wanted{}))
	}
	l.restart()
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) namespace() *netlab.Namespace {
	l.t.Helper()
	ns, err := netlab.New()
	l.must(err)
	l.t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// start starts a process.
func (l *lab) start() {
	l.t.Helper()
	all, err := vpp.Descriptors(l.opt)
	l.must(err)
	l.node = &node{scheduler: southbound.New(southbound.Options{}, all...), descriptors: all}
}

// restart starts another process, which knows nothing.
func (l *lab) restart() {
	l.t.Helper()
	l.must(l.scheduler.Close())
	l.start()
}

// wanted are values by key.
type wanted map[string]proto.Message

func (w wanted) list() (all []controller.Value) {
	for _, key := range slices.Sorted(maps.Keys(w)) {
		all = append(all, controller.Value{Key: key, Message: w[key]})
	}
	return all
}

// resync commits all values.
func (l *lab) resync(w wanted) error {
	return l.scheduler.Commit(context.Background(), controller.Transaction{
		Method: controller.FullResync,
		Values: w.list(),
	})
}

// update commits one value, nil for none.
func (l *lab) update(reverts bool, key string, m proto.Message) error {
	return l.scheduler.Commit(context.Background(), controller.Transaction{
		Method:          controller.Update,
		Values:          []controller.Value{{Key: key, Message: m}},
		RevertOnFailure: reverts,
	})
}

// inspect expects that values are complete, and that nothing else is made.
func (l *lab) inspect(w wanted) {
	l.t.Helper()
	found := map[string]proto.Message{}
	for _, d := range l.descriptors {
		var of []controller.Value
		for _, v := range w.list() {
			if d.Handles(v.Key) {
				of = append(of, v)
			}
		}
		all, err := d.Retrieve(context.Background(), of)
		l.must(err)
		for _, v := range all {
			found[v.Key] = v.Message
		}
	}
	for key, m := range w {
		l.Expect(found).To(HaveKey(key))
		l.Expect(proto.Equal(found[key], m)).To(BeTrue(), "%s is %v, not %v", key, found[key], m)
		delete(found, key)
	}
	l.Expect(found).To(BeEmpty(), l.Dump())
}

// values of a node with pods, a peer, a custom network and NAT.
func (l *lab) values() wanted {
	all := wanted{
		kv.SinkNode: &kv.NodeNetwork{
			Id: 5, PodSubnets: []string{"10.1.5.0/24", "fd01:0:0:5::/64"}, PodGateways: []string{"10.1.5.1", "fd01:0:0:5::1"},
			HostInterconnectVpp:   []string{"172.30.5.1"},
			HostInterconnectLinux: []string{"172.30.5.2"},
			HostDestinations:      []string{"10.96.0.0/12", "192.0.2.5/32"},
			NodeIps:               []string{"192.168.16.5/24"}, VxlanIps: []string{"192.168.30.5/24"},
			Transport: kv.Transport_VXLAN, Underlay: []string{"192.168.16.5"}, Mtu: 1450,
			VxlanMac: "0a:ca:00:00:00:05", Vni: 10,
		},
		"network/default": &kv.Network{Name: "default", Subnets: []string{"10.1.0.0/16"}},
		"network/blue":    &kv.Network{Name: "blue", Table: 0x0c000007, Vni: 7, Subnets: []string{"10.1.0.0/16"}},
		"link/blue":       &kv.NetworkLink{Network: "blue", Vni: 7, Table: 0x0c000007, Mac: "0a:ca:00:00:00:05", Mtu: 1450},
		kv.SinkEgress:     &kv.Egress{Sources: []string{"10.1.0.0/16"}, Direct: []string{"10.1.0.0/16"}},
	}
	for id := uint32(6); id < 8; id++ {
		ip, own := fmt.Sprintf("192.168.30.%d", id), fmt.Sprintf("0a:ca:00:00:00:%02x", id)
		for _, network := range []string{"", "blue"} {
			of := &kv.NodeTunnel{
				NodeId: id, NodeName: "peer", Transport: kv.Transport_VXLAN, Network: network,
				Underlay: []string{fmt.Sprintf("192.168.16.%d", id)}, VxlanIps: []string{ip}, Mac: own,
			}
			route := &kv.NodeRoute{
				Dst: fmt.Sprintf("10.1.%d.0/24", id), Gateway: ip, NodeId: id, Transport: kv.Transport_VXLAN, Network: network,
			}
			if network != "" {
				of.Vni, route.Vni, route.Table = 7, 7, 0x0c000007
			}
			all[kv.SinkTunnelKey(id, network)] = of
			all[kv.SinkRouteKey(route.Dst, route.Table)] = route
		}
	}
	all["route/10.1.9.0/24"] = &kv.NodeRoute{Dst: "10.1.9.0/24", NodeId: 9} // its node is not known yet
	all["pod/k8s/a/eth0"] = l.pod(0, "a", "10.1.5.2", "default", 0)
	all["pod/k8s/b/eth0"] = l.pod(1, "b", "10.1.5.3", "default", 0)
	all["pod/k8s/c/eth0"] = l.pod(2, "c", "10.1.5.3", "blue", 0x0c000007) // the address of another pod
	return all
}

// namespaceAt returns the identity of the network namespace that a path names.
func namespaceAt(t testing.TB, path string) *kv.NetworkNamespace {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	id, err := kernel.Identify(path, strings.TrimSpace(string(boot)))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return id.Message()
}

// pod returns a pod in a namespace.
func (l *lab) pod(n int, name, ip, network string, table uint32) *kv.PodNetwork {
	return &kv.PodNetwork{
		Namespace: "default", Name: name, Network: "k8s", ContainerId: name, IfName: "eth0",
		Addresses: []string{ip + "/24"}, Gateways: []string{"10.1.5.1"},
		Routes: []*kv.Route{{Dst: "0.0.0.0/0", Gateway: "10.1.5.1"}},
		Wire: &kv.Wire{
			Netns: l.pods[n].Path(), Namespace: namespaceAt(l.t, l.pods[n].Path()), HostIfName: "cad00000000000" + name, Mtu: 1450, Pool: network, Table: table,
			HostMac: "0a:58:00:00:01:0" + fmt.Sprint(n), PodMac: "0a:58:00:00:02:0" + fmt.Sprint(n),
		},
	}
}

// closeAll closes descriptors without a scheduler.
func closeAll(t testing.TB, all []*southbound.Descriptor) {
	for _, d := range all {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}

func lines(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }
