// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"sync"

	"github.com/cadastre/cadastre/ledger"
)

// sequencer orders the requests for one attachment by when they were accepted,
// whatever order they reach the loop in: a DEL cancels every ADD of its key
// accepted before it. It remembers a key only while an ADD of it is under way.
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
	releases int    // of leases that nobody was told of, not done
	lastAdd  uint64 // ticket of the newest ADD
	del      uint64 // ticket of the newest DEL
	owed     bool   // there is a lease that nobody was told of
}

func newSequencer() *sequencer { return &sequencer{keys: map[ledger.Key]*turn{}} }

func (s *sequencer) acceptAdd(k ledger.Key) (ticket uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tickets++
	t := s.keys[k]
	if t == nil {
		t = &turn{}
		s.keys[k] = t
	}
	t.adds++
	t.lastAdd = s.tickets
	return s.tickets
}

func (s *sequencer) acceptDel(k ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tickets++
	if t := s.keys[k]; t != nil {
		t.del, t.owed = s.tickets, false // this DEL frees it
	}
}

// cancelled is true where a DEL was accepted after the ADD with this ticket.
func (s *sequencer) cancelled(k ledger.Key, ticket uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.del > ticket
}

// addDone ends an ADD. took says that it has taken a lease, heard that its
// caller was told. Where release is true nobody was told of the lease and no
// newer ADD will be: the caller has to release it, and to call releaseDone.
func (s *sequencer) addDone(k ledger.Key, ticket uint64, took, heard bool) (release bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.adds--
	switch {
	case heard:
		t.owed = false
	case t.del > ticket:
	case took || t.owed:
		t.owed = true
		if t.lastAdd == ticket {
			t.releases++
			release = true
		}
	}
	s.forget(k, t)
	return release
}

// mayRelease is true while nobody was told of the lease that the ADD with this
// ticket left, and no newer ADD wants it. It is asked in the loop, when the
// release is processed.
func (s *sequencer) mayRelease(k ledger.Key, ticket uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.owed && t.lastAdd == ticket
}

func (s *sequencer) releaseDone(k ledger.Key, ticket uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.releases--
	if t.lastAdd == ticket {
		t.owed = false
	}
	s.forget(k, t)
}

func (s *sequencer) forget(k ledger.Key, t *turn) {
	if t.adds == 0 && t.releases == 0 {
		delete(s.keys, k)
	}
}

// underWay is true while an ADD of k is not done.
func (s *sequencer) underWay(k ledger.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.adds > 0
}
