// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"sync/atomic"

	"github.com/cadastre/cadastre/api/kv"
	"github.com/cadastre/cadastre/plugins/ipam/nodeset"
)

// committed holds the state that the loop has committed, for the Reporter of the node's set.
type committed struct {
	state atomic.Pointer[state]
	poke  chan struct{}
}

// Commit records the interfaces of the addresses, and passes the committed state to the
// Reporter and the Claimer. The loop calls it after the ledger's stage. If the record cannot
// be written, Commit fails and keeps the state, which is that of the ledger: the next one
// tries again.
func (i *IPAM) Commit(ctx context.Context) error {
	if s := i.state.Load(); s.networks != nil { // there was a resync
		if err := i.recordUplinks(ctx, s.uplinks); err != nil {
			return err
		}
		i.committed.state.Store(s)
		// nothing is wanted if blocks follow from the node ID: old claims end with their last
		// leases
		if i.Claims != nil {
			i.Claims.Want(kv.PodNetworkClaims, s.wanted)
		}
	}
	select {
	case i.committed.poke <- struct{}{}:
	default:
	}
	return nil
}

// Mark sets the savepoint.
func (i *IPAM) Mark() { i.marked = i.state.Load() }

// UndoToMark restores the state of the savepoint.
func (i *IPAM) UndoToMark() { i.state.Store(i.marked) }

// Undo restores the state of the last commit, as the ledger does: the commit of a later
// event must not pass the state of a failed one to the Reporter.
func (i *IPAM) Undo() {
	s := i.committed.state.Load()
	if s == nil {
		s = beforeResync()
	}
	i.state.Store(s)
}

// Allocator returns this node's allocator for the Reporter of its NetResourceSet.
func (i *IPAM) Allocator() nodeset.Allocator { return setAllocator{i} }

// setAllocator implements nodeset.Allocator with the state that the loop has committed.
type setAllocator struct{ ipam *IPAM }

// Granted returns the version that the loop has committed.
func (a setAllocator) Granted() (nodeset.Granted, bool) {
	s := a.ipam.committed.state.Load()
	if s == nil {
		return nodeset.Granted{}, false
	}
	g := nodeset.Granted{Set: s.set, Revision: s.seen, Usable: s.usable}
	g.Open = s.networks[PodPool].open
	return g, true
}

// Changed receives after each commit of the loop.
func (a setAllocator) Changed() <-chan struct{} { return a.ipam.committed.poke }

// First returns the set for a node that has none.
func (a setAllocator) First(node *kv.Node) *kv.NetResourceSet { return a.ipam.firstSet(node) }

// Report returns set with this node's present part of it.
func (a setAllocator) Report(
	_ context.Context,
	g nodeset.Granted,
	set *kv.NetResourceSet,
) (*kv.NetResourceSet, error) {
	return nodeset.Report(set, g, a.ipam.setUsage()), nil
}

// setUsage returns the use of the default network, with all that cannot be allocated.
func (i *IPAM) setUsage() nodeset.Usage {
	return nodeset.ReadUsage(i.Ledger, PodPool, nodeset.Names{Edges: i.state.Load().edges})
}
