// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/internal/testkit/clouds/memcloud"
	"github.com/cadastre/cadastre/operator/netresource"
	"github.com/cadastre/cadastre/operator/netresource/cloudpool"
	"github.com/cadastre/cadastre/operator/netresource/clusterpool"
	"github.com/cadastre/cadastre/operator/netresource/objects"
)

// apiServer is a real one with our definitions.
func apiServer(t *testing.T) (dynamic.Interface, kubernetes.Interface) {
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set: there is no kube-apiserver")
	}
	g := NewWithT(t)
	env := &envtest.Environment{CRDDirectoryPaths: []string{"../../k8s/crd"}, ErrorIfCRDPathMissing: true}
	config, err := env.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = env.Stop() })
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	kube, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	return client, kube
}

// TestTheAPIServer has one API server for all that needs one.
func TestTheAPIServer(t *testing.T) {
	server, kube := apiServer(t)
	t.Run("refuses what makes no sense", func(t *testing.T) { refusals(t, server) })
	t.Run("keeps status and spec apart", func(t *testing.T) { parts(t, server) })
	t.Run("blocks of AddressPools", func(t *testing.T) { blocks(t, server) })
	t.Run("a takeover, pods that wait, and a node that goes", func(t *testing.T) { lives(t, server, kube) })
	t.Run("a machine of a cloud", func(t *testing.T) { machineOfCloud(t, server, kube) })
	t.Run("an operator that is killed, and 20 agents", func(t *testing.T) { operatorAndAgents(t, server) })
}

func refusals(t *testing.T, server dynamic.Interface) {
	g, c := NewWithT(t), netresource.NewClient(server, 0)
	for what, spec := range map[string]v1alpha1.NetResourceSetSpec{
		"a key that is not an address": {IPAM: v1alpha1.IPAMSpec{Pool: v1alpha1.AllocationMap{"here": {}}}},
		"a pod CIDR that is none":      {IPAM: v1alpha1.IPAMSpec{PodCIDRs: []v1alpha1.PodCIDR{"10.0.0.1"}}},
		"less than nothing":            {IPAM: v1alpha1.IPAMSpec{MinAllocate: -1}},
		"pre":                          {IPAM: v1alpha1.IPAMSpec{PreAllocate: -2}},
		"min above max":                {IPAM: v1alpha1.IPAMSpec{MinAllocate: 9, MaxAllocate: 8}},
		"a node without an IP":         {Addresses: []v1alpha1.NetResourceAddress{{IP: "node"}}},
	} {
		n := &v1alpha1.NetResourceSet{Spec: spec}
		n.Name = "bad"
		_, err := c.Create(n)
		g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%s: %v", what, err)
	}
	n := &v1alpha1.NetResourceSet{Spec: v1alpha1.NetResourceSetSpec{InstanceID: "i-1", IPAM: v1alpha1.IPAMSpec{
		Pool: v1alpha1.AllocationMap{"10.0.0.1": {}, "10.0.1.0/28": {}, "fd00::/112": {}}, PodCIDRs: []v1alpha1.PodCIDR{"10.1.0.0/24"}, PreAllocate: -1,
	}}}
	n.Name = "good"
	made, err := c.Create(n)
	g.Expect(err).NotTo(HaveOccurred())
	made.Spec.InstanceID = "i-2"
	_, err = c.Update(nil, made)
	g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
	g.Expect(server.Resource(v1alpha1.Resource(v1alpha1.NetResourceSets)).Delete(t.Context(), "good", metav1.DeleteOptions{})).To(Succeed())
	for _, bad := range []v1alpha1.AddressPoolCIDR{{CIDR: "10.0.0.1/16", BlockPrefixLen: 24}, {CIDR: "10.0.0.0/16", BlockPrefixLen: 8}, {CIDR: "10.0.0.0/16", BlockPrefixLen: 64}, {CIDR: "all", BlockPrefixLen: 24}} {
		p := &v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{CIDRs: []v1alpha1.AddressPoolCIDR{bad}}}
		p.Name = "bad"
		u, err := objects.Encode(p, "AddressPool")
		g.Expect(err).NotTo(HaveOccurred())
		_, err = server.Resource(v1alpha1.Resource(v1alpha1.AddressPools)).Create(t.Context(), u, metav1.CreateOptions{})
		g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v: %v", bad, err)
	}
}

func parts(t *testing.T, server dynamic.Interface) {
	g, c := NewWithT(t), netresource.NewClient(server, 0)
	n := &v1alpha1.NetResourceSet{}
	n.Name = "parts"
	made, err := c.Create(n)
	g.Expect(err).NotTo(HaveOccurred())
	next := made.DeepCopy()
	next.Spec.IPAM.MinAllocate, next.Status.IPAM.Used = 3, v1alpha1.AllocationMap{"10.0.0.1": {}}
	written, err := c.UpdateStatus(made, next)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(written.Spec.IPAM.MinAllocate).To(BeZero())
	g.Expect(written.Status.IPAM.Used).To(HaveLen(1))
	_, err = c.Update(made, next)
	g.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
	next.ResourceVersion, next.Status.IPAM.Used = written.ResourceVersion, nil
	written, err = c.Update(made, next)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(written.Spec.IPAM.MinAllocate).To(Equal(3))
	g.Expect(written.Status.IPAM.Used).To(HaveLen(1))
	next.ResourceVersion = ""
	_, err = c.Update(made, next)
	g.Expect(err).To(MatchError(ContainSubstring("resourceVersion")))
	g.Expect(server.Resource(v1alpha1.Resource(v1alpha1.NetResourceSets)).Delete(t.Context(), "parts", metav1.DeleteOptions{})).To(Succeed())
	_, err = c.Get("parts")
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
}

// blocks has a node get blocks of an AddressPool, and its status told.
func blocks(t *testing.T, server dynamic.Interface) {
	g, p := NewWithT(t), clusterpool.New(clusterpool.Config{})
	pools := server.Resource(v1alpha1.Resource(v1alpha1.AddressPools))
	pool := &v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{CIDRs: []v1alpha1.AddressPoolCIDR{{CIDR: "10.3.0.0/24", BlockPrefixLen: 28}}}}
	pool.Name = "racks"
	u, err := objects.Encode(pool, "AddressPool")
	g.Expect(err).NotTo(HaveOccurred())
	_, err = pools.Create(t.Context(), u, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	client := netresource.NewClient(server, 0)
	n := &v1alpha1.NetResourceSet{Spec: v1alpha1.NetResourceSetSpec{IPAM: v1alpha1.IPAMSpec{PreAllocate: 20}}}
	n.Name = "rack-1"
	_, err = client.Create(n)
	g.Expect(err).NotTo(HaveOccurred())
	m, err := netresource.New(netresource.Config{Provider: p, API: client, Log: quiet(), ResyncInterval: time.Second})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		if err := p.Follow(ctx, server, 100*time.Millisecond, quiet(), func(ctx context.Context) error { return client.Run(ctx, m) }); err != nil {
			t.Error(err)
		}
	})
	g.Eventually(func() int { n, _ := client.Get("rack-1"); return len(n.Spec.IPAM.Pool) }, time.Minute, 50*time.Millisecond).Should(Equal(2))
	g.Eventually(func() int64 {
		u, _ := pools.Get(t.Context(), "racks", metav1.GetOptions{})
		pool, _ := objects.Decode[v1alpha1.AddressPool](u)
		return pool.Status.Free
	}, time.Minute, 50*time.Millisecond).Should(Equal(int64(256 - 32)))
	listed, err := client.Lister().Get("rack-1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(listed.Spec.IPAM.PreAllocate).To(Equal(20))
	_, err = client.Lister().Get("rack-2")
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue())
	g.Expect(server.Resource(v1alpha1.Resource(v1alpha1.NetResourceSets)).Delete(t.Context(), "rack-1", metav1.DeleteOptions{})).To(Succeed())
	g.Eventually(func() int64 { return p.Status("racks").Free }, time.Minute, 50*time.Millisecond).Should(Equal(int64(256)), "what it had is free again")
	g.Expect(pools.Delete(t.Context(), "racks", metav1.DeleteOptions{})).To(Succeed())
	g.Eventually(func() int64 { return p.Status("racks").Free }, time.Minute, 50*time.Millisecond).Should(BeZero())
	cancel()
	work.Wait()
}

// lives has a node's pool grow with the pods that wait, after a takeover that
// refuses what is late, and its NetResourceSet deleted when the Node is gone.
func lives(t *testing.T, server dynamic.Interface, kube kubernetes.Interface) {
	g, provider, client := NewWithT(t), clusterpool.New(clusterpool.Config{}), netresource.NewClient(server, 0)
	g.Expect(provider.SetPool(&v1alpha1.AddressPool{Spec: v1alpha1.AddressPoolSpec{CIDRs: []v1alpha1.AddressPoolCIDR{{CIDR: "10.4.0.0/24", BlockPrefixLen: 28}}}})).To(Succeed())
	_, err := kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "rack-9"}}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	n := &v1alpha1.NetResourceSet{}
	n.Name = "rack-9"
	before, err := client.Create(n)
	g.Expect(err).NotTo(HaveOccurred())
	pods := netresource.NewPodCount(kube)
	m, err := netresource.New(netresource.Config{
		Provider: provider, API: client, Log: quiet(), ResyncInterval: time.Second, Pending: pods.Of,
		Since: time.Now(), Consistency: -1, Fence: func(context.Context) error { return nil },
	})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		sweeper := netresource.Sweeper{Client: client, Kube: kube, Every: time.Second, Log: quiet()}
		_ = pods.Follow(ctx, m.Recount, func(ctx context.Context) error {
			return sweeper.Follow(ctx, func(ctx context.Context) error { return client.Run(ctx, m) })
		})
	})
	defer work.Wait()
	defer cancel()
	size := func() int { n, _ := client.Get("rack-9"); return len(n.Spec.IPAM.Pool) }
	g.Eventually(size, time.Minute, 50*time.Millisecond).Should(Equal(1))
	before.Spec.IPAM.Pool = v1alpha1.AllocationMap{"10.4.0.240/28": {}}
	_, err = client.Update(nil, before)
	g.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
	for i := range 20 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("wait-", i)}, Spec: corev1.PodSpec{NodeName: "rack-9", Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
		_, err := kube.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Eventually(size, time.Minute, 50*time.Millisecond).Should(Equal(2))
	g.Expect(pods.Of("rack-9")).To(Equal(20))
	g.Expect(kube.CoreV1().Nodes().Delete(t.Context(), "rack-9", metav1.DeleteOptions{})).To(Succeed())
	g.Eventually(func() bool { _, err := client.Get("rack-9"); return apierrors.IsNotFound(err) }, time.Minute, 50*time.Millisecond).Should(BeTrue())
	g.Eventually(m.GetNames, time.Minute, 50*time.Millisecond).Should(BeEmpty())
}

// machineOfCloud has a node of two families get an instance ID, addresses, and the interfaces
// that they are on, and give back what it does not need.
func machineOfCloud(t *testing.T, server dynamic.Interface, kube kubernetes.Interface) {
	g, client := NewWithT(t), netresource.NewClient(server, 0)
	machines := memcloud.New(memcloud.Config{
		Subnets:    map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("10.5.0.0/24")},
		Second:     map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("fd05::/64")},
		Interfaces: 4, PerInterface: 6, PrefixLen6: 80, Lag: 200 * time.Millisecond,
	})
	machines.AddInstance("i-0a1b", "subnet-a")
	provider := cloudpool.New(cloudpool.Config{
		Cloud: machines, IPv4: true, IPv6: true, Prefixes: true, Pre: 4, Consistency: time.Second, Log: quiet(),
	})
	m, err := netresource.New(netresource.Config{
		Provider: provider, API: client, ReleaseExcess: true, ReleaseDelay: 300 * time.Millisecond,
		ResyncInterval: time.Second, Consistency: time.Second, Workers: 8, Log: quiet(),
	})
	g.Expect(err).NotTo(HaveOccurred())
	sweeper := netresource.Sweeper{Client: client, Kube: kube, Log: quiet()}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	work.Go(func() {
		if err := sweeper.Follow(ctx, func(ctx context.Context) error { return client.Run(ctx, m) }); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	n := &v1alpha1.NetResourceSet{}
	n.Name = "cloud-1"
	_, err = client.Create(n)
	g.Expect(err).NotTo(HaveOccurred())
	node, err := kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "cloud-1"}}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	node.Spec.ProviderID = "mem:///zone-a/i-0a1b" // as a cloud controller sets it later
	_, err = kube.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	g.Expect(err).NotTo(HaveOccurred())

	a := &agent{name: "cloud-1", replies: true, leases: map[string]bool{}, cools: map[string]time.Time{}}
	work.Go(func() { live(ctx, client, a) })
	described := func(want int) {
		g.Eventually(func() error {
			nrs, err := client.Get("cloud-1")
			if err != nil {
				return err
			}
			v4 := 0
			for key, at := range nrs.Spec.IPAM.Pool {
				if !strings.Contains(key, ":") {
					v4++
				}
				i, ok := nrs.Status.Interfaces[at.Resource]
				if !ok || i.MAC == "" || len(i.Ranges) != 2 || i.Ranges[0].Gateway == "" || len(i.VPCCIDRs) != 2 {
					return fmt.Errorf("%s: its interface %s is %+v", key, at.Resource, i)
				}
			}
			if v4 != want || len(nrs.Status.IPAM.ReleaseIPs) > 0 || nrs.Spec.InstanceID != "i-0a1b" {
				return fmt.Errorf("%d addresses of %d, instance %q, error %q", v4, want, nrs.Spec.InstanceID, nrs.Status.IPAM.OperatorStatus.Error)
			}
			return nil
		}, time.Minute, 50*time.Millisecond).Should(Succeed())
	}
	for _, pods := range []int{0, 15, 1, 9} {
		a.mu.Lock()
		a.want = pods
		a.mu.Unlock()
		described(pods + 4)
	}
	nrs, err := client.Get("cloud-1")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(nrs.Status.IPAM.AvailableSubnetIDs).To(Equal([]string{"subnet-a"}))
	g.Expect(machines.Units("i-0a1b")).To(HaveLen(13+1), "one prefix of IPv6 is enough")
	other := nrs.DeepCopy()
	other.Spec.InstanceID = "i-9"
	_, err = client.Update(nrs, other)
	g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
	cancel()
	work.Wait()
	g.Expect(server.Resource(v1alpha1.Resource(v1alpha1.NetResourceSets)).Delete(t.Context(), "cloud-1", metav1.DeleteOptions{})).To(Succeed())
}

// operatorOn runs an operator until the function that it returns is called.
func operatorOn(t *testing.T, server dynamic.Interface, cloud *memcloud.Cloud) (m *netresource.NetResourceSetManager, kill func()) {
	ctx, cancel := context.WithCancel(t.Context())
	client := netresource.NewClient(server, 0)
	m, err := netresource.New(netresource.Config{
		Provider: cloudpool.New(cloudpool.Config{Cloud: cloud, Pre: 4, Consistency: time.Second, Log: quiet()}), API: client, ReleaseExcess: true, ReleaseDelay: 300 * time.Millisecond,
		ResyncInterval: time.Second, Consistency: time.Second, Workers: 8, Log: quiet(),
	})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	var work sync.WaitGroup
	work.Go(func() {
		if err := client.Run(ctx, m); err != nil {
			t.Error(err)
		}
	})
	return m, func() { cancel(); work.Wait() }
}

func operatorAndAgents(t *testing.T, server dynamic.Interface) {
	g, c := NewWithT(t), netresource.NewClient(server, 0)
	cloud := memcloud.New(memcloud.Config{
		Subnets:    map[string]netip.Prefix{"subnet-a": netip.MustParsePrefix("10.0.0.0/20")},
		Interfaces: 4, PerInterface: 16, Lag: 200 * time.Millisecond,
	})
	_, kill := operatorOn(t, server, cloud)
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	agents := map[string]*agent{}
	for i := range 20 {
		n := &v1alpha1.NetResourceSet{}
		n.Name = nodeName(i)
		cloud.AddInstance(n.Name, "subnet-a")
		_, err := c.Create(n)
		g.Expect(err).NotTo(HaveOccurred())
		a := &agent{name: n.Name, replies: true, leases: map[string]bool{}, cools: map[string]time.Time{}}
		agents[n.Name] = a
		work.Go(func() { live(ctx, c, a) })
	}
	began := time.Now()
	for round := range 4 {
		for i := range 20 {
			a := agents[nodeName(i)]
			a.mu.Lock()
			a.want = (round*11 + i*7) % 40
			a.mu.Unlock()
		}
		g.Eventually(func() (lacks int) {
			for _, a := range agents {
				lacks += max(0, a.lacks())
			}
			return lacks
		}, time.Minute, 100*time.Millisecond).Should(BeZero())
		t.Logf("round %d after %v", round, time.Since(began))
		kill() // whatever it was doing: often in the middle of a handshake
		_, kill = operatorOn(t, server, cloud)
	}
	for i := range 20 {
		a := agents[nodeName(i)]
		a.mu.Lock()
		a.want = 5
		a.mu.Unlock()
	}
	g.Eventually(func() error { return converged(c, cloud) }, 2*time.Minute, 200*time.Millisecond).Should(Succeed())
	t.Logf("settled after %v", time.Since(began))
	stop()
	work.Wait()
	for i := range 20 {
		g.Expect(server.Resource(v1alpha1.Resource(v1alpha1.NetResourceSets)).Delete(t.Context(), nodeName(i), metav1.DeleteOptions{})).To(Succeed())
	}
	kill()
}

// live is an agent that looks at its object again and again.
func live(ctx context.Context, c *netresource.Client, a *agent) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		nrs, err := c.Get(a.name)
		if err != nil {
			continue
		}
		a.mu.Lock()
		before := len(a.leases)
		a.mu.Unlock()
		next := nrs.DeepCopy()
		a.act(next)
		if fmt.Sprint(next.Status) != fmt.Sprint(nrs.Status) || before != len(next.Status.IPAM.Used) {
			_, _ = c.UpdateStatus(nrs, next) // a conflict: the next look tries again
		}
	}
}

// converged reports whether all nodes have 9 addresses of which 5 are used, nothing is
// on its way back, and the cloud has nothing else.
func converged(c *netresource.Client, cloud *memcloud.Cloud) error {
	for i := range 20 {
		nrs, err := c.Get(nodeName(i))
		if err != nil {
			return err
		}
		units := cloud.Units(nodeName(i))
		if len(nrs.Spec.IPAM.Pool) != 9 || len(nrs.Status.IPAM.Used) != 5 || len(nrs.Status.IPAM.ReleaseIPs) > 0 || len(units) != 9 {
			return fmt.Errorf("%s: pool %d, used %d, on their way back %v, at the cloud %d", nrs.Name, len(nrs.Spec.IPAM.Pool), len(nrs.Status.IPAM.Used), nrs.Status.IPAM.ReleaseIPs, len(units))
		}
		for _, u := range units {
			if _, ok := nrs.Spec.IPAM.Pool[u.Addr().String()]; !ok {
				return fmt.Errorf("%s: %s is not in its pool", nrs.Name, u)
			}
		}
	}
	return nil
}
