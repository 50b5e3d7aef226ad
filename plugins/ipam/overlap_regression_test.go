// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"testing"

	. "github.com/onsi/gomega"
)

// A configuration that allows pods and nodes to share a network allows it for pod CIDRs too.
func TestAPodCIDRThatOverlapsWhereThatIsAllowed(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t, `ipamConfig: {useExternalIPAM: true, podSubnetCIDR: 10.1.0.0/16, nodeInterconnectCIDR: 10.1.0.0/16}
cadastre: {allowOverlap: [podSubnetCIDR/nodeInterconnectCIDR]}`, 5)
	n.podCIDRs("10.1.77.0/24")
	g.Expect(n.resync()).To(Succeed())
	g.Expect(n.Pending()).To(BeEmpty())
	g.Expect(n.add("p1")).To(Equal("10.1.77.2"))
}
