// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

// An API server never has two Node objects of one UID, but callers of the published API pass them.
func TestTwoNodesWithOneUID(t *testing.T) {
	for what, cidrs := range map[string][]string{
		"the second has no podCIDRs":         nil,
		"the second has podCIDRs of its own": {"10.1.7.0/24"},
	} {
		t.Run(what, func(t *testing.T) {
			g := NewWithT(t)
			node := func(name string, cidrs []string) *v1.Node {
				n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "the-same"}, Spec: v1.NodeSpec{PodCIDRs: cidrs}}
				if len(cidrs) > 0 {
					n.Spec.PodCIDR = cidrs[0]
				}
				return n
			}
			a, b := node("a", nil), node("b", cidrs)
			client := fake.NewClientset(a, b)
			factory := informers.NewSharedInformerFactory(client, 0)
			allocator, err := nodeipam.New(client, nil, factory.Core().V1().Nodes(), nodeipam.RangeAllocatorType, ipNet(t, "10.1.0.0/16"), nil, 24)
			g.Expect(err).NotTo(HaveOccurred())
			first, second := a, b
			if cidrs != nil { // the objects that have podCIDRs are read first
				first, second = b, a
			}
			if cidrs == nil {
				g.Expect(allocator.AllocateOrOccupyCIDR(first)).To(Succeed())
			}
			g.Expect(allocator.AllocateOrOccupyCIDR(second)).To(MatchError(And(
				ContainSubstring("two nodes have one UID"), ContainSubstring(`"`+first.Name+`"`))))
			is, err := client.CoreV1().Nodes().Get(t.Context(), second.Name, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(is.Spec.PodCIDRs).To(BeEmpty())
			g.Expect(allocator.(*nodeipam.Allocator).Status().Problems).To(ContainElement(And(
				HaveField("Node", second.Name), HaveField("Reason", nodeipam.ReasonConflict))))

			g.Expect(client.CoreV1().Nodes().Delete(t.Context(), first.Name, metav1.DeleteOptions{})).To(Succeed())
			g.Expect(allocator.ReleaseCIDR(first)).To(Succeed())
			g.Expect(allocator.AllocateOrOccupyCIDR(second)).To(Succeed(), "it is alone with its UID")
			g.Expect(allocator.(*nodeipam.Allocator).Status().Problems).To(BeEmpty())
		})
	}
}

// A caller starts an allocator twice. The second run is refused, and the first goes on.
func TestASecondRunIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewWithT(t)
		client := fake.NewClientset()
		factory := informers.NewSharedInformerFactory(client, 0)
		made, err := nodeipam.New(client, nil, factory.Core().V1().Nodes(), nodeipam.RangeAllocatorType, ipNet(t, "10.1.0.0/16"), nil, 24)
		g.Expect(err).NotTo(HaveOccurred())
		allocator := made.(*nodeipam.Allocator)
		stop := make(chan struct{})
		factory.Start(stop)
		var first sync.WaitGroup
		first.Go(func() { allocator.Run(stop) })
		synctest.Wait()

		second := make(chan struct{})
		go func() { defer close(second); allocator.Run(stop) }()
		synctest.Wait()
		g.Expect(second).To(BeClosed(), "it returns at once")
		g.Expect(allocator.RunContext(t.Context())).To(MatchError(ContainSubstring("an earlier run has not ended")))

		_, err = client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		time.Sleep(time.Second)
		synctest.Wait()
		node, err := client.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(node.Spec.PodCIDRs).To(HaveLen(1), "the first run goes on")
		close(stop)
		first.Wait()
		factory.Shutdown()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		g.Expect(allocator.RunContext(ended)).To(Succeed(), "the first run has ended")
	})
}
