// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"

	"github.com/cadastre/cadastre/operator/blocks"
)

// cluster is a server with a running allocator, in a bubble of simulated time.
type cluster struct {
	*server
	t         *testing.T
	allocator *Allocator
	events    *recorder
	stop      chan struct{}
	ended     chan struct{}
}

// start runs an allocator, as a program would, with client-go's informers.
func start(t *testing.T, s *server, settings Settings, change ...func(*Deps)) *cluster {
	t.Helper()
	client := s.clientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	c := &cluster{server: s, t: t, events: &recorder{}, stop: make(chan struct{}), ended: make(chan struct{})}
	deps := Deps{Client: client, Nodes: factory.Core().V1().Nodes(), Events: c.events, Log: quiet()}
	for _, f := range change {
		f(&deps)
	}
	a, err := NewAllocator(deps, settings)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	c.allocator = a
	factory.Start(c.stop)
	go func() {
		defer close(c.ended)
		a.Run(c.stop)
		factory.Shutdown()
	}()
	return c
}

func (c *cluster) end() {
	close(c.stop)
	<-c.ended
}

// pass lets time go by.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// held returns the blocks that the allocator has recorded.
func (c *cluster) held() map[string][]string {
	return (&bench{Allocator: c.allocator}).held()
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		s.put("before", with("10.0.3.0/24"))
		s.put("bad", with("192.168.0.0/24"))
		s.put("unnumbered")
		c := start(t, s, ranges("10.0.0.0/16 24", "fd00::/48 64"))
		defer c.end()
		pass(time.Second)
		g.Expect(s.cidrs()["unnumbered"]).To(Equal([]string{"10.0.0.0/24", "fd00::/64"}))
		g.Expect(c.events.of(ReasonOutOfRange)).To(HaveLen(1))
		g.Expect(c.allocator.Status().Leading).To(BeTrue())
		s.put("later")
		pass(time.Second)
		g.Expect(s.cidrs()["later"]).To(HaveLen(2))
		s.remove("later")
		s.remove("bad")
		pass(time.Second)
		g.Expect(c.held()).To(Equal(map[string][]string{"before": {"10.0.3.0/24"}, "unnumbered": {"10.0.0.0/24", "fd00::/64"}}))
		g.Expect(c.allocator.Status().Problems).To(BeEmpty())
		s.put("again")
		pass(time.Second)
		s.remove("again")
		s.put("again")
		pass(time.Second)
		g.Expect(s.cidrs()["again"]).To(HaveLen(2))
		g.Expect(c.held()).To(Equal(s.cidrs()))
	})
}

func TestRunWaitsForTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		s.put("a")
		var down atomic.Bool
		down.Store(true)
		s.fault = func(call) fault {
			if down.Load() {
				return fail
			}
			return none
		}
		settings := ranges("10.0.0.0/16 24")
		settings.MaxRetry = 10 * time.Second
		c := start(t, s, settings)
		defer c.end()
		pass(time.Hour)
		g.Expect(s.cidrs()["a"]).To(BeEmpty())
		down.Store(false)
		pass(2 * time.Minute)
		g.Expect(s.cidrs()["a"]).To(HaveLen(1))
		down.Store(true)
		s.put("b")
		s.remove("a")
		pass(time.Hour)
		g.Expect(c.held()).To(HaveKey("a"), "the API server could not be asked whether it is gone")
		down.Store(false)
		pass(2 * time.Minute)
		g.Expect(c.held()).To(Equal(s.cidrs()))
		g.Expect(s.cidrs()["b"]).To(HaveLen(1))
	})
}

func TestRunEndsWhenItIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.fault = func(call) fault { return fail }
		c := start(t, s, ranges("10.0.0.0/16 24"))
		pass(time.Minute)
		c.end()
	})
}

func TestWaitingNodesAreServedWhenBlocksHaveCooled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		settings := ranges("10.0.0.0/24 24")
		settings.MaxRetry = time.Hour
		settings.Policy.CoolDown = time.Minute
		s.put("a")
		c := start(t, s, settings)
		defer c.end()
		pass(time.Second)
		s.remove("a")
		pass(time.Second)
		s.put("b")
		pass(57 * time.Second)
		g.Expect(s.cidrs()["b"]).To(BeEmpty())
		pass(2 * time.Second)
		g.Expect(s.cidrs()["b"]).To(HaveLen(1))
	})
}

func TestWaitingNodesAreServedAtOnceWhenThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		settings := ranges("10.0.0.0/24 24")
		settings.FirstRetry, settings.MaxRetry, settings.Audit = time.Hour, time.Hour, time.Hour
		c := start(t, s, settings)
		defer c.end()
		for _, name := range []string{"a", "b", "c"} {
			s.put(name)
			pass(time.Second)
		}
		s.remove("a")
		pass(time.Second)
		g.Expect(s.cidrs()).To(Or(
			Equal(map[string][]string{"b": {"10.0.0.0/24"}, "c": nil}), Equal(map[string][]string{"c": {"10.0.0.0/24"}, "b": nil})))
		g.Expect(c.allocator.AddRange(blocks.Range{Prefix: pfx("10.1.0.0/24"), Bits: 24})).To(Succeed())
		pass(time.Second)
		g.Expect(s.cidrs()).To(And(HaveKeyWithValue("b", HaveLen(1)), HaveKeyWithValue("c", HaveLen(1))))
		g.Expect(c.events.of(ReasonNotAvailable)).To(HaveLen(1))
	})
}

// fenced is a fence that tests can tear down.
type fenced struct{ deposed atomic.Bool }

func (*fenced) Term() string { return "term" }
func (f *fenced) Check(context.Context) error {
	if f.deposed.Load() {
		return fmt.Errorf("test: %w", ErrDeposed)
	}
	return nil
}

func TestADeposedLeaderStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		f := &fenced{}
		c := start(t, s, ranges("10.0.0.0/16 24"), func(d *Deps) { d.Fence = f })
		s.put("a")
		pass(time.Second)
		g.Expect(s.cidrs()["a"]).To(HaveLen(1))
		f.deposed.Store(true)
		s.put("b")
		<-ended(c)
		g.Expect(s.cidrs()["b"]).To(BeEmpty())
		g.Expect(c.allocator.Status().Leading).To(BeFalse())
		g.Expect(c.allocator.RunContext(t.Context())).To(MatchError(ErrDeposed))
		close(c.stop)
		<-c.ended
	})
}

// ended is closed when Run has returned by itself.
func ended(c *cluster) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for c.allocator.running.Load() {
			time.Sleep(time.Second)
		}
	}()
	return done
}

// Heartbeats of kubelets are most of what a watch of nodes delivers.
func TestHeartbeatsAreNoWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		s.put("a")
		s.put("waits")
		settings := ranges("10.0.0.0/24 24")
		settings.FirstRetry, settings.MaxRetry = time.Hour, time.Hour
		c := start(t, s, settings)
		defer c.end()
		pass(time.Second)
		calls := s.calls
		for i := range 50 {
			for _, name := range []string{"a", "waits"} {
				s.edit(name, func(n *v1.Node) {
					n.Status.Conditions = append(n.Status.Conditions[:0:0], v1.NodeCondition{Type: v1.NodeReady,
						LastHeartbeatTime: metav1.NewTime(time.Now().Add(time.Duration(i)))})
				})
			}
			pass(time.Millisecond)
		}
		g.Expect(s.calls).To(Equal(calls))
	})
}

func TestManyNodes(t *testing.T) {
	const n = 90 // the fake watch has room for a hundred events
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		s := newServer()
		for i := range n / 2 {
			s.put(fmt.Sprint("old", i))
		}
		c := start(t, s, ranges("10.0.0.0/16 24", "fd00::/32 64"))
		defer c.end()
		pass(time.Second)
		for i := range n / 2 {
			s.put(fmt.Sprint("new", i))
			synctest.Wait()
		}
		pass(time.Second)
		s.mu.Lock()
		defer s.mu.Unlock()
		g.Expect(s.overlaps()).To(Succeed())
		for name, node := range s.nodes {
			g.Expect(node.Spec.PodCIDRs).To(HaveLen(2), name)
			g.Expect(node.Spec.PodCIDR).To(Equal(node.Spec.PodCIDRs[0]))
		}
	})
}

func ipNet(t testing.TB, text string) *net.IPNet {
	t.Helper()
	_, n, err := net.ParseCIDR(text)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return n
}

func TestPublishedConstructors(t *testing.T) {
	g := NewWithT(t)
	s := newServer()
	client := s.clientset()
	nodes := informers.NewSharedInformerFactory(client, 0).Core().V1().Nodes()
	cluster, service := ipNet(t, "10.0.0.0/16"), ipNet(t, "10.0.0.0/20")

	a, err := New(client, nil, nodes, RangeAllocatorType, cluster, service, 24)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(a.AllocateOrOccupyCIDR(s.put("a"))).To(Succeed())
	g.Expect(s.cidrs()["a"]).To(Equal([]string{"10.0.16.0/24"}))

	list := &v1.NodeList{Items: []v1.Node{*s.node("a")}}
	s.put("unseen", with("10.0.17.0/24")) // made after the list
	b, err := NewCIDRRangeAllocator(client, nodes, cluster, service, 24, list)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(b.AllocateOrOccupyCIDR(s.node("unseen"))).To(Succeed())
	g.Expect(b.AllocateOrOccupyCIDR(s.put("b"))).To(Succeed())
	g.Expect(s.cidrs()["b"]).To(Equal([]string{"10.0.18.0/24"}))
	_, err = NewCIDRRangeAllocator(client, nodes, cluster, nil, 24, nil)
	g.Expect(err).NotTo(HaveOccurred())

	for what, err := range map[string]error{
		"no cluster CIDR":  second(New(client, nil, nodes, RangeAllocatorType, nil, nil, 24)),
		"small cluster":    second(New(client, nil, nodes, RangeAllocatorType, ipNet(t, "10.0.0.0/26"), nil, 24)),
		"small, directly":  second(NewCIDRRangeAllocator(client, nodes, ipNet(t, "10.0.0.0/26"), nil, 24, nil)),
		"nothing directly": second(NewCIDRRangeAllocator(client, nodes, nil, nil, 24, nil)),
		"no cloud":         second(NewCloudCIDRAllocator(client, nil, nodes)),
		"no type":          second(New(client, nil, nodes, "", cluster, nil, 24)),
		"other type":       second(New(client, nil, nodes, "other", cluster, nil, 24)),
		"all is service":   second(New(client, nil, nodes, RangeAllocatorType, cluster, ipNet(t, "10.0.0.0/8"), 24)),
		"bad mask":         second(New(client, nil, nodes, RangeAllocatorType, &net.IPNet{IP: net.IP{10, 0, 0, 0}, Mask: net.IPMask{255, 0, 255, 0}}, nil, 24)),
	} {
		g.Expect(err).To(HaveOccurred(), what)
	}
}

func second(_ CIDRAllocator, err error) error { return err }

func TestPrefixes(t *testing.T) {
	g := NewWithT(t)
	for text, want := range map[string]string{
		"10.0.0.1/8": "10.0.0.0/8", "0.0.0.0/0": "0.0.0.0/0", "::/0": "::/0", "fd00::1/64": "fd00::/64", "::ffff:10.0.0.0/104": "10.0.0.0/8",
		"::ffff:10.1.2.3/128": "10.1.2.3/32",
	} {
		g.Expect(prefixOf(ipNet(t, text))).To(Equal(pfx(want)), text)
	}
	g.Expect(prefixOf(&net.IPNet{IP: net.IPv4(10, 0, 0, 0), Mask: net.CIDRMask(8, 32)})).To(Equal(pfx("10.0.0.0/8")), "16 bytes, with 32 bits of mask")
	for _, bad := range []*net.IPNet{{}, {IP: net.IP{1, 2, 3}, Mask: net.CIDRMask(8, 32)}, {IP: net.IP{1, 2, 3, 4}, Mask: net.CIDRMask(8, 128)}} {
		_, err := prefixOf(bad)
		g.Expect(err).To(HaveOccurred())
	}
}

func TestNamesAreLockedOneByOne(t *testing.T) {
	g := NewWithT(t)
	var n nameLocks
	unlock := n.lock("a")
	n.lock("b")() // another name does not wait
	unlock()

	var inside, collisions atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 200 {
				unlock := n.lock("a")
				if inside.Add(1) > 1 {
					collisions.Add(1)
				}
				runtime.Gosched()
				inside.Add(-1)
				unlock()
			}
		})
	}
	group.Wait()
	g.Expect(collisions.Load()).To(BeZero())
	g.Expect(n.locks).To(BeEmpty())
}

func TestEventsThatMatter(t *testing.T) {
	g := NewWithT(t)
	old := newServer().put("a")
	for what, x := range map[string]struct {
		change func(*v1.Node)
		want   bool
	}{
		"nothing":      {func(*v1.Node) {}, false},
		"heartbeat":    {func(n *v1.Node) { n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady}} }, false},
		"made again":   {func(n *v1.Node) { n.UID = "other" }, true},
		"podCIDRs":     {func(n *v1.Node) { n.Spec.PodCIDRs = []string{"10.0.0.0/24"} }, true},
		"going":        {func(n *v1.Node) { n.DeletionTimestamp = &metav1.Time{} }, true},
		"provider ID":  {func(n *v1.Node) { n.Spec.ProviderID = "mem://1" }, true},
		"another size": {func(n *v1.Node) { n.Labels = map[string]string{SizeIPv4: "25"} }, true},
		"no route": {func(n *v1.Node) {
			n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionTrue}}
		}, true},
	} {
		node := old.DeepCopy()
		x.change(node)
		g.Expect(relevant(old, node)).To(Equal(x.want), what)
	}
}
