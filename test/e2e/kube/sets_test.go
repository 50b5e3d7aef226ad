// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/v1alpha1"
)

// estate is a cluster whose nodes live on blocks of an AddressPool.
type estate struct {
	*cluster
	sets, pools dynamic.NamespaceableResourceInterface
	tenants     tenants
}

// estatePool has 128 blocks.
const estatePool = "10.64.0.0/21"

// newEstate is a control plane of its own, with the definitions and a pool.
func newEstate(t *testing.T) *estate {
	t.Helper()
	c := openCluster(t, newPlane(t).kubeconfig)
	config := rest.CopyConfig(c.config)
	config.ContentConfig = rest.ContentConfig{}
	client, err := dynamic.NewForConfig(config)
	c.g.Expect(err).NotTo(HaveOccurred())
	_, err = c.apply(filepath.Join("..", "..", "..", "k8s", "crd"))
	c.g.Expect(err).NotTo(HaveOccurred())
	_, err = c.kubectl("wait", "--for=condition=Established", "--all", "crd")
	c.g.Expect(err).NotTo(HaveOccurred())
	e := &estate{
		cluster: c, sets: client.Resource(v1alpha1.Resource(v1alpha1.NetResourceSets)), pools: client.Resource(v1alpha1.Resource(v1alpha1.AddressPools)),
		tenants: tenants{by: map[string]string{}},
	}
	pool := map[string]any{
		"apiVersion": v1alpha1.GroupVersion().String(), "kind": "AddressPool", "metadata": map[string]any{"name": "estate"},
		"spec": map[string]any{"cidrs": []any{map[string]any{"cidr": estatePool, "blockPrefixLen": int64(28)}}},
	}
	_, err = e.pools.Create(t.Context(), &unstructured.Unstructured{Object: pool}, createOptions())
	c.g.Expect(err).NotTo(HaveOccurred())
	return e
}

// flags are those of operators that fight for the pools.
func (e *estate) flags() []string {
	return []string{
		"--controllers=netresource", "--netresource-provider=clusterpool", "--release-excess-ips", "--excess-ip-release-delay=1s",
		"--netresource-resync-interval=1s", "--pool-cool-down=5s", "--netresource-orphan-interval=2s", "--leader-elect=true", "--leader-elect-resource-name=" + e.lease,
		"--leader-elect-lease-duration=" + leaseTime.String(), "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=300ms",
	}
}

// conf is the configuration of a node.
func (e *estate) conf() string {
	return fmt.Sprintf(`
cadastre:
  podBlocks: netresource
  netResource: {preAllocate: 4}
  coolDown: 0s
  nodeIDs: {quarantine: 0s}
  kvdb: {type: kubernetes, kubeconfig: %s}
  controller: {delayLocalResync: 1s, remoteDBProbingInterval: 1s, delayAfterErrorHealing: 100ms}
`, e.kubeconfig)
}

// set is the NetResourceSet of a node.
func (e *estate) set(name string) (*v1alpha1.NetResourceSet, error) {
	u, err := e.sets.Get(e.t.Context(), name, getOptions())
	if err != nil {
		return nil, err
	}
	return setOf(u)
}

func setOf(u *unstructured.Unstructured) (*v1alpha1.NetResourceSet, error) {
	n := &v1alpha1.NetResourceSet{}
	return n, runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, n)
}

// all are all NetResourceSets, of one moment.
func (e *estate) all(ctx context.Context) (sets []*v1alpha1.NetResourceSet, err error) {
	list, err := e.sets.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		n, err := setOf(&list.Items[i])
		if err != nil {
			return nil, err
		}
		sets = append(sets, n)
	}
	return sets, nil
}

// free returns the number of free addresses in the status of the pool.
func (e *estate) free() (int64, error) {
	u, err := e.pools.Get(e.t.Context(), "estate", getOptions())
	if err != nil {
		return 0, err
	}
	n, _, err := unstructured.NestedInt64(u.Object, "status", "free")
	return n, err
}

// tenants maps addresses to their owners, by the answers of the agents.
type tenants struct {
	mu   sync.Mutex
	by   map[string]string
	errs []error
}

func (x *tenants) take(address, who string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if other, ok := x.by[address]; ok && other != who {
		x.errs = append(x.errs, fmt.Errorf("%s has %s, and so has %s", who, address, other))
	}
	x.by[address] = who
}

func (x *tenants) leave(address, who string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.by[address] == who {
		delete(x.by, address)
	}
}

func (x *tenants) wrong() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return errors.Join(x.errs...)
}

// town is the pods of one node, which come and go.
type town struct {
	*agent
	e *estate

	mu   sync.Mutex
	want int
	pods map[string]string // by name: the address
	down bool              // the agent is away on purpose
}

func (w *town) set(want int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.want = want
}

func (w *town) away(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
}

// lacks returns the number of pods that wait for an address, or for their end.
func (w *town) lacks() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.want-len(w.pods), len(w.pods)-w.want)
}

// every does something again and again until ctx ends.
func every(ctx context.Context, d time.Duration, do func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}

// live has pods come and go until ctx ends. What fails is tried again: a pod
// whose answer was lost is asked for under the same name.
func (w *town) live(ctx context.Context) {
	serial := 0
	every(ctx, 40*time.Millisecond, func() {
		w.mu.Lock()
		more, less, down := len(w.pods) < w.want, len(w.pods) > w.want, w.down
		last := slices.Max(append(slices.Collect(maps.Keys(w.pods)), ""))
		address := w.pods[last]
		w.mu.Unlock()
		name := fmt.Sprintf("%s-%06d", w.name, serial)
		switch {
		case down:
		case more:
			ips, err := w.pod("ADD", name)
			if err != nil || len(ips) == 0 {
				return
			}
			serial++
			w.e.tenants.take(ips[0], name)
			w.mu.Lock()
			w.pods[name] = ips[0]
			w.mu.Unlock()
		case less:
			w.e.tenants.leave(address, last) // from now on another one may have it
			if _, err := w.pod("DEL", last); err != nil {
				return
			}
			w.mu.Lock()
			delete(w.pods, last)
			w.mu.Unlock()
		}
	})
}

// watch looks again and again whether two nodes may allocate of one block.
func (e *estate) watch(ctx context.Context) {
	every(ctx, 100*time.Millisecond, func() {
		sets, err := e.all(ctx)
		if err != nil {
			return
		}
		allocated := map[string]string{}
		for _, n := range sets {
			for key := range n.Spec.IPAM.Pool {
				if !handshake.Allocatable(n.Status.IPAM.ReleaseIPs[key]) {
					continue
				}
				if other, ok := allocated[key]; ok {
					e.tenants.take(key, n.Name+" allocates it")
					e.tenants.take(key, other+" allocates it")
				}
				allocated[key] = n.Name
			}
		}
	})
}

// meddle changes objects that operator and agents write, so that these conflict.
func (e *estate) meddle(ctx context.Context, names []string) {
	i := 0
	every(ctx, 30*time.Millisecond, func() {
		i++
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"e2e":"%d"}}}`, i)
		_, _ = e.sets.Patch(ctx, names[rand.IntN(len(names))], types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	})
}

// TestNetResourceSets: 20 agents live on blocks of an AddressPool that two
// operators manage. Pods come and go; the leader is killed in the middle of a
// handshake, agents are killed, objects are changed meanwhile, and one is deleted while
// its node lives. No address is held twice, no block is used by two nodes, and in the end
// the pool has all unused blocks back.
func TestNetResourceSets(t *testing.T) {
	mayRun(t)
	e := newEstate(t)
	g := e.g
	leader, standby := newOperator(t, e.kubeconfig, e.flags()...), newOperator(t, e.kubeconfig, e.flags()...)
	names := series("node", 20)
	e.createAll(names)
	towns := make([]*town, len(names))
	for i, name := range names {
		towns[i] = &town{agent: newAgent(t, name, e.conf()), e: e, pods: map[string]string{}}
	}
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	for _, w := range towns {
		work.Go(func() { w.live(ctx) })
	}
	work.Go(func() { e.watch(ctx) })
	work.Go(func() { e.meddle(ctx, names) })
	awaitRest := func(what string) {
		t.Helper()
		began := time.Now()
		g.Eventually(func() (lacks int) {
			for _, w := range towns {
				lacks += w.lacks()
			}
			return lacks
		}, 2*patience, pace).Should(BeZero(), what)
		g.Expect(e.tenants.wrong()).To(Succeed(), what)
		t.Logf("%s: settled after %v", what, time.Since(began).Round(time.Millisecond))
	}
	for round := range 3 {
		for i, w := range towns {
			w.set((round*13 + i*7) % 36)
		}
		awaitRest(fmt.Sprint("round ", round))
		for i, w := range towns {
			w.set((round + i) % 3)
		}
		e.awaitHandshake()
		leader.kill()
		leader, standby = standby, newOperator(t, e.kubeconfig, e.flags()...)
		victim := towns[round]
		victim.away(true)
		victim.process.kill()
		victim.run()
		victim.away(false)
		awaitRest(fmt.Sprintf("round %d, after two kills", round))
	}
	e.deleteOfALivingNode(towns[3])
	for _, w := range towns {
		w.set(0)
	}
	awaitRest("empty")
	gone := towns[19]
	gone.process.stop(g)
	e.remove(gone.name)
	g.Eventually(func() bool {
		_, err := e.set(gone.name)
		return apierrors.IsNotFound(err)
	}, 3*patience, pace).Should(BeTrue(), "the set of a node that is gone is not deleted")
	g.Eventually(e.balance, 3*patience, time.Second).Should(Succeed())
	g.Expect(e.tenants.wrong()).To(Succeed())
	g.Expect(leader.hasEnded()).To(Succeed())
	stop()
	work.Wait()
	leader.stop(g)
	standby.stop(g)
}

// awaitHandshake waits until some block is on its way back.
func (e *estate) awaitHandshake() {
	e.t.Helper()
	e.g.Eventually(func() (int, error) {
		sets, err := e.all(e.t.Context())
		n := 0
		for _, s := range sets {
			n += len(s.Status.IPAM.ReleaseIPs)
		}
		return n, err
	}, patience, pace).Should(BeNumerically(">", 0), "nothing is asked back")
}

// deleteOfALivingNode: its agent claims the addresses of its pods again before
// another node gets them.
func (e *estate) deleteOfALivingNode(w *town) {
	e.t.Helper()
	w.set(5)
	e.g.Eventually(w.lacks, patience, pace).Should(BeZero())
	before, err := e.set(w.name)
	e.g.Expect(err).NotTo(HaveOccurred())
	e.g.Expect(e.sets.Delete(e.t.Context(), w.name, deleteOptions())).To(Succeed())
	e.g.Eventually(func(g Gomega) {
		after, err := e.set(w.name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(after.UID).NotTo(Equal(before.UID))
		for _, address := range w.held() {
			a, err := netip.ParseAddr(address)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(slices.ContainsFunc(blocksOf(after), func(p netip.Prefix) bool { return p.Contains(a) })).To(BeTrue(), "%s is of none of %v", a, blocksOf(after))
		}
	}, patience, pace).Should(Succeed())
	e.g.Expect(w.held()).To(HaveLen(5))
}

// blocksOf are the blocks of a set.
func blocksOf(n *v1alpha1.NetResourceSet) (all []netip.Prefix) {
	for key := range n.Spec.IPAM.Pool {
		if p, err := netip.ParsePrefix(key); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// balance is an error unless each node has the one block that it wants, nothing
// is on its way, and the pool has all the others.
func (e *estate) balance() error {
	sets, err := e.all(e.t.Context())
	if err != nil {
		return err
	}
	given := 0
	for _, n := range sets {
		given += len(n.Spec.IPAM.Pool)
		if len(n.Spec.IPAM.Pool) != 1 || len(n.Status.IPAM.ReleaseIPs) > 0 || len(n.Status.IPAM.Used) > 0 || n.Status.IPAM.OperatorStatus.Error != "" {
			return fmt.Errorf("%s has %v, on their way back %v, used %d, %s", n.Name, blocksOf(n), n.Status.IPAM.ReleaseIPs, len(n.Status.IPAM.Used), n.Status.IPAM.OperatorStatus.Error)
		}
	}
	free, err := e.free()
	if want := int64(128-given) * 16; err == nil && free != want {
		return fmt.Errorf("%d sets have %d blocks, and the pool has %d free addresses instead of %d", len(sets), given, free, want)
	}
	return err
}

// TestPrinterColumns: "kubectl get nrs" shows what people look for.
func TestPrinterColumns(t *testing.T) {
	mayRun(t)
	e := newEstate(t)
	operator := newOperator(t, e.kubeconfig, e.flags()...)
	e.create("n1")
	a := newAgent(t, "n1", e.conf())
	e.g.Eventually(func() error { _, err := a.pod("ADD", "p1"); return err }, patience, pace).Should(Succeed())
	e.g.Eventually(func() (string, error) {
		out, err := e.kubectl("get", "nrs", "n1", "--no-headers")
		return strings.Join(strings.Fields(out)[:min(4, len(strings.Fields(out)))], " "), err
	}, patience, pace).Should(HavePrefix("n1 5 16"), "the pod's address, and the four that are the block's own")
	operator.stop(e.g)
	a.process.stop(e.g)
}
