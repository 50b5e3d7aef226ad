// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace_test

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/cadastre/cadastre/ledger/addrspace"
)

func TestSpecialNetworksAreNotUsable(t *testing.T) {
	for p, want := range map[string]string{
		"127.0.0.0/16": "127.0.0.0/8 (loopback)", "126.0.0.0/7": "127.0.0.0/8", "126.0.0.0/8": "", "0.0.0.0/0": "0.0.0.0/8", "1.0.0.0/8": "",
		"169.254.7.0/24": "169.254.0.0/16 (link-local)", "169.253.0.0/16": "", "239.1.0.0/16": "224.0.0.0/4 (multicast)", "240.0.0.0/8": "",
		"255.255.255.0/24": "broadcast", "fe80::/64": "fe80::/10 (link-local)", "febf::/16": "fe80::/10", "fec0::/10": "", "ff02::/16": "ff00::/8 (multicast)",
		"::1/128": "::1/128 (loopback)", "::/64": "::/128", "fd00::/8": "", "10.0.0.0/8": "", "100.64.0.0/10": "",
	} {
		g := NewWithT(t)
		err := addrspace.CheckUsable(netip.MustParsePrefix(p))
		if want == "" {
			g.Expect(err).NotTo(HaveOccurred(), p)
			continue
		}
		g.Expect(err).To(MatchError(ContainSubstring(want)), p)
	}
}
