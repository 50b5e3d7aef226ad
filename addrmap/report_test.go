// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrmap_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/addrmap"
	"github.com/cadastre/cadastre/plugins/restapi/localapi"
)

// TestUseOfOtherNodes has a node that reports its blocks, and one that reports the sum
// of a pool with two families. A third one reports the sum of its only block, and a
// fourth one reports nothing.
func TestUseOfOtherNodes(t *testing.T) {
	g := NewWithT(t)
	place := func(text string) addrmap.Place {
		return addrmap.Place{Pool: "default", Prefix: netip.MustParsePrefix(text)}
	}
	s := &addrmap.Source{Ranges: map[string][]netip.Prefix{
		"default": {netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/112")},
	}}
	s.AddNode("reports", []addrmap.Place{place("10.1.1.0/24"), place("fd00::100/120")}, addrmap.Reports{Uses: []addrmap.Use{
		{Place: place("10.1.1.0/24"), Leases: 7},
		{Place: place("fd00::100/120"), Leases: 8, Draining: true},
		{Place: place("10.1.201.0/24"), Leases: 3, Draining: true},
	}})
	sums := addrmap.Reports{}
	sums.AddSum("default", 9)
	s.AddNode("sums", []addrmap.Place{place("10.1.2.0/24"), place("fd00::200/120")}, sums)
	s.AddNode("single", []addrmap.Place{place("10.1.3.0/24")}, sums)
	s.AddNode("silent", []addrmap.Place{place("10.1.4.0/24")}, addrmap.Reports{})

	part, err := s.Part("default", netip.MustParsePrefix("10.1.0.0/16"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(part.Counts).To(Equal(localapi.AddressCounts{Other: 5 * 256, OtherHeld: 7 + 3 + 9, OtherUnknown: 2 * 256}))
	states := map[string]string{}
	for _, b := range part.Blocks {
		states[b.Prefix.String()] = b.State
	}
	g.Expect(states).To(Equal(map[string]string{
		"10.1.1.0/24": "active", "10.1.2.0/24": "", "10.1.3.0/24": "active", "10.1.4.0/24": "", "10.1.201.0/24": "draining",
	}))
	part, err = s.Part("default", netip.MustParsePrefix("fd00::/112"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(part.Counts).To(Equal(localapi.AddressCounts{Other: 512, OtherHeld: 8, OtherUnknown: 256}))
	g.Expect(part.Blocks[0].State).To(Equal("draining"))
	part, err = s.Part("default", netip.MustParsePrefix("10.1.1.0/25"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(part.Counts).To(Equal(localapi.AddressCounts{Other: 128, OtherUnknown: 128}), "which addresses are in use is not reported")
}
