// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

// Package backoff computes how long a caller waits before it repeats a failed
// attempt. The wait doubles with each failure in a row, up to a limit, and is
// spread at random, so that callers that failed together do not return
// together.
//
// The package is pure: it reads no clock and starts no timer, and its only
// source of randomness is the caller's. A Policy is a value; any goroutine may
// use it.
package backoff

import "time"

// Policy holds the waits of one kind of attempt.
type Policy struct {
	First time.Duration // the wait after the first failure, before it is spread
	Limit time.Duration // the largest wait; not above 0: First
	// Random returns a number from 0 to below 1. A wait is then between half of
	// its length and all of it. nil: waits are not spread.
	Random func() float64
}

// After returns the wait after so many failures in a row: 0 for none.
func (p Policy) After(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	wait, limit := p.First, max(p.First, p.Limit)
	for range failures - 1 {
		if wait >= limit/2 { // doubling could pass the limit, or overflow
			wait = limit
			break
		}
		wait *= 2
	}
	if p.Random == nil {
		return wait
	}
	return wait/2 + time.Duration(p.Random()*float64(wait/2))
}
