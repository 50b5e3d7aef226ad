// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package handshake defines the hand-over of an address, or of a block, from a node back
// to its provider. Operator and agent each own one part of it and meet only in
// an entry of the node's NetResourceSet, which either writes with the
// resourceVersion that it has read, or not at all. Both parts are pure
// functions here, so that each can be tested against the other.
//
//	(none)              operator: more is free than wanted, long enough -> marked
//	marked-for-release  agent: allocates it no more; free -> ready, leased or not its own -> do-not-release
//	ready-for-release   operator: still too much -> released, and now it calls the provider
//	do-not-release      operator: takes the entry away; the agent ignores it
//	released            operator: calls the provider until that has worked, then takes
//	                    the address out of the pool; agent: takes the entry away once it is out
//
// Until it is released the operator may take the entry away at any time, because
// the node needs the address again; the agent then allocates it as before. An operator
// that begins marks again what it finds ready: an API server that came back older
// may say so of an address leased since.
//
// "released" is written before the provider is called, upon the very entry that
// said ready. That write is the fence: an operator that acts on an old view, or
// a second one, cannot make it, and an operator that takes over finds that there is no
// way back, and asks the provider again. An address whose call has an unknown outcome
// is thus never allocated.
//
// The agent's part: while its newest view of the entry is not
// Allocatable it allocates nothing of the address, and its view never goes back in time;
// after a restart it reads the entries before it allocates anything.
package handshake

// State is the state of an entry in the hand-over of an address or a block.
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

// Call is whether the provider is to be called, now that the entry says so.
func Call(entry State, w Want) bool { return entry == Released && !w.Gone }

// GivingBack is whether an address with this entry counts as no longer the node's.
func GivingBack(entry State) bool { return entry == Marked || entry == Ready || entry == Released }
