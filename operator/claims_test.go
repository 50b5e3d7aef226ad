// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/internal/testkit/attack"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/nodesync/claims"
)

// What agents with blocks from podCIDRs go by, and the operator of the manifests.
const (
	agentsRefresh = time.Minute
	agentsExpire  = 5 * time.Minute
	operatorsFlag = "--node-id-expire=6m"
)

// machine is a node with an agent, which allocates from its Node's podCIDR once
// it holds the claim.
type machine struct {
	s    *stand
	node claims.Node
	beat time.Time // the last one
	held netip.Prefix
	at   time.Time // since when
	stop context.CancelFunc
	done chan struct{}
}

// fleet is a cluster of machines; each new one gets the next node ID.
type fleet struct {
	*stand
	machines []*machine
}

// boot makes a Node object and starts its agent.
func (f *fleet) boot(name string) *machine {
	id := uint32(len(f.machines) + 1)
	m := &machine{s: f.stand, done: make(chan struct{}), node: claims.Node{Name: name, Instance: fmt.Sprint("disk-", id), ID: id, UID: fmt.Sprint("uid-", id)}}
	f.register(name, m.node.UID)
	f.write(kv.NodeRecordKey(id), &kv.NodeRecord{Id: id, Name: name, Instance: m.node.Instance, NodeUid: m.node.UID, ExplicitBlocks: true})
	f.machines = append(f.machines, m)
	var ctx context.Context
	ctx, m.stop = context.WithCancel(context.Background())
	go m.run(ctx)
	return m
}

// register makes a Node object with a UID.
func (s *stand) register(name, uid string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), CreationTimestamp: metav1.Now()}}
	s.next(n)
	s.Expect(s.tracker.Create(nodes(), n, "")).To(Succeed())
}

func (s *stand) deregister(name string) { s.Expect(s.tracker.Delete(nodes(), "", name)).To(Succeed()) }

func (s *stand) write(key string, m proto.Message) {
	value, err := proto.Marshal(m)
	s.Expect(err).NotTo(HaveOccurred())
	_, err = s.store.Txn(context.Background(), nil, []kvdb.Op{kvdb.Put(key, value)})
	s.Expect(err).NotTo(HaveOccurred())
}

func (s *stand) claims() claims.Register {
	return claims.Register{Store: s.store, Fresh: 3 * agentsRefresh, Expire: agentsExpire,
		Implied: func(*kv.NodeRecord, []*kv.Pool) []claims.Target { return nil }}
}

// run beats, and looks at its claim, as an agent does.
func (m *machine) run(ctx context.Context) {
	defer close(m.done)
	for {
		m.beat = time.Now()
		m.s.write(kv.BeatKey(m.node.ID), &kv.NodeBeat{Id: m.node.ID, Instance: m.node.Instance, At: m.beat.UnixNano()})
		for range agentsRefresh / time.Second {
			m.look()
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second):
			}
		}
	}
}

func (m *machine) look() {
	obj, err := m.s.tracker.Get(nodes(), "", m.node.Name)
	if err != nil {
		return
	}
	node := obj.(*corev1.Node)
	m.node.UID = string(node.UID)
	if len(node.Spec.PodCIDRs) == 0 {
		return
	}
	block := netip.MustParsePrefix(node.Spec.PodCIDRs[0])
	o, err := m.s.claims().Ask(context.Background(), m.node, claims.Block(block), time.Now())
	m.s.Expect(err).NotTo(HaveOccurred())
	if o.Held && m.held != block {
		m.held, m.at = block, time.Now()
	}
}

// die ends the agent without a word.
func (m *machine) die() {
	m.stop()
	<-m.done
}

// TestAnAutoscalerReplacesTenNodes of sixteen, in a network of sixteen blocks.
// The new ones wait until no agent of the old ones can allocate any more. They wait
// no longer than the expiry, a look of the operator and a retry of nodeipam.
func TestAnAutoscalerReplacesTenNodes(t *testing.T) {
	const all, replaced, waitAtMost = 16, 10, 6*time.Minute + 30*time.Second + 30*time.Second
	attack.Begin(t, attack.Autoscaler).Add(replaced)
	bubble(t, func(s *stand) {
		f := &fleet{stand: s}
		p := s.start("one", nil, "--allocate-node-cidrs", "--cluster-cidr=10.1.0.0/20", "--kvdb-endpoints=https://192.0.2.1:2379", "--controllers=nodeipam,nodeids", "--bind-address=", operatorsFlag)
		advance(5 * time.Second)
		for i := range all {
			f.boot(fmt.Sprint("old-", i))
			advance(time.Second)
		}
		advance(5 * time.Minute)
		blocks := map[netip.Prefix]*machine{}
		for _, m := range f.machines {
			s.Expect(m.held.IsValid()).To(BeTrue(), m.node.Name)
			blocks[m.held] = m
		}
		s.Expect(blocks).To(HaveLen(all), "all are taken")

		for _, m := range f.machines[:replaced] {
			m.die()
			s.deregister(m.node.Name)
		}
		gone := time.Now()
		for i := range replaced {
			f.boot(fmt.Sprint("new-", i))
			advance(time.Second)
		}
		advance(waitAtMost)
		for _, m := range f.machines[all:] {
			s.Expect(m.held.IsValid()).To(BeTrue(), "%s has %v, and waits still", m.node.Name, s.cidrs(m.node.Name))
			old := blocks[m.held]
			s.Expect(slices.Contains(f.machines[:replaced], old)).To(BeTrue(), "%s was of a live node", m.held)
			s.Expect(m.at).To(BeTemporally(">=", old.beat.Add(agentsExpire)), "the agent of %s may allocate from %s", old.node.Name, m.held)
			s.Expect(m.at.Sub(gone)).To(BeNumerically("<=", waitAtMost+replaced*time.Second))
			delete(blocks, m.held)
		}
		s.Expect(blocks).To(HaveLen(all-replaced), "each has one of its own")
		for _, m := range f.machines[replaced:] {
			m.die()
		}
		s.Expect(p.stop()).To(BeZero(), "%s", &p.log)
	})
}

// TestANodeObjectIsMadeAgainWhileItsPodsLive: a new node comes at the same moment
// and must not get the block, which the old one keeps.
func TestANodeObjectIsMadeAgainWhileItsPodsLive(t *testing.T) {
	bubble(t, func(s *stand) {
		f := &fleet{stand: s}
		p := s.start("one", nil, "--allocate-node-cidrs", "--cluster-cidr=10.1.76.0/23", "--kvdb-endpoints=https://192.0.2.1:2379", "--controllers=nodeipam,nodeids", "--bind-address=", operatorsFlag)
		advance(5 * time.Second)
		first, a := f.boot("first"), (*machine)(nil)
		advance(5 * time.Second)
		a = f.boot("a")
		advance(5 * time.Second)
		home := a.held
		s.Expect(home.String()).To(Equal("10.1.77.0/24"))

		s.deregister("a")
		b := f.boot("b")
		advance(time.Hour)
		s.Expect(s.cidrs("b")).To(BeEmpty(), "pods of a live in the only block that no Node object has")
		s.register("a", "another")
		advance(time.Minute)
		s.Expect(s.cidrs("a")).To(Equal([]string{home.String()}))
		a.die()
		s.deregister("a")
		advance(7 * time.Minute)
		s.Expect(b.held).To(Equal(home), "a is gone for good")
		first.die()
		b.die()
		s.Expect(p.stop()).To(BeZero(), "%s", &p.log)
	})
}
