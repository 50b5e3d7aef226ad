// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package guards

import (
	"go/ast"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
)

// netIPBorders are the files that a published API, CNI, Docker or netlink
// forces to speak net.IP.
func netIPBorders() []string {
	return []string{
		"plugins/ipam/api.go",     // the published IPAM API
		"plugins/ipam/getters.go", // its methods, and the conversions
		"plugins/ipam/pods.go",    // AllocatePodIP and GetPodIP
		"ipam/api.go",             // CCE's published manager
		"ipam/allocate.go",        // its methods, and the conversions
		"ipam/allocator.go",
		"ipam/release.go",
		"ipam/blacklist.go",
		"operator/nodeipam/api.go",              // Kubernetes' published node IPAM
		"ipam/ipamapi/ipamapi.go",               // Docker's published contract
		"ipam/ipamapi/addresses.go",             // its methods, and the conversions
		"ipam/ipamapi/ipamapitest/addresses.go", // who calls it
		"ipam/ipamapi/ipamapitest/races.go",
		"ipam/ipamapi/ipamapitest/suite.go",
		"plugins/dockeripam/protocol.go",       // the engine's messages to it
		"southbound/linux/wireguard_kernel.go", // the API of wgctrl
	}
}

// netIPNames returns the names of package net for addresses.
func netIPNames() []string {
	return []string{
		"IP", "IPNet", "IPMask", "IPAddr", "ParseIP", "ParseCIDR", "CIDRMask", "IPv4", "IPv4Mask", "LookupIP", "ResolveIPAddr",
		"IPv4zero", "IPv4bcast", "IPv4allsys", "IPv4allrouter", "IPv6zero", "IPv6unspecified", "IPv6loopback",
		"IPv6interfacelocalallnodes", "IPv6linklocalallnodes", "IPv6linklocalallrouters", "IPv4len", "IPv6len",
	}
}

// netIP finds net.IP and its kin outside of the borders. Tests may use them:
// they are the other side of the border.
func netIP(s source) []finding {
	if s.test() || s.generated() || slices.Contains(netIPBorders(), s.path) {
		return nil
	}
	var found []finding
	for _, sel := range selectors(s, "net", netIPNames()...) {
		found = append(found, finding{s.path, s.line(sel), "net." + sel.Sel.Name, "net/netip is used everywhere but at the borders to net.IP"})
	}
	return found
}

// selectors are the uses of names of an imported package.
func selectors(s source, pkg string, names ...string) []*ast.SelectorExpr {
	local := s.imported(pkg)
	if local == "" {
		return nil
	}
	var all []*ast.SelectorExpr
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && slices.Contains(names, sel.Sel.Name) {
			all = append(all, sel)
		}
		return true
	})
	return all
}

// idleBorders finds borders that do not speak net.IP.
func idleBorders(all []source) []finding {
	var found []finding
	for _, path := range netIPBorders() {
		i := slices.IndexFunc(all, func(s source) bool { return s.path == path })
		if i < 0 || len(selectors(all[i], "net", netIPNames()...)) == 0 {
			found = append(found, finding{path, 0, "net.IP", "the file does not use it: take it out of netIPBorders"})
		}
	}
	return found
}

func TestNetIPIsFound(t *testing.T) {
	g := NewWithT(t)
	const bad = `package p
import std "net"
type T struct{ a std.IP; b *std.IPNet; c std.Conn }
func f(net struct{ IP int }) { _, _ = std.ParseIP("::"), net.IP }
`
	g.Expect(subjects(t, netIP, "plugins/ipnet/p.go", bad)).To(Equal([]string{"net.IP", "net.IPNet", "net.ParseIP"}))
	g.Expect(subjects(t, netIP, "plugins/ipam/api.go", bad)).To(BeEmpty())
	g.Expect(subjects(t, netIP, "plugins/ipnet/p_test.go", bad)).To(BeEmpty())
	g.Expect(idleBorders([]source{parse(t, netIPBorders()[0], bad)})).To(HaveLen(len(netIPBorders()) - 1))
}
