// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// The tests of this package stand on their API server: that it refuses what a
// real one refuses is tested first.
func TestTheAPIServerRefusesWhatIsStale(t *testing.T) {
	s := newStand(t)
	defer s.store.Close()
	ctx, cut := t.Context(), new(atomic.Bool)
	client := s.client(cut)

	t.Run("update of a lease", func(t *testing.T) {
		g := NewWithT(t)
		leases := client.CoordinationV1().Leases("kube-system")
		holder := func(l *coordinationv1.Lease, name string) *coordinationv1.Lease {
			l = l.DeepCopy()
			l.Spec.HolderIdentity = &name
			return l
		}
		first, err := leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l", Namespace: "kube-system"}}, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(first.ResourceVersion).NotTo(BeEmpty())
		_, err = leases.Create(ctx, first, metav1.CreateOptions{})
		g.Expect(err).To(Satisfy(apierrors.IsAlreadyExists))

		second, err := leases.Update(ctx, holder(first, "one"), metav1.UpdateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(second.ResourceVersion).NotTo(Equal(first.ResourceVersion))
		_, err = leases.Update(ctx, holder(first, "two"), metav1.UpdateOptions{})
		g.Expect(err).To(Satisfy(apierrors.IsConflict), "it was read before the last write")
		now, err := leases.Get(ctx, "l", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(*now.Spec.HolderIdentity).To(Equal("one"))
		g.Expect(now.ResourceVersion).To(Equal(second.ResourceVersion))
	})

	t.Run("patch of a node", func(t *testing.T) {
		s.addNode("a")
		nodes := client.CoreV1().Nodes()
		read, err := nodes.Get(ctx, "a", metav1.GetOptions{})
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		for _, x := range []struct {
			what, patch string
			refused     func(error) bool // nil: it is applied
		}{
			{"as it was read", `{"metadata":{"resourceVersion":"` + read.ResourceVersion + `"},"spec":{"podCIDRs":["10.1.0.0/24"]}}`, nil},
			{"as it was read before that", `{"metadata":{"resourceVersion":"` + read.ResourceVersion + `","labels":{"x":"y"}}}`, apierrors.IsConflict},
			{"of another object", `{"metadata":{"uid":"other","labels":{"x":"y"}}}`, apierrors.IsConflict},
			{"of podCIDRs that are set", `{"spec":{"podCIDRs":["10.1.1.0/24"]}}`, apierrors.IsInvalid},
			{"of something else", `{"metadata":{"labels":{"z":"y"}}}`, nil},
		} {
			g := NewWithT(t)
			before, err := nodes.Get(ctx, "a", metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			_, err = nodes.Patch(ctx, "a", types.MergePatchType, []byte(x.patch), metav1.PatchOptions{})
			after, e := nodes.Get(ctx, "a", metav1.GetOptions{})
			g.Expect(e).NotTo(HaveOccurred())
			if x.refused != nil {
				g.Expect(err).To(Satisfy(x.refused), x.what)
				g.Expect(after).To(Equal(before), x.what)
				continue
			}
			g.Expect(err).NotTo(HaveOccurred(), x.what)
			g.Expect(after.ResourceVersion).NotTo(Equal(before.ResourceVersion), x.what)
			g.Expect(after.Spec.PodCIDRs).To(Equal([]string{"10.1.0.0/24"}), x.what)
		}
	})

	t.Run("our objects", func(t *testing.T) {
		g := NewWithT(t)
		sets := s.dynamic(cut).Resource(sets())
		made := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "a"}}}
		made.SetAPIVersion("cadastre.dev/v1alpha1")
		made.SetKind("NetResourceSet")
		first, err := sets.Create(ctx, made, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(first.GetUID()).NotTo(BeEmpty())
		_, err = sets.Update(ctx, first.DeepCopy(), metav1.UpdateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		_, err = sets.Update(ctx, first.DeepCopy(), metav1.UpdateOptions{})
		g.Expect(err).To(Satisfy(apierrors.IsConflict))
	})
}
