// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
)

var (
	// ErrExhausted is wrapped by an Exhausted: no address is free.
	ErrExhausted = errors.New("no IP address is free")
	// ErrNoPool is returned for a pool that is not known.
	ErrNoPool = errors.New("there is no pool of this name")
	// ErrNoBlock is returned for a claim on a pool that has no block of a family yet.
	ErrNoBlock = errors.New("no address block")
	// ErrSuspended is returned for a new claim while lending is suspended.
	ErrSuspended = errors.New("lending of new addresses is suspended")
	// ErrTaken is returned for a wanted address that somebody else holds.
	ErrTaken = errors.New("address is taken")
	// ErrOutside is returned for a wanted address that no active block contains, or that is never lent.
	ErrOutside = errors.New("address cannot be lent")
	// ErrKeyHeld is returned where the key holds other addresses than the ones wanted.
	ErrKeyHeld = errors.New("key holds another address")
	// ErrBusy is returned where an event is at the lease right now: try again when it is done.
	ErrBusy = errors.New("an event is at it")
	// ErrNotOwner is returned for a release of what the caller does not own.
	ErrNotOwner = errors.New("not the owner")
	// ErrNoLease is returned where an address has no lease that could expire.
	ErrNoLease = errors.New("there is no lease")
	// ErrPending is returned for a second expiry of a lease.
	ErrPending = errors.New("it has an expiry already")
	// ErrNotPending is returned where no expiry is to be stopped: none was started, or its time is over.
	ErrNotPending = errors.New("it has no expiry")
	// ErrToken is returned for a token of another attempt.
	ErrToken = errors.New("the token is not that of its expiry")
	// ErrExcluded is returned for a wanted address that somebody has excluded.
	ErrExcluded = errors.New("address is excluded")
	// ErrOverlap is returned for a block that overlaps another one.
	ErrOverlap = errors.New("blocks overlap")
)

// Exhausted is the error of a claim that found no free address; it says where they are.
type Exhausted struct {
	Pool        string
	Family      Family
	Size        uint64 // addresses of the active blocks
	Held        int    // held, pending and infra
	Cooling     int
	Quarantined int
	Reserved    uint64 // edges and exclusions
}

func (e *Exhausted) Error() string {
	return fmt.Sprintf("%v in pool %q (%s): of %d addresses %d are held, %d cooling, %d quarantined, %d reserved",
		ErrExhausted, e.Pool, e.Family, e.Size, e.Held, e.Cooling, e.Quarantined, e.Reserved)
}

func (e *Exhausted) Unwrap() error { return ErrExhausted }
