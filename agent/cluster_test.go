// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/internal/testkit/cniclient"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/internal/testkit/logbuffer"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/contivconf"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// soon bounds what a slow machine may take.
const soon = 5 * time.Minute

// member is one agent of a cluster: its directories outlive its processes.
type member struct {
	g    Gomega
	name string
	dir  string
	conf string

	a     *assembly
	stop  context.CancelFunc
	ended chan error
	log   *logbuffer.Buffer
}

// clusterConf is a configuration with short times.
func clusterConf(endpoint string) string {
	return fmt.Sprintf(`
ipamConfig: {podSubnetCIDR: 10.1.0.0/16, podSubnetOneNodePrefixLen: 24}
cadastre:
  coolDown: 1s
  kvdb: {type: etcd, endpoints: [%q]}
  nodeIDs: {refresh: 300ms, fresh: 2s, expire: 1h, quarantine: 0s}
  controller: {delayLocalResync: 300ms, remoteDBProbingInterval: 300ms, delayAfterErrorHealing: 100ms}
`, endpoint)
}

func newMember(t *testing.T, name, endpoint string) *member {
	m := &member{g: NewWithT(t), name: name, dir: t.TempDir(), conf: clusterConf(endpoint)}
	t.Cleanup(func() {
		m.end()
		if t.Failed() && m.log != nil {
			t.Logf("log of %s:\n%s", m.name, m.log)
		}
	})
	return m
}

func (m *member) start() {
	conf, _, err := contivconf.Parse([]byte(m.conf))
	m.g.Expect(err).NotTo(HaveOccurred())
	m.log = &logbuffer.Buffer{}
	node := DefaultNode()
	node.Name, node.StateDir, node.RunDir = m.name, m.dir, filepath.Join(m.dir, "run")
	agent, err := New(conf, WithNode(node), WithLog(slog.New(slog.NewTextHandler(m.log, nil))))
	m.g.Expect(err).NotTo(HaveOccurred())
	ctx, stop := context.WithCancel(context.Background())
	m.a, err = agent.open(ctx)
	m.g.Expect(err).NotTo(HaveOccurred())
	m.stop, m.ended = stop, make(chan error, 1)
	go func() { m.ended <- m.a.serve(ctx, m.a.restapi.Serve) }()
}

// end stops the agent, if one runs.
func (m *member) end() {
	if m.stop == nil {
		return
	}
	m.stop()
	m.stop = nil
	m.g.Expect(<-m.ended).To(Succeed())
	m.g.Expect(m.a.close()).To(Succeed())
}

func (m *member) isReady() {
	m.g.Eventually(func() error { return m.a.ready() }, soon, 10*time.Millisecond).Should(Succeed(), m.name)
}

// follows waits until the agent has read the cluster store.
func (m *member) follows() {
	m.g.Eventually(func() bool { return m.a.source.Status().Connected }, soon, 10*time.Millisecond).Should(BeTrue(), m.name)
	m.isReady()
}

// ask sends a CNI request; the answer is an address, or an error.
func (m *member) ask(command, container string) string {
	reply, err := cniclient.Ask(context.Background(), cniclient.Through(m.a.restapi.Handler()), cni.Request{
		Command: command, Network: "pods", ContainerID: container, IfName: "eth0", Netns: "/run/netns/" + container,
		Pod: cni.Pod{Namespace: "default", Name: container},
	})
	switch {
	case err != nil:
		return "error: " + err.Error()
	case len(reply.IPs) > 0:
		return reply.IPs[0].Address
	}
	return ""
}

func (m *member) apply(file string) localapi.ApplyResult {
	r, err := m.a.clusterViews().Apply(context.Background(), []byte(file), false)
	m.g.Expect(err).NotTo(HaveOccurred())
	return r
}

func (m *member) subnet() string { return m.a.ipam.PodSubnetThisNode().String() }

// Leases and subnets outlive the loss of the cluster store and
// of all that was in it.
func TestAClusterThatLosesItsStore(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	members := []*member{newMember(t, "a", server.Endpoint()), newMember(t, "b", server.Endpoint()), newMember(t, "c", server.Endpoint())}
	subnets, pods := map[string]string{}, map[string]string{}
	for _, m := range members {
		m.start()
	}
	for _, m := range members {
		m.follows()
		subnets[m.name], pods[m.name] = m.subnet(), m.ask("ADD", "c1")
		g.Expect(pods[m.name]).To(HavePrefix("10.1."))
	}
	g.Expect(subnets).To(ConsistOf("10.1.1.0/24", "10.1.2.0/24", "10.1.3.0/24"))
	for _, m := range members { // each knows the way to the others
		g.Eventually(func() int {
			values, err := m.a.sink.Dump(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			return len(values)
		}, soon, 10*time.Millisecond).Should(Equal(1 + 1 + 2))
	}

	g.Expect(server.Stop()).To(Succeed())
	for _, m := range members {
		g.Eventually(func() bool { return m.a.source.Status().Connected }, soon, 10*time.Millisecond).Should(BeFalse())
		g.Expect(m.ask("ADD", "c2")).To(HavePrefix("10.1."), "allocation goes on without the store")
		m.end()
	}
	members[2].start() // from its mirror
	members[2].isReady()
	// The source says where the state came from after the loop has applied it, so it may follow readiness.
	g.Eventually(func() string { return members[2].a.source.Status().From }, soon, 10*time.Millisecond).Should(Equal("mirror"))
	g.Expect(members[2].subnet()).To(Equal(subnets["c"]))
	g.Expect(members[2].ask("ADD", "c1")).To(Equal(pods["c"]))

	g.Expect(server.Wipe()).To(Succeed())
	newcomer := newMember(t, "d", server.Endpoint())
	newcomer.start() // at once, while the store is empty: one that is alive knows all others
	newcomer.follows()
	g.Expect(newcomer.subnet()).To(Equal("10.1.4.0/24"))
	routes, err := members[2].a.sink.Dump(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(routes).To(And(HaveKey("route/"+subnets["a"]), HaveKey("route/"+subnets["b"])), "nodes that are not back yet have their routes")
	members[1].start()
	members[0].start()
	for _, m := range members {
		m.follows()
	}
	for _, m := range members {
		g.Expect(m.subnet()).To(Equal(subnets[m.name]))
		g.Expect(m.ask("ADD", "c1")).To(Equal(pods[m.name]))
		g.Expect(m.a.claimers.IDs.Problem()).To(BeEmpty())
	}
}

// A newcomer that is faster than the owner gets the ID that the wiped store has
// forgotten; the owner keeps serving, and allocates nothing new.
func TestAnOwnerThatIsTooLate(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	owner, newcomer := newMember(t, "owner", server.Endpoint()), newMember(t, "newcomer", server.Endpoint())
	owner.start()
	owner.follows()
	address := owner.ask("ADD", "c1")
	g.Expect(address).To(HavePrefix("10.1.1."))
	owner.end()
	g.Expect(server.Wipe()).To(Succeed())
	newcomer.start()
	newcomer.follows()
	g.Expect(newcomer.subnet()).To(Equal("10.1.1.0/24"))

	owner.start()
	g.Eventually(func() string { return owner.a.claimers.IDs.Problem() }, soon, 10*time.Millisecond).Should(ContainSubstring("newcomer"))
	g.Eventually(func() string { return owner.ask("ADD", "c1") }, soon, 10*time.Millisecond).Should(Equal(address), "existing leases are served")
	g.Expect(owner.ask("ADD", "c2")).To(ContainSubstring("allocates no new address: node ID 1"))
	g.Expect(owner.a.Status().NodeIDProblem).To(ContainSubstring("newcomer"))
	g.Expect(owner.log.String()).To(ContainSubstring("in doubt"))
	records, _ := owner.a.loop.Events(0)
	g.Expect(records).To(ContainElement(HaveField("Name", "Node ID Change")))

	g.Expect(owner.ask("DEL", "c1")).To(BeEmpty())
	g.Eventually(func() bool {
		return slices.ContainsFunc(owner.a.ledger.Stats(), func(b ledger.BlockStat) bool { return b.Held+b.Cooling+b.Quarantined > 0 })
	}, soon, 50*time.Millisecond).Should(BeFalse())
	owner.end()
	owner.start() // nothing depends on the lost ID any more: it gets another one
	owner.follows()
	g.Expect(owner.subnet()).To(Equal("10.1.2.0/24"))
}

const twoPools = `
pools:
- {name: default, state: draining}
- {name: more, ranges: [{cidr: 10.2.0.0/16, oneNodePrefixLen: 25}]}
`

// Pools change live: leases stay, new ones are of the new pool, and the
// change outlives the store.
func TestPoolsChangeLive(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	a, b := newMember(t, "a", server.Endpoint()), newMember(t, "b", server.Endpoint())
	a.start()
	a.follows()
	b.start()
	b.follows()
	old := b.ask("ADD", "old")
	g.Expect(old).To(HavePrefix("10.1.2."))
	g.Expect(a.apply(twoPools)).To(HaveField("Changes", 2))
	g.Eventually(func() string { return b.subnet() }, soon, 10*time.Millisecond).Should(Equal("10.2.1.0/25"))
	g.Expect(b.ask("ADD", "old")).To(Equal(old))
	g.Expect(b.ask("ADD", "new")).To(HavePrefix("10.2.1."))
	g.Expect(b.a.Status().ConfigProblem).To(ContainSubstring("contiv.conf"))

	removed := "pools: [{name: default, state: removed}]"
	g.Eventually(func() string { return a.apply(removed).Text }, soon, 10*time.Millisecond).Should(ContainSubstring("2 (b)  default  1"), "b has a lease of it")

	a.end()
	b.end()
	g.Expect(server.Wipe()).To(Succeed())
	a.start() // whose contiv.conf knows of the first pool only
	a.follows()
	g.Expect(a.subnet()).To(Equal("10.2.0.128/25"))
	b.start()
	b.follows()
	g.Expect(b.subnet()).To(Equal("10.2.1.0/25"))
	g.Expect(b.ask("ADD", "old")).To(Equal(old))

	g.Expect(b.ask("DEL", "old")).To(BeEmpty())
	g.Eventually(func() localapi.ApplyResult { return a.apply(removed) }, soon, 50*time.Millisecond).Should(HaveField("Refused", false))
}
