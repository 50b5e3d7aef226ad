// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// TestUplinksAreReadAsTheyWereWritten: a record of any uplinks is read back as they were.
func TestUplinksAreReadAsTheyWereWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		ids := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9/"-]{1,5}`), 0, 4, rapid.ID).Draw(t, "ids")
		prefix := func(name string) netip.Prefix {
			if rapid.Bool().Draw(t, name+" is IPv6") {
				a := netip.AddrFrom16([16]byte{0xfd, 15: rapid.Byte().Draw(t, name)})
				return netip.PrefixFrom(a, rapid.SampledFrom([]int{64, 80, 128}).Draw(t, name+" bits")).Masked()
			}
			a := netip.AddrFrom4([4]byte{10, 0, rapid.Byte().Draw(t, name), rapid.Byte().Draw(t, name)})
			return netip.PrefixFrom(a, rapid.SampledFrom([]int{24, 28, 32}).Draw(t, name+" bits")).Masked()
		}
		var interfaces []nodeset.Uplink
		blocks := map[netip.Prefix]string{}
		for i, id := range ids {
			u := nodeset.Uplink{Interface: id, MAC: rapid.SampledFrom([]string{"", "02:00:00:00:00:01"}).Draw(t, "mac"), Device: i}
			for range rapid.IntRange(0, 2).Draw(t, "ranges") {
				r := cloud.Range{CIDR: prefix("range")}
				if rapid.Bool().Draw(t, "gateway") {
					r.Gateway = r.CIDR.Addr().Next()
				}
				u.Ranges, u.VPCCIDRs = append(u.Ranges, r), append(u.VPCCIDRs, prefix("vpc"))
			}
			interfaces = append(interfaces, u)
			for range rapid.IntRange(0, 3).Draw(t, "blocks") {
				blocks[prefix("block")] = id
			}
		}
		want := nodeset.NewUplinks(interfaces, blocks)
		text, err := json.Marshal(want)
		g.Expect(err).NotTo(HaveOccurred())
		var have nodeset.Uplinks
		g.Expect(json.Unmarshal(text, &have)).To(Succeed())
		g.Expect(have.Equal(want)).To(BeTrue(), "%s", text)
	})
	have := nodeset.NewUplinks([]nodeset.Uplink{{Interface: "eni-1"}}, map[netip.Prefix]string{netip.MustParsePrefix("10.0.0.0/28"): "eni-1"})
	g := NewWithT(t)
	for _, bad := range []string{`{}`, `[{"interface":"a","blocks":["10.0.0.0/99"]}]`, `[{"interface":"a","blocks":[""]}]`} {
		g.Expect(have.UnmarshalJSON([]byte(bad))).NotTo(Succeed(), bad)
		g.Expect(have.All()).To(HaveLen(1))
	}
}
