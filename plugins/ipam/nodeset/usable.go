// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/api/kv"
)

// ErrNotWanted is returned by Rules.Refuse for a block that the node leaves out without a
// Problem, such as one of a family that it does not use.
var ErrNotWanted = errors.New("the node does not use such blocks")

// Rules holds the node's own conditions for a block.
type Rules struct {
	// Refuse returns the reason why this node cannot allocate from a block, nil if it can.
	Refuse func(key string, block netip.Prefix) error
	// Leased reports whether a block has a lease: held, pending, cooling or quarantined.
	// A marked block that has one is refused. nil: no block has.
	Leased func(block netip.Prefix) bool
	// Restoring is set while pods may run on addresses that are not leased yet. A block
	// that the operator wants back then stays open, and has no answer.
	Restoring bool
}

// Problem describes an entry of the set that the node leaves out.
type Problem struct {
	Key  string
	Text string
}

// Usable holds what a node makes of a version of its set.
type Usable struct {
	// Open holds the blocks from which the node may allocate, in order. They are all of
	// the pool and the CIDRs, except those on their way back to the operator and those
	// that the rules refuse. None of them is within another one.
	Open []netip.Prefix
	// Refused holds the keys that the operator wants back and that the node keeps, because
	// they have leases. They stay open: the answer is decided, and not written yet.
	Refused  map[string]bool
	Problems []Problem
}

// Read returns what a node makes of a version of its set.
func Read(set *kv.NetResourceSet, rules Rules) Usable {
	u := Usable{Refused: map[string]bool{}}
	report := func(key, text string) { u.Problems = append(u.Problems, Problem{key, text}) }
	var open []netip.Prefix
	for _, key := range append(slices.Sorted(maps.Keys(set.GetPool())), set.GetPodCidrs()...) {
		p, err := handshake.ParseKey(key)
		if err != nil {
			report(key, err.Error())
			continue
		}
		if rules.Refuse != nil {
			if err := rules.Refuse(key, p); errors.Is(err, ErrNotWanted) {
				continue
			} else if err != nil {
				report(key, err.Error())
				continue
			}
		}
		open = append(open, p)
	}
	open = slices.DeleteFunc(open, u.goingBack(set, rules).contain)
	slices.SortFunc(open, netip.Prefix.Compare)
	u.Open = withoutInner(open, func(inner, outer netip.Prefix) {
		report(inner.String(), fmt.Sprintf("lies within %s, and is left out", outer))
	})
	return u
}

// goingBack returns the blocks on their way back to the operator. No part of them is
// allocated, even if the part is a further key of the pool.
func (u Usable) goingBack(set *kv.NetResourceSet, rules Rules) spans {
	var all []netip.Prefix
	for key, text := range set.GetReleases() {
		p, err := handshake.ParseKey(key)
		state := handshake.State(text)
		marked := state == handshake.Marked
		switch {
		case err != nil, handshake.Allocatable(state), marked && rules.Restoring:
		case marked && rules.Leased != nil && rules.Leased(p):
			u.Refused[key] = true
		default:
			all = append(all, p)
		}
	}
	return spansOf(all)
}
