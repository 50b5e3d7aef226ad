// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import "time"

// Timeout says when a node is synchronized again. As long as all is well that
// is after Resync. After the first error it is after InitialRetry, whatever
// MaxBackoff is; after every further one in a row after twice as long as
// before, at most MaxBackoff. It belongs to one goroutine at a time.
type Timeout struct {
	// Resync is the time to the next synchronization where there is no error.
	Resync time.Duration
	// MaxBackoff is the longest time after two errors or more in a row.
	MaxBackoff time.Duration
	// InitialRetry is the time after the first error.
	InitialRetry time.Duration

	errors  int // in a row
	current time.Duration
}

// Update notes whether the last synchronization succeeded.
func (b *Timeout) Update(ok bool) {
	if ok {
		b.errors, b.current = 0, b.Resync
		return
	}
	if b.errors++; b.errors == 1 {
		b.current = b.InitialRetry
		return
	}
	twice := 2 * b.current
	if twice/2 != b.current || twice > b.MaxBackoff {
		twice = b.MaxBackoff
	}
	b.current = twice
}

// Next is the time to the next synchronization.
func (b *Timeout) Next() time.Duration {
	if b.errors == 0 {
		return b.Resync
	}
	return b.current
}
