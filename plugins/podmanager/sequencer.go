// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"sync"

	"github.com/cadastre/cadastre/ledger"
)

// sequencer orders the requests for one attachment by the time of their acceptance, in
// whatever order they reach the loop: a DEL cancels every ADD of its key accepted before
// it. It holds a key only while a request for it is in progress. Requests and the loop
// share it: the goroutine of a request accepts it, the loop makes all other calls.
type sequencer struct {
	mu      sync.Mutex
	tickets uint64
	keys    map[ledger.Key]*turn
}

// turn holds the requests in progress for one key.
type turn struct {
	adds     int    // accepted and not done
	releases int    // not done: DELs, reclaims, releases of orphaned leases, answers not delivered yet
	received uint64 // ticket of the newest ADD whose caller received the answer
	del      uint64 // ticket of the newest DEL
	orphaned bool   // there is a lease that no caller received
}

func newSequencer() *sequencer { return &sequencer{keys: map[ledger.Key]*turn{}} }

func (s *sequencer) turn(k ledger.Key) *turn {
	t := s.keys[k]
	if t == nil {
		t = &turn{}
		s.keys[k] = t
	}
	return t
}

func (s *sequencer) acceptAdd(k ledger.Key) (ticket uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tickets++
	s.turn(k).adds++
	return s.tickets
}

// acceptDel accepts a DEL; delDone ends it, as every release.
func (s *sequencer) acceptDel(k ledger.Key) (ticket uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tickets++
	t := s.turn(k)
	t.releases++
	t.del, t.orphaned = s.tickets, false // this DEL frees it
	return s.tickets
}

// acceptReclaim accepts the release of an attachment that is gone; delDone ends it. ok is
// false while an ADD of k is in progress. It cancels no ADD.
func (s *sequencer) acceptReclaim(k ledger.Key) (ticket uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.keys[k]; t != nil && t.adds > 0 {
		return 0, false
	}
	s.tickets++
	s.turn(k).releases++
	return s.tickets, true
}

// adding reports whether an ADD of k is in progress.
func (s *sequencer) adding(k ledger.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.adds > 0
}

// busy reports whether a request for k is in progress.
func (s *sequencer) busy(k ledger.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[k] != nil
}

// overtaken reports whether the caller of a later ADD has received its answer: then a DEL
// or a reclaim that reaches the loop after that ADD has nothing to free.
func (s *sequencer) overtaken(k ledger.Key, ticket uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.received > ticket
}

func (s *sequencer) delDone(k ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.releases--
	s.forget(k, t)
}

// cancelled reports whether a DEL was accepted after the ADD with this ticket.
func (s *sequencer) cancelled(k ledger.Key, ticket uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.del > ticket
}

// addDone ends an ADD. claimed reports that it claimed a lease, received that its caller
// received the answer. If both are true, delDone must be called after the delivery of the
// answer. If release is true, no caller received the lease and no ADD is in progress that
// could deliver it: the caller must release the lease, and call delDone.
func (s *sequencer) addDone(k ledger.Key, ticket uint64, claimed, received bool) (release bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.adds--
	switch {
	case received:
		t.orphaned, t.received = false, max(t.received, ticket)
		if claimed {
			t.releases++ // until it is delivered
		}
	case claimed && t.del < ticket: // otherwise that DEL frees it
		t.orphaned = true
	}
	if release = t.orphaned && t.adds == 0; release {
		t.releases++
	}
	s.forget(k, t)
	return release
}

// mayRelease reports whether the lease is still orphaned and no ADD wants it. The loop
// calls it when it processes the release.
func (s *sequencer) mayRelease(k ledger.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.orphaned && t.adds == 0
}

// undelivered records that the answer to the ADD with this ticket, which counted as
// received, did not arrive. The lease is orphaned, unless another ADD received it since.
func (s *sequencer) undelivered(k ledger.Key, ticket uint64) (release bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.releases--
	if t.received == ticket && t.del < ticket {
		t.orphaned, t.received = true, 0
	}
	if release = t.orphaned && t.adds == 0; release {
		t.releases++
	}
	s.forget(k, t)
	return release
}

// released records that the orphaned lease is gone.
func (s *sequencer) released(k ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.keys[k]; t != nil {
		t.orphaned = false
	}
}

func (s *sequencer) forget(k ledger.Key, t *turn) {
	if t.adds == 0 && t.releases == 0 {
		delete(s.keys, k)
	}
}
