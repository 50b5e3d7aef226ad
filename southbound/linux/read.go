// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"
	"net/netip"
)

// readAddr parses an address of a value. field names the field in errors.
func readAddr(field, text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() {
		return netip.Addr{}, fmt.Errorf("%s %q: want a unicast address, such as 192.168.16.5", field, text)
	}
	return a, nil
}

// readAddrs parses addresses, one of each family at most.
func readAddrs(field string, all []string) ([]netip.Addr, error) {
	var read []netip.Addr
	for _, text := range all {
		a, err := readAddr(field, text)
		if err != nil {
			return nil, err
		}
		read = append(read, a)
	}
	return read, nil
}

// readPrefixes parses prefixes whose address may have host bits.
func readPrefixes(field string, all []string) ([]netip.Prefix, error) {
	var read []netip.Prefix
	for _, text := range all {
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			return nil, fmt.Errorf("%s %q: want address/prefix-length, such as 192.168.30.5/24", field, text)
		}
		read = append(read, p)
	}
	return read, nil
}

// texts returns prefixes as text.
func texts(all []netip.Prefix) []string {
	var written []string
	for _, p := range all {
		written = append(written, p.String())
	}
	return written
}
