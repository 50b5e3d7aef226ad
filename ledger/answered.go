// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import "time"

// Answered notes that a request of a key, which was accepted at this uptime, is answered
// with the leases that the key has. A release that was accepted before has nothing to free.
// It returns the time of the newest one that was answered before, 0 if none was.
//
// A claim records its own time durably. That of a repeated one is only in memory until the
// record is written for another reason: a repeated request is answered without a write.
func (l *Ledger) Answered(k Key, accepted time.Duration) (before time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held(&k, l.hash(&k), func(x *lease) bool {
		if !x.staged {
			before = max(before, x.accepted)
			x.accepted = max(x.accepted, accepted)
		}
		return true
	})
	return before
}

// Unanswered takes back what Answered, or a claim, has noted of the request that was accepted
// at this uptime: its answer did not arrive. newest is the time of the newest request that
// was answered, 0 if none was. It does nothing if a newer request was answered since.
func (l *Ledger) Unanswered(k Key, accepted, newest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held(&k, l.hash(&k), func(x *lease) bool {
		if !x.staged && x.accepted == accepted {
			x.accepted = newest
		}
		return true
	})
}

// AnsweredAfter reports whether the key has a lease whose newest answered request was
// accepted after this uptime.
func (l *Ledger) AnsweredAfter(k Key, accepted time.Duration) (after bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held(&k, l.hash(&k), func(x *lease) bool {
		after = after || !x.staged && x.accepted > accepted
		return !after
	})
	return after
}

// Uptime returns the time since boot, by which the ledger counts.
func (l *Ledger) Uptime() time.Duration { return l.opt.Uptime() }

// BootID names the boot that Uptime counts from, "" if it is not known.
func (l *Ledger) BootID() string { return l.opt.BootID }
