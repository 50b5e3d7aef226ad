// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync_test

import (
	"fmt"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/plugins/nodesync"
)

type label string

func (l label) GetAgentLabel() string { return string(l) }

// txn is a transaction that only takes follow-ups.
type txn struct {
	controller.UpdateOperations
	followUps []controller.Event
}

func (t *txn) FollowUp(ev controller.Event) error { t.followUps = append(t.followUps, ev); return nil }

// neighbourhood is a plugin of node a and the cluster's state as the loop keeps it.
type neighbourhood struct {
	*nodesync.NodeSync
	g    Gomega
	kube controller.KubeStateData
}

func newNeighbourhood(t *testing.T) *neighbourhood {
	t.Helper()
	store := mem.New()
	t.Cleanup(func() { _ = store.Close() })
	n := &neighbourhood{
		NodeSync: nodesync.NewPlugin(nodesync.Deps{ServiceLabel: label("a"), IDClaimer: newNode(t, store, who("a"), newDisk()).confirm(t).IDClaimer}),
		g:        NewWithT(t), kube: controller.KubeStateData{kubestate.NodeRecords: {}, kubestate.Nodes: {}, kubestate.PrefixClaims: {}},
	}
	n.resync()
	return n
}

func (n *neighbourhood) resync() {
	n.g.Expect(n.Resync(&controller.DBResync{}, n.kube, 1, nil)).To(Succeed())
}

// change is a change of the cluster's state, nil being the end of a message.
func (n *neighbourhood) change(resource, key string, m proto.Message) []string {
	ev := &controller.KubeStateChange{Key: key, Resource: resource, New: m}
	if prev, ok := n.kube[resource][key]; ok {
		ev.Prev = prev
	}
	delete(n.kube[resource], key)
	if m != nil {
		n.kube[resource][key] = m
	}
	n.g.Expect(n.HandlesEvent(ev)).To(BeTrue())
	t := &txn{}
	_, err := n.Update(ev, t)
	n.g.Expect(err).NotTo(HaveOccurred())
	var told []string
	for _, f := range t.followUps {
		told = append(told, f.String())
	}
	return told
}

func (n *neighbourhood) record(id uint32, name string, ips ...string) []string {
	return n.change(kubestate.NodeRecords, kv.NodeRecordKey(id), &kv.NodeRecord{Id: id, Name: name, Instance: "uuid-of-" + name, IpAddresses: ips})
}

func (n *neighbourhood) object(name string, cidr string, addresses ...string) []string {
	m := &kv.Node{Name: name, Addresses: addresses}
	if cidr != "" {
		m.PodCidrs = []string{cidr}
	}
	return n.change(kubestate.Nodes, kv.NodeKey(name), m)
}

// told returns the text of a NodeUpdate.
func told(name, before, now string) []string {
	return []string{"Node Update\n* node: " + name + "\n* before: " + before + "\n* now: " + now}
}

// A node joins, changes and leaves; what changes nothing is not told.
func TestTheLifeOfANode(t *testing.T) {
	g := NewWithT(t)
	n := newNeighbourhood(t)
	const (
		joined    = "ID=2 name=b vpp=[] mgmt=[] podCIDRs=[]"
		published = "ID=2 name=b vpp=[192.168.16.2/24] mgmt=[] podCIDRs=[]"
		known     = "ID=2 name=b vpp=[192.168.16.2/24] mgmt=[172.16.0.2] podCIDRs=[10.1.2.0/24]"
		moved     = "ID=2 name=b vpp=[192.168.16.2/24] mgmt=[172.16.0.2] podCIDRs=[10.1.9.0/24]"
		object    = "ID=0 name=b vpp=[] mgmt=[172.16.0.2] podCIDRs=[10.1.9.0/24]"
	)
	g.Expect(n.record(2, "b")).To(Equal(told("b", "<none>", joined)))
	g.Expect(n.record(2, "b")).To(BeEmpty(), "the same again")
	g.Expect(n.record(2, "b", "192.168.16.2/24")).To(Equal(told("b", joined, published)))
	g.Expect(n.object("b", "10.1.2.0/24", "172.16.0.2")).To(Equal(told("b", published, known)))
	g.Expect(n.object("b", "10.1.2.0/24", "172.16.0.2")).To(BeEmpty())
	g.Expect(n.object("b", "10.1.9.0/24", "172.16.0.2")).To(Equal(told("b", known, moved)), "only the pod CIDR changed")
	g.Expect(n.change(kubestate.NodeRecords, kv.NodeRecordKey(2), nil)).To(Equal(told("b", moved, object)))
	g.Expect(n.change(kubestate.Nodes, kv.NodeKey("b"), nil)).To(Equal(told("b", object, "<none>")))
	g.Expect(n.GetAllNodes()).To(BeEmpty())
}

func TestADetailThatNobodyAsksFor(t *testing.T) {
	g := NewWithT(t)
	n := newNeighbourhood(t)
	n.record(2, "b")
	m := &kv.NodeRecord{Id: 2, Name: "b", Instance: "uuid-of-b", Generation: 17}
	g.Expect(n.change(kubestate.NodeRecords, kv.NodeRecordKey(2), m)).To(BeEmpty())
}

func TestARenamedNode(t *testing.T) {
	g := NewWithT(t)
	n := newNeighbourhood(t)
	n.record(2, "b", "192.168.16.2/24")
	g.Expect(n.record(2, "c", "192.168.16.2/24")).To(ConsistOf(
		told("b", "ID=2 name=b vpp=[192.168.16.2/24] mgmt=[] podCIDRs=[]", "<none>")[0],
		told("c", "<none>", "ID=2 name=c vpp=[192.168.16.2/24] mgmt=[] podCIDRs=[]")[0]))
	g.Expect(n.GetAllNodes()).To(HaveLen(1))
}

// What cannot be parsed is left out and harms nothing else.
func TestGarbageInANode(t *testing.T) {
	g := NewWithT(t)
	n := newNeighbourhood(t)
	n.record(2, "b", "192.168.16.2/24", "192.168.16", "")
	n.object("b", "10.1.2.0", "172.16.0.2", "node-b.example")
	g.Expect(n.GetAllNodes()["b"].String()).To(Equal(`ID=2 name=b vpp=[192.168.16.2/24] mgmt=[172.16.0.2] podCIDRs=[] problem="\"10.1.2.0\" is not a network, such as 10.1.5.0/24"`))
}

// A resync makes of the final state what the changes made step by step.
func TestAResyncEndsWhereTheChangesEnd(t *testing.T) {
	g := NewWithT(t)
	n := newNeighbourhood(t)
	n.record(1, "a", "192.168.16.1/24")
	n.record(2, "b")
	n.record(3, "c")
	n.object("b", "10.1.2.0/24", "172.16.0.2")
	n.object("d", "", "172.16.0.4")
	n.record(2, "b", "192.168.16.2/24")
	n.change(kubestate.NodeRecords, kv.NodeRecordKey(3), nil)
	byChanges := fmt.Sprint(n.GetAllNodes())
	n.resync()
	g.Expect(fmt.Sprint(n.GetAllNodes())).To(Equal(byChanges))
	g.Expect(n.GetAllNodes()).To(HaveLen(3))
	g.Expect(n.GetNodeID()).To(BeNumerically("==", 1))
}

// A caller cannot change what the plugin knows.
func TestNodesAreCopies(t *testing.T) {
	g := NewWithT(t)
	n := newNeighbourhood(t)
	n.record(2, "b")
	nodes := n.GetAllNodes()
	nodes["b"].ID = 99
	delete(nodes, "b")
	g.Expect(n.GetAllNodes()["b"].ID).To(BeNumerically("==", 2))
	before := n.GetAllNodes()["b"]
	n.record(2, "b", "192.168.16.2/24")
	g.Expect(before.VppIPAddresses).To(BeEmpty(), "what was told stays as it was")
}

func TestNodeEquality(t *testing.T) {
	base := func() *nodesync.Node {
		return &nodesync.Node{
			ID: 1, Name: "a", VppIPAddresses: []netip.Prefix{netip.MustParsePrefix("192.168.16.1/24")},
			MgmtIPAddresses: []netip.Addr{netip.MustParseAddr("172.16.0.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.1.1.0/24")},
		}
	}
	g := NewWithT(t)
	g.Expect(base().Equal(base())).To(BeTrue())
	var none *nodesync.Node
	g.Expect(none.Equal(nil)).To(BeTrue())
	g.Expect(none.Equal(base())).To(BeFalse())
	g.Expect(base().Equal(nil)).To(BeFalse())
	for name, change := range map[string]func(*nodesync.Node){
		"ID":          func(n *nodesync.Node) { n.ID = 2 },
		"name":        func(n *nodesync.Node) { n.Name = "b" },
		"vpp mask":    func(n *nodesync.Node) { n.VppIPAddresses[0] = netip.MustParsePrefix("192.168.16.1/25") },
		"mgmt":        func(n *nodesync.Node) { n.MgmtIPAddresses = nil },
		"pod CIDR":    func(n *nodesync.Node) { n.PodCIDRs[0] = netip.MustParsePrefix("10.1.2.0/24") },
		"no pod CIDR": func(n *nodesync.Node) { n.PodCIDRs = nil },
	} {
		m := base()
		change(m)
		g.Expect(m.Equal(base())).To(BeFalse(), name)
	}
}

func TestEventsThatAreHandled(t *testing.T) {
	g := NewWithT(t)
	n := newNeighbourhood(t)
	for event, want := range map[controller.Event]bool{
		&controller.DBResync{}: true, &controller.HealingResync{Type: controller.AfterError}: true, &controller.Shutdown{}: false,
		&controller.KubeStateChange{Resource: kubestate.Pods}: false, &controller.KubeStateChange{Resource: kubestate.Nodes}: true,
		&controller.KubeStateChange{Resource: kubestate.NodeRecords}: true, &nodesync.NodeUpdate{}: false,
		&nodesync.NodeIDChange{}: true, &controller.KubeStateChange{Resource: kubestate.Pools}: false,
	} {
		g.Expect(n.HandlesEvent(event)).To(Equal(want), event.String())
	}
}

// An ID that was released has no node, and of two records of one name the one
// counts that was not superseded.
func TestRecordsThatDoNotCount(t *testing.T) {
	g := NewWithT(t)
	n := newNeighbourhood(t)
	record := func(id uint32, change func(*kv.NodeRecord)) []string {
		m := &kv.NodeRecord{Id: id, Name: "b", Instance: fmt.Sprint("uuid-", id), Generation: uint64(10 - id)}
		change(m)
		return n.change(kubestate.NodeRecords, kv.NodeRecordKey(id), m)
	}
	const two, three = "ID=2 name=b vpp=[] mgmt=[] podCIDRs=[]", "ID=3 name=b vpp=[] mgmt=[] podCIDRs=[]"
	g.Expect(record(2, func(*kv.NodeRecord) {})).To(Equal(told("b", "<none>", two)))
	g.Expect(record(3, func(*kv.NodeRecord) {})).To(BeEmpty(), "2 is the newer one")
	g.Expect(record(2, func(m *kv.NodeRecord) { m.SupersededBy = 3 })).To(Equal(told("b", two, three)))
	g.Expect(record(2, func(m *kv.NodeRecord) { m.SupersededBy, m.Released = 3, 1 })).To(BeEmpty())
	g.Expect(record(3, func(m *kv.NodeRecord) { m.Released = 1 })).To(Equal(told("b", three, "<none>")))
	g.Expect(record(3, func(m *kv.NodeRecord) { m.Released = 1; m.IpAddresses = []string{"192.168.16.3/24"} })).To(BeEmpty())
	g.Expect(n.GetAllNodes()).To(BeEmpty())
	byChanges := fmt.Sprint(n.GetAllNodes())
	n.resync()
	g.Expect(fmt.Sprint(n.GetAllNodes())).To(Equal(byChanges))
	g.Expect(n.object("b", "10.1.2.0/24")).To(Equal(told("b", "<none>", "ID=0 name=b vpp=[] mgmt=[] podCIDRs=[10.1.2.0/24]")))
}

// What commits when the loop hears of its ID.
func TestTheLoopIsToldOfItsID(t *testing.T) {
	g := NewWithT(t)
	n := newNeighbourhood(t)
	tx := &txn{}
	g.Expect(n.Update(&nodesync.NodeIDChange{Problem: "taken"}, tx)).To(Equal("nothing new is allocated"))
	g.Expect(n.Update(&nodesync.NodeIDChange{}, tx)).To(Equal("allocation goes on"))
	g.Expect(tx.followUps).To(BeEmpty())
	g.Expect(n.Revert(&nodesync.NodeIDChange{})).To(Succeed())
}

func TestEvents(t *testing.T) {
	held := nodesync.Held{ID: 3, Generation: 7}
	for name, ev := range map[string]controller.UpdateEvent{
		"Node Update": &nodesync.NodeUpdate{NodeName: "b", NewState: &nodesync.Node{ID: 2, Name: "b"}}, "Node ID Change": &nodesync.NodeIDChange{Held: held, Problem: "taken"},
	} {
		g := NewWithT(t)
		g.Expect(ev.GetName()).To(Equal(name))
		g.Expect(ev.Method()).To(Equal(controller.Update))
		g.Expect(ev.TransactionType()).To(Equal(controller.BestEffort))
		g.Expect(ev.Direction()).To(Equal(controller.Forward))
		g.Expect(ev.IsBlocking()).To(BeFalse())
		g.Expect(ev.String()).To(And(HavePrefix(name), Not(ContainSubstring("%!"))))
		g.Expect(func() { ev.Done(nil) }).NotTo(Panic())
	}
	g := NewWithT(t)
	g.Expect((&nodesync.NodeIDChange{Held: held, Problem: "taken"}).String()).To(And(ContainSubstring("node ID: 3, generation 7"), ContainSubstring("nothing new is allocated: taken")))
	g.Expect((&nodesync.NodeIDChange{Held: held}).String()).To(ContainSubstring("it is this node's"))
}
