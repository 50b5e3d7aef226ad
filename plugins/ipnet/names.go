// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipnet

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Names, MACs and numbers follow from keys alone. So a resync after the loss of any state
// derives those that exist, and no part of the southbound reports them back.

// hostIfPrefix is the beginning of the names of the host ends of wires. With the 12 digits
// behind it a name has 15 bytes, the most that Linux takes.
const hostIfPrefix = "cad"

// wireNames holds what follows from the key of an attachment.
type wireNames struct{ hostIf, hostMAC, podMAC string }

// wireNamesOf returns the names of the wire with a southbound key. Two of 250 attachments
// have the same host end with a probability of 1 in 9e9; the southbound refuses the second.
func wireNamesOf(sinkKey string) wireNames {
	h := sha256.Sum256([]byte(sinkKey))
	return wireNames{
		hostIf:  hostIfPrefix + hex.EncodeToString(h[:6]),
		hostMAC: macOf([6]byte(h[6:12])),
		podMAC:  macOf([6]byte(h[12:18])),
	}
}

// vxlanMACOf returns the MAC of the VXLAN link of a node. No two nodes have the same one.
func vxlanMACOf(nodeID uint32) string {
	b := [6]byte{0x0a, 0xca}
	binary.BigEndian.PutUint32(b[2:], nodeID)
	return macOf(b)
}

// linkLocalOf returns the link-local address that follows from the MAC of a node's VXLAN
// links, as the kernel derives it.
func linkLocalOf(nodeID uint32) netip.Addr {
	a := [16]byte{0: 0xfe, 1: 0x80, 8: 0x08, 9: 0xca, 11: 0xff, 12: 0xfe}
	// The MAC is 0a:ca and the ID; ff:fe is in its middle, and the bit "locally administered" is inverted.
	a[10] = byte(nodeID >> 24)
	a[13], a[14], a[15] = byte(nodeID>>16), byte(nodeID>>8), byte(nodeID)
	return netip.AddrFrom16(a)
}

// macOf writes a MAC. It is locally administered and unicast.
func macOf(b [6]byte) string {
	b[0] = b[0]&^1 | 2
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4], b[5])
}

// The routing table of a custom network is tableBase plus its number, its VNI the number
// alone. VNIs have 24 bits. The table of an uplink is kv.UplinkTables plus its number.
const (
	tableBase  = 0x0C000000
	numberMask = 1<<24 - 1
)

// numbersOf returns a number for each name of a kind, such as the custom networks: from 24
// bits of a hash of both, the same on every node. A number of two names, and a reserved one,
// is hashed again, in the order of the names. The numbers are neither 0 nor reserved.
func numbersOf(kind string, names []string, reserved ...uint32) map[string]uint32 {
	numbers, taken := make(map[string]uint32, len(names)), map[uint32]bool{0: true}
	for _, n := range reserved {
		taken[n] = true
	}
	for _, name := range slices.Sorted(slices.Values(names)) {
		h := sha256.Sum256([]byte(kind + name))
		n := binary.BigEndian.Uint32(h[:4]) & numberMask
		for taken[n] {
			h = sha256.Sum256(h[:])
			n = binary.BigEndian.Uint32(h[:4]) & numberMask
		}
		taken[n], numbers[name] = true, n
	}
	return numbers
}

// sortedKeys returns the keys of m in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
