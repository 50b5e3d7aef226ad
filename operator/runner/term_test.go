// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package runner_test

import (
	"testing"

	. "github.com/onsi/gomega"
	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/cadastre/cadastre/operator/runner"
)

func TestLeaseFenceFailsAfterAnyOtherTerm(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	client := fake.NewClientset()
	leases := client.CoordinationV1().Leases("kube-system")
	fence := func(identity string) (*runner.LeaseFence, error) {
		return runner.NewLeaseFence(ctx, client.CoordinationV1(), "kube-system", "cadastre-operator", identity)
	}
	_, err := fence("one")
	g.Expect(err).To(MatchError(ContainSubstring("read the holder of lease kube-system/cadastre-operator")))
	g.Expect(err).NotTo(MatchError(runner.ErrDeposed), "the holder is not known")

	uid := types.UID("1")
	hold := func(holder string, transitions int32) {
		lease := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: "cadastre-operator", Namespace: "kube-system", UID: uid},
			Spec: coordination.LeaseSpec{HolderIdentity: &holder, LeaseTransitions: &transitions}}
		_ = leases.Delete(ctx, lease.Name, metav1.DeleteOptions{})
		_, err := leases.Create(ctx, lease, metav1.CreateOptions{})
		g.Expect(err).NotTo(HaveOccurred())
	}
	hold("one", 3)
	f, err := fence("one")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(f.Term()).To(Equal("one/3"))
	g.Expect(f.Check(ctx)).To(Succeed())
	_, err = fence("two")
	g.Expect(err).To(MatchError(runner.ErrDeposed))
	hold("two", 4)
	g.Expect(f.Check(ctx)).To(MatchError(And(ContainSubstring(`is held by "two" (4)`), ContainSubstring("another process leads"))))
	hold("one", 5)
	g.Expect(f.Check(ctx)).To(MatchError(runner.ErrDeposed), "it leads again, but another process led in between")
	again, err := fence("one")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.Term()).NotTo(Equal(f.Term()))
	uid = "2"
	hold("one", 5)
	g.Expect(again.Check(ctx)).To(MatchError(runner.ErrDeposed), "the lease was deleted: another process may have led")
	again, err = fence("one")
	g.Expect(err).NotTo(HaveOccurred())
	hold("", 5)
	g.Expect(again.Check(ctx)).To(MatchError(runner.ErrDeposed), "it was released")
}
