// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager_test

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/plugins/podmanager"
	"github.com/cadastre/cadastre/plugins/podmanager/cni"
)

// A code is one thing: the pod's event, the log, the span and the metric agree about it.
func TestEveryCodeHasItsReasonAndLabel(t *testing.T) {
	g := NewWithT(t)
	want := map[uint]string{
		1: "InvalidAddressRequest invalid_request", 2: "InvalidAddressRequest invalid_request", 3: "InvalidAddressRequest invalid_request",
		4: "InvalidAddressRequest invalid_request", 5: "InternalError internal", 6: "InvalidAddressRequest invalid_request",
		7: "InvalidAddressRequest invalid_request", 11: "AddressNotServed not_ready", 50: "AddressNotServed not_ready",
		100: "InvalidAddressRequest invalid_request", 101: "AddressRefused address_refused", 102: "NoAddress no_address", 999: "InternalError internal",
	}
	source, err := os.ReadFile("cni/errors.go")
	g.Expect(err).NotTo(HaveOccurred())
	found := map[uint]string{}
	for _, m := range regexp.MustCompile(`(?m)^\tCode\w+ += (\d+)`).FindAllSubmatch(source, -1) {
		n, err := strconv.ParseUint(string(m[1]), 10, 32)
		g.Expect(err).NotTo(HaveOccurred())
		reason := podmanager.ReasonOf(uint(n))
		found[uint(n)] = fmt.Sprint(reason, " ", reason.Label())
	}
	g.Expect(found).To(Equal(want))
}

// The API server refuses the event of a reason that its policy does not list.
func TestThePolicyHasEveryReason(t *testing.T) {
	g := NewWithT(t)
	policy, err := os.ReadFile("../../k8s/components/kubernetes/policy/nodeevents.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	list := regexp.MustCompile(`in \[([^\]]*)\]`).FindSubmatch(policy)
	g.Expect(list).NotTo(BeNil())
	var listed []podmanager.Reason
	for _, m := range regexp.MustCompile(`'(\w+)'`).FindAllSubmatch(list[1], -1) {
		listed = append(listed, podmanager.Reason(m[1]))
	}
	g.Expect(listed).To(ConsistOf(podmanager.Reasons()))
}

// A defect of the agent is not the fault of the pod that it concerns.
func TestADefectIsReportedAsOne(t *testing.T) {
	r := newReporting(t, plain)
	r.Wires = &wires{}
	r.loop.handlers = append(r.loop.handlers, forgetful{})
	_, err := r.serve(mainRequest("ADD", "c1"))
	r.g.Expect(code(r.g, err)).To(BeNumerically("==", cni.CodeInternal))
	r.g.Expect(r.refusals).To(HaveLen(1))
	r.g.Expect(r.refusals[0].Reason).To(Equal(podmanager.InternalError))
	r.g.Expect(r.text.String()).To(ContainSubstring("reason=InternalError"))
	r.g.Expect(r.served[0].Code).To(BeNumerically("==", cni.CodeInternal))
}
