// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package blocks

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

var (
	// ErrExhausted is wrapped by an Exhausted: no block is free.
	ErrExhausted = errors.New("no CIDRs remaining")
	// ErrOutOfRange is returned for a block that is not wholly inside one range.
	ErrOutOfRange = errors.New("out of the ranges of this cluster")
	// ErrInUse is returned for a range that cannot be removed yet.
	ErrInUse = errors.New("range is in use")
	// ErrRange is returned for a range that is not valid, or overlaps another.
	ErrRange = errors.New("bad range")
	// ErrNoRange is returned for a range that is not known.
	ErrNoRange = errors.New("no such range")
	// ErrSize is returned for a block size that no range of a pool can have.
	ErrSize = errors.New("bad block size")

	errConflict    = errors.New("CIDR is taken")
	errNotHeld     = errors.New("not held by this owner")
	errNotOneBlock = errors.New("not exactly one block")
)

// Exhausted is the error of an allocation that found no free block. Its text is
// formatted on demand, because waiting nodes ask often.
type Exhausted struct {
	Node     string // for which the allocation was
	Pool     int
	bits     int    // of the wanted block
	capacity uint64 // blocks of the pool's ranges, in their own sizes
	used     uint64
	claimed  uint64 // free blocks of the wanted size that Choice.Taken excludes
	cooling  int
	Next     time.Time // when the next block has cooled; zero if none is cooling
}

func (e *Exhausted) Error() string {
	text := fmt.Sprintf("allocate for node %q: %v in pool %d: of %d blocks %d are in use, none is left of size /%d",
		e.Node, ErrExhausted, e.Pool, e.capacity, e.used, e.bits)
	if e.claimed > 0 {
		text += fmt.Sprintf("; free blocks that wait for claims of other nodes to end: %d", e.claimed)
	}
	if e.cooling > 0 {
		text += fmt.Sprintf("; %d are cooling, the next until %s", e.cooling, e.Next.UTC().Format(time.RFC3339))
	}
	return text
}

func (e *Exhausted) Unwrap() error { return ErrExhausted }

// Conflict is the error of an owner whose block overlaps a block of another owner, or a
// reserved prefix.
type Conflict struct {
	Owner  Owner
	block  netip.Prefix
	Holder Owner // the zero Owner if Held is reserved
	Held   netip.Prefix
}

func (e *Conflict) Error() string {
	if e.Holder == (Owner{}) {
		return fmt.Sprintf("%v: %s of node %q is in the reserved range %s", errConflict, e.block, e.Owner.Name, e.Held)
	}
	return fmt.Sprintf("%v: %s of node %q overlaps %s of node %q",
		errConflict, e.block, e.Owner.Name, e.Held, e.Holder.Name)
}

func (e *Conflict) Unwrap() error { return errConflict }
