// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package netresource keeps the addresses of every node at its watermarks: it
// takes them from a provider before pods need them, and gives back what nobody
// does, never more than a node can miss (package watermark) and never one that
// is in use (package handshake).
//
// A NetResourceSetManager has a NetResource for each NetResourceSet. Whoever
// watches those calls Create, Update and Delete; the manager does the rest, in
// rounds: of one node when its object has changed, and of all of them every
// ResyncInterval and after each change at the provider. A round decides nothing
// between its own change and a view of the provider that is younger than that,
// so that a call which was half done is not done twice. Rounds of one node
// follow each other; those of different nodes run in parallel.
//
// All calls to the provider take a token of one bucket (QPS, Burst). A node
// whose call has failed waits, twice as long each time, with jitter. While the
// provider cannot be read nothing is changed.
//
// Each call to the provider has a deadline (CallTimeout, ReadTimeout) and a goroutine
// of its own. A call that lasts holds up no other node: it soon gives its worker's
// place away. After the deadline its outcome is unknown: there is no second call of
// its kind for the node before the first has returned, or a reading of the provider
// has shown what it did. A gauge counts such calls, and the status of the node tells
// of them. A provider that panics, or answers neither with a result nor with an
// error, has failed for that node only.
//
// What a node is given is written to its spec after the status that describes
// it. The provider is called to release only what the API server has accepted as
// released; what happened to a call that ended in an error is found out by the
// next reading of the provider, and the release is asked for again.
//
// There must be one manager at a time: a leader election is the caller's, who
// gives Fence, Term and Since of each leadership. Before each write and each call
// to the provider the fence is asked. Start takes over before it reads anything:
// it writes its term to every NetResourceSet, so that a write that an earlier
// manager still has under way is refused, however late it comes; and it waits
// until Consistency after Since, so that what the earlier one has called is seen.
// One call is not held back by that: the one before which its manager asked the
// fence and then slept for longer than Consistency. Where the book is the
// NetResourceSets themselves (clusterpool) there is no such call, and nothing to
// wait for. Deleting the NetResourceSets of nodes that are gone is a Sweeper's.
//
// Every method may be called from any goroutine. Start returns when the provider
// has been read once; what it starts ends with its context or with Close, which
// waits for it.
//
// Providers are AllocationImplementations: clusterpool cuts blocks from
// AddressPools, memcloud is a cloud in memory, for tests.
//
// Example:
//
//	m, err := netresource.New(netresource.Config{Instances: provider, API: client, Metrics: metrics, ReleaseExcess: true})
//	if err := m.Start(ctx); err != nil { ... } // after the existing NetResourceSets were given to Create
//	defer m.Close()
//	err = m.Update(resource) // for every change
package netresource
