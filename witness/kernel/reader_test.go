// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/witness"
)

// found returns the labels of the namespaces and the names of the links that have an address.
func found(v *witness.KernelView, addr string) (places []string) {
	for _, p := range v.Find(netip.MustParseAddr(addr)) {
		places = append(places, p.Namespace.Label()+" "+p.Link.Name)
	}
	return places
}

func TestNamedNamespaces(t *testing.T) {
	g := NewWithT(t)
	n := newNode(t)
	n.do(func() error { return addresses("lo", "192.168.16.5/32") })
	_, first := n.pod("pod1", "10.1.5.2/24", "fd00:10:1:5::2/64")
	_, second := n.pod("pod2", "10.1.5.3/32")

	v, err := n.reader().Read(t.Context(), nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(v.Hidden).To(BeEmpty())
	g.Expect(v.Namespaces).To(HaveLen(3))
	g.Expect(v.Namespaces[0].Host).To(BeTrue())
	g.Expect(found(v, "192.168.16.5")).To(Equal([]string{"host lo"}))
	g.Expect(found(v, "10.1.5.2")).To(Equal([]string{first + " eth0"}))
	g.Expect(found(v, "fd00:10:1:5::2")).To(Equal([]string{first + " eth0"}))
	g.Expect(found(v, "10.1.5.3")).To(Equal([]string{second + " eth0"}))
	g.Expect(found(v, "10.1.5.4")).To(BeEmpty())
}
