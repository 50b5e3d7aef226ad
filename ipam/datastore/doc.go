// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package datastore is the interface datastore of a cloud node agent, under the
// names that AWS's VPC CNI published: network interfaces come with addresses or
// prefixes, pods get addresses of them, and a checkpoint file says who has which
// after a restart.
//
// # Who owns what
//
// Who holds which address, and what cools down, is in a ledger and nowhere else.
// An interface is one or more pools of it, an address or a prefix that was
// attached to an interface is a block, an IPAMKey is the key of a lease. The
// DataStore itself knows the interfaces, which block is of which, and where it
// need not look again for a free address: hints, never a decision.
//
// Any goroutine may call a DataStore. Assignments share writes of the
// checkpoint. Interfaces and their blocks change one at a time, when no
// assignment is under way; who only looks waits for a write at most when such a
// change waits for it, too.
//
// # Checkpoints
//
// The ledger's journal writes through a Checkpointer: all that is held, in the
// format "vpc-cni-ipam/1", or with a DeltaCheckpointer what has changed. What
// cools is in the checkpoint as well, where older readers do not see it.
// Interfaces are not: they are attached again after a restart.
//
// An assignment or a release is answered after its write. One whose write fails
// changes nothing, also where an assigned address or interface was to be removed
// by force; what the checkpoint may have kept of it is written over by the next
// write.
//
// ReadBackingStore changes the checkpoint never. An entry whose interface is not
// attached is kept: its address is lent to nobody, moves to the interface when
// that comes, and goes when its key is unassigned. A checkpoint that cannot be
// read, or that somebody else's format is in, is refused, and the store assigns
// nothing; without ReadBackingStore a store begins empty.
//
// # Errors
//
// Callers of the published store compare texts. So Error says nothing but one
// of the published constants; its fields and its Detail say the rest.
//
// Example: one interface with two addresses, one pod.
//
//	ds := datastore.NewDataStore(log, datastore.NewJSONFile("/var/run/aws-node/ipam.json"))
//	err := ds.AddENI("eni-1", 0, true, false)
//	err = ds.AddIPv4AddressToStore("eni-1", "10.0.0.5")
//	err = ds.AddIPv4AddressToStore("eni-1", "10.0.0.6")
//	err = ds.ReadBackingStore()
//	ip, device, err := ds.AssignPodIPv4Address(datastore.IPAMKey{NetworkName: "aws-cni", ContainerID: id, IfName: "eth0"})
package datastore
