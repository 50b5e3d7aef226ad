// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netresource_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
