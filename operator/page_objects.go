// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/cadastre/cadastre/addrmap"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/explain"
	"github.com/cadastre/cadastre/operator/netresource/objects"
	"github.com/cadastre/cadastre/plugins/ipam/poolplan"
)

// Times of the objects that are followed for the page.
const (
	objectsIdle = 10 * time.Minute // without a page that is open they are not followed
	objectsWait = 2 * time.Second  // for which the first request waits for them
)

// followed holds one kind of objects of the API server while a page is open: an operator
// without a page keeps none in memory. Any goroutine may call it.
type followed struct {
	open   func() cache.SharedIndexInformer
	wanted chan struct{}

	mu      sync.Mutex
	now     cache.Indexer // nil: they are not followed
	problem string        // of the last attempt to read them
	synced  chan struct{} // closed when all have been read
}

func newFollowed(open func() cache.SharedIndexInformer) *followed {
	return &followed{open: open, wanted: make(chan struct{}, 1), synced: make(chan struct{})}
}

// Run follows the objects from the first request on, and ends that if there has been none
// for a while. It returns when ctx ends.
func (f *followed) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wanted:
			f.follow(ctx)
		}
	}
}

// follow runs an informer until no request has come for a while.
func (f *followed) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	informer := f.open()
	_ = informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.problem = err.Error()
	})
	f.mu.Lock()
	f.now, f.problem = informer.GetIndexer(), ""
	synced := f.synced
	f.mu.Unlock()
	var work sync.WaitGroup
	work.Go(func() { informer.RunWithContext(ctx) })
	work.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			close(synced)
		}
	})
	for waited := false; !waited; {
		timer := time.NewTimer(objectsIdle)
		select {
		case <-ctx.Done():
			waited = true
		case <-timer.C:
			waited = true
		case <-f.wanted:
		}
		timer.Stop()
	}
	cancel()
	work.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now, f.synced = nil, make(chan struct{})
}

// want returns the objects, which are followed from now on. The first caller waits for them
// a moment. problem is the reason for which they are not known, "" if they are.
func (f *followed) want(ctx context.Context) (now cache.Indexer, problem string) {
	select {
	case f.wanted <- struct{}{}:
	default:
	}
	f.mu.Lock()
	synced := f.synced
	f.mu.Unlock()
	timer := time.NewTimer(objectsWait)
	defer timer.Stop()
	select {
	case <-synced:
	case <-ctx.Done():
		problem = "they are being read"
	case <-timer.C:
		problem = "they are being read"
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if problem != "" && f.problem != "" {
		problem = "the API server does not list them: " + f.problem
	}
	return f.now, problem
}

// pageObjects follows the Pods and the NetResourceSets of the cluster.
type pageObjects struct {
	pods *followed
	sets *followed // nil: there are none
}

// newPageObjects returns objects that are not followed yet. sets tells that NetResourceSets
// are in use.
func newPageObjects(c clients, sets bool) *pageObjects {
	o := &pageObjects{pods: newFollowed(func() cache.SharedIndexInformer {
		indexers := cache.Indexers{byAddress: addressesOf}
		return reducing(coreinformers.NewPodInformer(c.kube, metav1.NamespaceAll, 0, indexers), reducePod)
	})}
	if sets {
		o.sets = newFollowed(func() cache.SharedIndexInformer {
			return reducing(objects.InformerOf(c.dynamic, v1alpha1.Resource(v1alpha1.NetResourceSets)), reduceSet)
		})
	}
	return o
}

// Run follows the objects until ctx ends.
func (o *pageObjects) Run(ctx context.Context) {
	var work sync.WaitGroup
	work.Go(func() { o.pods.Run(ctx) })
	if o.sets != nil {
		work.Go(func() { o.sets.Run(ctx) })
	}
	work.Wait()
}

// reducing has an informer that does not run yet keep reduced objects.
func reducing(informer cache.SharedIndexInformer, reduce cache.TransformFunc) cache.SharedIndexInformer {
	_ = informer.SetTransform(reduce) // it fails only for one that runs
	return informer
}

// byAddress names the index of the Pods by address.
const byAddress = "address"

// podObject is the reduced form of a Pod that the cache keeps.
type podObject struct {
	metav1.ObjectMeta // namespace, name and version only
	explain.ClusterPod
}

func addressesOf(obj any) (all []string, err error) {
	if p, ok := obj.(*podObject); ok && !p.HostNetwork {
		for _, a := range p.Addrs {
			all = append(all, a.String())
		}
	}
	return all, nil
}

// reducePod implements cache.TransformFunc. An informer may also call it with its own
// result.
func reducePod(obj any) (any, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	p := &podObject{ClusterPod: explain.ClusterPod{
		Namespace:   pod.Namespace,
		Name:        pod.Name,
		Node:        pod.Spec.NodeName,
		Phase:       string(pod.Status.Phase),
		HostNetwork: pod.Spec.HostNetwork,
	}}
	p.ObjectMeta.Namespace, p.ObjectMeta.Name = pod.Namespace, pod.Name
	p.UID, p.ResourceVersion = pod.UID, pod.ResourceVersion
	for _, ip := range pod.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			p.Addrs = append(p.Addrs, a.Unmap())
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if c.ContainerID != "" {
			p.Containers = append(p.Containers, c.ContainerID)
		}
	}
	return p, nil
}

// setObject is the reduced form of a NetResourceSet that the cache keeps.
type setObject struct {
	metav1.ObjectMeta // name and version only
	uses              []addrmap.Use
}

// reduceSet implements cache.TransformFunc.
func reduceSet(obj any) (any, error) {
	if _, done := obj.(*setObject); done {
		return obj, nil
	}
	set, err := objects.Decode[v1alpha1.NetResourceSet](obj)
	if err != nil {
		return nil, fmt.Errorf("follow the NetResourceSets: %w", err)
	}
	s := &setObject{uses: usesOf(set)}
	s.Name, s.UID, s.ResourceVersion = set.Name, set.UID, set.ResourceVersion
	return s, nil
}

// usesOf returns the blocks of a NetResourceSet, with the number of their addresses that
// the agent cannot allocate.
func usesOf(set *v1alpha1.NetResourceSet) (uses []addrmap.Use) {
	number := map[netip.Prefix]int{}
	add := func(text string) {
		p, err := netip.ParsePrefix(text)
		if a, single := netip.ParseAddr(text); single == nil {
			p, err = a.Prefix(a.BitLen())
		}
		if _, twice := number[p.Masked()]; err != nil || twice {
			return
		}
		number[p.Masked()] = len(uses)
		_, leaving := set.Status.IPAM.ReleaseIPs[text]
		place := addrmap.Place{Pool: poolplan.Default, Prefix: p.Masked()}
		uses = append(uses, addrmap.Use{Place: place, Draining: leaving})
	}
	for text := range set.Spec.IPAM.Pool {
		add(text)
	}
	for _, text := range set.Spec.IPAM.PodCIDRs {
		add(string(text))
	}
	for text := range set.Status.IPAM.Used {
		a, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		for bits := a.BitLen(); bits >= 0; bits-- {
			p, _ := a.Prefix(bits)
			if i, found := number[p]; found {
				uses[i].Leases++
				break
			}
		}
	}
	return uses
}

// reports returns the uses of the nodes' NetResourceSets, by node, and why these are not
// known.
func (o *pageObjects) reports(ctx context.Context) (all map[string][]addrmap.Use, problem string) {
	if o.sets == nil {
		return nil, ""
	}
	sets, problem := o.sets.want(ctx)
	all = map[string][]addrmap.Use{}
	for _, obj := range listed(sets) {
		if s, ok := obj.(*setObject); ok {
			all[s.Name] = s.uses
		}
	}
	return all, problem
}

func listed(now cache.Indexer) []any {
	if now == nil {
		return nil
	}
	return now.List()
}

// byName returns a Pod, nil if there is none.
func byName(pods cache.Indexer, namespace, name string) *explain.ClusterPod {
	if pods == nil {
		return nil
	}
	obj, _, err := pods.GetByKey(namespace + "/" + name)
	if x, ok := obj.(*podObject); ok && err == nil {
		return &x.ClusterPod
	}
	return nil
}

// podsAt returns the Pods that report an address.
func podsAt(pods cache.Indexer, a netip.Addr) (all []explain.ClusterPod) {
	if pods == nil {
		return nil
	}
	found, _ := pods.ByIndex(byAddress, a.String()) // the index exists
	for _, obj := range found {
		if x, ok := obj.(*podObject); ok {
			all = append(all, x.ClusterPod)
		}
	}
	return all
}
