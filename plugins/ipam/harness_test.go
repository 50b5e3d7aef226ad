// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/journal"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/ipam"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
	"github.com/cadastre/cadastre/plugins/podmanager"
)

// thisNode is the label of the node under test.
const thisNode = "node-a"

type label string

func (l label) GetAgentLabel() string { return string(l) }

// nodes is a nodesync whose ID and neighbours the test decides.
type nodes struct {
	id    uint32
	all   nodesync.Nodes
	cidrs []netip.Prefix // published
}

func (n *nodes) GetNodeID() uint32                     { return n.id }
func (n *nodes) GetAllNodes() nodesync.Nodes           { return n.all }
func (n *nodes) GetNode(name string) *nodesync.Node    { return n.all[name] }
func (n *nodes) PublishNodeIPs(_ []netip.Prefix) error { return nil }
func (n *nodes) PublishPools()                         {}
func (n *nodes) PublishUnderlay([]netip.Addr, string)  {}
func (n *nodes) PublishPodCIDRs(cidrs []netip.Prefix)  { n.cidrs = cidrs }

// newest is a podmanager with a fixed map of sandboxes.
type newest map[kv.PodID]ledger.Key

func (s newest) NewestSandbox(pod kv.PodID) (ledger.Key, bool) {
	k, ok := s[pod]
	return k, ok
}

// txn is a transaction that remembers what is put into it.
type txn struct {
	values    map[string]proto.Message
	followUps []controller.Event
}

func (t *txn) Put(key string, m proto.Message)    { t.values[key] = m }
func (t *txn) Get(key string) proto.Message       { return t.values[key] }
func (t *txn) Delete(key string)                  { delete(t.values, key) }
func (t *txn) FollowUp(ev controller.Event) error { t.followUps = append(t.followUps, ev); return nil }

func newTxn() *txn { return &txn{values: map[string]proto.Message{}} }

// clock is the time that the ledger sees.
type clock struct{ now time.Time }

// node is one agent's IPAM plugin over a ledger, driven as the loop drives it.
type node struct {
	*ipam.IPAM
	g         Gomega
	nodes     *nodes
	sandboxes newest
	journal   *journal.Memory
	fault     journal.Fault // of every commit
	clock     *clock
	live      bool // its clock is the runtime's
	boot      string
	kube      controller.KubeStateData
	resyncs   int
	revision  int64 // of the store that kube is of
	records   *records
}

// records are those of a file.
type records struct {
	all    map[string][]byte
	failed error // of every commit
	writes int
}

func (r *records) Load(_ context.Context, f func(key string, value []byte) error) error {
	for key, value := range r.all {
		if err := f(key, value); err != nil {
			return err
		}
	}
	return nil
}

func (r *records) Commit(_ context.Context, put map[string][]byte, del []string) error {
	if r.failed != nil {
		return r.failed
	}
	r.writes++
	maps.Copy(r.all, put)
	for _, key := range del {
		delete(r.all, key)
	}
	return nil
}

// newNode is node id with a configuration, before its first resync.
func newNode(t *testing.T, conf string, id uint32) *node {
	t.Helper()
	n := &node{
		g: NewWithT(t), nodes: &nodes{id: id, all: nodesync.Nodes{}}, sandboxes: newest{}, journal: journal.NewMemory(),
		clock: &clock{time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)}, boot: "boot 1", kube: controller.KubeStateData{},
		records: &records{all: map[string][]byte{}},
	}
	n.start(conf)
	return n
}

// start makes the plugin and its ledger from the journal, as a new process does.
func (n *node) start(conf string) {
	cfg, _, err := contivconf.Parse([]byte(conf))
	n.g.Expect(err).NotTo(HaveOccurred())
	now := func() time.Time { return n.clock.now }
	if n.live {
		now = time.Now
	}
	began := now()
	leases, err := ledger.Open(context.Background(), &journal.Faulty{Journal: n.journal, Plan: func(int64) journal.Fault { return n.fault }}, ledger.Options{
		BootID: n.boot, Now: now, Uptime: func() time.Duration { return time.Hour + now().Sub(began) },
	})
	n.g.Expect(err).NotTo(HaveOccurred())
	n.IPAM = ipam.NewPlugin(ipam.UseDeps(func(d *ipam.Deps) {
		d.NodeSync, d.ContivConf, d.ServiceLabel, d.PodManager = n.nodes, contivconf.NewPlugin(cfg), label(thisNode), n.sandboxes
		d.Ledger, d.Stage, d.Records = leases, leases.Begin(), n.records
	}))
	n.g.Expect(n.Init()).To(Succeed())
	n.g.Expect(n.AfterInit()).To(Succeed())
	n.resyncs = 0
}

// running is a node after its first resync.
func running(t *testing.T, conf string, id uint32) *node {
	t.Helper()
	n := newNode(t, conf, id)
	n.g.Expect(n.resync()).To(Succeed())
	return n
}

// resync is one resync of the cluster's state, committed as the loop would.
func (n *node) resync() error {
	return n.resyncWith(&controller.DBResync{Revision: n.revision, KubeState: n.kube})
}

// resyncWith processes an event that is a resync.
func (n *node) resyncWith(ev controller.Event) error {
	n.resyncs++
	n.ownNode()
	err := n.Resync(ev, n.kube, n.resyncs, newTxn())
	if err != nil {
		n.Stage.Undo()
		return err
	}
	return n.Stage.Commit(context.Background())
}

// update hands an event to the plugin, and commits or undoes what it staged.
func (n *node) update(ev controller.Event) (follow []controller.Event, err error) {
	n.g.Expect(n.HandlesEvent(ev)).To(BeTrue(), ev.GetName())
	t := newTxn()
	if _, err = n.Update(ev, t); err != nil {
		n.Stage.Undo()
		return nil, err
	}
	return t.followUps, n.Stage.Commit(context.Background())
}

// process hands an event to the plugin as the loop does.
func (n *node) process(ev controller.Event) error {
	_, err := n.Update(ev, newTxn())
	if err == nil {
		err = n.Stage.Commit(context.Background())
	}
	if err != nil {
		n.Stage.Undo()
		n.Undo()
		return err
	}
	return n.Commit(context.Background())
}

// key is the attachment of a container of the network "pods".
func key(container string) ledger.Key {
	return ledger.Key{Network: "pods", ContainerID: container, IfName: "eth0"}
}

func pod(name string) kv.PodID { return kv.PodID{Namespace: "default", Name: name} }

// add is an AddPod of the container of a pod of the same name.
func add(name string, wanted ...string) *podmanager.AddPod {
	ev := &podmanager.AddPod{Pod: pod(name), Key: key(name), Pool: ipam.PodPool}
	for _, w := range wanted {
		ev.Wanted = append(ev.Wanted, netip.MustParseAddr(w))
	}
	return ev
}

// add gives the pod's container addresses through the loop.
func (n *node) add(name string) string {
	ev := add(name)
	_, err := n.update(ev)
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(ev.Addresses).NotTo(BeEmpty())
	return ev.Addresses[0].Addr().String()
}

// del ends the container's attachment through the loop.
func (n *node) del(name string) []netip.Addr {
	ev := &podmanager.DeletePod{Key: key(name)}
	_, err := n.update(ev)
	n.g.Expect(err).NotTo(HaveOccurred())
	return ev.Freed
}

// allocate leases an address through the Go API.
func (n *node) allocate(name string) string {
	ip, err := n.AllocatePodIP(pod(name), "", "")
	n.g.Expect(err).NotTo(HaveOccurred())
	return ip.String()
}

// reports makes the cluster's state say that a pod has addresses.
func (n *node) reports(name string, change func(*kv.Pod), addresses ...string) {
	m := &kv.Pod{Namespace: "default", Name: name, Node: thisNode, Phase: "Running", IpAddresses: addresses}
	if change != nil {
		change(m)
	}
	n.put(kubestate.Pods, kv.PodKey(thisNode, pod(name)), m)
}

// podCIDRs makes the cluster's state say which subnets this node's pods have.
func (n *node) podCIDRs(cidrs ...string) {
	n.put(kubestate.Nodes, kv.NodeKey(thisNode), &kv.Node{Name: thisNode, PodCidrs: cidrs})
}

// ownNode has nodesync say what is in this node's Node object.
func (n *node) ownNode() {
	own, ok := n.kube[kubestate.Nodes][kv.NodeKey(thisNode)].(*kv.Node)
	if !ok {
		return
	}
	known := &nodesync.Node{ID: n.nodes.id, Name: thisNode}
	for _, text := range own.PodCidrs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			known.PodCIDRs, known.PodCIDRProblem = nil, fmt.Sprintf("%q is not a network", text)
			break
		}
		known.PodCIDRs = append(known.PodCIDRs, p)
	}
	n.nodes.all[thisNode] = known
}

func (n *node) put(resource, key string, m proto.Message) {
	if n.kube[resource] == nil {
		n.kube[resource] = map[string]proto.Message{}
	}
	n.kube[resource][key] = m
}

// leases are the leases of the pod pool, for a pod, by address.
func (n *node) leases(purpose ledger.Purpose, state ledger.State) []string {
	var all []string
	for _, l := range n.Ledger.Leases() {
		if l.Pool == ipam.PodPool && l.Purpose == purpose && l.State == state {
			all = append(all, l.Addr.String())
		}
	}
	return all
}

// sound checks the ledger against itself and its journal.
func (n *node) sound() {
	findings, err := n.Ledger.Check(context.Background())
	n.g.Expect(err).NotTo(HaveOccurred())
	n.g.Expect(findings).To(BeEmpty())
}

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s) }
