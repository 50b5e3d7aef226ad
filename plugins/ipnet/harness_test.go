// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type label string

func (l label) GetAgentLabel() string { return string(l) }

// cluster is a nodesync that remembers what was published.
type cluster struct {
	id        uint32
	nodes     nodesync.Nodes
	published [][]netip.Prefix
	underlay  []string
}

func (c *cluster) GetNodeID() uint32                  { return c.id }
func (c *cluster) GetAllNodes() nodesync.Nodes        { return c.nodes }
func (c *cluster) GetNode(name string) *nodesync.Node { return c.nodes[name] }
func (c *cluster) PublishPools()                      {}
func (c *cluster) PublishPodCIDRs([]netip.Prefix)     {}
func (c *cluster) PublishUnderlay(addresses []netip.Addr, publicKey string) {
	c.underlay = append(c.underlay, fmt.Sprint(addresses, " ", publicKey))
}

func (c *cluster) PublishNodeIPs(as []netip.Prefix) error {
	c.published = append(c.published, as)
	return nil
}

// agent is a node with a running event loop, in simulated time.
type agent struct {
	g       Gomega
	loop    *controller.Controller
	ledger  *ledger.Ledger
	journal *journal.Faulty
	ipam    *ipam.IPAM
	pods    *podmanager.PodManager
	cluster *cluster
	sink    *controller.MemorySink
	kube    controller.KubeStateData
	wirer   *wirer
	network *ipnet.IPNet
	plane   *ipnet.Dataplane
}

// PushEvent and PushEventWait break the circle between the loop and podmanager.
func (a *agent) PushEvent(ev controller.Event) error { return a.loop.PushEvent(ev) }

func (a *agent) PushEventWait(ctx context.Context, ev controller.Event) error {
	return a.loop.PushEventWait(ctx, ev)
}

// wirer handles AddPod as a CNI request of a main plugin does: the southbound makes the
// wires of the containers whose names begin with "w".
type wirer struct {
	mac  string
	last *podmanager.AddPod
}

func (*wirer) String() string { return "wirer" }
func (*wirer) HandlesEvent(ev controller.Event) bool {
	_, ok := ev.(*podmanager.AddPod)
	return ok
}

func (*wirer) Resync(controller.Event, controller.KubeStateData, int, controller.ResyncOperations) error {
	return nil
}

func (w *wirer) Update(ev controller.Event, _ controller.UpdateOperations) (string, error) {
	add := ev.(*podmanager.AddPod)
	if add.Wired = strings.HasPrefix(add.Key.ContainerID, "w"); add.Wired {
		add.MAC = w.mac
	}
	w.last = add
	return "", nil
}

func (*wirer) Revert(controller.Event) error { return nil }

// newAgent is node 5 with a configuration; its loop does not run yet.
func newAgent(t *testing.T, conf string) *agent {
	t.Helper()
	a := &agent{
		g: NewWithT(t), journal: &journal.Faulty{Journal: journal.NewMemory()}, cluster: &cluster{id: 5}, sink: &controller.MemorySink{},
		kube: controller.KubeStateData{}, wirer: &wirer{}, plane: &ipnet.Dataplane{},
	}
	cfg, _, err := contivconf.Parse([]byte(conf))
	a.g.Expect(err).NotTo(HaveOccurred())
	a.ledger, err = ledger.Open(context.Background(), a.journal, ledger.Options{})
	a.g.Expect(err).NotTo(HaveOccurred())
	stage, log := a.ledger.Begin(), slog.New(slog.DiscardHandler)
	a.pods = podmanager.NewPlugin(podmanager.Deps{
		PluginDeps: controller.PluginDeps{Log: log}, EventLoop: a, Ledger: a.ledger, IntentDir: t.TempDir(), Timeout: time.Minute,
	})
	a.ipam = ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
		d.NodeSync, d.ContivConf, d.ServiceLabel, d.PodManager = a.cluster, contivconf.NewPlugin(cfg), label("node-a"), a.pods
		d.Ledger, d.Stage = a.ledger, stage
	}))
	a.network = ipnet.NewPlugin(ipnet.Deps{
		PluginDeps: controller.PluginDeps{Log: log}, NodeSync: a.cluster, IPAM: a.ipam, Ledger: a.ledger, Dataplane: a.plane,
	})
	a.loop = controller.New(controller.DefaultConfig(), controller.Deps{
		Sink: a.sink, Handlers: []controller.EventHandler{a.pods, a.wirer, a.ipam, a.network}, Committers: []controller.Committer{stage},
	})
	return a
}

// running runs f with an agent whose first resync is done.
func running(t *testing.T, conf string, f func(g Gomega, a *agent)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(t, conf)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 2)
		go func() { ended <- a.loop.Run(ctx) }()
		go func() { ended <- a.pods.Run(ctx) }()
		defer func() {
			cancel()
			for range cap(ended) {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		}()
		a.resync()
		f(a.g, a)
	})
}

// resync is a resync with the cluster's state, to its end.
func (a *agent) resync() { a.g.Expect(a.push(&controller.DBResync{KubeState: a.kube})).To(Succeed()) }

// push pushes a resync and waits for its outcome.
func (a *agent) push(ev *controller.DBResync) error {
	done := make(chan error, 1)
	ev.OnDone = func(err error) { done <- err }
	a.g.Expect(a.loop.PushEvent(ev)).To(Succeed())
	return <-done
}

// request is a CNI request for eth0 of a container of network "pods".
func request(command, container, pod string) cni.Request {
	return cni.Request{
		Command: command, Network: "pods", ContainerID: container, IfName: "eth0", Netns: "/run/netns/" + container,
		Pod: cni.Pod{Namespace: "default", Name: pod},
	}
}

func (a *agent) serve(r cni.Request) (cni.Reply, error) { return a.pods.Serve(context.Background(), r) }

// add is an ADD that must succeed.
func (a *agent) add(container, pod string) cni.Reply {
	reply, err := a.serve(request("ADD", container, pod))
	a.g.Expect(err).NotTo(HaveOccurred())
	return reply
}

// wanted returns the values that the southbound should have, one line each.
func (a *agent) wanted() []string {
	values, err := a.sink.Dump(context.Background())
	a.g.Expect(err).NotTo(HaveOccurred())
	var all []string
	for k, m := range values {
		all = append(all, k+" "+prototext.MarshalOptions{}.Format(m))
	}
	slices.Sort(all)
	return all
}

// podNetwork returns the value that the southbound should have for a container, nil for none.
func (a *agent) podNetwork(container string) *kv.PodNetwork {
	values, err := a.sink.Dump(context.Background())
	a.g.Expect(err).NotTo(HaveOccurred())
	m, _ := values[kv.SinkPodPrefix+ledger.Key{Network: "pods", ContainerID: container, IfName: "eth0"}.String()].(*kv.PodNetwork)
	return m
}

// routes writes routes as "dst via gw".
func routes(rs []*kv.Route) string {
	s := []string{}
	for _, r := range rs {
		s = append(s, r.Dst+" via "+r.Gateway)
	}
	return fmt.Sprint(s)
}
