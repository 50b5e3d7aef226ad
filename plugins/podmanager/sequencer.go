// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package podmanager

import (
	"slices"
	"sync"
	"time"

	"github.com/cadastre/cadastre/ledger"
)

// sequencer orders the requests for one attachment by the tickets of their callers, in
// whatever order they reach the loop. A DEL cancels every ADD of its key with an older
// ticket. It frees no lease whose ADD has a newer one (ledger.Lease.Accepted, which
// survives a restart). The sequencer holds a key only while a request for it is in
// progress, or may come from a caller that was accepted before a DEL that is done.
// Requests and the loop share it: the goroutine of a request begins it, the loop makes
// all other calls.
type sequencer struct {
	uptime  func() time.Duration
	answers answers

	mu      sync.Mutex
	last    time.Duration   // the newest ticket
	waiting []time.Duration // tickets of the callers whose requests may still come, the oldest first
	keys    map[ledger.Key]*turn
	deleted []ledger.Key // whose DEL is done, and may have to cancel an ADD that is still to come
}

// turn holds the requests in progress for one key. A ticket that is zero is none.
type turn struct {
	adds     int           // begun and not done
	releases int           // not done: DELs, reclaims, releases of orphaned leases, answers not delivered yet
	del      time.Duration // ticket of the newest DEL
	orphaned time.Duration // ticket of the ADD with a lease that no caller received

	// Of the lease, while the delivery of an answer with it is not known.
	sent     []time.Duration // tickets of the ADDs with such answers
	received time.Duration   // ticket of the newest ADD beside these whose caller has the answer
	skipped  time.Duration   // ticket of the newest DEL that left the lease to a newer ADD
}

// answers holds the tickets of the ADDs that are answered with the leases of a key, as the
// ledger has them.
type answers interface {
	Answered(k ledger.Key, accepted time.Duration) (before time.Duration)
	Unanswered(k ledger.Key, accepted, newest time.Duration)
	AnsweredAfter(k ledger.Key, accepted time.Duration) bool
}

func newSequencer(uptime func() time.Duration, answers answers) *sequencer {
	return &sequencer{uptime: uptime, answers: answers, keys: map[ledger.Key]*turn{}}
}

// ticket returns the present uptime, later than all tickets before.
func (s *sequencer) ticket() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next()
}

func (s *sequencer) next() time.Duration {
	s.last = max(s.last+1, s.uptime())
	return s.last
}

// accept returns the ticket of a caller whose request may come until leave is called.
func (s *sequencer) accept() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	ticket := s.next()
	s.waiting = append(s.waiting, ticket)
	return ticket
}

// waits reports whether the request of a caller may still come.
func (s *sequencer) waits(ticket time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, found := slices.BinarySearch(s.waiting, ticket)
	return found
}

// leave ends the waiting for a request. Further calls do nothing.
func (s *sequencer) leave(ticket time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, found := slices.BinarySearch(s.waiting, ticket)
	if !found {
		return
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	for i == 0 && len(s.deleted) > 0 { // else an older caller still waits
		k := s.deleted[0]
		if t := s.keys[k]; t != nil && s.awaited(t) {
			return
		}
		s.deleted = s.deleted[1:]
		s.forget(k, s.keys[k])
	}
}

// awaited reports whether a request may come that a DEL of t is to cancel.
func (s *sequencer) awaited(t *turn) bool { return len(s.waiting) > 0 && s.waiting[0] < t.del }

func (s *sequencer) turn(k ledger.Key) *turn {
	t := s.keys[k]
	if t == nil {
		t = &turn{}
		s.keys[k] = t
	}
	return t
}

// beginAdd begins an ADD; addDone ends it.
func (s *sequencer) beginAdd(k ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn(k).adds++
}

// beginDel begins a DEL; delDone ends it, as every release.
func (s *sequencer) beginDel(k ledger.Key, ticket time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.turn(k)
	t.releases++
	t.del = max(t.del, ticket)
	if t.orphaned < ticket {
		t.orphaned = 0 // this DEL frees it
	}
}

// beginReclaim begins the release of an attachment that is gone; delDone ends it. ok is
// false while an ADD of k is in progress. It cancels no ADD.
func (s *sequencer) beginReclaim(k ledger.Key) (ticket time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.keys[k]; t != nil && t.adds > 0 {
		return 0, false
	}
	s.turn(k).releases++
	return s.next(), true
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

func (s *sequencer) delDone(k ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.releases--
	s.forget(k, t)
}

// cancelled reports whether the caller of a DEL was accepted after that of the ADD with
// this ticket.
func (s *sequencer) cancelled(k ledger.Key, ticket time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.del > ticket
}

// addDone ends an ADD. claimed reports that it claimed a lease, received that its answer
// counts as received; then delivered or undelivered must be called. If release is true, no
// caller received the lease and no ADD is in progress that could deliver it: the caller must
// release the lease, and call delDone.
func (s *sequencer) addDone(k ledger.Key, ticket time.Duration, claimed, received bool) (release bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.adds--
	if received {
		before := s.answers.Answered(k, ticket)
		t.orphaned = 0
		switch {
		case claimed: // what else was sent is of a lease that is gone
			t.sent, t.received, t.skipped = nil, 0, 0
		case len(t.sent) == 0:
			t.received, t.skipped = before, 0
		}
		t.sent = append(t.sent, ticket)
		t.releases++ // until it is delivered
	} else if claimed {
		s.answers.Unanswered(k, ticket, 0) // an older ADD may be answered with the lease
		if t.del < ticket {                // otherwise that DEL frees it
			t.orphaned = ticket
		}
	}
	return s.orphan(k, t)
}

// orphan reports whether the lease must be released now.
func (s *sequencer) orphan(k ledger.Key, t *turn) (release bool) {
	if release = t.orphaned != 0 && t.adds == 0; release {
		t.releases++
	}
	s.forget(k, t)
	return release
}

// mayFree reports whether a DEL may free the leases of k: no newer ADD counts as answered
// with them. The loop calls it when it processes the DEL.
func (s *sequencer) mayFree(k ledger.Key, ticket time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.answers.AnsweredAfter(k, ticket) {
		return true
	}
	if t := s.keys[k]; t != nil {
		t.skipped = max(t.skipped, ticket)
	}
	return false
}

// delivered records that the answer to the ADD with this ticket has arrived.
func (s *sequencer) delivered(k ledger.Key, ticket time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.releases--
	if t.arrives(ticket) {
		t.received = max(t.received, ticket)
	}
	s.forget(k, t)
}

// undelivered records that the answer to the ADD with this ticket did not arrive. The lease
// is orphaned if no other ADD is answered with it, or if a DEL that was accepted after that
// one has left the lease to this ADD. The result is that of addDone.
func (s *sequencer) undelivered(k ledger.Key, ticket time.Duration) (release bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	t.releases--
	if t.arrives(ticket) {
		newest := t.received
		for _, other := range t.sent {
			newest = max(newest, other)
		}
		s.answers.Unanswered(k, ticket, newest)
		if newest == 0 && t.del < ticket || t.skipped > newest {
			t.orphaned = ticket
		}
	}
	return s.orphan(k, t)
}

// arrives takes an ADD out of those whose answers were sent, and reports whether it was there.
func (t *turn) arrives(ticket time.Duration) bool {
	i := slices.Index(t.sent, ticket)
	if i >= 0 {
		t.sent = slices.Delete(t.sent, i, i+1)
	}
	return i >= 0
}

// mayRelease reports whether the lease is still orphaned and no ADD wants it. The loop
// calls it when it processes the release.
func (s *sequencer) mayRelease(k ledger.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.keys[k]
	return t != nil && t.orphaned != 0 && t.adds == 0
}

// released records that the orphaned lease is gone.
func (s *sequencer) released(k ledger.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.keys[k]; t != nil {
		t.orphaned = 0
	}
}

func (s *sequencer) forget(k ledger.Key, t *turn) {
	switch {
	case t == nil || t.adds > 0 || t.releases > 0:
	case s.awaited(t):
		s.deleted = append(s.deleted, k)
	default:
		delete(s.keys, k)
	}
}
