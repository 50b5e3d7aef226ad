// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package audit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/etcdtest"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/kvdb/etcd"
	"github.com/cadastre/cadastre/kvdb/mem"
	"github.com/cadastre/cadastre/operator/audit"
	"github.com/cadastre/cadastre/operator/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is an API server, a cluster store and an auditor.
type bench struct {
	*WithT
	t       *testing.T
	client  *fake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
	store   kvdb.Store
}

func newBench(t *testing.T, store kvdb.Store) *bench {
	return &bench{
		WithT: NewWithT(t), t: t, store: store,
		client: fake.NewSimpleClientset(), //nolint:staticcheck // with field management it is a hundred times slower
		dynamic: dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
			v1alpha1.Resource(v1alpha1.NetResourceSets): "NetResourceSetList",
			v1alpha1.Resource(v1alpha1.AddressPools):    "AddressPoolList",
		}),
	}
}

// run runs an auditor until the function that it returns is called, which returns the
// error of Run.
func (b *bench) run(name string, changes ...func(*audit.Deps)) (stop func() error) {
	deps := audit.Deps{
		Log: slog.New(slog.DiscardHandler), Client: b.client, Store: b.store, Instance: name,
		Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
	}
	for _, change := range changes {
		change(&deps)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- audit.New(deps).Run(ctx) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	b.t.Cleanup(func() { _ = stop() })
	return stop
}

func (b *bench) put(key string, m proto.Message) {
	b.t.Helper()
	value, err := proto.Marshal(m)
	b.Expect(err).NotTo(HaveOccurred())
	b.raw(kvdb.Put(key, value))
}

func (b *bench) raw(op kvdb.Op) {
	b.t.Helper()
	_, err := b.store.Txn(context.Background(), nil, []kvdb.Op{op})
	b.Expect(err).NotTo(HaveOccurred())
}

// addNode adds a Node, its ID, its beat and a claim of its podCIDR.
func (b *bench) addNode(id uint32, name string) {
	b.t.Helper()
	b.addObject(name, fmt.Sprintf("10.1.%d.0/24", id))
	b.addID(id, name, time.Now())
}

func (b *bench) addObject(name, cidr string) {
	b.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}}}
	_, err := b.client.CoreV1().Nodes().Create(context.Background(), n, metav1.CreateOptions{})
	b.Expect(err).NotTo(HaveOccurred())
}

func (b *bench) addID(id uint32, name string, beat time.Time) {
	b.t.Helper()
	b.put(kv.NodeRecordKey(id), &kv.NodeRecord{Id: id, Name: name, Instance: "i-" + name, IpAddresses: []string{fmt.Sprintf("192.168.16.%d/24", id)}, ExplicitBlocks: true})
	b.put(kv.BeatKey(id), &kv.NodeBeat{Id: id, Instance: "i-" + name, At: beat.UnixNano(), Expire: int64(6 * time.Minute), NodeName: name})
	b.claim(id, name, fmt.Sprintf("10.1.%d.0/24", id))
}

func (b *bench) claim(id uint32, name, prefix string) {
	b.t.Helper()
	p := netip.MustParsePrefix(prefix)
	b.put(kv.PrefixClaimKey(kv.PodNetworkClaims, p, name), &kv.PrefixClaim{
		Network: kv.PodNetworkClaims, Prefix: prefix, Node: name, NodeId: id, Instance: "i-" + name, Held: true,
	})
}

// report returns the report in the store, nil if there is none.
func (b *bench) report() *kv.ClusterCheck {
	x, found, err := b.store.Get(context.Background(), kv.ClusterCheckKey)
	b.Expect(err).NotTo(HaveOccurred())
	if !found {
		return nil
	}
	m := &kv.ClusterCheck{}
	b.Expect(proto.Unmarshal(x.Value, m)).To(Succeed())
	return m
}

// findings returns the numbers and texts of the report, "none" without one.
func (b *bench) findings() []string {
	r := b.report()
	if r == nil {
		return []string{"none"}
	}
	all := []string{}
	for _, f := range r.Findings {
		all = append(all, f.Number+" "+f.Text)
	}
	return all
}

// bubble runs a test in simulated time.
func bubble(t *testing.T, f func(b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		store := mem.New()
		defer store.Close()
		f(newBench(t, store))
	})
}

func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

const twice = "K101 addresses of block 10.1.1.0/24 are on 2 nodes: a, b"

// TestAForeignWriterGivesABlockTwice: with a real etcd; the finding ends with the
// contradiction.
func TestAForeignWriterGivesABlockTwice(t *testing.T) {
	server := etcdtest.Start(t)
	store, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint()}, Prefix: "/cadastre/"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = store.Close() })
	b := newBench(t, store)
	b.addNode(1, "a")
	b.addNode(2, "b")
	stop := b.run("one", func(d *audit.Deps) { d.Every, d.Confirm = time.Hour, 20*time.Millisecond })
	b.Eventually(b.findings, "30s", "10ms").Should(BeEmpty())
	b.Expect(b.report().Compared).To(Equal([]string{"2 node IDs", "2 claims", "2 Nodes"}))
	b.Expect(b.report().LeftOut).To(Equal([]string{"NetResourceSets and AddressPools: --netresource-provider is not given"}))

	b.claim(2, "b", "10.1.1.0/24") // only the watch can show it within the hour
	b.Eventually(b.findings, "30s", "10ms").Should(Equal([]string{twice}))
	r := b.report()
	b.Expect(r.Instance).To(Equal("one"))
	b.Expect(r.Total).To(Equal(uint64(1)))
	b.Expect(r.Findings[0].Evidence).To(Equal([]string{"a: a claim has 10.1.1.0/24", "a: podCIDRs of the Node has 10.1.1.0/24", "b: a claim has 10.1.1.0/24"}))
	b.raw(kvdb.Delete(kv.PrefixClaimKey(kv.PodNetworkClaims, netip.MustParsePrefix("10.1.1.0/24"), "b")))
	b.Eventually(b.findings, "30s", "10ms").Should(BeEmpty())

	n, err := b.client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
	b.Expect(err).NotTo(HaveOccurred())
	n.Spec.PodCIDR, n.Spec.PodCIDRs = "10.1.1.0/24", []string{"10.1.1.0/24"}
	_, err = b.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
	b.Expect(err).NotTo(HaveOccurred())
	b.Eventually(b.findings, "30s", "10ms").Should(Equal([]string{twice}), "only the informer can show it")
	b.Expect(stop()).To(Succeed())
}

// TestAFindingIsConfirmed: two comparisons in a row must have it.
func TestAFindingIsConfirmed(t *testing.T) {
	bubble(t, func(b *bench) {
		b.addNode(1, "a")
		b.addNode(2, "b")
		b.run("one")
		advance(time.Second)
		b.Expect(b.findings()).To(Equal([]string{"none"}), "one comparison proves nothing")
		advance(15 * time.Second)
		b.Expect(b.findings()).To(BeEmpty())

		for range 5 { // it comes and goes, between two comparisons
			b.claim(2, "b", "10.1.1.0/24")
			advance(10 * time.Second)
			b.Expect(b.findings()).To(BeEmpty())
			b.raw(kvdb.Delete(kv.PrefixClaimKey(kv.PodNetworkClaims, netip.MustParsePrefix("10.1.1.0/24"), "b")))
			advance(20 * time.Second)
			b.Expect(b.findings()).To(BeEmpty())
		}

		began := time.Now()
		b.claim(2, "b", "10.1.1.0/24")
		for !slices.Equal(b.findings(), []string{twice}) {
			advance(time.Second)
		}
		b.Expect(time.Since(began)).To(BeNumerically("<=", 30*time.Second), "a difference is reported within a minute")
		since := b.report().Findings[0].Since
		b.claim(2, "b", "10.1.1.0/25") // another fact, the same finding
		advance(time.Minute)
		b.Expect(b.findings()).To(Equal([]string{twice}))
		b.Expect(b.report().Findings[0].Since).To(Equal(since))
	})
}

// TestANodeIDWithoutANode: the agent must be silent, and the API server must say that
// the Node is gone.
func TestANodeIDWithoutANode(t *testing.T) {
	bubble(t, func(b *bench) {
		b.addNode(1, "a")
		b.addID(9, "gone", time.Now())
		b.run("one")
		advance(5 * time.Minute)
		b.Expect(b.findings()).To(BeEmpty(), "its agent may be on a machine outside of Kubernetes")
		advance(2 * time.Minute)
		b.Expect(b.findings()).To(ConsistOf(
			"K111 node ID 9 is held by node gone, which the cluster does not have",
			"K112 10.1.9.0/24 is claimed by node gone, which the cluster does not have",
		))
		record := &kv.NodeRecord{Id: 9, Name: "gone", Instance: "i-gone", Released: time.Now().UnixNano()}
		b.put(kv.NodeRecordKey(9), record)
		b.raw(kvdb.Delete(kv.PrefixClaimKey(kv.PodNetworkClaims, netip.MustParsePrefix("10.1.9.0/24"), "gone")))
		advance(time.Minute)
		b.Expect(b.findings()).To(BeEmpty())
	})
}

// TestALateInformer: a Node that only the API server itself has is not gone, and while
// that does not answer nothing is reported.
func TestALateInformer(t *testing.T) {
	bubble(t, func(b *bench) {
		b.addNode(1, "a")
		b.addID(9, "late", time.Now().Add(-time.Hour))
		var down atomic.Bool
		b.client.PrependReactor("get", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if down.Load() {
				return true, nil, errors.New("connection refused")
			}
			if name := a.(clienttesting.GetAction).GetName(); name == "late" {
				return true, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
			}
			return false, nil, nil
		})
		b.run("one")
		advance(time.Minute)
		b.Expect(b.findings()).To(BeEmpty())
		down.Store(true)
		at := b.report().At
		advance(10 * time.Minute)
		b.Expect(time.Unix(0, b.report().At).Sub(time.Unix(0, at))).To(BeNumerically("<", time.Minute), "the report becomes old")
		b.Expect(b.findings()).To(BeEmpty())
	})
}

// TestTheLeaderChanges: the next leader replaces the findings of the earlier one, and
// says nothing before its second comparison.
func TestTheLeaderChanges(t *testing.T) {
	bubble(t, func(b *bench) {
		b.addNode(1, "a")
		b.addNode(2, "b")
		b.claim(2, "b", "10.1.1.0/24")
		var mu sync.Mutex
		leader := "one"
		fence := func(name string) func(*audit.Deps) {
			return func(d *audit.Deps) {
				d.Fence = func(context.Context) error {
					mu.Lock()
					defer mu.Unlock()
					if leader != name {
						return fmt.Errorf("%s leads: %w", leader, runner.ErrDeposed)
					}
					return nil
				}
			}
		}
		one := b.run("one", fence("one"))
		advance(time.Minute)
		b.Expect(b.findings()).To(Equal([]string{twice}))

		mu.Lock()
		leader = "two"
		mu.Unlock()
		at := b.report().At
		b.raw(kvdb.Delete(kv.PrefixClaimKey(kv.PodNetworkClaims, netip.MustParsePrefix("10.1.1.0/24"), "b")))
		b.run("two", fence("two"))
		advance(time.Second)
		b.Expect(b.report().Instance).To(Equal("one"))
		b.Expect(b.report().At).To(Equal(at))
		advance(time.Minute)
		b.Expect(b.report().Instance).To(Equal("two"))
		b.Expect(b.findings()).To(BeEmpty(), "no finding of the earlier leader stays")
		b.Expect(one()).To(MatchError(runner.ErrDeposed))
		b.Expect(b.report().Instance).To(Equal("two"))
	})
}

// TestSetsAndDocker: NetResourceSets, AddressPools, and Docker's subnets of beats.
func TestSetsAndDocker(t *testing.T) {
	bubble(t, func(b *bench) {
		b.addNode(1, "a")
		object := func(kind, name string, spec map[string]any) *unstructured.Unstructured {
			return &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": v1alpha1.GroupVersion().String(), "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
			}}
		}
		create := func(resource string, o *unstructured.Unstructured) {
			_, err := b.dynamic.Resource(v1alpha1.Resource(resource)).Create(context.Background(), o, metav1.CreateOptions{})
			b.Expect(err).NotTo(HaveOccurred())
		}
		create(v1alpha1.AddressPools, object("AddressPool", "main", map[string]any{"cidrs": []any{map[string]any{"cidr": "10.4.0.0/16", "blockPrefixLen": int64(28)}}}))
		block := map[string]any{"ipam": map[string]any{"pool": map[string]any{"10.4.1.0/28": map[string]any{"subnetID": "main"}}}}
		both := map[string]any{"ipam": map[string]any{"pool": map[string]any{
			"10.4.1.0/28": map[string]any{"subnetID": "main"},
			"10.9.0.7":    map[string]any{"subnetID": "subnet-1", "resource": "eni-1"}, // of a cloud
		}}}
		create(v1alpha1.NetResourceSets, object("NetResourceSet", "a", both))
		b.put(kv.BeatKey(1), &kv.NodeBeat{Id: 1, Instance: "i-a", At: time.Now().UnixNano(), DockerSubnets: []string{"172.18.0.0/16", "10.97.0.0/24"}, DockerSubnetsMore: 3})
		b.run("one", func(d *audit.Deps) { d.Dynamic = b.dynamic })
		advance(time.Minute)
		b.Expect(b.findings()).To(Equal([]string{"K131 subnet 10.97.0.0/24 of Docker on node a shares addresses with the service network (10.96.0.0/12)"}))
		b.Expect(b.report().Compared).To(Equal([]string{"1 node ID", "1 claim", "2 subnets of Docker", "1 Node", "1 NetResourceSet", "1 AddressPool"}))
		b.Expect(b.report().LeftOut).To(Equal([]string{"3 subnets of Docker on node a: a node names at most 64"}))

		create(v1alpha1.NetResourceSets, object("NetResourceSet", "gone", block))
		advance(time.Minute)
		b.Expect(b.findings()).To(ContainElements(
			"K101 addresses of block 10.4.1.0/28 are on 2 nodes: a, gone",
			"K113 NetResourceSet gone is of a node that the cluster does not have",
		))
	})
}

// TestAValueThatCannotBeRead is named, and the others are compared.
func TestAValueThatCannotBeRead(t *testing.T) {
	bubble(t, func(b *bench) {
		b.addNode(1, "a")
		b.addNode(2, "b")
		b.claim(2, "b", "10.1.1.0/24")
		b.raw(kvdb.Put(kv.NodeRecordKey(7), []byte{0xff}))
		b.put(kv.PoolKey("odd"), &kv.Pool{Name: "odd", Ranges: []*kv.PoolRange{{Cidr: "10.1"}}})
		b.run("one")
		advance(time.Minute)
		b.Expect(b.findings()).To(Equal([]string{twice}))
		b.Expect(b.report().LeftOut).To(ContainElements(
			HavePrefix("cluster/node-id/7: its value cannot be read: "),
			`cluster/pool/odd: its value cannot be read: cidr "10.1": want a prefix, such as 10.1.0.0/16`,
		))
	})
}

// TestAnObjectThatCannotBeComparedDelaysNoOther: a set that cannot be read, and a claim of a
// node whose name no Node can have.
func TestAnObjectThatCannotBeComparedDelaysNoOther(t *testing.T) {
	bubble(t, func(b *bench) {
		b.client.PrependReactor("get", "nodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
			name := a.(clienttesting.GetAction).GetName()
			if strings.Contains(name, "/") { // as client-go's real client
				return true, nil, fmt.Errorf("invalid resource name %q", name)
			}
			return false, nil, nil
		})
		b.addNode(1, "a")
		b.addNode(2, "b")
		b.claim(2, "b", "10.1.1.0/24")
		b.claim(3, "no/node", "10.7.0.0/24")
		bad := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.GroupVersion().String(), "kind": "NetResourceSet",
			"metadata": map[string]any{"name": "bad"}, "spec": map[string]any{"ipam": "a text"},
		}}
		_, err := b.dynamic.Resource(v1alpha1.Resource(v1alpha1.NetResourceSets)).Create(context.Background(), bad, metav1.CreateOptions{})
		b.Expect(err).NotTo(HaveOccurred())
		b.run("one", func(d *audit.Deps) { d.Dynamic = b.dynamic })
		advance(time.Minute)
		b.Expect(b.findings()).To(ContainElement(twice))
		b.Expect(b.report().LeftOut).To(ContainElement(ContainSubstring(`NetResourceSet "bad"`)))
	})
}

// TestAnEventThatIsRefusedDelaysNoOther: the API server refuses the event about one finding.
func TestAnEventThatIsRefusedDelaysNoOther(t *testing.T) {
	bubble(t, func(b *bench) {
		b.client.PrependReactor("create", "events", func(a clienttesting.Action) (bool, runtime.Object, error) {
			ev := a.(clienttesting.CreateAction).GetObject().(*corev1.Event)
			return ev.Reason == "BlockOnTwoNodes", nil, errors.New("denied by a webhook")
		})
		b.addNode(1, "a")
		b.addNode(2, "b")
		b.claim(2, "b", "10.1.1.0/24")
		b.put(kv.BeatKey(1), &kv.NodeBeat{Id: 1, Instance: "i-a", At: time.Now().UnixNano(), DockerSubnets: []string{"10.97.0.0/24"}})
		b.run("one")
		advance(5 * time.Minute)
		events, err := b.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(events.Items).To(ConsistOf(HaveField("Reason", "DockerSubnetOverlaps")))
	})
}

// TestAForeignWriterCannotSilenceTheAudit: keys and values that no message can carry, and
// ones that would fill it, hide no finding.
func TestAForeignWriterCannotSilenceTheAudit(t *testing.T) {
	server := etcdtest.Start(t)
	store, err := etcd.Open(etcd.Config{Endpoints: []string{server.Endpoint()}, Prefix: "/cadastre/"})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = store.Close() })
	b := newBench(t, store)
	b.addNode(1, "a")
	b.addNode(2, "b")
	b.claim(2, "b", "10.1.1.0/24")
	b.raw(kvdb.Put(kv.PrefixClaimPrefix+"\xff\x00", []byte("\xff")))
	b.raw(kvdb.Put(kv.PrefixClaimPrefix+strings.Repeat("k", 300<<10), []byte("\xff")))
	b.put(kv.PoolPrefix+"x", &kv.Pool{Name: "x", Ranges: []*kv.PoolRange{{Cidr: strings.Repeat("c", 300<<10)}}})
	b.claim(3, strings.Repeat("n", 300<<10), "10.0.0.0/16") // sorts before the finding that must stay
	b.claim(4, "c", "10.0.0.0/16")
	b.run("one", func(d *audit.Deps) { d.Every, d.Confirm = time.Hour, 20*time.Millisecond })
	b.Eventually(b.findings, "30s", "10ms").Should(ContainElement(twice))
	r := b.report()
	b.Expect(proto.Size(r)).To(BeNumerically("<=", kv.MaxClusterCheck))
	b.Expect(r.Total).To(BeNumerically(">", len(r.Findings)))
	b.Expect(strings.Join(r.LeftOut, " ")).To(ContainSubstring("its value cannot be read"))
}

// TestTheReportIsBounded: findings that are too many are counted.
func TestTheReportIsBounded(t *testing.T) {
	bubble(t, func(b *bench) {
		const many = 3000
		for i := range many {
			name := fmt.Sprintf("node-%04d.%s", i, strings.Repeat("x", 100))
			p, _ := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}).Prefix(24)
			for _, node := range []string{"a." + name, "b." + name} {
				b.put(kv.PrefixClaimKey(kv.PodNetworkClaims, p, node), &kv.PrefixClaim{Network: kv.PodNetworkClaims, Prefix: p.String(), Node: node, Held: true})
			}
		}
		b.run("one", func(d *audit.Deps) { d.Services = nil })
		advance(time.Minute)
		x, _, err := b.store.Get(context.Background(), kv.ClusterCheckKey)
		b.Expect(err).NotTo(HaveOccurred())
		b.Expect(len(x.Value)).To(And(BeNumerically("<=", kv.MaxClusterCheck), BeNumerically(">", kv.MaxClusterCheck*9/10)))
		b.Expect(b.report().Total).To(Equal(uint64(many)))
		b.Expect(len(b.report().Findings)).To(BeNumerically("<", many))
		b.Expect(b.report().LeftOut).To(ContainElement(ContainSubstring("whether Nodes are gone: objects name 6000 nodes")))
	})
}

// TestNetworkPolicies: they are reported only if no program enforces them, with one event.
func TestNetworkPolicies(t *testing.T) {
	for _, reported := range []bool{true, false} {
		bubble(t, func(b *bench) {
			b.addNode(1, "a")
			policies := b.client.NetworkingV1().NetworkPolicies("shop")
			for _, name := range []string{"deny-all", "allow-dns"} {
				_, err := policies.Create(context.Background(), &networkingv1.NetworkPolicy{
					ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop"}}, metav1.CreateOptions{})
				b.Expect(err).NotTo(HaveOccurred())
			}
			b.run("one", func(d *audit.Deps) { d.Policies = reported })
			advance(5 * time.Minute)
			events, err := b.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
			b.Expect(err).NotTo(HaveOccurred())
			if !reported {
				b.Expect(b.findings()).To(BeEmpty())
				b.Expect(events.Items).To(BeEmpty())
				return
			}
			b.Expect(b.findings()).To(ConsistOf(ContainSubstring("2 NetworkPolicies are not enforced")))
			b.Expect(events.Items).To(HaveLen(1))
			b.Expect(events.Items[0].Reason).To(Equal("PoliciesNotEnforced"))
			b.Expect(b.report().Compared).To(ContainElement("2 NetworkPolicies"))

			b.Expect(policies.Delete(context.Background(), "deny-all", metav1.DeleteOptions{})).To(Succeed())
			advance(5 * time.Minute)
			b.Expect(b.findings()).To(ConsistOf(ContainSubstring("1 NetworkPolicy is not enforced")))
			events, err = b.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
			b.Expect(err).NotTo(HaveOccurred())
			b.Expect(events.Items).To(HaveLen(1), "the same finding")
			b.Expect(policies.Delete(context.Background(), "allow-dns", metav1.DeleteOptions{})).To(Succeed())
			advance(5 * time.Minute)
			b.Expect(b.findings()).To(BeEmpty())
		})
	}
}

// TestManyNetworkPolicies: the API server sends one of them, and the number of the others.
func TestManyNetworkPolicies(t *testing.T) {
	bubble(t, func(b *bench) {
		b.addNode(1, "a")
		b.client.PrependReactor("list", "networkpolicies", func(a clienttesting.Action) (bool, runtime.Object, error) {
			b.Expect(a.(clienttesting.ListActionImpl).ListOptions.Limit).To(BeEquivalentTo(1))
			others := int64(41)
			return true, &networkingv1.NetworkPolicyList{
				ListMeta: metav1.ListMeta{RemainingItemCount: &others},
				Items:    make([]networkingv1.NetworkPolicy, 1),
			}, nil
		})
		b.run("one", func(d *audit.Deps) { d.Policies = true })
		advance(5 * time.Minute)
		b.Expect(b.findings()).To(ConsistOf(ContainSubstring("42 NetworkPolicies are not enforced")))
	})
}

// TestEvents: one warning event for each finding, about its node if it has one.
func TestEvents(t *testing.T) {
	bubble(t, func(b *bench) {
		b.addNode(1, "a")
		b.addNode(2, "b")
		b.claim(2, "b", "10.1.1.0/24")
		b.put(kv.BeatKey(1), &kv.NodeBeat{Id: 1, Instance: "i-a", At: time.Now().UnixNano(), DockerSubnets: []string{"10.97.0.0/24"}})
		stop := b.run("one")
		advance(5 * time.Minute)
		b.Expect(stop()).To(Succeed())
		b.run("two")
		advance(5 * time.Minute)
		events, err := b.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
		b.Expect(err).NotTo(HaveOccurred())
		var all []string
		for _, e := range events.Items {
			all = append(all, e.InvolvedObject.Kind+" "+e.InvolvedObject.Name+" "+e.Reason)
		}
		b.Expect(all).To(ConsistOf("ClusterCheck cluster BlockOnTwoNodes", "Node a DockerSubnetOverlaps"))
	})
}
