// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"net/netip"
	"strings"
)

// Networks of PrefixClaims. Prefixes of different networks may overlap.
const (
	PodNetworkClaims  = "default" // blocks of pods
	NodeNetworkClaims = "nodes"   // node addresses
)

// PrefixClaimName returns the last part of a PrefixClaim's key, which the API
// server accepts as the name of an object: "default.10-1-77-0-24.node-a". IPv6
// addresses are written in full, since a name does not begin with a dash.
func PrefixClaimName(network string, prefix netip.Prefix, node string) string {
	bits := strings.TrimPrefix(prefix.String(), prefix.Addr().String()+"/")
	dashed := strings.NewReplacer(".", "-", ":", "-").Replace(prefix.Masked().Addr().StringExpanded())
	return network + "." + dashed + "-" + bits + "." + node
}

// PrefixClaimKey returns the key under which a PrefixClaim is stored.
func PrefixClaimKey(network string, prefix netip.Prefix, node string) string {
	return PrefixClaimPrefix + PrefixClaimName(network, prefix, node)
}
