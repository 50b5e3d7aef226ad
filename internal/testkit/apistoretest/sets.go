// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package apistoretest

import (
	"log/slog"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/kvdb"
	"github.com/cadastre/cadastre/plugins/kubestate/apistore"
)

// withSets is a Store that has this node's NetResourceSet.
func (x *harness) withSets() *apistore.Store {
	s, err := apistore.Open(
		apistore.Config{REST: x.rest, Node: thisNode, NetResources: true, Log: slog.New(slog.DiscardHandler)},
	)
	x.Expect(err).NotTo(HaveOccurred())
	x.t.Cleanup(func() { x.Expect(s.Close()).To(Succeed()) })
	return s
}

// report writes this node's set if it is as it was at a revision.
func (x *harness) report(s *apistore.Store, m *kv.NetResourceSet, at int64) (int64, error) {
	value, err := proto.Marshal(m)
	x.Expect(err).NotTo(HaveOccurred())
	key := kv.NetResourceSetKey(thisNode)
	return s.Txn(x.ctx, []kvdb.Cond{{Key: key, ModRevision: at}}, []kvdb.Op{kvdb.Put(key, value)})
}

// set is this node's set as a Store has it.
func (x *harness) set(s *apistore.Store) (*kv.NetResourceSet, int64) {
	kvs, found, err := s.Get(x.ctx, kv.NetResourceSetKey(thisNode))
	x.Expect(err).NotTo(HaveOccurred())
	x.Expect(found).To(BeTrue())
	m := &kv.NetResourceSet{}
	x.Expect(proto.Unmarshal(kvs.Value, m)).To(Succeed())
	return m, kvs.ModRevision
}

// operate changes the object as the operator does, its status too.
func (x *harness) operate(change func(*v1alpha1.NetResourceSet)) {
	sets := x.at(v1alpha1.Resource(v1alpha1.NetResourceSets))
	n := &v1alpha1.NetResourceSet{}
	read := func() {
		u, err := sets.Get(x.ctx, thisNode, metav1.GetOptions{})
		x.Expect(err).NotTo(HaveOccurred())
		*n = v1alpha1.NetResourceSet{}
		x.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, n)).To(Succeed())
		change(n)
	}
	read()
	_, err := sets.UpdateStatus(x.ctx, x.unstructuredOf("NetResourceSet", n), metav1.UpdateOptions{})
	x.Expect(err).NotTo(HaveOccurred())
	read()
	_, err = sets.Update(x.ctx, x.unstructuredOf("NetResourceSet", n), metav1.UpdateOptions{})
	x.Expect(err).NotTo(HaveOccurred())
}

// setCases are about NetResourceSets, which two sides write.
func setCases() map[string]func(*harness) {
	return map[string]func(*harness){
		"made by the agent, and then its status only": func(x *harness) {
			s := x.withSets()
			_, err := x.report(s, &kv.NetResourceSet{
				Name:  thisNode,
				Pool:  map[string]*kv.NetResource{"10.9.0.0/28": {}},
				Marks: &kv.NetResourceMarks{PreAllocate: 8},
				Used:  map[string]*kv.NetResource{"10.9.0.2": {Owner: "default/a"}},
			}, 0)
			x.Expect(err).NotTo(HaveOccurred())
			m, rev := x.set(s)
			x.Expect(m.Pool).To(HaveKey("10.9.0.0/28"))
			x.Expect(m.Marks.PreAllocate).To(Equal(int32(8)))
			x.Expect(m.Used).To(BeEmpty(), "an object is made without a status")
			m.Pool["10.9.0.16/28"], m.Marks.PreAllocate = &kv.NetResource{}, 9
			m.Used, m.Releases = map[string]*kv.NetResource{
				"10.9.0.2": {Owner: "default/a", Resource: "eni-1"},
			}, map[string]string{
				"10.9.0.0/28": "do-not-release",
			}
			_, err = x.report(s, m, rev)
			x.Expect(err).NotTo(HaveOccurred())
			m, _ = x.set(s)
			x.Expect(m.Pool).To(HaveLen(1), "which is the operator's")
			x.Expect(m.Marks.PreAllocate).To(Equal(int32(8)))
			x.Expect(m.Used["10.9.0.2"]).To(And(HaveField("Owner", "default/a"), HaveField("Resource", "eni-1")))
			x.Expect(m.Releases).To(Equal(map[string]string{"10.9.0.0/28": "do-not-release"}))
			_, err = x.report(s, m, 0)
			x.Expect(err).To(MatchError(kvdb.ErrConditions), "it is there")
		},
		"of two sides neither loses what it wrote": func(x *harness) {
			s := x.withSets()
			_, err := x.report(s, &kv.NetResourceSet{Name: thisNode}, 0)
			x.Expect(err).NotTo(HaveOccurred())
			m, rev := x.set(s)
			w, err := s.Watch(x.ctx, kv.NodePrefix(thisNode), rev+1)
			x.Expect(err).NotTo(HaveOccurred())
			defer w.Close()
			x.operate(func(n *v1alpha1.NetResourceSet) {
				n.Spec.IPAM.Pool = v1alpha1.AllocationMap{"10.9.0.7": {Resource: "eni-1", IsPrimary: true}}
				n.Status.Addresses.Capacity, n.Status.IPAM.OperatorStatus.Error = 16, "no more"
				n.Status.IPAM.ReleaseIPs = map[string]handshake.State{"10.9.0.7": handshake.Marked}
			})
			_, err = x.report(s, m, rev)
			x.Expect(err).To(MatchError(kvdb.ErrConditions), "the operator was faster")
			m, rev = x.set(s)
			x.Expect(m.OperatorError).To(Equal("no more"))
			m.Releases["10.9.0.7"] = "ready-for-release"
			_, err = x.report(s, m, rev)
			x.Expect(err).NotTo(HaveOccurred())
			x.Eventually(w.Events(), patience).Should(Receive(WithTransform(func(batch []kvdb.Event) string {
				m := &kv.NetResourceSet{}
				x.Expect(batch[0].Key).To(Equal(kv.NetResourceSetKey(thisNode)))
				x.Expect(proto.Unmarshal(batch[0].Value, m)).To(Succeed())
				return m.Releases["10.9.0.7"]
			}, Equal("ready-for-release"))))
			x.operate(func(n *v1alpha1.NetResourceSet) {
				x.Expect(n.Status.Addresses.Capacity).To(Equal(16))
				x.Expect(n.Spec.IPAM.Pool["10.9.0.7"].IsPrimary).To(BeTrue())
			})
		},
		"only of those who ask, and of this node": func(x *harness) {
			s := x.withSets()
			_, err := x.report(s, &kv.NetResourceSet{Name: thisNode}, 0)
			x.Expect(err).NotTo(HaveOccurred())
			kvs, _, err := s.List(x.ctx, kv.NodePrefix(thisNode))
			x.Expect(err).NotTo(HaveOccurred())
			x.Expect(kvs).To(HaveLen(1))
			kvs, _, err = x.store.List(x.ctx, kv.NodePrefix(thisNode))
			x.Expect(err).NotTo(HaveOccurred())
			x.Expect(kvs).To(BeEmpty())
			_, err = x.report(x.store, &kv.NetResourceSet{Name: thisNode}, 0)
			x.Expect(err).To(MatchError(apistore.ErrReadOnly))
			_, err = s.Txn(x.ctx, nil, []kvdb.Op{kvdb.Put(kv.NetResourceSetKey(otherNode), nil)})
			x.Expect(err).To(MatchError(apistore.ErrReadOnly))
		},
	}
}
