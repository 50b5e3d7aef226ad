// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package netresource keeps the addresses of every node at its watermarks. It
// allocates them from a provider before pods need them, and releases excess ones.
// It never releases more than the node can spare (package watermark) and never one
// in use (package handshake).
//
// A NetResourceSetManager has a NetResource for each NetResourceSet. A Client
// passes every change of those to Create, Update and Delete. The manager works in
// rounds: of one node when its object has changed, and of all nodes every
// ResyncInterval and after each change at the provider. After its own change a
// round decides nothing before a younger reading of the provider, so that it does
// not repeat a call that was half done. After a call that has succeeded, a provider
// that tracks its changes (Traits) needs no reading. Rounds of one node follow
// each other; those of different nodes run in parallel.
//
// # Calls of the provider
//
// A Provider is the contract. A provider limits the rate of its own requests
// (cloud/budget): the manager does not. A node whose call has failed waits, with back-off.
// While the provider cannot be read nothing is changed.
//
// Each call has a deadline (CallTimeout, ReadTimeout); a long one holds up no other node: it
// soon frees its worker's slot. If the deadline has ended it, its outcome is unknown, and the
// provider is read before the next decision. A provider that panics has failed for that node
// only. For the nodes of one name there is one call at a time, and a deleted node is forgotten
// before the next one of its name is served.
//
// A published provider (AllocationImplementation) is called through an adapter, since it may
// ignore its context. A call that goes on after its deadline is left alone, a gauge counts it,
// and the status of its node reports it. The next call for the node comes after it has
// returned and the provider was read.
//
// The manager writes an address to the spec after the status that describes it.
// It releases at the provider only what the API server has accepted as released.
// The next reading of the provider shows the outcome of a call that ended in an
// error, and the release is requested again.
//
// # Leadership
//
// Only one manager may work at a time: the caller elects it, and passes Fence and
// Since of each leadership. The manager calls the fence before each write and each
// call of the provider. Start waits until Consistency after Since, so that it sees
// the earlier manager's calls. One call is not covered: one whose manager called the
// fence and then stopped for longer than Consistency. A provider that reads the
// NetResourceSets themselves (clusterpool) has no such calls, and nothing to wait for.
// Writes of the earlier manager may arrive after Start. IntentAnnotation shows which
// blocks such a write may bring: they stay with their node. Start writes nothing, so no
// object that refuses writes delays the others. A Sweeper deletes the NetResourceSets of
// nodes that are gone, and writes the instance IDs of new ones.
//
// Any goroutine may call any method. Start returns when the provider has been read
// once; what it starts ends with its context or with Close, which waits for it.
//
// Providers: clusterpool allocates blocks of AddressPools, cloudpool addresses and prefixes of
// the interfaces of a cloud.
package netresource
