// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import "sync"

// Replays holds the leases that an earlier process has claimed and that no client has
// asked for again since the start. A face whose clients repeat their requests after a
// restart, without an identity, answers each of these leases once. The zero value
// holds none.
type Replays struct {
	upTo uint64 // generation of the newest claim at the start

	mu        sync.Mutex
	confirmed map[uint64]struct{}
}

// Begin notes the leases of the start. It is called before all other methods, which
// any goroutine may call.
func (r *Replays) Begin(leases []Lease) {
	r.confirmed = map[uint64]struct{}{}
	for _, l := range leases {
		r.upTo = max(r.upTo, l.Generation)
	}
}

// Any reports whether there was a lease at the start.
func (r *Replays) Any() bool { return r.upTo != 0 }

// Confirm notes a request for the lease of a generation. It reports true once for
// each lease of the start.
func (r *Replays) Confirm(generation uint64) bool {
	if generation > r.upTo {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	_, done := r.confirmed[generation]
	r.confirmed[generation] = struct{}{}
	return !done
}

// Open reports whether the lease of a generation is one of the start that no client
// has asked for since.
func (r *Replays) Open(generation uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, done := r.confirmed[generation]
	return generation <= r.upTo && !done
}
