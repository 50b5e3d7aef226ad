// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import "time"

// Answered notes that a request of a key, which was accepted at this uptime, is answered
// with the leases that the key has. A release that was accepted before has nothing to free.
//
// A claim records its own time durably. That of a repeated one is only in memory until the
// record is written for another reason: a repeated request is answered without a write.
func (l *Ledger) Answered(k Key, accepted time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held(&k, l.hash(&k), func(x *lease) bool {
		if !x.staged {
			x.accepted = max(x.accepted, accepted)
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
