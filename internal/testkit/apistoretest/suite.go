// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistoretest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

// The nodes and the namespace of the suite.
const (
	thisNode  = "node-a"
	otherNode = "node-b"
	namespace = "default"
)

// patience limits the time that a change takes to arrive.
const patience = 20 * time.Second

// harness is a Store of an API server, and an administrator of that.
type harness struct {
	Gomega
	t     *testing.T
	ctx   context.Context
	store *apistore.Store
	admin dynamic.Interface
	rest  *rest.Config
}

// Run tests an API server for the behaviour that Store needs, and Store over it. open
// returns an administrator's configuration for a server with the definitions of k8s/crd
// and the namespace "default". Run deletes the objects of Store's kinds; nothing else
// may use the server meanwhile.
func Run(t *testing.T, open func(t *testing.T) *rest.Config) {
	t.Helper()
	for name, cases := range map[string]map[string]func(*harness){
		"server": serverCases(), "store": storeCases(), "refusals": refusalCases(), "ends": endCases(),
		"sets": setCases(), "watch": watchCases(), "begin and end of watches": edgeCases(), "random": randomCases(),
	} {
		for title, f := range cases {
			t.Run(name+"/"+title, func(t *testing.T) {
				x := newHarness(t, open(t))
				defer func() { x.Expect(x.store.Close()).To(Succeed()) }()
				f(x)
			})
		}
	}
}

func newHarness(t *testing.T, config *rest.Config) *harness {
	x := &harness{Gomega: NewWithT(t), t: t, ctx: t.Context()}
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 1000, 1000
	x.rest = config
	var err error
	x.admin, err = dynamic.NewForConfig(config)
	x.Expect(err).NotTo(HaveOccurred())
	x.store, err = apistore.Open(apistore.Config{REST: config, Node: thisNode, Log: slog.New(slog.DiscardHandler)})
	x.Expect(err).NotTo(HaveOccurred())
	x.clear()
	return x
}

// nodes and pods return the resources of Nodes and Pods.
func nodes() schema.GroupVersionResource { return corev1.SchemeGroupVersion.WithResource("nodes") }
func pods() schema.GroupVersionResource  { return corev1.SchemeGroupVersion.WithResource("pods") }

// at returns the client for a resource.
func (x *harness) at(r schema.GroupVersionResource) dynamic.ResourceInterface {
	if r == pods() {
		return x.admin.Resource(r).Namespace(namespace)
	}
	return x.admin.Resource(r)
}

// clear deletes all objects.
func (x *harness) clear() {
	all := []schema.GroupVersionResource{nodes(), pods()}
	for _, name := range []string{v1alpha1.CustomNetworks, v1alpha1.NodeConfigs, v1alpha1.NodeIDs, v1alpha1.NodeNames, v1alpha1.NodeBeats, v1alpha1.Pools, v1alpha1.PoolChanges, v1alpha1.PrefixClaims, v1alpha1.ClusterChecks, v1alpha1.NetResourceSets} {
		all = append(all, v1alpha1.Resource(name))
	}
	for _, r := range all {
		objects, err := x.at(r).List(x.ctx, metav1.ListOptions{})
		x.Expect(err).NotTo(HaveOccurred())
		for _, u := range objects.Items {
			x.remove(r, u.GetName())
		}
	}
}

// unstructuredOf is an object as the API server takes it.
func (x *harness) unstructuredOf(kind string, o runtime.Object) *unstructured.Unstructured {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	x.Expect(err).NotTo(HaveOccurred())
	u := &unstructured.Unstructured{Object: content}
	u.SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(kind))
	if kind == "Node" || kind == "Pod" {
		u.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	}
	return u
}

// put creates or replaces an object.
func (x *harness) put(r schema.GroupVersionResource, kind string, o runtime.Object) *unstructured.Unstructured {
	u := x.unstructuredOf(kind, o)
	var done *unstructured.Unstructured
	x.Eventually(func() error {
		old, err := x.at(r).Get(x.ctx, u.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			done, err = x.at(r).Create(x.ctx, u, metav1.CreateOptions{})
		case err == nil:
			u.SetResourceVersion(old.GetResourceVersion())
			done, err = x.at(r).Update(x.ctx, u, metav1.UpdateOptions{})
		}
		return err
	}, patience).Should(Succeed())
	return done
}

func (x *harness) network(name, cidr string) *unstructured.Unstructured {
	n := &v1alpha1.CustomNetwork{Spec: v1alpha1.CustomNetworkSpec{SubnetCIDR: cidr, SubnetOneNodePrefixLen: 24}}
	n.Name = name
	return x.put(v1alpha1.Resource(v1alpha1.CustomNetworks), "CustomNetwork", n)
}

func (x *harness) nodeConfig(name, gateway string) *unstructured.Unstructured {
	c := &v1alpha1.NodeConfig{Spec: v1alpha1.NodeConfigSpec{Gateway: gateway}}
	c.Name = name
	return x.put(v1alpha1.Resource(v1alpha1.NodeConfigs), "NodeConfig", c)
}

// node has a Node with a podCIDR, "" for none yet.
func (x *harness) node(name, cidr string) *unstructured.Unstructured {
	n := &corev1.Node{}
	n.Name = name
	if cidr != "" {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
	}
	return x.put(nodes(), "Node", n)
}

// pod has a Pod on a node, "" for none yet; ip is its address.
func (x *harness) pod(name, node, ip string) *unstructured.Unstructured {
	p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	p.Name, p.Namespace = name, namespace
	u, err := x.at(pods()).Create(x.ctx, x.unstructuredOf("Pod", p), metav1.CreateOptions{})
	x.Expect(err).NotTo(HaveOccurred())
	if ip != "" {
		u = x.podIP(name, ip)
	}
	return u
}

// podIP gives a Pod an address.
func (x *harness) podIP(name, ip string) (done *unstructured.Unstructured) {
	x.Eventually(func() error {
		u, err := x.at(pods()).Get(x.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := map[string]any{"phase": "Running", "podIP": ip, "podIPs": []any{map[string]any{"ip": ip}}}
		if err := unstructured.SetNestedMap(u.Object, status, "status"); err != nil {
			return err
		}
		done, err = x.at(pods()).UpdateStatus(x.ctx, u, metav1.UpdateOptions{})
		return err
	}, patience).Should(Succeed())
	return done
}

// remove deletes an object at once.
func (x *harness) remove(r schema.GroupVersionResource, name string) {
	now := int64(0)
	err := x.at(r).Delete(x.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	x.Expect(apierrors.IsNotFound(err) || err == nil).To(BeTrue(), "delete %s: %v", name, err)
	x.Eventually(func() error {
		_, err := x.at(r).Get(x.ctx, name, metav1.GetOptions{})
		return err
	}, patience).Should(MatchError(apierrors.IsNotFound, "not found"))
}

// write writes to the store.
func (x *harness) write(conds []kvdb.Cond, ops ...kvdb.Op) int64 {
	rev, err := x.store.Txn(x.ctx, conds, ops)
	x.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return rev
}

// try is the error of a write.
func (x *harness) try(conds []kvdb.Cond, ops ...kvdb.Op) error {
	_, err := x.store.Txn(x.ctx, conds, ops)
	return err
}

func (x *harness) op(key string, m proto.Message) kvdb.Op {
	value, err := proto.Marshal(m)
	x.Expect(err).NotTo(HaveOccurred())
	return kvdb.Put(key, value)
}

// pool is a write of a pool of a generation.
func (x *harness) pool(name string, generation int) kvdb.Op {
	return x.op(kv.PoolKey(name), &kv.Pool{Name: name, Network: "default", Generation: uint64(generation)})
}

func (x *harness) get(key string) (kvdb.KeyValue, bool) {
	kv, found, err := x.store.Get(x.ctx, key)
	x.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	return kv, found
}

// list returns the stored values as text, and their revision.
func (x *harness) list(prefixes ...string) ([]string, int64) {
	kvs, rev, err := x.store.List(x.ctx, prefixes...)
	x.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	all := []string{}
	for _, kv := range kvs {
		x.Expect(kv.ModRevision).To(And(BeNumerically(">", 0), BeNumerically("<=", rev)), kv.Key)
		all = append(all, describe(kv))
	}
	return all, rev
}

// describe is a value in words, without what the API server chose.
func describe(x kvdb.KeyValue) string {
	r, _ := kv.ResourceOf(x.Key)
	var m proto.Message = &kv.Meta{}
	switch {
	case strings.HasPrefix(x.Key, kv.BeatPrefix):
		m = &kv.NodeBeat{}
	case strings.HasPrefix(x.Key, kv.NodeNameKey("")):
		m = &kv.NodeName{}
	case r.New != nil:
		m = r.New()
	}
	if proto.Unmarshal(x.Value, m) != nil {
		return x.Key + ": unreadable"
	}
	what := ""
	switch m := m.(type) {
	case *kv.CustomNetwork:
		what = m.SubnetCidr
	case *kv.Node:
		what = m.Name + " " + strings.Join(m.PodCidrs, ",")
	case *kv.Pod:
		what = m.Node + " " + strings.Join(m.IpAddresses, ",")
	case *kv.NodeConfig:
		what = m.NodeName + " " + m.Gateway
	case *kv.NodeRecord:
		what = fmt.Sprint(m.Id, " ", m.Name, " ", m.Generation)
	case *kv.NodeBeat:
		what = fmt.Sprint(m.Id, " ", m.At)
	case *kv.NodeName:
		what = fmt.Sprint(m.Id)
	case *kv.Pool:
		what = fmt.Sprint(m.Name, " ", m.Generation)
	}
	return x.Key + ": " + what
}

// watch opens a watch that ends with the test.
func (x *harness) watch(prefix string, from int64) kvdb.Watcher {
	w, err := x.store.Watch(x.ctx, prefix, from)
	x.ExpectWithOffset(1, err).NotTo(HaveOccurred())
	x.t.Cleanup(w.Close)
	return w
}

// next is the next event of a watch, in words.
func (x *harness) next(w kvdb.Watcher) string {
	ctx, cancel := context.WithTimeout(x.ctx, patience)
	defer cancel()
	select {
	case batch, open := <-w.Events():
		x.ExpectWithOffset(1, open).To(BeTrue(), "the watch ended: %v", w.Err())
		x.ExpectWithOffset(1, batch).To(HaveLen(1))
		if batch[0].Deleted {
			x.ExpectWithOffset(1, batch[0].Value).To(BeNil())
			return batch[0].Key + " gone"
		}
		return describe(batch[0].KeyValue)
	case <-ctx.Done():
		x.ExpectWithOffset(1, errors.New("no event came")).NotTo(HaveOccurred())
		return ""
	}
}

// upTo reads a watch until it has delivered last, and returns all events.
func (x *harness) upTo(w kvdb.Watcher, last string) (all []string) {
	for !slices.Contains(all, last) {
		all = append(all, x.next(w))
	}
	return all
}
