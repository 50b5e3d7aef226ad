// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"errors"
	"fmt"
)

var (
	// ErrExhausted is wrapped by Exhausted: no address is free.
	ErrExhausted = errors.New("no IP address is free")
	// ErrNoPool is returned for an unknown pool.
	ErrNoPool = errors.New("there is no pool of this name")
	// ErrNoBlock is returned for a claim on a pool that has no block of a family yet.
	ErrNoBlock = errors.New("no address block")
	// ErrSuspended is returned for a new claim while the allocation is suspended.
	ErrSuspended = errors.New("allocation of new addresses is suspended")
	// ErrTaken is returned for a wanted address that has another owner.
	ErrTaken = errors.New("address is taken")
	// ErrOutside is returned for a wanted address that no active block contains, or
	// that is never allocated.
	ErrOutside = errors.New("address cannot be allocated")
	// ErrKeyHeld is returned if the key holds other addresses than the wanted ones.
	ErrKeyHeld = errors.New("key holds another address")
	// ErrBusy is returned for a lease that an event in progress changes. The caller
	// may try again after the event.
	ErrBusy = errors.New("an event in progress changes it")
	// ErrNotOwner is returned for a release of a lease that the caller does not own.
	ErrNotOwner = errors.New("not the owner")
	// ErrNoLease is returned for an address without a lease that could expire.
	ErrNoLease = errors.New("there is no lease")
	// ErrPending is returned for a second expiry of a lease.
	ErrPending = errors.New("it has an expiry already")
	// ErrNotPending is returned for a lease whose expiry was not started or is over.
	ErrNotPending = errors.New("it has no expiry")
	// ErrToken is returned for the token of another expiry.
	ErrToken = errors.New("the token is not that of its expiry")
	// ErrExcluded is returned for a wanted address that is excluded.
	ErrExcluded = errors.New("address is excluded")
	// ErrOverlap is returned for a block that overlaps another one.
	ErrOverlap = errors.New("blocks overlap")
)

// Exhausted is the error of a claim that found no free address. It counts the
// addresses by state.
type Exhausted struct {
	Pool        string
	Family      Family
	Size        uint64 // addresses of the active blocks
	Held        int    // held and pending, of pods and containers
	Infra       int    // of the node itself
	Cooling     int
	Quarantined int
	Reserved    uint64 // edges and exclusions
}

func (e *Exhausted) Error() string {
	return fmt.Sprintf(
		"%v in pool %q (%s): of %d addresses %d are held, %d infra, %d cooling, %d quarantined, %d reserved",
		ErrExhausted,
		e.Pool,
		e.Family,
		e.Size,
		e.Held,
		e.Infra,
		e.Cooling,
		e.Quarantined,
		e.Reserved,
	)
}

func (e *Exhausted) Unwrap() error { return ErrExhausted }
