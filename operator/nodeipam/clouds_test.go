// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"

	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/nodeipam"
)

const (
	fromCluster nodeipam.CIDRAllocatorType = nodeipam.IPAMFromClusterAllocatorType
	fromCloud   nodeipam.CIDRAllocatorType = nodeipam.IPAMFromCloudAllocatorType
)

func pfx(text string) netip.Prefix { return netip.MustParsePrefix(text) }

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, pfx(t))
	}
	return all
}

// land is a cluster with a cloud.
type land struct {
	nodeipam.Bench
	cloud *memcloud.Cloud
	kind  nodeipam.CIDRAllocatorType
	made  int
}

func newLand(t testing.TB, kind nodeipam.CIDRAllocatorType, ranges ...string) *land {
	t.Helper()
	cloud := memcloud.New(memcloud.Config{})
	b := nodeipam.NewBench(t, nodeipam.RangesOf(kind, ranges...), func(d *nodeipam.Deps) { d.Cloud = cloud })
	return &land{Bench: b, cloud: cloud, kind: kind}
}

// come makes a machine and its node. If the cloud chooses the CIDRs, the
// machine has an alias that no other machine has ever had.
func (l *land) come(name string) {
	l.made++
	var aliases []netip.Prefix
	if l.kind != fromCluster {
		aliases = prefixes(fmt.Sprintf("10.1.%d.0/28", l.made), fmt.Sprintf("fd00:1:0:%d::/64", l.made))
	}
	l.cloud.AddMachine(name, "mem://"+name, aliases...)
	l.Put(name)
}

func (l *land) leave(name string) {
	l.Remove(name)
	l.cloud.Terminate(name)
}

// TestNodeSync is upstream's table of what there can be on both sides. Upstream
// answers InvalidMode to all aliases that it finds where the cluster is to say
// what they are, also to its own.
func TestNodeSync(t *testing.T) {
	const free, foreign, has = "10.1.7.0/24", "192.168.0.0/24", "10.1.1.0/24"
	for _, x := range []struct {
		what   string
		kind   nodeipam.CIDRAllocatorType
		cidr   string
		alias  string
		fails  bool
		reason string // of the one event
		want   string // CIDR of the node and alias of the machine, if they are the same
	}{
		{"equal", fromCloud, has, has, false, "", has},
		{"equal", fromCluster, has, has, false, "", has},
		{"different", fromCloud, has, foreign, false, nodeipam.ReasonMismatch, ""},
		{"different", fromCluster, has, foreign, false, nodeipam.ReasonMismatch, ""},
		{"node only", fromCloud, has, "", true, nodeipam.ReasonInvalidMode, ""},
		{"node only", fromCluster, has, "", false, "", has},
		{"machine only", fromCloud, "", foreign, false, "", foreign},
		{"machine only", fromCluster, "", foreign, true, nodeipam.ReasonInvalidMode, ""},
		{"machine only, of the range", fromCluster, "", free, false, "", free},
		{"machine only, another node's", fromCluster, "", "10.1.9.0/24", true, nodeipam.ReasonInvalidMode, ""},
		{"neither", fromCloud, "", "", true, nodeipam.ReasonInvalidMode, ""},
		{"neither", fromCluster, "", "", false, "", "10.1.0.0/24"},
	} {
		t.Run(string(x.kind)+", "+x.what, func(t *testing.T) {
			g := NewWithT(t)
			l := newLand(t, x.kind, "10.1.0.0/16 24")
			l.cloud.AddMachine("other", "mem://other")
			l.Put("other", "10.1.9.0/24")
			if x.kind == fromCluster {
				g.Expect(l.Look(t.Context(), "other")).To(Succeed())
			}
			l.cloud.AddMachine("node0", "mem://node0")
			if x.alias != "" {
				l.cloud.SetAliases("node0", pfx(x.alias))
			}
			if x.alias == "10.1.9.0/24" {
				l.cloud.SetAliases("other")
			}
			if x.cidr != "" {
				l.Put("node0", x.cidr)
			} else {
				l.Put("node0")
			}
			for range 5 { // once is as good as often
				g.Expect(l.Look(t.Context(), "node0") != nil).To(Equal(x.fails))
			}
			if x.reason != "" {
				g.Expect(l.Events(x.reason)).To(HaveLen(1))
				g.Expect(l.Condition("node0", nodeipam.ConditionProblem)).To(Equal("True " + x.reason))
				return
			}
			g.Expect(l.AllEvents()).To(BeEmpty())
			g.Expect(l.CIDRs()["node0"]).To(Equal([]string{x.want}))
			g.Expect(l.cloud.Routes()["node0"]).To(Equal(prefixes(x.want)))
			g.Expect(l.Condition("node0", v1.NodeNetworkUnavailable)).To(Equal("False RouteCreated"))
		})
	}
}

// A machine may route what it likes: IPAMFromCluster takes it for the node's
// block only if it is exactly one.
func TestOnlyOneBlockIsTakenFromTheCloud(t *testing.T) {
	for what, x := range map[string]struct {
		aliases []string
		want    string // a part of the event; "" if the node gets the alias
	}{
		"one block":            {[]string{"10.1.7.0/24"}, ""},
		"the whole network":    {[]string{"10.1.0.0/16"}, "10.1.0.0/16: not exactly one block of range 10.1.0.0/16, such as 10.1.0.0/24"},
		"an address of it":     {[]string{"10.1.2.3/16"}, "10.1.2.3/16: not exactly one block of range 10.1.0.0/16, such as 10.1.2.0/24"},
		"a larger block":       {[]string{"10.1.6.0/23"}, "10.1.6.0/23: not exactly one block of range 10.1.0.0/16, such as 10.1.6.0/24"},
		"a smaller block":      {[]string{"10.1.6.128/25"}, "10.1.6.128/25: not exactly one block of range 10.1.0.0/16, such as 10.1.6.0/24"},
		"not aligned":          {[]string{"10.1.7.9/24"}, "10.1.7.9/24: not exactly one block of range 10.1.0.0/16, such as 10.1.7.0/24"},
		"wider than the range": {[]string{"10.0.0.0/8"}, "10.0.0.0/8: out of the ranges of this cluster"},
		"another network":      {[]string{"192.168.0.0/24"}, "192.168.0.0/24: out of the ranges of this cluster"},
	} {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			l := newLand(t, fromCluster, "10.1.0.0/16 24")
			l.cloud.AddMachine("node0", "mem://node0")
			l.cloud.SetAliases("node0", prefixes(x.aliases...)...)
			l.Put("node0")
			l.come("other")
			err := l.Look(t.Context(), "node0")
			if x.want == "" {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(l.CIDRs()["node0"]).To(Equal(x.aliases))
				return
			}
			g.Expect(err).To(MatchError(nodeipam.ErrMode))
			g.Expect(l.CIDRs()["node0"]).To(BeEmpty())
			g.Expect(l.Held()).NotTo(HaveKey("node0"))
			g.Expect(l.Events(nodeipam.ReasonInvalidMode)).To(ConsistOf(And(ContainSubstring(`node "node0"`), ContainSubstring(x.want))))
			l.cloud.SetAliases("node0") // the cloud's owner removes it
			for _, name := range []string{"node0", "other"} {
				g.Expect(l.Look(t.Context(), name)).To(Succeed())
				g.Expect(l.CIDRs()[name]).To(HaveLen(1))
			}
		})
	}
}

func TestNodeSyncDelete(t *testing.T) {
	for _, kind := range []nodeipam.CIDRAllocatorType{fromCluster, fromCloud, nodeipam.CloudAllocatorType} {
		for _, cidr := range []string{"", "10.1.3.0/24", "invalid"} {
			g := NewWithT(t)
			l := newLand(t, kind, "10.1.0.0/16 24")
			l.cloud.AddMachine("a", "mem://a")
			node := l.Put("a")
			if cidr != "" {
				node = l.Put("a", cidr)
			}
			_ = l.Look(t.Context())
			l.Remove("a")
			g.Expect(l.Look(t.Context(), "a")).To(Succeed(), "%s, %q", kind, cidr)
			g.Expect(l.ReleaseCIDR(node)).To(Succeed(), "repeated")
			g.Expect(l.Held()).To(BeEmpty())
			g.Expect(l.Status().Problems).To(BeEmpty())
		}
	}
}

// playClouds lets an allocator of a cloud mode live through comings and goings.
func playClouds(t *testing.T, l *land) error {
	t.Helper()
	ctx := t.Context()
	var bad error
	l.WatchOverlaps(func(err error) { bad = errors.Join(bad, err) })
	l.Forget()
	look := func() error { return l.LookUntilItWorks(ctx) }
	for _, chapter := range []func(){
		func() { l.come("a"); l.come("b") },
		func() { l.leave("a"); l.come("a") },
		func() { l.leave("b") },
		func() { l.come("b"); l.come("c") },
	} {
		chapter()
		if err := look(); err != nil {
			return err
		}
	}
	l.Arrive()
	if err := errors.Join(look(), bad); err != nil {
		return err
	}
	routes := map[string][]string{}
	for name, all := range l.cloud.Routes() {
		for _, p := range all {
			routes[name] = append(routes[name], p.String())
		}
	}
	g := NewWithT(t)
	g.Expect(routes).To(HaveLen(3))
	g.Expect(l.CIDRs()).To(Equal(routes))
	g.Expect(l.Held()).To(Equal(routes))
	for name := range routes {
		g.Expect(l.Condition(name, v1.NodeNetworkUnavailable)).To(Equal("False RouteCreated"))
		l.leave(name)
	}
	g.Expect(l.Status().Problems).To(BeEmpty())
	if err := look(); err != nil {
		return err
	}
	return nodeipam.Leaked(l.Status().Book)
}

func TestEveryFaultOfClusterAndCloud(t *testing.T) {
	for _, kind := range []nodeipam.CIDRAllocatorType{fromCluster, fromCloud, nodeipam.CloudAllocatorType} {
		t.Run(string(kind), func(t *testing.T) {
			g := NewWithT(t)
			fresh := func() *land { return newLand(t, kind, "10.0.0.0/24 28", "fd00::/60 64") }
			plain := fresh()
			g.Expect(playClouds(t, plain)).To(Succeed())
			g.Expect(plain.cloud.CallCount()).To(BeNumerically(">", 8))
			for f := nodeipam.FailRequest; f < nodeipam.FaultKinds; f++ {
				for n := 1; n <= plain.Calls(); n++ {
					for _, lag := range lags(f) {
						l := fresh()
						l.FaultAt(n, f, lag)
						g.Expect(playClouds(t, l)).To(Succeed(), "fault %d at request %d, lag %d", f, n, lag)
					}
				}
			}
			for _, f := range []memcloud.Fault{memcloud.Refuse, memcloud.Tear} {
				for n := 1; n <= plain.cloud.CallCount(); n++ {
					l := fresh()
					l.cloud.SetFault(memcloud.At(n, f))
					g.Expect(playClouds(t, l)).To(Succeed(), "fault %d at call %d of the cloud", f, n)
				}
			}
		})
	}
}

func lags(f int) []int {
	if f == nodeipam.DelayRequest {
		return []int{1, 2, 4, 1000}
	}
	return []int{0}
}

// TestTheNextProcessEndsWhatWasBegun kills a process of IPAMFromCluster at every
// step. Upstream answers InvalidMode for ever to an alias that it has written
// itself, when it could not write the node any more.
func TestTheNextProcessEndsWhatWasBegun(t *testing.T) {
	for _, lost := range []int{nodeipam.FailRequest, nodeipam.TearRequest, nodeipam.DelayRequest} {
		for step := 1; step <= 12; step++ {
			g := NewWithT(t)
			l := newLand(t, fromCluster, "10.0.0.0/27 28")
			l.come("a")
			calls := 0 // of cluster and cloud
			dead := func() bool { calls++; return calls >= step }
			l.FaultsFrom(func(string) int {
				switch before := calls; {
				case !dead():
					return nodeipam.NoFault
				case before == step-1:
					return lost
				}
				return nodeipam.FailRequest
			}, 3)
			l.cloud.SetFault(func(memcloud.Call) memcloud.Fault {
				switch before := calls; {
				case !dead():
					return memcloud.None
				case before == step-1 && lost == nodeipam.TearRequest:
					return memcloud.Tear
				}
				return memcloud.Refuse
			})
			_ = l.Look(t.Context(), "a")

			l.NoFaults()
			l.cloud.SetFault(nil)
			next := &land{Bench: l.Another(t, func(d *nodeipam.Deps) { d.Cloud = l.cloud }), cloud: l.cloud, kind: fromCluster}
			l.come("b")
			g.Expect(next.Look(t.Context(), "b")).To(Succeed(), "step %d", step)
			next.Arrive()
			g.Expect(next.Look(t.Context())).To(Succeed(), "step %d, %d", step, lost)
			cidrs := l.CIDRs()
			g.Expect(cidrs).To(And(HaveKeyWithValue("a", HaveLen(1)), HaveKeyWithValue("b", HaveLen(1))), "step %d", step)
			g.Expect(cidrs["a"]).NotTo(Equal(cidrs["b"]))
			for _, name := range []string{"a", "b"} {
				g.Expect(l.cloud.Routes()[name]).To(Equal(prefixes(cidrs[name]...)), "step %d, %s", step, name)
			}
			g.Expect(next.AllEvents()).To(BeEmpty())
		}
	}
}

// A plan that an old leader has sent, and that arrives while the new one begins,
// after that has read the nodes.
func TestAPlanThatArrivesWhileTakingOver(t *testing.T) {
	for lag := 1; lag <= 6; lag++ {
		g := NewWithT(t)
		l := newLand(t, fromCluster, "10.0.0.0/27 28")
		l.come("a")
		first := true
		l.FaultsFrom(func(what string) int {
			if what == "patch" && first {
				first = false
				return nodeipam.DelayRequest
			}
			if !first {
				return nodeipam.FailRequest
			}
			return nodeipam.NoFault
		}, lag)
		_ = l.Look(t.Context(), "a")
		l.NoFaults()
		l.come("b")
		next := l.Another(t, func(d *nodeipam.Deps) { d.Cloud = l.cloud })
		g.Expect(next.Look(t.Context(), "b")).To(Succeed())
		next.Arrive()
		g.Expect(next.Look(t.Context())).To(Succeed(), "lag %d", lag)
		g.Expect(l.CIDRs()["a"]).NotTo(Equal(l.CIDRs()["b"]), "lag %d", lag)
		g.Expect(l.CIDRs()).To(And(HaveKeyWithValue("a", HaveLen(1)), HaveKeyWithValue("b", HaveLen(1))))
	}
}

// A node was deleted, and its machine still routes its block.
func TestAnAliasOfAMachineWithoutANode(t *testing.T) {
	g := NewWithT(t)
	l := newLand(t, fromCluster, "10.0.0.0/28 28")
	l.come("a")
	g.Expect(l.Look(t.Context())).To(Succeed())
	l.Remove("a")
	l.come("b")
	for range 3 {
		g.Expect(l.Look(t.Context())).To(MatchError(nodeipam.ErrRouted))
	}
	g.Expect(l.Events(nodeipam.ReasonConflict)).To(HaveLen(1))
	g.Expect(l.CIDRs()["b"]).To(BeEmpty(), "nothing is given that is routed elsewhere")
	l.cloud.Terminate("a")
	g.Expect(l.Look(t.Context())).To(Succeed())
	g.Expect(l.CIDRs()["b"]).To(Equal([]string{"10.0.0.0/28"}))
	g.Expect(l.Status().Problems).To(BeEmpty())

	l.Remove("b") // and made again, with its machine as it was
	l.Put("b")
	g.Expect(l.Look(t.Context())).To(Succeed())
	g.Expect(l.CIDRs()["b"]).To(Equal([]string{"10.0.0.0/28"}))
}

func TestCloudAllocator(t *testing.T) {
	g := NewWithT(t)
	l := newLand(t, nodeipam.CloudAllocatorType)
	ctx := t.Context()
	l.Put("a")
	g.Expect(l.Look(ctx)).To(MatchError(nodeipam.ErrNoMachine))
	g.Expect(l.Events(nodeipam.ReasonNotAvailable)).To(HaveLen(1))
	l.cloud.AddMachine("a", "mem://a")
	g.Expect(l.Look(ctx)).To(MatchError(ContainSubstring("routes nothing")))
	l.cloud.SetAliases("a", prefixes("10.1.0.0/24", "10.2.0.0/24", "fd00::/64", "fd00:0:0:1::/64")...)
	g.Expect(l.Look(ctx)).To(Succeed())
	g.Expect(l.CIDRs()["a"]).To(Equal([]string{"10.1.0.0/24", "fd00::/64"}), "the first of each family")
	g.Expect(l.Condition("a", v1.NodeNetworkUnavailable)).To(Equal("False RouteCreated"))
	g.Expect(l.Condition("a", nodeipam.ConditionProblem)).To(Equal("False CIDRAssigned"))

	calls := l.Calls()
	g.Expect(l.Look(ctx)).To(Succeed())
	g.Expect(l.Calls()).To(Equal(calls), "what is right is not written again")

	l.Edit("a", func(n *v1.Node) {
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeNetworkUnavailable, Status: v1.ConditionTrue}}
	})
	g.Expect(l.Look(ctx)).To(Succeed())
	g.Expect(l.Condition("a", v1.NodeNetworkUnavailable)).To(Equal("False RouteCreated"), "set again")

	l.cloud.SetAliases("a", pfx("10.9.0.0/24"))
	g.Expect(l.Look(ctx)).To(MatchError(nodeipam.ErrQuarantined))
	g.Expect(l.Events(nodeipam.ReasonMismatch)).To(HaveLen(1))
	g.Expect(l.CIDRs()["a"]).To(Equal([]string{"10.1.0.0/24", "fd00::/64"}), "it could not be changed")
}

// An alias that has moved is not the old machine's any more, even if its node
// has never got it.
func TestAnAliasThatMoved(t *testing.T) {
	for _, kind := range []nodeipam.CIDRAllocatorType{fromCloud, nodeipam.CloudAllocatorType} {
		g := NewWithT(t)
		l := newLand(t, kind)
		l.cloud.AddMachine("a", "mem://a", pfx("10.1.0.0/24"))
		l.cloud.AddMachine("b", "mem://b", pfx("10.1.0.0/24")) // it moves just now
		l.Put("a")
		l.Put("b")
		l.FaultsOf("patch", nodeipam.FailRequest)
		g.Expect(l.Look(t.Context(), "a")).NotTo(Succeed())
		l.NoFaults()
		g.Expect(l.Look(t.Context(), "b")).To(MatchError(nodeipam.ErrQuarantined), "two have it")
		g.Expect(l.Events(nodeipam.ReasonConflict)).To(HaveLen(1))
		l.cloud.SetAliases("a", pfx("10.2.0.0/24"))
		g.Expect(l.Look(t.Context(), "a")).To(Succeed())
		g.Expect(l.Look(t.Context(), "b")).To(Succeed())
		g.Expect(l.CIDRs()).To(Equal(map[string][]string{"a": {"10.2.0.0/24"}, "b": {"10.1.0.0/24"}}))
		g.Expect(l.Status().Problems).To(BeEmpty())
	}
}

// A Controller looks again by itself, and ends when it is closed.
func TestControllerSynchronizesAgain(t *testing.T) {
	for _, kind := range []nodeipam.CIDRAllocatorType{fromCloud, fromCluster} {
		synctest.Test(t, func(t *testing.T) {
			g := NewWithT(t)
			l := newLand(t, fromCluster, "10.0.0.0/16 24")
			l.cloud.AddMachine("a", "mem://a")
			l.Put("a")
			stop := make(chan struct{})
			deps, factory := l.Program(stop)
			deps.Cloud = l.cloud
			settings := nodeipam.RangesOf(kind, "10.0.0.0/16 24")
			settings.Sync = nodeipam.Config{Resync: time.Millisecond, MaxBackoff: 4 * time.Millisecond, InitialRetry: time.Millisecond}
			c, err := nodeipam.NewControllerOf(deps, settings)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(c.Close()).To(Succeed(), "before Start")
			g.Expect(c.Start(deps.Nodes)).To(Succeed())
			g.Expect(c.Start(deps.Nodes)).To(MatchError(ContainSubstring("started before")))
			sleep(200 * time.Millisecond)
			if kind == fromCloud {
				g.Expect(l.CIDRs()["a"]).To(BeEmpty())
				l.cloud.SetAliases("a", pfx("10.7.0.0/24"))
			}
			sleep(200 * time.Millisecond)
			g.Expect(l.CIDRs()["a"]).To(HaveLen(1))
			calls := l.cloud.CallCount()
			sleep(200 * time.Millisecond)
			g.Expect(l.cloud.CallCount()).To(BeNumerically(">", calls+100), "it compares again and again")
			l.cloud.SetAliases("a")
			sleep(200 * time.Millisecond)
			if kind == fromCluster {
				g.Expect(l.cloud.Routes()["a"]).To(Equal(prefixes(l.CIDRs()["a"]...)), "an alias that was lost is written again")
			}
			l.Remove("a")
			sleep(200 * time.Millisecond)
			g.Expect(c.Allocator().Status().Book.Owners).To(BeZero())
			g.Expect(c.Close()).To(Succeed())
			g.Expect(c.Close()).To(Succeed(), "repeated")
			close(stop)
			factory.Shutdown()
		})
	}
}

func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Bounded tries: a node that the cloud knows nothing of costs nearly nothing.
func TestCloudAllocatorTriesLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		l := newLand(t, nodeipam.CloudAllocatorType)
		l.Put("a")
		stop := make(chan struct{})
		deps, factory := l.Program(stop)
		deps.Cloud = l.cloud
		a, err := nodeipam.NewAllocator(deps, nodeipam.Settings{Type: nodeipam.CloudAllocatorType, Audit: time.Hour})
		g.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.RunContext(ctx) }()
		sleep(2 * time.Minute)
		quick := l.cloud.CallCount()
		g.Expect(quick).To(BeNumerically("~", 12, 3))
		sleep(50 * time.Minute)
		g.Expect(l.cloud.CallCount()).To(BeNumerically("<=", quick+1))
		cancel()
		g.Expect(<-done).To(Succeed())
		close(stop)
		factory.Shutdown()
	})
}

func ipNet(t testing.TB, text string) *net.IPNet {
	t.Helper()
	_, n, err := net.ParseCIDR(text)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return n
}
