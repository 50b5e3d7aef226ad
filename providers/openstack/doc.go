// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package openstack gives pods addresses of OpenStack's networks: it implements
// cloud.Cloud, cloud.Self and nodeipam.Cloud over the API of Neutron, with Nova to attach
// ports to machines.
//
// # Objects
//
// A machine is the device of ports whose owner begins with "compute:". An interface is such
// a port. An address of a pod is a fixed IP of the port. A prefix is an allowed address pair
// of the port, and a reservation: an unbound port whose fixed IPs keep the prefix from all
// other users of the subnet. Ports that this package creates are named
// "cadastre/CLUSTER/MACHINE".
//
// Neutron does not order a port's fixed IPs. The machine's own addresses are therefore
// tagged ("cadastre-own-ADDRESS") before the port gets its first address for pods. All
// fixed IPs of a port without such a tag are the machine's own.
//
// # Concurrency and failure
//
// Any goroutine and any process may call any method. A port is changed on the condition
// that it has the revision that was read (If-Match), so no change of another writer is
// lost; a lost race is repeated some times with a new reading. AddAlias has no such
// condition, because it concerns several ports: it reads back and withdraws the prefix if
// another port has it too. Then it may withdraw from both, but it never succeeds for both.
//
// A reservation outlives the pair: it is created before the pair and deleted after the
// pair has been removed for certain. DeleteOrphans deletes the reservations without a pair.
// Its age must be longer than a call can take.
package openstack
