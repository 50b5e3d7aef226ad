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
	// Restoring is set while pods may run on addresses that are not leased yet. A block
	// that the operator wants back then stays open, and has no answer.
	Restoring bool
}

// Problem describes an entry of the set that the node leaves out.
type Problem struct {
	Key  string
	Text string
}

// Usable returns the blocks of a set from which the node may allocate, in order: all of
// its pool and its CIDRs except those on their way back to the operator and those that
// the rules refuse. None of them is within another one.
func Usable(set *kv.NetResourceSet, rules Rules) (open []netip.Prefix, problems []Problem) {
	report := func(key, text string) { problems = append(problems, Problem{key, text}) }
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
	open = slices.DeleteFunc(open, goingBack(set, rules.Restoring).contain)
	slices.SortFunc(open, netip.Prefix.Compare)
	open = withoutInner(open, func(inner, outer netip.Prefix) {
		report(inner.String(), fmt.Sprintf("lies within %s, and is left out", outer))
	})
	return open, problems
}

// goingBack returns the blocks on their way back to the operator. No part of them is
// allocated, even if the part is a further key of the pool.
func goingBack(set *kv.NetResourceSet, restoring bool) spans {
	var all []netip.Prefix
	for key, text := range set.GetReleases() {
		state := handshake.State(text)
		if handshake.Allocatable(state) || restoring && state == handshake.Marked {
			continue
		}
		if p, err := handshake.ParseKey(key); err == nil {
			all = append(all, p)
		}
	}
	return spansOf(all)
}
