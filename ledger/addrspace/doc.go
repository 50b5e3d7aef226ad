// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package addrspace is the pure arithmetic of addresses: which prefix and
// which address belong to a node ID (and back), and a Space, the index that
// finds the next free address or the next free aligned prefix.
//
// Nothing here reads a clock, a file or a lock, and nothing is remembered
// between calls except inside a Space. A function either returns its answer or
// an error that names the values; it never wraps around and never guesses. A
// Space is not safe for concurrent use: its owner (the ledger) locks.
//
// Node ID 5, with pods in 10.1.0.0/16 cut in /24 and nodes in 192.168.16.0/24:
//
//	NodePrefix(10.1.0.0/16, 24, 5)        10.1.5.0/24
//	NodeAddr(192.168.16.0/24, 5, none)    192.168.16.5
package addrspace
