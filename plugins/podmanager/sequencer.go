// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"sync"

	"github.com/cadastre/cadastre/ledger"
)

// sequencer orders the requests for one attachment by when they were accepted,
// whatever order they reach the loop in: a DEL cancels every ADD of its key
// accepted before it. It remembers a key only while something is under way for it.
// It is the one part of the plugin that requests and the loop share: requests
// are accepted by their own goroutines, all else happens in the loop.
type sequencer struct {
	mu      sync.Mutex
	tickets uint64
	keys    map[ledger.Key]*turn
}

// turn is what is under way for one key.
type turn struct {
	adds     int    // accepted and not done
	releases int    // not done: DELs, GCs, releases of leases that nobody was told of, answers not delivered yet
	told     uint64 // ticket of the newest ADD whose caller was told
	del      uint64 // ticket of the newest DEL
	owed     bool   // there is a lease that nobody was told of
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

// acceptDel accepts a DEL; delDone ends it, as it ends all that releases.
func (s *sequencer) acceptDel(k ledger.Key) (ticket uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tickets++
	t := s.turn(k)
	t.releases++
	t.del, t.owed = s.tickets, false // this DEL frees it
	return s.tickets
}

// acceptGC accepts the release of what no list has; delDone ends it. It is
// refused while an ADD of k is under way, and cancels none.
func (s *sequencer) acceptGC(k ledger.Key) (ticket uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.keys[k]; t != nil && t.adds > 0 {
		return 0, false
	}
	s.tickets++
	s.turn(k).releases++
	return s.tickets, true
}

// overtaken is true where the caller of an ADD accepted later was told already:
// then a DEL or a GC that reaches the loop after it has nothing to free.
func (s *sequencer) overtaken(k ledger.Key, ticket uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.told > ticket
}

func (s *sequencer) delDone(k ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.releases--
	s.forget(k, t)
}

// cancelled is true where a DEL was accepted after the ADD with this ticket.
func (s *sequencer) cancelled(k ledger.Key, ticket uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.del > ticket
}

// addDone ends an ADD. took says that it has taken a lease, heard that its
// caller was told; both together are ended by a delDone once the answer was
// delivered. Where release is true nobody was told of the lease, and no
// ADD is under way that could be: the caller has to release it, and to call
// delDone.
func (s *sequencer) addDone(k ledger.Key, ticket uint64, took, heard bool) (release bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.adds--
	switch {
	case heard:
		t.owed, t.told = false, max(t.told, ticket)
		if took {
			t.releases++ // until it is delivered
		}
	case took && t.del < ticket: // otherwise that DEL frees it
		t.owed = true
	}
	if release = t.owed && t.adds == 0; release {
		t.releases++
	}
	s.forget(k, t)
	return release
}

// mayRelease is true while nobody was told of the lease that is to be
// released, and no ADD wants it. It is asked in the loop, when the release is
// processed.
func (s *sequencer) mayRelease(k ledger.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.owed && t.adds == 0
}

// undelivered notes that the answer to the ADD with this ticket, which counted
// as heard, did not arrive: unless another ADD was told since, nobody was.
func (s *sequencer) undelivered(k ledger.Key, ticket uint64) (release bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.releases--
	if t.told == ticket && t.del < ticket {
		t.owed, t.told = true, 0
	}
	if release = t.owed && t.adds == 0; release {
		t.releases++
	}
	s.forget(k, t)
	return release
}

// released notes that the lease that was owed is gone.
func (s *sequencer) released(k ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.keys[k]; t != nil {
		t.owed = false
	}
}

func (s *sequencer) forget(k ledger.Key, t *turn) {
	if t.adds == 0 && t.releases == 0 {
		delete(s.keys, k)
	}
}
