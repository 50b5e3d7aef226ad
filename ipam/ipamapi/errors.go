// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipamapi

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cadastre/cadastre/ledger"
)

// The well-known errors of the contract.
var (
	ErrInvalidAddressSpace = invalidParameter("invalid address space")
	ErrInvalidPool         = invalidParameter("invalid address pool")
	ErrInvalidSubPool      = invalidParameter("invalid address subpool")
	ErrNoAvailableIPs      = unavailable("no available addresses on this pool")
	ErrNoIPReturned        = unavailable("no address returned")
	ErrIPAlreadyAllocated  = forbidden("Address already in use")
	ErrIPOutOfRange        = invalidParameter("requested address is out of range")
	ErrPoolOverlap         = forbidden("Pool overlaps with other one on this address space")
	ErrBadPool             = invalidParameter("address space does not contain specified address pool")
)

// Errors that the contract does not name.
var (
	// ErrNoMoreSubnets is returned if no prefix is free for a pool.
	ErrNoMoreSubnets = invalidParameter("all predefined address pools have been fully subnetted")
	// ErrPoolNotFound is returned for an address of a pool that was released.
	ErrPoolNotFound = notFound("cannot find address pool")
	// ErrInvalidAddress is returned for bytes that are not an address.
	ErrInvalidAddress = invalidParameter("invalid address")
	// ErrNotNow is returned while no new addresses are allocated.
	ErrNotNow = unavailable("no new addresses are allocated at present")
)

// Errors of each class have a marker method.
type (
	invalidParameterError struct{ text string }
	forbiddenError        struct{ text string }
	unavailableError      struct{ text string }
	notFoundError         struct{ text string }
)

func invalidParameter(text string) error { return &invalidParameterError{text} }
func forbidden(text string) error        { return &forbiddenError{text} }
func unavailable(text string) error      { return &unavailableError{text} }
func notFound(text string) error         { return &notFoundError{text} }

func (e *invalidParameterError) Error() string { return e.text }
func (e *forbiddenError) Error() string        { return e.text }
func (e *unavailableError) Error() string      { return e.text }
func (e *notFoundError) Error() string         { return e.text }

// InvalidParameter marks the class.
func (*invalidParameterError) InvalidParameter() {}

// Forbidden marks the class.
func (*forbiddenError) Forbidden() {}

// Unavailable marks the class.
func (*unavailableError) Unavailable() {}

// NotFound marks the class.
func (*notFoundError) NotFound() {}

// classed returns an error of the ledger with its class; nil for nil.
func classed(err error) error {
	for _, x := range []struct{ ledger, ours error }{
		{ledger.ErrExhausted, ErrNoAvailableIPs},
		{ledger.ErrNoBlock, ErrNoAvailableIPs},
		{ledger.ErrOutside, ErrNoAvailableIPs},
		{ledger.ErrTaken, ErrIPAlreadyAllocated},
		{ledger.ErrSuspended, ErrNotNow},
		{ledger.ErrBusy, ErrNotNow},
	} {
		if errors.Is(err, x.ledger) {
			return &classedError{x.ours, err}
		}
	}
	return err
}

// classedError combines an error of the ledger with one of the contract. It builds
// its text only on demand: a full pool of a group needs none.
type classedError struct{ class, cause error }

func (e *classedError) Error() string   { return e.class.Error() + ": " + e.cause.Error() }
func (e *classedError) Unwrap() []error { return []error{e.class, e.cause} }

// callError names the call that failed.
type callError struct {
	call, pool string
	addr       netip.Addr // the zero Addr: any
	err        error
}

func (e *callError) Error() string {
	what := "an address"
	if e.addr.IsValid() {
		what = "address " + e.addr.String()
	}
	return fmt.Sprintf("%s %s of pool %q: %v", e.call, what, e.pool, e.err)
}

func (e *callError) Unwrap() error { return e.err }
