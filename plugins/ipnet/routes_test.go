// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/ipnet"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

// disk remembers node ID 5.
type disk struct{}

func (disk) Local(string) (string, error)  { return `{"id": 5, "generation": 1}`, nil }
func (disk) SetLocal(string, string) error { return nil }

// world is node 5 ("node-e") of a cluster, with the real nodesync, ipam and
// ipnet in a running loop.
type world struct {
	g    Gomega
	loop *controller.Controller
	sink *controller.MemorySink
	kube controller.KubeStateData
	sync *nodesync.NodeSync
	own  string

	network  *ipnet.IPNet
	underlay *kernel
}

func (w *world) PushEvent(ev controller.Event) error { return w.loop.PushEvent(ev) }
func (w *world) PushEventWait(ctx context.Context, ev controller.Event) error {
	return w.loop.PushEventWait(ctx, ev)
}

// newWorld is a world whose loop does not run yet.
func newWorld(t *testing.T, conf string) *world {
	t.Helper()
	w := &world{g: NewWithT(t), sink: &controller.MemorySink{}, kube: controller.KubeStateData{}, own: "node-e", underlay: newKernel()}
	cfg, _, err := contivconf.Parse([]byte(conf))
	w.g.Expect(err).NotTo(HaveOccurred())
	log := slog.New(slog.DiscardHandler)
	claimer, err := nodesync.NewIDClaimer(nodesync.IDClaimerDeps{
		Log: log, Store: mem.New(), Disk: disk{}, EventLoop: w, Now: time.Now, Random: func() float64 { return 0 }, Refresh: time.Hour, Expire: time.Hour,
		Leases: noLeases{},
	})
	w.g.Expect(err).NotTo(HaveOccurred())
	nodes := nodesync.NewPlugin(nodesync.Deps{PluginDeps: controller.PluginDeps{Log: log}, ServiceLabel: label(w.own), IDClaimer: claimer})
	book, err := ledger.Open(context.Background(), ledger.NullJournal{}, ledger.Options{})
	w.g.Expect(err).NotTo(HaveOccurred())
	stage := book.Begin()
	addresses := ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
		d.Log, d.NodeSync, d.ContivConf, d.ServiceLabel, d.Ledger, d.Stage = log, nodes, contivconf.NewPlugin(cfg), label(w.own), book, stage
	}))
	deps := ipnet.Deps{
		PluginDeps: controller.PluginDeps{Log: log}, NodeSync: nodes, IPAM: addresses, Ledger: book, Transport: cfg.Cadastre.Transport,
	}
	if c := cfg.Cadastre; c.Dataplane == contivconf.DataplaneLinux {
		deps.Dataplane = &ipnet.Dataplane{
			NodeName: w.own, Underlay: w.underlay.read, PublicKey: "own key", MTU: uint32(c.MTU), VNI: c.VNI, PodTable: c.PodTable, Masquerade: c.Masquerade,
		}
	}
	if c := cfg.Cadastre; c.Dataplane == contivconf.DataplaneVPP {
		deps.Dataplane = &ipnet.Dataplane{
			NodeName: w.own, MTU: uint32(c.MTU), VNI: c.VNI, PodTable: c.PodTable, Masquerade: c.Masquerade,
			Vswitch: &ipnet.Vswitch{Link: "eth1", MTU: 1500, Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}},
		}
	}
	w.network = ipnet.NewPlugin(deps)
	w.sync = nodes
	w.loop = controller.New(controller.DefaultConfig(), controller.Deps{
		Sink: w.sink, Handlers: []controller.EventHandler{nodes, addresses, w.network}, Committers: []controller.Committer{stage, nodes},
	})
	return w
}

// inWorld runs f with a world whose first resync is done.
func inWorld(t *testing.T, conf string, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, conf)
		w.runs(func() { f(w) })
	})
}

// runs runs f while the loop does.
func (w *world) runs(f func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.loop.Run(ctx) }()
	defer func() {
		cancel()
		w.g.Expect(<-ended).To(Succeed())
	}()
	w.resync()
	f()
}

func (w *world) resync() {
	state := controller.KubeStateData{}
	for resource, messages := range w.kube {
		state[resource] = map[string]proto.Message{}
		for key, m := range messages {
			state[resource][key] = m
		}
	}
	done := make(chan error, 1)
	w.g.Expect(w.loop.PushEvent(&controller.DBResync{KubeState: state, OnDone: func(err error) { done <- err }})).To(Succeed())
	w.g.Expect(<-done).To(Succeed())
	synctest.Wait()
}

// set changes the cluster's state; nil deletes.
func (w *world) set(key string, m proto.Message) {
	r, _ := kv.ResourceOf(key)
	if w.kube[r.Name] == nil {
		w.kube[r.Name] = map[string]proto.Message{}
	}
	prev := w.kube[r.Name][key]
	if prev == nil && m == nil {
		return
	}
	w.kube[r.Name][key] = m
	if m == nil {
		delete(w.kube[r.Name], key)
	}
	w.g.Expect(w.loop.PushEvent(&controller.KubeStateChange{Key: key, Resource: r.Name, Prev: prev, New: m})).To(Succeed())
	synctest.Wait()
}

// record says which node has an ID, and its addresses.
func (w *world) record(id uint32, name string, addresses ...string) {
	w.set(kv.NodeRecordKey(id), &kv.NodeRecord{Id: id, Name: name, Generation: 1, IpAddresses: addresses})
}

// podCIDRs says which subnets Kubernetes has given to a node.
func (w *world) podCIDRs(name string, cidrs ...string) {
	w.set(kv.NodeKey(name), &kv.Node{Name: name, PodCidrs: cidrs})
}

func (w *world) pool(name, network, cidr string, generation uint64) *kv.Pool {
	return &kv.Pool{Name: name, Network: network, Generation: generation, Origin: "apply", Ranges: []*kv.PoolRange{{Cidr: cidr, OneNodePrefixLen: 24}}}
}

// routes are those that are wanted, "10.1.7.0/24 via 192.168.16.7 to 7 node-g".
func (w *world) routes() []string {
	values, err := w.sink.Dump(context.Background())
	w.g.Expect(err).NotTo(HaveOccurred())
	all := []string{}
	for key, m := range values {
		if r, ok := m.(*kv.NodeRoute); ok {
			w.g.Expect(key).To(Equal("route/" + r.Dst))
			all = append(all, fmt.Sprintf("%s via %s to %d %s", r.Dst, r.Gateway, r.NodeId, r.NodeName))
		}
	}
	slices.Sort(all)
	return all
}

// has expects these routes, and the same of a resync.
func (w *world) has(want ...string) {
	w.g.Expect(w.routes()).To(Equal(append([]string{}, want...)))
	w.resync()
	w.g.Expect(w.routes()).To(Equal(append([]string{}, want...)), "after a resync")
	w.g.Expect(w.loop.Status().Healthy).To(BeTrue())
}

func TestRoutesFollowTheNodes(t *testing.T) {
	inWorld(t, single, func(w *world) {
		w.has()
		w.record(5, w.own, "192.168.16.5/24")
		w.has()
		w.record(7, "node-g", "192.168.16.7/24")
		w.has("10.1.7.0/24 via 192.168.16.7 to 7 node-g")
		w.record(8, "node-h")
		w.has("10.1.7.0/24 via 192.168.16.7 to 7 node-g", "10.1.8.0/24 via  to 8 node-h")
		w.record(8, "node-h", "192.168.16.8/24")
		w.record(7, "node-g", "192.168.99.7/24", "192.168.16.7/24")
		w.has("10.1.7.0/24 via 192.168.99.7 to 7 node-g", "10.1.8.0/24 via 192.168.16.8 to 8 node-h")
		w.set(kv.NodeRecordKey(7), &kv.NodeRecord{Id: 7, Name: "node-g", Generation: 1, Released: 1})
		w.has("10.1.8.0/24 via 192.168.16.8 to 8 node-h")
		w.record(9, "node-g", "192.168.16.9/24") // with another ID
		w.set(kv.NodeRecordKey(8), nil)
		w.has("10.1.9.0/24 via 192.168.16.9 to 9 node-g")
		w.podCIDRs("node-x", "10.9.0.0/24") // of a node that has no ID
		w.has("10.1.9.0/24 via 192.168.16.9 to 9 node-g")
		w.record(300, "node-far", "192.168.17.44/24") // fits no pool
		w.has("10.1.9.0/24 via 192.168.16.9 to 9 node-g")
	})
}

// The gateway is of the family of the subnet, or there is none.
func TestRoutesOfBothFamilies(t *testing.T) {
	inWorld(t, dual, func(w *world) {
		w.record(7, "node-g", "192.168.16.7/24", "fd00:3::7/64")
		w.has("10.1.7.0/24 via 192.168.16.7 to 7 node-g", "fd00:1:0:7::/64 via fd00:3::7 to 7 node-g")
		w.record(7, "node-g", "fd00:3::7/64")
		w.has("10.1.7.0/24 via  to 7 node-g", "fd00:1:0:7::/64 via fd00:3::7 to 7 node-g")
	})
}

// An ID that passes from one name to another in one change, in either order of
// their names: the route is the new one's.
// Nodes without a vswitch are reached by what their Node objects say, or, where
// those are not reflected, by the addresses in their records.
func TestRoutesByTheAddressesOfNodeObjects(t *testing.T) {
	inWorld(t, "cadastre: {transport: nodeip}", func(w *world) {
		w.record(7, "node-g", "192.168.16.7/24")
		w.has("10.1.7.0/24 via  to 7 node-g")
		w.set(kv.NodeKey("node-g"), &kv.Node{Name: "node-g", Addresses: []string{"fd00::7", "172.18.0.7"}})
		w.has("10.1.7.0/24 via 172.18.0.7 to 7 node-g")
		w.set(kv.NodeKey("node-g"), nil)
		w.set(kv.NodeRecordKey(7), &kv.NodeRecord{Id: 7, Name: "node-g", Generation: 1, MgmtAddresses: []string{"172.18.0.8"}})
		w.has("10.1.7.0/24 via 172.18.0.8 to 7 node-g")
	})
}

func TestANodeIsRenamed(t *testing.T) {
	for _, names := range [][2]string{{"node-a", "node-b"}, {"node-b", "node-a"}} {
		t.Run(names[0]+" to "+names[1], func(t *testing.T) {
			inWorld(t, single, func(w *world) {
				w.record(7, names[0], "192.168.16.7/24")
				w.record(7, names[1], "192.168.16.77/24")
				w.has("10.1.7.0/24 via 192.168.16.77 to 7 " + names[1])
				w.set(kv.NodeRecordKey(7), nil)
				w.has()
			})
		})
	}
}

// With external IPAM the subnets are those of the Node objects.
func TestRoutesWithExternalIPAM(t *testing.T) {
	inWorld(t, external, func(w *world) {
		w.podCIDRs(w.own, "10.1.55.0/24")
		w.record(7, "node-g", "192.168.16.7/24")
		w.has()
		w.podCIDRs("node-g", "10.1.99.0/24", "10.1.98.0/24")
		w.has("10.1.98.0/24 via 192.168.16.7 to 7 node-g", "10.1.99.0/24 via 192.168.16.7 to 7 node-g")
		w.podCIDRs("node-g", "10.1.99.0/24", "nonsense", "10.1.97.3/24")
		w.has() // a list with one bad entry counts as a whole
		w.podCIDRs("node-g", "10.1.99.0/24", "10.1.97.3/24")
		w.has("10.1.97.0/24 via 192.168.16.7 to 7 node-g", "10.1.99.0/24 via 192.168.16.7 to 7 node-g")
		w.set(kv.NodeKey("node-g"), nil)
		w.has()
	})
}

// Two nodes claim one subnet: the smaller ID has it, and when that one goes, or
// changes, the other one.
func TestTwoNodesClaimOneSubnet(t *testing.T) {
	const (
		g = "10.1.99.0/24 via 192.168.16.7 to 7 node-g"
		h = "10.1.99.0/24 via 192.168.16.8 to 8 node-h"
	)
	type step struct {
		do   func(w *world)
		want []string
	}
	claims := func(id uint32, name string, cidrs ...string) func(w *world) {
		return func(w *world) {
			w.record(id, name, fmt.Sprint("192.168.16.", id, "/24"))
			w.podCIDRs(name, cidrs...)
		}
	}
	leaves := func(id uint32, name string) func(w *world) {
		return func(w *world) { w.set(kv.NodeRecordKey(id), nil) }
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"the second one comes and goes", []step{
			{claims(7, "node-g", "10.1.99.0/24"), []string{g}}, {claims(8, "node-h", "10.1.99.0/24"), []string{g}}, {leaves(8, "node-h"), []string{g}},
		}},
		{"the first one goes", []step{
			{claims(7, "node-g", "10.1.99.0/24"), []string{g}}, {claims(8, "node-h", "10.1.99.0/24"), []string{g}}, {leaves(7, "node-g"), []string{h}},
		}},
		{"the first one gets another", []step{
			{claims(7, "node-g", "10.1.99.0/24"), []string{g}}, {claims(8, "node-h", "10.1.99.0/24"), []string{g}},
			{claims(7, "node-g", "10.1.98.0/24"), []string{"10.1.98.0/24 via 192.168.16.7 to 7 node-g", h}},
		}},
		{"the smaller one comes second", []step{
			{claims(8, "node-h", "10.1.99.0/24"), []string{h}}, {claims(7, "node-g", "10.1.99.0/24"), []string{g}}, {leaves(7, "node-g"), []string{h}}, {leaves(8, "node-h"), nil},
		}},
		{"three of them", []step{
			{claims(9, "node-i", "10.1.99.0/24"), []string{"10.1.99.0/24 via 192.168.16.9 to 9 node-i"}}, {claims(8, "node-h", "10.1.99.0/24"), []string{h}}, {claims(7, "node-g", "10.1.99.0/24"), []string{g}},
			{leaves(8, "node-h"), []string{g}}, {leaves(7, "node-g"), []string{"10.1.99.0/24 via 192.168.16.9 to 9 node-i"}},
		}},
		{"one claims what is this node's", []step{
			{claims(7, "node-g", "10.1.55.0/24"), nil},
			{func(w *world) { w.podCIDRs(w.own, "10.1.56.0/24") }, []string{"10.1.55.0/24 via 192.168.16.7 to 7 node-g"}},
			{func(w *world) { w.podCIDRs(w.own, "10.1.55.0/24") }, nil},
			{leaves(7, "node-g"), nil},
		}},
	} {
		for _, resyncs := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, " resyncs ", resyncs), func(t *testing.T) {
				inWorld(t, external, func(w *world) {
					w.podCIDRs(w.own, "10.1.55.0/24")
					for i, s := range c.steps {
						s.do(w)
						w.g.Expect(w.routes()).To(Equal(append([]string{}, s.want...)), "step %d", i)
						if resyncs {
							w.has(s.want...)
						}
					}
				})
			})
		}
	}
}

// Routes lead to all blocks of all networks, also to those that drain.
func TestRoutesFollowThePools(t *testing.T) {
	inWorld(t, single, func(w *world) {
		w.record(7, "node-g", "192.168.16.7/24")
		w.record(8, "node-h", "192.168.16.8/24")
		to := func(third int) []string {
			return []string{fmt.Sprintf("10.%d.7.0/24 via 192.168.16.7 to 7 node-g", third), fmt.Sprintf("10.%d.8.0/24 via 192.168.16.8 to 8 node-h", third)}
		}
		first, blue := w.pool("default", "default", "10.1.0.0/16", 1), w.pool("blue", "blue", "10.5.0.0/16", 1)
		w.set(kv.PoolKey("default"), first)
		w.has(to(1)...)
		w.set(kv.PoolKey("pods-2"), w.pool("pods-2", "default", "10.2.0.0/16", 1))
		w.has(slices.Concat(to(1), to(2))...)
		w.set(kv.PoolKey("blue"), blue)
		w.has(slices.Concat(to(1), to(2), to(5))...)
		drains := proto.Clone(first).(*kv.Pool)
		drains.Generation, drains.Draining = 2, true
		w.set(kv.PoolKey("default"), drains)
		w.has(slices.Concat(to(1), to(2), to(5))...)
		gone := proto.Clone(drains).(*kv.Pool)
		gone.Generation, gone.Removed = 3, true
		w.set(kv.PoolKey("default"), gone)
		w.has(slices.Concat(to(2), to(5))...)
		w.set(kv.NodeRecordKey(7), nil)
		w.has(to(2)[1], to(5)[1])
		w.set(kv.PoolKey("blue"), nil) // it was lost, not removed
		w.has(to(2)[1], to(5)[1])
	})
}

// anything is a random change of what routes depend on.
func (w *world) anything(rnd *rand.Rand) (text string) {
	n := rnd.IntN(5)
	// node-e with ID 5 is this one
	id, name := uint32(n+4), []string{"node-a", "node-b", "node-e", "node-y", "node-z"}[rnd.IntN(5)]
	subnet := fmt.Sprintf("10.1.%d.0/24", 50+rnd.IntN(4))
	key, m := "", proto.Message(nil)
	switch rnd.IntN(10) {
	case 0, 1, 2:
		r := &kv.NodeRecord{Id: id, Name: name, Generation: uint64(rnd.IntN(3)), IpAddresses: [][]string{nil, {"192.168.16.7/24"}, {"fd00:3::7/64", "192.168.16.8/24"}}[rnd.IntN(3)]}
		if rnd.IntN(5) == 0 {
			r.Released = 1
		}
		if rnd.IntN(5) == 0 {
			r.SupersededBy = 9
		}
		key, m = kv.NodeRecordKey(id), r
	case 3:
		key = kv.NodeRecordKey(id)
	case 4, 5, 6:
		key, m = kv.NodeKey(name), &kv.Node{Name: name, PodCidrs: [][]string{nil, {subnet}, {subnet, "10.1.60.0/24"}, {"nonsense", subnet}}[rnd.IntN(4)]}
	case 7:
		key = kv.NodeKey(name)
	default:
		network := []string{"default", "default", "blue", "red"}[rnd.IntN(4)]
		pool := fmt.Sprint(network, "-", rnd.IntN(2))
		have, _ := w.kube[kv.PoolResource][kv.PoolKey(pool)].(*kv.Pool)
		p := w.pool(pool, network, map[string]string{"default-0": "10.1.0.0/16", "default-1": "10.2.0.0/16", "blue-0": "10.5.0.0/16", "blue-1": "10.2.0.0/17", "red-0": "10.6.0.0/16", "red-1": "10.7.0.0/21"}[pool], have.GetGeneration()+1)
		p.Draining = have != nil && rnd.IntN(2) == 0
		p.Removed = have.GetRemoved() || p.Draining && network != "default" && rnd.IntN(3) == 0
		p.Draining = p.Draining || p.Removed
		key, m = kv.PoolKey(pool), p
	}
	if name == w.own && strings.HasPrefix(key, kv.NodeRecordPrefix) {
		return "" // another test covers such an ID
	}
	w.set(key, m)
	return fmt.Sprint(key, " = ", m)
}

// However nodes and pools have changed, the routes are those that one resync
// makes of the final state, of this agent or of another one.
func TestRoutesEndWhereAResyncEnds(t *testing.T) {
	for _, conf := range []string{single, dual, external, external + "\ncadastre: {waitForPodCIDR: false}"} {
		for seed := range uint64(40) {
			t.Run(fmt.Sprint(conf[:min(len(conf), 30)], " ", seed), func(t *testing.T) {
				inWorld(t, conf, func(w *world) {
					rnd := rand.New(rand.NewPCG(seed, 10))
					var log []string
					for range 50 {
						log = append(log, w.anything(rnd))
						if rnd.IntN(15) == 0 {
							w.resync()
						}
					}
					w.g.Expect(w.loop.Status().Healthy).To(BeTrue(), "%s", w.loop.Status().LastError)
					byChanges := w.routes()
					w.resync()
					w.g.Expect(w.routes()).To(Equal(byChanges), "%s", strings.Join(log, "\n"))
					another := newWorld(t, conf)
					another.kube = w.kube
					another.runs(func() { w.g.Expect(another.routes()).To(Equal(byChanges), "another: %s", strings.Join(log, "\n")) })
				})
			})
		}
	}
}

// noLeases implements nodesync.Leases of a node without any.
type noLeases struct{}

func (noLeases) InUse() bool    { return false }
func (noLeases) Suspend(string) {}
