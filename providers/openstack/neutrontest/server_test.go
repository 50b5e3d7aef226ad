// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package neutrontest_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/providers/openstack/neutrontest"
)

// The server answers, has the extensions that the provider needs, and knows a machine's port.
func TestServer(t *testing.T) {
	g := NewWithT(t)
	s := neutrontest.New(t, neutrontest.Options{})
	network := s.Network(t, "10.0.0.0/24", "fd00::/64")
	port := s.Boot(t, network, "machine-1")
	g.Expect(port.FixedIPs).To(HaveLen(2))
	g.Expect(s.Ports(t)).To(HaveLen(1))
	g.Expect(s.Extensions(t)).To(ContainElements(
		"allowed-address-pairs", "revision-if-match", "standard-attr-tag", "standard-attr-timestamp", "empty-string-filtering"))
	s.Terminate(t, "machine-1")
	g.Expect(s.Ports(t)).To(BeEmpty())
}
