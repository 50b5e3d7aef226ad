// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package addrspace computes addresses: the prefix and the address of a node ID, and
// the node ID of both. Its Space is an index that finds the next free address or the
// next free aligned prefix.
//
// The package uses no clock, file or lock, and keeps no state but in a Space. A
// function returns its result, or an error that names the values; results do not wrap
// around. A Space is not safe for concurrent use: its owner, the ledger, locks.
package addrspace
