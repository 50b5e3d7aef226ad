// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package datastore is the interface datastore of a cloud node agent under the
// names that AWS's VPC CNI published. The cloud attaches network interfaces with
// addresses or prefixes to the node, pods get addresses of them, and a checkpoint
// file keeps the assignments over a restart.
//
// # Ownership
//
// A ledger allocates the addresses, and has the leases and the cool-downs. An
// interface has a pool of the ledger for each family and kind of block. An attached
// address or prefix is a block, and an IPAMKey is the key of a lease. The DataStore has
// the interfaces and which block is of which.
//
// No program of this project imports this package: plugins/interfaces does the same for an
// agent, over the agent's ledger and through its event loop.
//
// # Concurrency
//
// Any goroutine may call a DataStore. Concurrent assignments share writes of the
// checkpoint. A change of interfaces or blocks waits until no assignment is under
// way. A call that only reads does not wait for the disk, unless such a change
// waits.
//
// # Checkpoints
//
// The ledger's journal writes through a Checkpointer: the whole checkpoint in the
// format "vpc-cni-ipam/1", or only changed entries to a DeltaCheckpointer. Cooling
// addresses are in the checkpoint as well, in a field that other readers ignore.
// Interfaces are not: the program attaches them again after a restart.
//
// An assignment or a release returns after its write. If the write fails, nothing
// has changed, also if an address or interface was to be removed by force. The next
// write replaces what the checkpoint may have kept of it.
//
// ReadBackingStore never changes the checkpoint. An entry whose interface is not
// attached stays: its address is assigned to no other pod, moves to the interface
// when that is attached, and is released with its key. A checkpoint that cannot be
// read, or has another format, is refused, and the store assigns nothing. Without
// ReadBackingStore a store begins empty, and writes over no JSONFile that exists.
//
// A JSONFile has one store. A store whose file another store, or another program, has
// written since assigns and releases nothing.
//
// # Errors
//
// Callers of the published store compare texts. The text of an Error is therefore
// exactly a published constant; its fields and its Detail have the rest.
package datastore
