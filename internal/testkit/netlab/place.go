// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"net/netip"
)

// Place represents an end of an exchange: a pod, a node, or a host outside.
type Place struct {
	Name      string
	Net       *Namespace
	Addresses []netip.Addr // one of each family at most
}

// Addr returns the address of a family.
func (p Place) Addr(is4 bool) netip.Addr {
	for _, a := range p.Addresses {
		if a.Is4() == is4 {
			return a
		}
	}
	return netip.Addr{}
}
