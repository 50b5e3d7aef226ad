// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/controller"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/plugins/kubestate"
	"github.com/cadastre/cadastre/witness"
	"github.com/cadastre/cadastre/witness/cluster"
)

const node = "node-a"

func connected() kubestate.Status {
	return kubestate.Status{Connected: true, From: kubestate.FromRemote}
}

func pod(name string, change func(*kv.Pod)) *kv.Pod {
	p := &kv.Pod{Namespace: "default", Name: name, Uid: "uid-" + name, Node: node, Phase: "Running", IpAddresses: []string{"10.1.5.7"}}
	if change != nil {
		change(p)
	}
	return p
}

func podKey(name string) string { return kv.PodKey(node, kv.PodID{Namespace: "default", Name: name}) }

// state returns a state with this node's Node, another one, and pods.
func state(pods ...*kv.Pod) controller.KubeStateData {
	s := controller.KubeStateData{kubestate.Pods: {}, kubestate.Nodes: {
		kv.NodeKey(node):     &kv.Node{Name: node, Addresses: []string{"192.168.16.5"}, PodCidrs: []string{"10.1.5.0/24"}},
		kv.NodeKey("node-b"): &kv.Node{Name: "node-b"},
	}}
	for _, p := range pods {
		s[kubestate.Pods][podKey(p.Name)] = p
	}
	return s
}

func resync(g Gomega, r *cluster.Reader, ev controller.Event, s controller.KubeStateData) {
	g.Expect(r.HandlesEvent(ev)).To(BeTrue())
	g.Expect(r.Resync(ev, s, 1, nil)).To(Succeed())
}

func update(g Gomega, r *cluster.Reader, ev *controller.KubeStateChange) {
	g.Expect(r.HandlesEvent(ev)).To(BeTrue())
	_, err := r.Update(ev, nil)
	g.Expect(err).NotTo(HaveOccurred())
}

func TestTheViewHoldsPodsAndNodes(t *testing.T) {
	g := NewWithT(t)
	r := cluster.New(cluster.Options{Node: node, Status: connected})
	resync(g, r, &controller.DBResync{Revision: 3}, state(
		pod("web", nil),
		pod("host", func(p *kv.Pod) { p.HostNetwork = true }),
		pod("job", func(p *kv.Pod) { p.Phase = "Succeeded"; p.IpAddresses = []string{"10.1.5.8", "fd00::8"} }),
		pod("elsewhere", func(p *kv.Pod) { p.Node = "node-b" }),
	))
	v, err := r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Revision).To(Equal(int64(3)))
	g.Expect(v.Pods).To(HaveLen(3))
	g.Expect(*v.Pod("default", "job")).To(Equal(witness.ClusterPod{
		Namespace: "default", Name: "job", UID: "uid-job", Finished: true,
		Addrs: []netip.Addr{netip.MustParseAddr("10.1.5.8"), netip.MustParseAddr("fd00::8")},
	}))
	g.Expect(v.Pod("default", "host").HostNet).To(BeTrue())
	g.Expect(v.Pod("default", "web").Finished).To(BeFalse())
	g.Expect(v.Nodes).To(HaveExactElements(
		witness.ClusterNode{Name: node, Addrs: []netip.Addr{netip.MustParseAddr("192.168.16.5")}, Pods: []netip.Prefix{netip.MustParsePrefix("10.1.5.0/24")}},
		witness.ClusterNode{Name: "node-b"},
	))

	update(g, r, &controller.KubeStateChange{Key: podKey("web"), Resource: kubestate.Pods, Revision: 4})
	update(g, r, &controller.KubeStateChange{Key: kv.NodeKey("node-c"), Resource: kubestate.Nodes, New: &kv.Node{Name: "node-c"}, Revision: 5})
	later, err := r.Read(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(later.Revision).To(Equal(int64(5)))
	g.Expect(later.Pod("default", "web")).To(BeNil())
	g.Expect(later.Nodes).To(HaveLen(3))
	g.Expect(v.Pod("default", "web")).NotTo(BeNil(), "a view does not change")
}

func TestTheWitnessIsMissing(t *testing.T) {
	for name, c := range map[string]struct {
		status kubestate.Status
		event  *controller.DBResync
		state  controller.KubeStateData
		want   string
	}{
		"before the first resync":          {status: connected(), want: "not been read yet"},
		"the store has never answered":     {status: kubestate.Status{Error: "list the store: refused"}, want: "refused"},
		"the store does not answer":        {kubestate.Status{Error: "probe: refused", From: kubestate.FromRemote}, &controller.DBResync{}, state(), "refused"},
		"the state is from the mirror":     {kubestate.Status{From: kubestate.FromMirror}, &controller.DBResync{Local: true}, state(), "mirror"},
		"the loop still has the mirror":    {connected(), &controller.DBResync{Local: true}, state(), "mirror"},
		"a pod cannot be read":             {kubestate.Status{Connected: true, Hidden: []string{podKey("x")}}, &controller.DBResync{}, state(), podKey("x")},
		"the cluster does not have a Node": {connected(), &controller.DBResync{}, controller.KubeStateData{kubestate.Nodes: {kv.NodeKey("b"): &kv.Node{Name: "b"}}}, "no Node \"node-a\""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			r := cluster.New(cluster.Options{Node: node, Status: func() kubestate.Status { return c.status }})
			if c.event != nil {
				resync(g, r, c.event, c.state)
			}
			v, err := r.Read(t.Context())
			g.Expect(err).To(MatchError(ContainSubstring(c.want)))
			g.Expect(v).To(BeNil())
			g.Expect(witness.ReportOf(witness.Cluster, err).State).To(Equal(witness.Missing))
		})
	}
}

func TestTheWitnessDoesNotApply(t *testing.T) {
	g := NewWithT(t)
	embedded := cluster.New(cluster.Options{Node: node, Embedded: true})
	_, err := embedded.Read(t.Context())
	g.Expect(errors.Is(err, witness.ErrNotApplicable)).To(BeTrue())

	r := cluster.New(cluster.Options{Node: node, Status: connected})
	resync(g, r, &controller.DBResync{}, controller.KubeStateData{})
	_, err = r.Read(t.Context())
	g.Expect(errors.Is(err, witness.ErrNotApplicable)).To(BeTrue())
}

// TestHealingDoesNotMakeAMirrorTheStore: a later resync of the loop repeats what the
// loop has.
func TestHealingDoesNotMakeAMirrorTheStore(t *testing.T) {
	g := NewWithT(t)
	r := cluster.New(cluster.Options{Node: node, Status: connected})
	resync(g, r, &controller.DBResync{Local: true, Revision: 9}, state())
	resync(g, r, &controller.HealingResync{}, state())
	_, err := r.Read(t.Context())
	g.Expect(err).To(MatchError(ContainSubstring("mirror")))
}

// TestUpdatesEndWhereAResyncEnds compares a reader that follows random changes with a
// plain map.
func TestUpdatesEndWhereAResyncEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		r := cluster.New(cluster.Options{Node: node, Status: connected})
		want := map[string]*kv.Pod{}
		resync(g, r, &controller.DBResync{}, state())
		for i := range rapid.IntRange(0, 200).Draw(t, "steps") {
			name := fmt.Sprint("pod-", rapid.IntRange(0, 40).Draw(t, "pod"))
			ev := &controller.KubeStateChange{Key: podKey(name), Resource: kubestate.Pods, Revision: int64(i)}
			if delete(want, name); rapid.Bool().Draw(t, "is there") {
				want[name] = pod(name, func(p *kv.Pod) { p.Uid = fmt.Sprint(i) })
				ev.New = want[name]
			}
			update(g, r, ev)
			if rapid.IntRange(0, 20).Draw(t, "heals") == 0 {
				all := state()
				for name, p := range want {
					all[kubestate.Pods][podKey(name)] = p
				}
				resync(g, r, &controller.HealingResync{}, all)
			}
		}
		v, err := r.Read(context.Background())
		g.Expect(err).NotTo(HaveOccurred())
		got := map[string]string{}
		for _, p := range v.Pods {
			got[p.Name] = p.UID
		}
		g.Expect(got).To(HaveLen(len(want)))
		for name, p := range want {
			g.Expect(got).To(HaveKeyWithValue(name, p.Uid))
		}
	})
}

// TestTheStoreIsRemovedMidway: a view is of a store that answers. The reader follows a
// real etcd through the agent's own source and event loop.
func TestTheStoreIsRemovedMidway(t *testing.T) {
	g := NewWithT(t)
	server := etcdtest.Start(t)
	store, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint()}, Prefix: "/cadastre/", Log: slog.New(slog.DiscardHandler)})
	g.Expect(err).NotTo(HaveOccurred())
	defer store.Close()
	put := func(key string, m proto.Message) {
		value, err := proto.Marshal(m)
		g.Expect(err).NotTo(HaveOccurred())
		_, err = store.Txn(t.Context(), nil, []kvdb.Op{kvdb.Put(key, value)})
		g.Expect(err).NotTo(HaveOccurred())
	}
	put(kv.NodeKey(node), &kv.Node{Name: node})
	put(podKey("web"), pod("web", nil))

	loop := controller.New(controller.DefaultConfig(), controller.Deps{Log: slog.New(slog.DiscardHandler), Sink: &controller.MemorySink{}})
	source := kubestate.New(kubestate.Deps{
		Log: slog.New(slog.DiscardHandler), Node: node, Store: store, EventLoop: loop,
		Timing: kubestate.Timing{Probe: 50e6, RetryIn: 20e6, RetryLimit: 50e6},
	})
	r := cluster.New(cluster.Options{Node: node, Status: source.Status})
	loop.AddHandlers(r)
	g.Expect(loop.Init()).To(Succeed())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- loop.Run(ctx) }()
	go func() { ended <- source.Run(ctx) }()
	defer func() { stop(); <-ended; <-ended }()

	pods := func() (names []string, err error) {
		v, err := r.Read(ctx)
		if err == nil {
			for _, p := range v.Pods {
				names = append(names, p.Name)
			}
		}
		return names, err
	}
	g.Eventually(pods, "30s").Should(Equal([]string{"web"}))
	g.Expect(server.Stop()).To(Succeed())
	g.Eventually(func() error { _, err := pods(); return err }, "30s").Should(MatchError(ContainSubstring("does not answer")))
	g.Expect(server.Restart()).To(Succeed())
	g.Eventually(pods, "60s").Should(Equal([]string{"web"}))
	put(podKey("db"), pod("db", nil))
	g.Eventually(pods, "30s").Should(Equal([]string{"db", "web"}))

	_, err = store.Txn(ctx, nil, []kvdb.Op{kvdb.Put(podKey("db"), []byte{0xff})})
	g.Expect(err).NotTo(HaveOccurred())
	g.Eventually(func() error { _, err := pods(); return err }, "30s").Should(MatchError(ContainSubstring(podKey("db"))))
	put(podKey("db"), pod("db", nil))
	g.Eventually(pods, "30s").Should(Equal([]string{"db", "web"}))
}

func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{10, 250, 5000} {
		b.Run(fmt.Sprint(n, " pods"), func(b *testing.B) {
			g := NewWithT(b)
			var pods []*kv.Pod
			for i := range n {
				pods = append(pods, pod(fmt.Sprint(i), nil))
			}
			r := cluster.New(cluster.Options{Node: node, Status: connected})
			resync(g, r, &controller.DBResync{}, state(pods...))
			ev := &controller.KubeStateChange{Key: podKey("1"), Resource: kubestate.Pods, New: pods[1]}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.Update(ev, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	g := NewWithT(b)
	var pods []*kv.Pod
	for i := range 250 {
		pods = append(pods, pod(fmt.Sprint(i), nil))
	}
	r := cluster.New(cluster.Options{Node: node, Status: connected})
	resync(g, r, &controller.DBResync{}, state(pods...))
	for b.Loop() {
		if _, err := r.Read(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
