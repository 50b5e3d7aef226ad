// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cadastre/cadastre/api/v1alpha1"
	"github.com/cadastre/cadastre/operator/netresource"
)

func TestWhichPodsAwaitAnAddress(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"pending":           {func(*corev1.Pod) {}, true},
		"on no node":        {func(p *corev1.Pod) { p.Spec.NodeName = "" }, false},
		"the host's":        {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, false},
		"running":           {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, false},
		"ended":             {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, false},
		"has its address":   {func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }, false},
		"is being deleted":  {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }, false},
		"not looked at yet": {func(p *corev1.Pod) { p.Status.Phase = "" }, true},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
		c.change(p)
		NewWithT(t).Expect(netresource.AwaitsAddress(p)).To(Equal(c.want), what)
	}
}

func TestOrphansAreSeenTwice(t *testing.T) {
	g := NewWithT(t)
	a, b, owned := &v1alpha1.NetResourceSet{}, &v1alpha1.NetResourceSet{}, &v1alpha1.NetResourceSet{}
	a.Name, b.Name, owned.Name = "a", "b", "owned"
	owned.OwnerReferences = []metav1.OwnerReference{{Name: "owned"}}
	all, o := []*v1alpha1.NetResourceSet{a, b, owned}, &netresource.Orphans{}
	g.Expect(o.Pass(all, map[string]bool{"a": true})).To(BeEmpty())
	g.Expect(o.Pass(all, map[string]bool{"b": true})).To(BeEmpty(), "b is back, a is gone since now")
	g.Expect(o.Pass(all, map[string]bool{})).To(Equal([]string{"a"}))
}

// TestPodsAreCounted as they come, get their addresses, and go.
func TestPodsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, kube := NewWithT(t), fake.NewClientset()
		pods := kube.CoreV1().Pods("default")
		pod := func(name, node string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
		}
		make := func(p *corev1.Pod) *corev1.Pod {
			made, err := pods.Create(t.Context(), p, metav1.CreateOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			return made
		}
		p1, _, host := make(pod("1", "a")), make(pod("2", "a")), pod("host", "a")
		host.Spec.HostNetwork = true
		make(host)
		c := netresource.NewPodCount(kube)
		var mu sync.Mutex
		var changed []string
		told := func(node string) { mu.Lock(); defer mu.Unlock(); changed = append(changed, node) }
		ctx, cancel := context.WithCancel(t.Context())
		var work sync.WaitGroup
		work.Go(func() {
			_ = c.Follow(ctx, told, func(ctx context.Context) error {
				if n := c.Of("a"); n != 2 { // before anything is decided
					t.Errorf("%d pods of a wait, not 2", n)
				}
				<-ctx.Done()
				return nil
			})
		})
		rest(time.Second)
		p3 := make(pod("3", ""))
		rest(time.Second)
		g.Expect([]int{c.Of("a"), c.Of("b"), c.Of("")}).To(Equal([]int{2, 0, 0}))
		p3.Spec.NodeName = "b"
		_, err := pods.Update(t.Context(), p3, metav1.UpdateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		p1.Status.PodIP = "10.0.0.1"
		_, err = pods.Update(t.Context(), p1, metav1.UpdateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		rest(time.Second)
		g.Expect([]int{c.Of("a"), c.Of("b")}).To(Equal([]int{1, 1}))
		g.Expect(pods.Delete(t.Context(), "2", metav1.DeleteOptions{})).To(Succeed())
		rest(time.Second)
		g.Expect([]int{c.Of("a"), c.Of("b")}).To(Equal([]int{0, 1}))
		cancel()
		work.Wait()
		slices.Sort(changed)
		g.Expect(changed).To(Equal([]string{"a", "a", "a", "a", "b"}))
	})
}
