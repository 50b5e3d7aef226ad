// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package addrspace

import (
	"fmt"
	"net/netip"
)

// CheckUsable fails if p shares addresses with a special-purpose network (RFC 6890) of
// which no host can have an address: Linux drops the packets, or never routes them. Of
// 240.0.0.0/4 only the broadcast address counts, since Linux and several clouds use the
// rest as ordinary addresses.
func CheckUsable(p netip.Prefix) error {
	example := "10.1.0.0/16"
	if p.Addr().Is6() {
		example = "fd00:1::/48"
	}
	for _, s := range []struct{ network, name string }{
		{"0.0.0.0/8", "this host on this network"},
		{"127.0.0.0/8", "loopback"},
		{"169.254.0.0/16", "link-local"},
		{"224.0.0.0/4", "multicast"},
		{"255.255.255.255/32", "broadcast"},
		{"::/128", "unspecified"},
		{"::1/128", "loopback"},
		{"fe80::/10", "link-local"},
		{"ff00::/8", "multicast"},
	} {
		if netip.MustParsePrefix(s.network).Overlaps(p) {
			return fmt.Errorf(
				"shares addresses with %s (%s), which no host can have: write private addresses, such as those of %s",
				s.network,
				s.name,
				example,
			)
		}
	}
	return nil
}
