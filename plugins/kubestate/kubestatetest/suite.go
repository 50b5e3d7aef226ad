// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package kubestatetest is the suite of tests for kubestate.Source. It runs for each
// kind of cluster: one with a kvdb that a reflector fills, and one whose store is
// Kubernetes' API server.
//
// Run opens a World for each case and closes it. The case changes objects by the
// World's methods and checks the events that an event loop receives. Each change must
// fit the earlier events, be newer than the snapshot before it, and come once. In the
// end the loop must know exactly the objects of this node and those that all nodes
// share. Nothing else may change the World meanwhile.
package kubestatetest

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate"
)

// World is a cluster. A Put creates or changes an object; one that was deleted before
// gets another UID. Pods are in namespace "default". Deleting a missing object is not an
// error. Each method returns when its change is visible.
type World interface {
	Store() kvdb.Store // as thisNode has it; until Close
	PutNode(name, podCIDR string)
	DeleteNode(name string)
	PutPod(node, name, ip string)
	DeletePod(node, name string)
	PutNetwork(name, cidr string)
	DeleteNetwork(name string)
	PutNodeConfig(node, gateway string)
	DeleteNodeConfig(node string)
	Cut()            // the Store is out of reach, until Heal
	Heal()           // it is not
	BreakWatches()   // those of the Store
	CompactWatches() // they end, because their next revision is compacted
	// Backup saves all objects. The returned function restores them; the store's
	// counter then continues or goes back. It returns nil if the world cannot do that.
	Backup() (restore func())
	Close()
}

// The nodes of the suite.
const (
	thisNode  = "node-a"
	otherNode = "node-b"
)

// patience limits the time that a change takes to arrive.
const patience = 30 * time.Second

// Run tests a Source over each World.
func Run(t *testing.T, open func(t *testing.T) World) {
	t.Helper()
	for title, f := range cases() {
		t.Run(title, func(t *testing.T) {
			x := newHarness(t, open(t))
			defer x.end()
			f(x)
		})
	}
}

// harness holds a Source of a World.
type harness struct {
	Gomega
	t      *testing.T
	world  World
	want   map[string]string // what a loop should know of objects that this node does not write
	pools  map[string]string // and of those that it writes
	mirror *mirror
	keep   []string // pools that there must be
	count  int      // of generations

	loop   *loop
	source *kubestate.Source
	stop   context.CancelFunc
	ended  chan error
}

func newHarness(t *testing.T, w World) *harness {
	return &harness{
		Gomega: NewWithT(t),
		t:      t,
		world:  w,
		want:   map[string]string{},
		pools:  map[string]string{},
		mirror: &mirror{},
	}
}

// run starts a Source with a new loop, as a new process has them.
func (x *harness) run() {
	ctx, stop := context.WithCancel(context.Background())
	x.loop, x.stop, x.ended = &loop{}, stop, make(chan error, 2)
	source := kubestate.New(kubestate.Deps{
		Log: slog.New(
			slog.DiscardHandler,
		),
		Node:      thisNode,
		Store:     x.world.Store(),
		EventLoop: x.loop,
		Mirror:    x.mirror,
		Repair:    x.repair,
		Timing: kubestate.Timing{
			RetryIn:    10 * time.Millisecond,
			RetryLimit: 100 * time.Millisecond,
			DelayLocal: 50 * time.Millisecond,
		},
	})
	x.source = source
	var work sync.WaitGroup
	for _, f := range []func(context.Context) error{source.Run, source.StartLocal} {
		work.Go(func() { x.ended <- f(ctx) })
	}
}

// halt ends the Source; the world goes on.
func (x *harness) halt() {
	x.stop()
	for range cap(x.ended) {
		x.Expect(<-x.ended).To(Succeed())
	}
	x.stop = nil
	x.noFaults()
}

func (x *harness) end() {
	if x.stop != nil {
		x.halt()
	}
	x.world.Close()
}

func (x *harness) noFaults() {
	_, faults := x.loop.seen()
	x.ExpectWithOffset(2, faults).To(BeEmpty())
}

// comes waits until the loop knows exactly the objects of the world.
func (x *harness) comes() {
	x.t.Helper()
	want := maps.Clone(x.want)
	maps.Copy(want, x.pools)
	x.Eventually(func() map[string]string {
		state, _ := x.loop.seen()
		return state
	}, patience, 5*time.Millisecond).Should(Equal(want))
	x.noFaults()
}

// repair is a kubestate.Repair of pools: those that were known, and those in keep.
func (x *harness) repair(known, found controller.KubeStateData, _ []string) (all []kubestate.Write) {
	lacking := map[string]*kv.Pool{}
	for _, name := range x.keep {
		lacking[kv.PoolKey(name)] = &kv.Pool{Name: name, Network: "default", Generation: 1}
	}
	for key, m := range known[kubestate.Pools] {
		lacking[key] = m.(*kv.Pool)
	}
	for key, m := range lacking {
		if have, _ := found[kubestate.Pools][key].(*kv.Pool); have.GetGeneration() < m.Generation {
			all = append(all, kubestate.Write{Key: key, Message: m})
		}
	}
	return all
}

// Changes of the world, and the state that a loop should reach.

func (x *harness) node(name, cidr string) {
	x.world.PutNode(name, cidr)
	x.wants(name == thisNode, kubestate.Nodes, kv.NodeKey(name), cidr)
}

func (x *harness) noNode(name string) {
	x.world.DeleteNode(name)
	x.wants(name == thisNode, kubestate.Nodes, kv.NodeKey(name), "")
}

func (x *harness) pod(node, name, ip string) {
	x.world.PutPod(node, name, ip)
	x.wants(node == thisNode, kubestate.Pods, podKey(name), ip)
}

func (x *harness) noPod(node, name string) {
	x.world.DeletePod(node, name)
	x.wants(node == thisNode, kubestate.Pods, podKey(name), "")
}

func (x *harness) network(name, cidr string) {
	x.world.PutNetwork(name, cidr)
	x.wants(true, kubestate.CustomNetworks, kv.CustomNetworkKey(name), cidr)
}

func (x *harness) noNetwork(name string) {
	x.world.DeleteNetwork(name)
	x.wants(true, kubestate.CustomNetworks, kv.CustomNetworkKey(name), "")
}

func (x *harness) config(node, gateway string) {
	x.world.PutNodeConfig(node, gateway)
	x.wants(node == thisNode, kubestate.NodeConfigs, kv.NodeConfigKey(node), gateway)
}

func (x *harness) noConfig(node string) {
	x.world.DeleteNodeConfig(node)
	x.wants(node == thisNode, kubestate.NodeConfigs, kv.NodeConfigKey(node), "")
}

func podKey(name string) string {
	return kv.PodKey(thisNode, kv.PodID{Namespace: "default", Name: name})
}

func (x *harness) wants(here bool, resource, key, what string) {
	at := resource + " " + key
	if delete(x.want, at); here && what != "" {
		x.want[at] = what
	}
}

// pool writes a pool, as a node or an administrator does.
func (x *harness) pool(name string, generation int) {
	x.write(
		kvdb.Put(
			kv.PoolKey(name),
			marshal(x, &kv.Pool{Name: name, Network: "default", Generation: uint64(generation)}),
		),
	)
	x.pools[kubestate.Pools+" "+kv.PoolKey(name)] = fmt.Sprint(generation)
}

func (x *harness) record(id uint32, name string) {
	x.write(
		kvdb.Put(kv.NodeRecordKey(id), marshal(x, &kv.NodeRecord{Id: id, Name: name, Instance: "i", Generation: 1})),
	)
	x.pools[kubestate.NodeRecords+" "+kv.NodeRecordKey(id)] = name
}

func (x *harness) write(ops ...kvdb.Op) {
	_, err := x.world.Store().Txn(x.t.Context(), nil, ops)
	x.Expect(err).NotTo(HaveOccurred())
}

// change makes a random change.
func (x *harness) change(rnd *rand.Rand) {
	node, name, n := []string{thisNode, otherNode}[rnd.IntN(2)], fmt.Sprint("x", rnd.IntN(3)), rnd.IntN(250)+1
	switch rnd.IntN(9) {
	case 0, 1:
		x.pod(node, node+"-"+name, fmt.Sprintf("10.1.1.%d", n))
	case 2:
		x.noPod(node, node+"-"+name)
	case 3:
		x.network(name, fmt.Sprintf("10.%d.0.0/16", n))
	case 4:
		x.noNetwork(name)
	case 5:
		x.noNode(node)
		x.node(node, fmt.Sprintf("10.1.%d.0/24", n))
	case 6:
		x.noNode(node)
	case 7:
		x.config(node, fmt.Sprintf("192.168.16.%d", n))
	case 8:
		x.noConfig(node)
	}
}
