// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package addrmap counts the addresses of a node or of a cluster for a map: all pools,
// or the cells of one prefix, each with its addresses by state.
//
// A Source is a view of one moment; the package is pure, but for a Cache of its answers. The size of
// an answer has a limit (localapi.MapCellBits and its neighbours), whatever the number
// of nodes and leases. A count of a cell is the number of addresses in that state, so
// that the counts of all cells add up to those of their prefix.
package addrmap
