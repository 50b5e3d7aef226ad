// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistoretest

import (
	"context"
	"strconv"
	"sync"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

func (x *harness) revisionOf(u *unstructured.Unstructured) int64 {
	n, err := strconv.ParseInt(u.GetResourceVersion(), 10, 64)
	x.Expect(err).NotTo(HaveOccurred())
	return n
}

// serverCases returns the cases about behaviour of the API server that Store relies on.
func serverCases() map[string]func(*harness) {
	return map[string]func(*harness){
		"versions": func(x *harness) {
			a, b := x.network("a", "10.1.0.0/16"), x.network("b", "10.2.0.0/16")
			p := x.pod("p", thisNode, "")
			x.Expect(x.revisionOf(b)).To(BeNumerically(">", x.revisionOf(a)))
			x.Expect(x.revisionOf(p)).To(BeNumerically(">", x.revisionOf(b)), "there is one counter")
			x.Expect(
				x.network("a", "10.1.0.0/16").GetResourceVersion(),
			).To(
				Equal(a.GetResourceVersion()),
				"nothing changed",
			)
			x.Expect(x.revisionOf(x.network("a", "10.3.0.0/16"))).To(BeNumerically(">", x.revisionOf(p)))
		},
		"conflicts": func(x *harness) {
			networks := x.at(v1alpha1.Resource(v1alpha1.CustomNetworks))
			a := x.network("a", "10.1.0.0/16")
			x.network("a", "10.2.0.0/16")
			a.SetUID("")
			_, err := networks.Update(x.ctx, a, metav1.UpdateOptions{})
			x.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
			fresh := a.DeepCopy()
			fresh.SetResourceVersion("")
			_, err = networks.Update(x.ctx, fresh, metav1.UpdateOptions{})
			x.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
			_, err = networks.Create(x.ctx, fresh, metav1.CreateOptions{})
			x.Expect(apierrors.IsAlreadyExists(err)).To(BeTrue(), "%v", err)
			old := a.GetResourceVersion()
			err = networks.Delete(
				x.ctx,
				"a",
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &old}},
			)
			x.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
			x.remove(v1alpha1.Resource(v1alpha1.CustomNetworks), "a")
			_, err = networks.Update(x.ctx, a, metav1.UpdateOptions{})
			x.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
			err = networks.Delete(x.ctx, "a", metav1.DeleteOptions{})
			x.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
		},
		"patches": func(x *harness) {
			networks := x.at(v1alpha1.Resource(v1alpha1.CustomNetworks))
			a := x.network("a", "10.1.0.0/16")
			b, err := networks.Patch(
				x.ctx,
				"a",
				types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"l":"1"}},"spec":{"subnetCIDR":"10.2.0.0/16"}}`),
				metav1.PatchOptions{},
			)
			x.Expect(err).NotTo(HaveOccurred())
			x.Expect(b.GetLabels()).To(Equal(map[string]string{"l": "1"}))
			length, _, _ := unstructured.NestedInt64(b.Object, "spec", "subnetOneNodePrefixLen")
			x.Expect(length).To(Equal(int64(24)))
			_, err = networks.Patch(
				x.ctx,
				"a",
				types.MergePatchType,
				[]byte(
					`{"metadata":{"resourceVersion":"`+a.GetResourceVersion()+`"},"spec":{"subnetOneNodePrefixLen":25}}`,
				),
				metav1.PatchOptions{},
			)
			x.Expect(apierrors.IsConflict(err)).To(BeTrue(), "%v", err)
			b, err = networks.Patch(
				x.ctx,
				"a",
				types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"l":null}}}`),
				metav1.PatchOptions{},
			)
			x.Expect(err).NotTo(HaveOccurred())
			x.Expect(b.GetLabels()).To(BeEmpty())
		},
		"the past": func(x *harness) {
			networks := x.at(v1alpha1.Resource(v1alpha1.CustomNetworks))
			x.network("a", "10.1.0.0/16")
			then := x.network("b", "10.2.0.0/16")
			x.network("a", "10.3.0.0/16")
			x.remove(v1alpha1.Resource(v1alpha1.CustomNetworks), "b")
			all, err := networks.List(
				x.ctx,
				metav1.ListOptions{
					ResourceVersion:      then.GetResourceVersion(),
					ResourceVersionMatch: metav1.ResourceVersionMatchExact,
				},
			)
			x.Expect(err).NotTo(HaveOccurred())
			x.Expect(all.GetResourceVersion()).To(Equal(then.GetResourceVersion()))
			x.Expect(all.Items).To(HaveLen(2))
			cidr, _, _ := unstructured.NestedString(all.Items[0].Object, "spec", "subnetCIDR")
			x.Expect(cidr).To(Equal("10.1.0.0/16"))
			_, err = networks.List(
				x.ctx,
				metav1.ListOptions{ResourceVersion: "1", ResourceVersionMatch: metav1.ResourceVersionMatchExact},
			)
			x.Expect(err == nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)).To(BeTrue(), "%v", err)
		},
	}
}

// storeCases returns the cases about Get, List and Txn.
func storeCases() map[string]func(*harness) {
	return map[string]func(*harness){
		"objects": func(x *harness) {
			x.network("blue", "10.5.0.0/16")
			x.nodeConfig(thisNode, "192.168.16.1")
			x.nodeConfig(otherNode, "192.168.16.2")
			n := x.node(thisNode, "10.1.1.0/24")
			x.node(otherNode, "10.1.2.0/24")
			x.pod("p", thisNode, "10.1.1.2")
			x.pod("q", otherNode, "10.1.2.2")
			x.pod("r", "", "")
			all, _ := x.list(kv.ClusterPrefix, kv.NodePrefix(thisNode))
			x.Expect(all).To(Equal([]string{
				"cluster/network/blue: 10.5.0.0/16", "cluster/node/node-a: node-a 10.1.1.0/24",
				"node/node-a/config: node-a 192.168.16.1", "node/node-a/pod/default/p: node-a 10.1.1.2",
			}))
			for key, there := range map[string]bool{
				kv.NodeKey(thisNode): true, kv.NodeKey(otherNode): false, kv.NodeConfigKey(otherNode): true, kv.CustomNetworkKey("red"): false,
				kv.PodKey(thisNode, kv.PodID{Namespace: namespace, Name: "p"}): true, kv.PodKey(thisNode, kv.PodID{Namespace: namespace, Name: "q"}): false,
				"cluster/other": false, kv.ExternalKey(thisNode, "node"): false, "other": false,
			} {
				_, found := x.get(key)
				x.Expect(found).To(Equal(there), key)
			}
			y, _ := x.get(kv.NodeKey(thisNode))
			x.Expect(y.ModRevision).To(Equal(x.revisionOf(n)))
			none, rev := x.list("nothing")
			x.Expect(none).To(BeEmpty())
			x.Expect(rev).To(BeNumerically(">=", x.revisionOf(n)))
		},
		"writes": func(x *harness) {
			record := &kv.NodeRecord{
				Id:          5,
				Name:        "a",
				Instance:    "i",
				Generation:  3,
				IpAddresses: []string{"10.0.0.1"},
				Released:    1700000000000000001,
				Clean:       true,
			}
			rev := x.write(
				nil,
				x.op(kv.NodeRecordKey(5), record),
				x.op(kv.BeatKey(5), &kv.NodeBeat{Id: 5, Instance: "i", At: 7}),
				x.op(kv.NodeNameKey("a"), &kv.NodeName{Id: 5}),
				kvdb.Put(kv.PoolsKey, nil),
				x.pool("p", 1),
			)
			all, at := x.list("cluster/", "beat/", "name/")
			x.Expect(
				all,
			).To(
				Equal(
					[]string{
						"beat/5: 5 7",
						"cluster/node-id/5: 5 a 3",
						"cluster/pool/p: p 1",
						"cluster/pools: ",
						"name/a: 5",
					},
				),
			)
			x.Expect(at).To(BeNumerically(">=", rev))
			y, _ := x.get(kv.PoolKey("p"))
			x.Expect(y.ModRevision).To(Equal(rev), "it was the last")
			x.Expect(
				x.write([]kvdb.Cond{kvdb.AtRevision(kv.PoolKey("p"), rev)}, x.pool("p", 2)),
			).To(
				BeNumerically(">", rev),
			)
			x.Expect(
				x.try([]kvdb.Cond{kvdb.AtRevision(kv.PoolKey("p"), rev)}, x.pool("p", 3)),
			).To(
				MatchError(kvdb.ErrConditions),
			)
			x.Expect(
				x.try([]kvdb.Cond{kvdb.Absent(kv.PoolKey("p"))}, x.pool("p", 3)),
			).To(
				MatchError(kvdb.ErrConditions),
			)
			x.Expect(
				x.try([]kvdb.Cond{kvdb.AtRevision(kv.PoolKey("q"), rev)}, x.pool("q", 3)),
			).To(
				MatchError(kvdb.ErrConditions),
			)
			x.write([]kvdb.Cond{kvdb.Absent(kv.PoolKey("q"))}, x.pool("q", 3))
			x.write(nil, kvdb.Delete(kv.PoolKey("q")), kvdb.Delete(kv.PoolKey("none")))
			x.Expect(
				x.try([]kvdb.Cond{kvdb.Absent(kv.PoolKey("p"))}, kvdb.Delete(kv.PoolKey("p"))),
			).To(
				MatchError(kvdb.ErrConditions),
			)
			x.Expect(
				x.try([]kvdb.Cond{kvdb.AtRevision(kv.PoolKey("p"), rev)}, kvdb.Delete(kv.PoolKey("p"))),
			).To(
				MatchError(kvdb.ErrConditions),
			)
			all, _ = x.list(kv.PoolPrefix)
			x.Expect(all).To(Equal([]string{"cluster/pool/p: p 2"}))
		},
		"objects that nodes compete for": func(x *harness) {
			for _, put := range []kvdb.Op{kvdb.Put(kv.PoolsKey, nil), x.op(kv.NodeNameKey("a"), &kv.NodeName{Id: 5})} {
				first := x.write(nil, put)
				second := x.write([]kvdb.Cond{kvdb.AtRevision(put.Key, first)}, put)
				x.Expect(second).To(BeNumerically(">", first), put.Key)
				x.Expect(x.try([]kvdb.Cond{kvdb.AtRevision(put.Key, first)}, put)).To(MatchError(kvdb.ErrConditions))
			}
			first := x.write(nil, x.pool("p", 1))
			x.Expect(
				x.write([]kvdb.Cond{kvdb.AtRevision(kv.PoolKey("p"), first)}, x.pool("p", 1)),
			).To(
				Equal(first),
				"nothing changed",
			)
		},
	}
}

// refusalCases returns the cases about refused transactions.
func refusalCases() map[string]func(*harness) {
	return map[string]func(*harness){
		"conditions on other keys": func(x *harness) {
			rev := x.write(nil, x.pool("p", 1))
			x.Expect(
				x.try([]kvdb.Cond{kvdb.Absent(kv.PoolKey("p"))}, x.pool("q", 1)),
			).To(
				MatchError(kvdb.ErrConditions),
			)
			x.Expect(x.try([]kvdb.Cond{kvdb.AtRevision(kv.PoolKey("p"), rev-1)})).To(MatchError(kvdb.ErrConditions))
			x.Expect(
				x.try([]kvdb.Cond{kvdb.Absent(kv.PoolKey("q")), kvdb.AtRevision(kv.PoolKey("q"), 7)}),
			).To(
				MatchError(kvdb.ErrConditions),
			)
			x.write([]kvdb.Cond{kvdb.AtRevision(kv.PoolKey("p"), rev), kvdb.Absent(kv.PoolKey("q"))}, x.pool("r", 1))
			x.write([]kvdb.Cond{kvdb.AtRevision(kv.PoolKey("p"), rev)})
			all, _ := x.list(kv.PoolPrefix)
			x.Expect(all).To(Equal([]string{"cluster/pool/p: p 1", "cluster/pool/r: r 1"}))
		},
		"refusals": func(x *harness) {
			for _, key := range []string{kv.NodeKey(thisNode), kv.CustomNetworkKey("a"), kv.NodeConfigKey(thisNode), kv.PodKey(thisNode, kv.PodID{Namespace: "a", Name: "b"}), "other", "", kv.PoolPrefix, kv.PoolKey("a/b")} {
				x.Expect(x.try(nil, x.pool("p", 1), kvdb.Put(key, nil))).To(MatchError(apistore.ErrReadOnly), key)
			}
			x.Expect(x.try(nil, x.pool("p", 1), x.pool("p", 2))).To(MatchError(kvdb.ErrKey))
			x.Expect(x.try(nil, kvdb.Put(kv.PoolKey("p"), x.pool("q", 1).Value))).To(MatchError(kvdb.ErrKey))
			x.Expect(x.try(nil, kvdb.Put(kv.PoolKey("p"), []byte{0xff}))).NotTo(Succeed())
			x.Expect(x.try(make([]kvdb.Cond, kvdb.MaxOps+1))).To(MatchError(kvdb.ErrTooManyOps))
			x.Expect(x.try(nil, make([]kvdb.Op, kvdb.MaxOps+1)...)).To(MatchError(kvdb.ErrTooManyOps))
			all, _ := x.list(kv.PoolPrefix)
			x.Expect(all).To(BeEmpty())
		},
	}
}

// endCases returns the cases about concurrent calls and Close.
func endCases() map[string]func(*harness) {
	return map[string]func(*harness){
		"races": func(x *harness) {
			wins := make([]int, 8)
			var workers sync.WaitGroup
			for i := range wins {
				workers.Go(func() {
					for range 5 {
						y, _, err := x.store.Get(x.ctx, kv.PoolKey("p"))
						if err != nil {
							x.t.Error(err)
						}
						if _, err := x.store.Txn(
							x.ctx,
							[]kvdb.Cond{{Key: kv.PoolKey("p"), ModRevision: y.ModRevision}},
							[]kvdb.Op{x.pool("p", int(y.ModRevision)*10+i)},
						); err == nil {
							wins[i]++
						}
						if _, err := x.store.Txn(x.ctx, nil, []kvdb.Op{x.pool("free", i)}); err != nil {
							x.t.Error(err)
						}
					}
				})
			}
			workers.Wait()
			x.Expect(wins).To(ContainElement(BeNumerically(">", 0)))
		},
		"the end": func(x *harness) {
			x.Expect(x.store.Probe(x.ctx)).To(Succeed())
			ctx, cancel := context.WithCancel(x.ctx)
			cancel()
			_, _, err := x.store.Get(ctx, kv.PoolKey("p"))
			x.Expect(err).To(MatchError(context.Canceled))
			w := x.watch(kv.ClusterPrefix, 0)
			x.Expect(x.store.Close()).To(Succeed())
			x.Eventually(w.Events(), patience).Should(BeClosed())
			x.Expect(w.Err()).To(MatchError(kvdb.ErrClosed))
			_, _, err = x.store.Get(x.ctx, kv.PoolKey("p"))
			x.Expect(err).To(MatchError(kvdb.ErrClosed))
			_, _, err = x.store.Get(x.ctx, "other")
			x.Expect(err).To(MatchError(kvdb.ErrClosed))
			_, _, err = x.store.List(x.ctx, "")
			x.Expect(err).To(MatchError(kvdb.ErrClosed))
			_, err = x.store.Watch(x.ctx, "", 0)
			x.Expect(err).To(MatchError(kvdb.ErrClosed))
			x.Expect(x.try(nil, x.pool("p", 1))).To(MatchError(kvdb.ErrClosed))
			x.Expect(
				x.try([]kvdb.Cond{kvdb.AtRevision(kv.PoolKey("p"), 1)}, x.pool("p", 1)),
			).To(
				MatchError(kvdb.ErrClosed),
			)
			x.Expect(x.store.Probe(x.ctx)).To(MatchError(kvdb.ErrClosed))
			x.Expect(x.store.Close()).To(Succeed())
		},
	}
}

// writer writes pairs of objects of two kinds, the second after the first. The caller
// waits for its end.
func (x *harness) writer(n int) *sync.WaitGroup {
	var work sync.WaitGroup
	work.Go(func() {
		for i := range n {
			x.write(
				nil,
				x.op(kv.NodeRecordKey(1), &kv.NodeRecord{Id: 1, Name: "a", Instance: "i", Generation: uint64(i)}),
			)
			x.write(nil, x.pool("p", i))
		}
	})
	return &work
}
