// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import "sync"

// Replays knows which leases an earlier process has claimed and nobody has asked
// for again in this one. A face whose clients ask again after a restart, without
// saying who they are, believes each of them once. The zero value knows of none.
type Replays struct {
	upTo uint64 // the newest claim at the start

	mu        sync.Mutex
	confirmed map[uint64]struct{}
}

// Begin takes the leases that there are at the start. It is called before all
// other methods, which any goroutine may call.
func (r *Replays) Begin(leases []Lease) {
	r.confirmed = map[uint64]struct{}{}
	for _, l := range leases {
		r.upTo = max(r.upTo, l.Generation)
	}
}

// Any is whether there was a lease at the start.
func (r *Replays) Any() bool { return r.upTo != 0 }

// Confirm notes that the lease of this generation was asked for. It is true once
// for each lease that was there at the start.
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

// Open is true for a lease that was there at the start and was not asked for since.
func (r *Replays) Open(generation uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, done := r.confirmed[generation]
	return generation <= r.upTo && !done
}
