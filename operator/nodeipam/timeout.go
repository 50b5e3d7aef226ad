// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import "time"

// Timeout computes when a node is synchronized again: after Resync if there was no
// error, and after InitialRetry if there was one (whatever MaxBackoff is). For each
// further error in a row it is after twice the last wait, at most MaxBackoff. It
// belongs to one goroutine at a time.
type Timeout struct {
	// Resync is the wait without an error.
	Resync time.Duration
	// MaxBackoff is the longest wait after two errors or more in a row.
	MaxBackoff time.Duration
	// InitialRetry is the wait after the first error.
	InitialRetry time.Duration

	errors  int // in a row
	current time.Duration
}

// Update records whether the last synchronization succeeded.
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

// Next returns the wait until the next synchronization.
func (b *Timeout) Next() time.Duration {
	if b.errors == 0 {
		return b.Resync
	}
	return b.current
}
