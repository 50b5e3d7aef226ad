// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodesync

import (
	"maps"
	"slices"
)

// Resume returns a second process with the memory of k, as after a snapshot of
// its machine was resumed twice. It calls deps while nothing is at work in k.
func (k *IDClaimer) Resume(deps func() IDClaimerDeps) *IDClaimer {
	k.busy <- struct{}{}
	defer func() { <-k.busy }()
	r := &IDClaimer{deps: deps(), poke: make(chan struct{}, 1), busy: make(chan struct{}, 1), own: k.own, saved: k.saved}
	if k.twins != nil {
		t := *k.twins
		t.announce, t.tried, t.watched = r.announcePending, slices.Clone(t.tried), maps.Clone(t.watched)
		r.twins = &t
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	r.held, r.confirmed, r.session, r.used, r.problem, r.kind, r.look, r.wanted, r.stored = k.held, k.confirmed, k.session, k.used, k.problem, k.kind, k.look, k.wanted, k.stored
	return r
}
