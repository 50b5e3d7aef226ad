// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"fmt"
	"net"
	"testing"

	. "github.com/onsi/gomega"
	"pgregory.net/rapid"
)

// A name is one that Linux takes, and MACs are locally administered and unicast.
func TestNamesOfAWire(t *testing.T) {
	g := NewWithT(t)
	g.Expect(wireNamesOf("pod/pods/4f1c/eth0")).To(Equal(wireNames{"cad487b107c49b4", "02:fc:86:6a:18:0f", "4a:57:df:79:39:7b"}),
		"a new version finds the wires of an older one")
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		n := wireNamesOf(rapid.String().Draw(t, "key"))
		g.Expect(n.hostIf).To(MatchRegexp("^cad[0-9a-f]{12}$"))
		g.Expect(len(n.hostIf)).To(BeNumerically("<=", 15))
		g.Expect(n.hostMAC).NotTo(Equal(n.podMAC))
		for _, text := range []string{n.hostMAC, n.podMAC, vxlanMACOf(rapid.Uint32().Draw(t, "id"))} {
			mac, err := net.ParseMAC(text)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(mac[0]&3).To(BeEquivalentTo(2), text)
		}
	})
}

func TestNamesOfManyWiresDiffer(t *testing.T) {
	g := NewWithT(t)
	names, macs := map[string]bool{}, map[string]bool{}
	const wires = 100_000
	for i := range wires {
		n := wireNamesOf(fmt.Sprintf("pod/pods/%d/eth0", i))
		names[n.hostIf], macs[n.hostMAC], macs[n.podMAC] = true, true, true
	}
	g.Expect(names).To(HaveLen(wires))
	g.Expect(macs).To(HaveLen(2 * wires))
}

func TestVXLANMACsOfNodesDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, y := rapid.Uint32().Draw(t, "x"), rapid.Uint32().Draw(t, "y")
		NewWithT(t).Expect(vxlanMACOf(x) == vxlanMACOf(y)).To(Equal(x == y))
	})
	NewWithT(t).Expect(vxlanMACOf(5)).To(Equal("0a:ca:00:00:00:05"))
}

// The numbers do not depend on the order of the names, differ from one another, and leave
// out 0 and the reserved one.
func TestNumbersOfNetworks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewWithT(t)
		names := rapid.SliceOfNDistinct(rapid.StringMatching("[a-z]{1,3}"), 0, 8, rapid.ID).Draw(t, "names")
		reserved := uint32(0)
		if len(names) > 0 {
			reserved = numbersOf("network/", names, 0)[names[0]] // the one that the network would have
		}
		numbers := numbersOf("network/", names, reserved)
		g.Expect(numbersOf("network/", rapid.Permutation(names).Draw(t, "order"), reserved)).To(Equal(numbers))
		taken := map[uint32]bool{0: true, reserved: true}
		for _, name := range names {
			g.Expect(taken[numbers[name]]).To(BeFalse(), name)
			g.Expect(numbers[name]).To(BeNumerically("<", 1<<24))
			taken[numbers[name]] = true
		}
	})
	NewWithT(t).Expect(numbersOf("network/", []string{"blue"}, 1)).To(Equal(map[string]uint32{"blue": 9143986}), "the same on every node and version")
}
