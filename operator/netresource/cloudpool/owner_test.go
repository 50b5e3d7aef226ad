// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package cloudpool_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The configuration of all nodes has the instance ID of one machine.
func TestTheAddressesOfAMachineAreThoseOfOneNode(t *testing.T) {
	s := newScene(t, plain)
	b := s.objs["b"].DeepCopy()
	b.Spec.InstanceID, b.CreationTimestamp = "machine-a", metav1.NewTime(s.now.Add(time.Minute))
	s.objs["b"] = b
	s.known("b")
	_, err := s.take("a", 4)
	s.g.Expect(err).NotTo(HaveOccurred())
	s.g.Expect(s.has("a")).To(HaveLen(4))
	state, err := s.p.State(t.Context(), b)
	s.g.Expect(state.Available).To(BeEmpty())
	s.g.Expect(err).To(MatchError(And(ContainSubstring("machine-a"), ContainSubstring("NetResourceSet a"))))

	s.g.Expect(s.p.Forget(t.Context(), "a")).To(Succeed())
	s.g.Expect(s.has("b")).To(HaveLen(4), "the first node is gone")
	b = b.DeepCopy()
	b.Spec.InstanceID = "machine-b"
	s.objs["b"] = b
	s.known("b")
	s.g.Expect(s.has("b")).To(BeEmpty())
}
