// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource/objects"
	"github.com/cadastre/cadastre/operator/runner"
)

func sets() schema.GroupVersionResource { return v1alpha1.Resource(v1alpha1.NetResourceSets) }

func addressPools() schema.GroupVersionResource { return v1alpha1.Resource(v1alpha1.AddressPools) }

func newDynamic() *dynamicfake.FakeDynamicClient {
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		v1alpha1.Resource(v1alpha1.CustomNetworks): "CustomNetworkList", v1alpha1.Resource(v1alpha1.NodeConfigs): "NodeConfigList",
		sets(): "NetResourceSetList", addressPools(): "AddressPoolList",
	})
}

// dynamic is a client of our objects, of which all have the same. While cut is
// true it answers nothing.
func (s *stand) dynamic(cut *atomic.Bool) dynamic.Interface {
	c := newDynamic()
	c.PrependReactor("*", "*", clienttesting.ObjectReaction(s.objects))
	c.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := s.objects.Watch(a.GetResource(), a.GetNamespace())
		return true, w, err
	})
	c.PrependReactor("*", "*", s.objectRules)
	c.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return cut.Load(), nil, errDown
	})
	return c
}

// objectRules are an API server's for what is written: versions, parts, and
// preconditions.
func (s *stand) objectRules(action clienttesting.Action) (bool, runtime.Object, error) {
	if s.webhook != nil {
		if err := s.webhook(action); err != nil {
			return true, nil, err
		}
	}
	s.writes.Lock()
	defer s.writes.Unlock()
	get := func(name string) (*unstructured.Unstructured, error) {
		o, err := s.objects.Get(action.GetResource(), "", name)
		if err != nil {
			return nil, err
		}
		return o.DeepCopyObject().(*unstructured.Unstructured), nil
	}
	switch a := action.(type) {
	case clienttesting.CreateActionImpl:
		is := a.GetObject().DeepCopyObject().(*unstructured.Unstructured)
		is.SetUID(types.UID(fmt.Sprintf("uid-%s-%d", is.GetName(), s.version.Load())))
		s.next(is)
		return true, is, s.objects.Create(a.GetResource(), is, "")
	case clienttesting.UpdateActionImpl:
		is := a.GetObject().DeepCopyObject().(*unstructured.Unstructured)
		old, err := get(is.GetName())
		if err != nil {
			return true, nil, err
		}
		if is.GetResourceVersion() != old.GetResourceVersion() || is.GetUID() != old.GetUID() {
			return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), is.GetName(), errors.New("it has changed"))
		}
		if a.GetSubresource() == "status" {
			old.Object["status"] = is.Object["status"]
			is = old
		} else {
			is.Object["status"] = old.Object["status"]
		}
		s.next(is)
		return true, is, s.objects.Update(a.GetResource(), is, "")
	case clienttesting.DeleteActionImpl:
		old, err := get(a.GetName())
		if err != nil {
			return true, nil, err
		}
		p := a.DeleteOptions.Preconditions
		if p != nil && (p.UID != nil && *p.UID != old.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != old.GetResourceVersion()) {
			return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), a.GetName(), errors.New("it has changed"))
		}
		return true, nil, s.objects.Delete(a.GetResource(), "", a.GetName())
	}
	return false, nil, nil
}

// put makes one of our objects.
func (s *stand) put(gvr schema.GroupVersionResource, kind string, o metav1.Object) {
	o.SetUID(types.UID(fmt.Sprintf("uid-%s-%d", o.GetName(), s.version.Load())))
	u, err := objects.Encode(o, kind)
	s.Expect(err).NotTo(HaveOccurred())
	s.next(u)
	s.Expect(s.objects.Create(gvr, u, "")).To(Succeed())
}

// addPool makes an AddressPool of a /24 in blocks of 16.
func (s *stand) addPool() {
	p := &v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{CIDRs: []v1alpha1.AddressPoolCIDR{{CIDR: "10.3.0.0/24", BlockPrefixLen: 28}}}}
	p.Name = "racks"
	s.put(addressPools(), "AddressPool", p)
}

func (s *stand) addSet(name string) {
	n := &v1alpha1.NetResourceSet{}
	n.Name = name
	s.put(sets(), "NetResourceSet", n)
}

// set is a NetResourceSet, nil for none.
func (s *stand) set(name string) *v1alpha1.NetResourceSet {
	o, err := s.objects.Get(sets(), "", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	s.Expect(err).NotTo(HaveOccurred())
	n, err := objects.Decode[v1alpha1.NetResourceSet](o)
	s.Expect(err).NotTo(HaveOccurred())
	return n
}

// blocks are those of a node.
func (s *stand) blocks(name string) []string {
	return slices.Sorted(maps.Keys(s.set(name).Spec.IPAM.Pool))
}

// poolArgs are the flags of an operator that does nothing but keep pools.
func poolArgs(more ...string) []string {
	return append([]string{"--netresource-provider=clusterpool", "--bind-address="}, more...)
}

// TestPoolsAreKept: a node gets a block, more of them when pods wait, and its
// pool's status says what is left.
func TestPoolsAreKept(t *testing.T) {
	bubble(t, func(s *stand) {
		s.addPool()
		s.addNode("a")
		s.addSet("a")
		p := s.start("one", nil, poolArgs()...)
		advance(50 * time.Second) // all nodes were looked at again
		s.Expect(s.blocks("a")).To(Equal([]string{"10.3.0.0/28"}), "%s", &p.log)
		for i := range 20 {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(i)}, Spec: corev1.PodSpec{NodeName: "a"}}
			s.Expect(s.tracker.Create(corev1.SchemeGroupVersion.WithResource("pods"), pod, "default")).To(Succeed())
		}
		advance(time.Second)
		s.Expect(s.blocks("a")).To(Equal([]string{"10.3.0.0/28", "10.3.0.16/28"}), "at once")
		s.addNode("b")
		s.addSet("b")
		advance(time.Minute)
		s.Expect(s.blocks("b")).To(Equal([]string{"10.3.0.32/28"}))
		o, err := s.objects.Get(addressPools(), "", "racks")
		s.Expect(err).NotTo(HaveOccurred())
		pool, err := objects.Decode[v1alpha1.AddressPool](o)
		s.Expect(err).NotTo(HaveOccurred())
		s.Expect(pool.Status.Free).To(Equal(int64(256 - 48)))
		s.Expect(p.stop()).To(BeZero(), "%s", &p.log)
		s.Expect(p.log.String()).NotTo(Or(ContainSubstring("level=ERROR"), ContainSubstring("level=WARN")))
	})
}

// TestPoolsAreNotKeptUnasked: without the flag nothing is read or written.
func TestPoolsAreNotKeptUnasked(t *testing.T) {
	bubble(t, func(s *stand) {
		s.addPool()
		s.addSet("a")
		p := s.start("one", nil, "--allocate-node-cidrs", "--cluster-cidr=10.1.0.0/16", "--bind-address=")
		advance(time.Hour)
		s.Expect(s.blocks("a")).To(BeEmpty())
		s.Expect(s.set("a")).NotTo(BeNil())
		s.Expect(p.stop()).To(BeZero())
		s.Expect(p.log.String()).To(ContainSubstring(`msg="a controller does not run" controller=netresource reason="--netresource-provider is not given"`))
	})
}

// TestPoolsAreTakenOver: of two operators one works; the next one knows what
// each node has.
func TestPoolsAreTakenOver(t *testing.T) {
	for _, how := range []string{"stopped", "cut off"} {
		t.Run(how, func(t *testing.T) {
			bubble(t, func(s *stand) {
				s.addPool()
				for _, name := range []string{"a", "b"} {
					s.addNode(name)
					s.addSet(name)
				}
				one := s.start("one", nil, poolArgs()...)
				advance(5 * time.Second)
				two := s.start("two", nil, poolArgs()...)
				advance(time.Minute)
				had := []string{s.blocks("a")[0], s.blocks("b")[0]}
				if how == "stopped" {
					s.Expect(one.stop()).To(BeZero())
				} else {
					one.cut.Store(true)
					s.Expect(<-one.code).To(Equal(exitFailed))
				}
				advance(30 * time.Second)
				s.addNode("c")
				s.addSet("c")
				advance(10 * time.Second)
				s.Expect([]string{s.blocks("a")[0], s.blocks("b")[0]}).To(Equal(had))
				s.Expect(s.blocks("c")).To(Equal([]string{"10.3.0.32/28"}), "%s", &two.log)
				s.Expect(two.stop()).To(BeZero())
			})
		})
	}
}

// TestOneSetThatRefusesWritesDelaysNoOther: an admission webhook refuses every write of one
// NetResourceSet, also its deletion, before and after a takeover.
func TestOneSetThatRefusesWritesDelaysNoOther(t *testing.T) {
	bubble(t, func(s *stand) {
		refused := func(name string) error {
			if name != "a" {
				return nil
			}
			return apierrors.NewForbidden(sets().GroupResource(), name, errors.New("denied by a webhook"))
		}
		s.webhook = func(action clienttesting.Action) error {
			switch a := action.(type) {
			case clienttesting.UpdateActionImpl:
				return refused(a.GetObject().(*unstructured.Unstructured).GetName())
			case clienttesting.DeleteActionImpl:
				return refused(a.GetName())
			}
			return nil
		}
		s.addPool()
		for _, name := range []string{"a", "b", "c"} {
			s.addNode(name)
			s.addSet(name)
		}
		for _, name := range []string{"one", "two"} {
			p := s.start(name, nil, poolArgs("--netresource-orphan-interval=10s")...)
			advance(time.Minute)
			s.Expect(s.blocks("a")).To(BeEmpty())
			s.Expect(s.blocks("b")).To(HaveLen(1), "%s", &p.log)
			s.Expect(s.blocks("c")).To(HaveLen(1), "%s", &p.log)
			if name == "two" {
				for _, gone := range []string{"a", "b", "c"} {
					s.Expect(s.tracker.Delete(nodes(), "", gone)).To(Succeed())
				}
				advance(time.Minute)
				s.Expect(s.set("a")).NotTo(BeNil())
				s.Expect(s.set("b")).To(BeNil(), "%s", &p.log)
				s.Expect(s.set("c")).To(BeNil(), "%s", &p.log)
			}
			s.Expect(p.stop()).To(BeZero())
			advance(time.Minute)
		}
	})
}

// TestNodesOfAddressPoolsWaitForNoBudget: --provider-qps limits requests to a cloud, and
// AddressPools need none.
func TestNodesOfAddressPoolsWaitForNoBudget(t *testing.T) {
	bubble(t, func(s *stand) {
		s.addPool()
		const nodes = 16 // all blocks of the pool
		p := s.start("one", nil, poolArgs("--provider-qps=0.01", "--provider-burst=1")...)
		advance(10 * time.Second)
		for i := range nodes {
			s.addNode(fmt.Sprint("n", i))
			s.addSet(fmt.Sprint("n", i))
		}
		advance(2 * time.Second)
		for i := range nodes {
			s.Expect(s.blocks(fmt.Sprint("n", i))).To(HaveLen(1), "%s", &p.log)
		}
		s.Expect(p.stop()).To(BeZero())
	})
}

// TestPoolsOfADeposedOperator: nothing is written, and the process ends.
func TestPoolsOfADeposedOperator(t *testing.T) {
	bubble(t, func(s *stand) {
		s.addPool()
		s.addNode("a")
		p := s.start("one", nil, poolArgs("--leader-elect-lease-duration=3h", "--leader-elect-renew-deadline=2h", "--leader-elect-retry-period=1h")...)
		advance(10 * time.Second)
		s.steal("another")
		s.addSet("a")
		advance(time.Minute)
		s.Expect(p.code).To(Receive(Equal(exitFailed)), "the fence stopped it, not the election")
		s.Expect(s.blocks("a")).To(BeEmpty())
		s.Expect(p.log.String()).To(ContainSubstring("the fence stopped the controllers: "))
	})
}

// TestSetsOfNodesThatAreGone are deleted after two passes, and their blocks freed.
func TestSetsOfNodesThatAreGone(t *testing.T) {
	bubble(t, func(s *stand) {
		s.addPool()
		for _, name := range []string{"stays", "goes", "owned", "back"} {
			s.addNode(name)
		}
		owned := &v1alpha1.NetResourceSet{}
		owned.Name, owned.OwnerReferences = "owned", []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "owned", UID: "uid-owned"}}
		s.put(sets(), "NetResourceSet", owned)
		for _, name := range []string{"stays", "goes", "back"} {
			s.addSet(name)
		}
		p := s.start("one", nil, poolArgs()...)
		advance(10 * time.Second)
		for _, name := range []string{"goes", "owned", "back"} {
			s.Expect(s.tracker.Delete(nodes(), "", name)).To(Succeed())
		}
		advance(5 * time.Minute)
		s.Expect(s.set("goes")).NotTo(BeNil(), "one pass says nothing")
		s.addNode("back")
		advance(5 * time.Minute)
		s.Expect(s.set("goes")).To(BeNil(), "%s", &p.log)
		for _, name := range []string{"stays", "owned", "back"} {
			s.Expect(s.set(name)).NotTo(BeNil(), name)
		}
		s.Expect(strings.Count(p.log.String(), `msg="a NetResourceSet is deleted, because its node is gone" node=goes`)).To(Equal(1))
		s.Expect(p.stop()).To(BeZero())
		s.Expect(p.log.String()).NotTo(Or(ContainSubstring("level=ERROR"), ContainSubstring("level=WARN")))
	})
}

// TestSetsAreNotDeleted where the API server has the Node after all or does not
// say, where the set has changed meanwhile, and by who was deposed.
func TestSetsAreNotDeleted(t *testing.T) {
	for what, ask := range map[string]func(s *stand) (bool, runtime.Object, error){
		"the Node is there": func(*stand) (bool, runtime.Object, error) { return true, &corev1.Node{}, nil },
		"it is not known":   func(*stand) (bool, runtime.Object, error) { return true, nil, errDown },
		"the agent writes": func(s *stand) (bool, runtime.Object, error) {
			u, err := objects.Encode(s.set("goes"), "NetResourceSet")
			must(err)
			s.next(u)
			must(s.objects.Update(sets(), u, ""))
			return false, nil, nil
		},
		"deposed": func(s *stand) (bool, runtime.Object, error) {
			s.steal("another")
			return false, nil, nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(s *stand) {
				s.addSet("goes")
				var asked atomic.Int64
				p := s.start("one", func(h *host) {
					make := h.clients
					h.clients = func(o commandLine) (clients, error) {
						c, err := make(o)
						c.kube.(*fake.Clientset).PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
							asked.Add(1)
							return ask(s)
						})
						return c, err
					}
				}, poolArgs("--leader-elect-lease-duration=3h", "--leader-elect-renew-deadline=2h", "--leader-elect-retry-period=1h")...)
				advance(time.Hour)
				s.Expect(asked.Load()).To(BeNumerically(">", 0))
				s.Expect(s.set("goes")).NotTo(BeNil())
				s.Expect(p.log.String()).NotTo(ContainSubstring("is deleted"))
				if what == "deposed" {
					s.Expect(p.code).To(Receive(Equal(exitFailed)))
				} else {
					s.Expect(p.stop()).To(BeZero())
				}
			})
		})
	}
}

// TestPoolsThatAreNotReady: what is waited for is said.
func TestPoolsThatAreNotReady(t *testing.T) {
	bubble(t, func(s *stand) {
		s.addNode("a")
		s.addSet("a")
		answers, ours := make(chan struct{}), s.dynamic(new(atomic.Bool)).(*dynamicfake.FakeDynamicClient)
		ours.PrependReactor("list", "addresspools", func(clienttesting.Action) (bool, runtime.Object, error) {
			<-answers
			return false, nil, nil
		})
		p := &operator{log: slog.New(slog.DiscardHandler), clients: clients{kube: s.client(new(atomic.Bool)), dynamic: ours}, identity: "one"}
		p.options.netresource = poolOptions{provider: providerClusterPool, workers: 2, resync: time.Second, qps: 20, burst: 30, preAllocate: 8}
		c, err := p.netResource(new(runner.Term))
		s.Expect(err).NotTo(HaveOccurred())
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		advance(time.Minute)
		s.Expect(c.Ready()).To(MatchError("the AddressPools are being read"))
		close(answers)
		advance(time.Minute)
		s.Expect(c.Ready()).To(Succeed())
		cancel()
		s.Expect(<-ended).To(Succeed())
	})
}
