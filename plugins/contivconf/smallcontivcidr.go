// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package contivconf

import (
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/ledger/addrspace"
	"github.com/cadastre/cadastre/plugins/ipam/addrplan"
)

// fromSmallContivCIDR returns the networks of an IPv4 contivCIDR of 16 or 17 host bits,
// as the manifests of Contiv-VPP had it for two days in September 2018. The nodes with IDs
// up to 63 or 127 have the addresses that they had then. The networks end before the first
// address that this version gave twice: its node interconnect was inside of the pods' or
// the hosts' network.
func fromSmallContivCIDR(p netip.Prefix) (f addrplan.Family, ok bool) {
	if !isSmallContivCIDR(p) {
		return addrplan.Family{}, false
	}
	hostBits, hosts := 16, uint64(1)
	if p.Bits() == 16 {
		hostBits, hosts = 18, 2
	}
	f.Pods, _ = addrspace.Sub(p, 17, 0)
	f.Hosts, _ = addrspace.Sub(p, hostBits, hosts)
	f.Nodes, _ = addrspace.Sub(p, 23, 125)
	f.Vxlan, _ = addrspace.Sub(p, 23, 127)
	f.PodsOneNode, f.HostsOneNode = 24, 24
	return f, true
}

func isSmallContivCIDR(p netip.Prefix) bool {
	return p.Addr().Is4() && (p.Bits() == 15 || p.Bits() == 16)
}

// withoutHostBits returns the network of a contivCIDR of these sizes: the manifests had
// 10.1.0.0/15. It leaves all other texts as they are.
func withoutHostBits(text string) string {
	if p, err := netip.ParsePrefix(text); err == nil && isSmallContivCIDR(p) {
		return p.Masked().String()
	}
	return text
}

// networksText returns the networks of f for a note.
func networksText(f addrplan.Family) string {
	return fmt.Sprintf("pods %s, VPP-host links %s, nodes %s, VXLAN %s", f.Pods, f.Hosts, f.Nodes, f.Vxlan)
}
