// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net"
	"testing"

	. "github.com/onsi/gomega"
	admission "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"

	"github.com/cadastre/cadastre/operator/nodeipam"
)

// TestThePublishedOrderOfCalls: a program makes an allocator, starts its factory
// once, and runs it. Every one of twenty starts numbers a node.
func TestThePublishedOrderOfCalls(t *testing.T) {
	c := newCluster(t)
	_, cidr, err := net.ParseCIDR("10.50.0.0/16")
	c.g.Expect(err).NotTo(HaveOccurred())
	for i := range 20 {
		stop, ended := make(chan struct{}), make(chan struct{})
		factory := informers.NewSharedInformerFactory(c.client, 0)
		a, err := nodeipam.New(c.client, nil, factory.Core().V1().Nodes(), nodeipam.RangeAllocatorType, cidr, nil, 24)
		c.g.Expect(err).NotTo(HaveOccurred())
		factory.Start(stop)
		go func() {
			defer close(ended)
			a.Run(stop)
		}()
		name := fmt.Sprint("start-", i)
		c.create(name)
		c.awaitNumbered(name)
		close(stop)
		<-ended
		factory.Shutdown()
		c.g.Expect(c.node(name).Annotations).To(BeEmpty())
	}
}

// TestANodeThatCannotBeWrittenHoldsUpNoOther: an admission policy refuses every
// write to one node when a leader starts.
func TestANodeThatCannotBeWrittenHoldsUpNoOther(t *testing.T) {
	c := newCluster(t)
	c.create("stuck")
	allow := c.refuseWrites("stuck")
	newOperator(t, c.kubeconfig, c.electing(nodeipam.Options{Allocate: true, Cluster: "10.51.0.0/22", Order: "lowest"})...)
	some := series("n", 3)
	c.createAll(some)
	c.awaitNumbered(some...)
	c.g.Expect(c.node("stuck").Spec.PodCIDRs).To(BeEmpty())
	allow()
	c.awaitNumbered("stuck")
}

// refuseWrites makes the API server refuse all updates of a node until allow is
// called.
func (c *cluster) refuseWrites(node string) (allow func()) {
	c.t.Helper()
	ctx, api := c.t.Context(), c.client.AdmissionregistrationV1()
	named := metav1.ObjectMeta{Name: c.lease}
	_, err := api.ValidatingAdmissionPolicies().Create(ctx, &admission.ValidatingAdmissionPolicy{ObjectMeta: named, Spec: admission.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admission.MatchResources{ResourceRules: []admission.NamedRuleWithOperations{{RuleWithOperations: admission.RuleWithOperations{
			Operations: []admission.OperationType{admission.Update},
			Rule:       admission.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"nodes"}},
		}}}},
		Validations: []admission.Validation{{Expression: fmt.Sprintf("object.metadata.name != %q", node)}},
	}}, createOptions())
	c.g.Expect(err).NotTo(HaveOccurred())
	_, err = api.ValidatingAdmissionPolicyBindings().Create(ctx, &admission.ValidatingAdmissionPolicyBinding{ObjectMeta: named,
		Spec: admission.ValidatingAdmissionPolicyBindingSpec{PolicyName: named.Name, ValidationActions: []admission.ValidationAction{admission.Deny}}}, createOptions())
	c.g.Expect(err).NotTo(HaveOccurred())
	write := func() error {
		_, err := c.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(`{"metadata":{"labels":{"x":"y"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	c.g.Eventually(write, patience, pace).ShouldNot(Succeed())
	remove := func(ctx context.Context) {
		for _, err := range []error{
			api.ValidatingAdmissionPolicyBindings().Delete(ctx, named.Name, deleteOptions()),
			api.ValidatingAdmissionPolicies().Delete(ctx, named.Name, deleteOptions()),
		} {
			if !apierrors.IsNotFound(err) {
				c.g.Expect(err).NotTo(HaveOccurred())
			}
		}
	}
	c.t.Cleanup(func() { remove(context.Background()) }) // the control plane is shared
	return func() {
		remove(ctx)
		c.g.Eventually(write, patience, pace).Should(Succeed())
	}
}
