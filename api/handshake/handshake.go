// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package handshake implements the release of an address, or of a block, from a node to
// its provider. Operator and agent share one entry of the node's NetResourceSet. Each
// writes it only with the resourceVersion that it has read. The decisions of both are pure
// functions here, so that one can be tested against the other.
//
//	(none)              operator: too many are free for long enough -> marked
//	marked-for-release  agent: allocates nothing of it; free -> ready, leased or not its own -> do-not-release
//	ready-for-release   operator: still too many -> released, and it calls the provider
//	do-not-release      operator: removes the entry; the agent ignores it
//	released            operator: calls the provider until that has worked, then removes the
//	                    address from the pool; agent: removes the entry after that
//
// Before it is released the operator may remove the entry at any time, because the node
// needs the address again; the agent then allocates from it as before. An operator that
// starts marks the entries again that it finds ready: an API server that was restored may
// report an address as ready that was allocated since.
//
// "released" is written before the provider is called, on the very entry that was ready.
// That write is the fence: an operator with an old view, or a second operator, cannot make
// it. An operator that takes over finds that the release cannot be undone, and calls the
// provider again. So an address whose call has an unknown outcome is never allocated.
//
// The agent allocates nothing of an address while its newest view of the entry is not
// Allocatable. Its view never goes back in time. After a restart it reads the entries before
// it allocates anything.
package handshake

// State is the state of an entry in the hand-over of an address or a block: a value of
// NetResourceSet.status.ipam.releaseIPs.
//
// +kubebuilder:validation:Enum=marked-for-release;ready-for-release;do-not-release;released
type State string

// The states, by who writes them.
const (
	None         State = ""                   // there is no entry
	Marked       State = "marked-for-release" // operator
	Ready        State = "ready-for-release"  // agent
	DoNotRelease State = "do-not-release"     // agent
	Released     State = "released"           // operator
)

// Seen holds an agent's knowledge of an address or a block.
type Seen struct {
	InPool bool // it is in the spec's pool, in the same object as the entry
	Leased bool // a lease of it is held, pending, cooling or quarantined
}

// Answer returns the state that the agent gives an entry; None removes the entry.
func Answer(entry State, s Seen) State {
	switch {
	case entry == Marked && (!s.InPool || s.Leased):
		return DoNotRelease
	case entry == Marked:
		return Ready
	case entry == Ready && s.Leased:
		// It should not be, since nothing of it was allocated. The holder keeps it.
		return DoNotRelease
	case entry == Released && !s.InPool:
		return None
	}
	return entry
}

// Allocatable reports whether an agent may allocate an address that has this entry.
func Allocatable(entry State) bool { return entry == None || entry == DoNotRelease }

// Want holds an operator's knowledge of an address or a block.
type Want struct {
	Excess bool // the node has too much with it, and had for the delay
	Needed bool // the node needs it
	Gone   bool // the provider has confirmed that the node does not have it
	Back   bool // the provider says, well after that, that the node has it
}

// Decide returns the state that the operator gives an entry; None removes the entry.
func Decide(entry State, w Want) State {
	switch entry {
	case None:
		if w.Excess && !w.Needed {
			return Marked
		}
	case Marked, Ready:
		if w.Needed {
			return None
		}
		if entry == Ready {
			return Released
		}
	case DoNotRelease:
		return None
	case Released:
		if w.Gone && w.Back {
			return None
		}
	default:
		return None // no version writes such a state
	}
	return entry
}

// Call reports whether the operator calls the provider for an entry that it has read.
func Call(entry State, w Want) bool { return entry == Released && !w.Gone }

// GivingBack reports whether an address with this entry no longer counts as the node's.
func GivingBack(entry State) bool { return entry == Marked || entry == Ready || entry == Released }
