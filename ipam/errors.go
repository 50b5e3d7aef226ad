// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"

	"github.com/cadastre/cadastre/ledger"
)

var (
	// ErrIPv4Disabled is returned where IPv4 addresses are not lent.
	ErrIPv4Disabled = errors.New("IPv4 allocation disabled")
	// ErrIPv6Disabled is returned where IPv6 addresses are not lent.
	ErrIPv6Disabled = errors.New("IPv6 allocation disabled")
	// ErrDelegated is returned where a CNI plugin has an IPAM of its own.
	ErrDelegated = errors.New("operation not supported: the addresses are left to the CNI plugin")
	// ErrBlacklisted is returned for an address that is never lent.
	ErrBlacklisted = errors.New("IP is blacklisted")
	// ErrGivenBack is returned for an address that is on its way back to whoever gave it.
	ErrGivenBack = errors.New("IP is marked or ready for release")
)

// ErrAllocation is an error of an allocation.
type ErrAllocation error

// callError says which call failed. Its text is made when somebody asks: for
// callers it is often enough to know that a pool is full.
type callError struct {
	call, what, owner string
	err               error
}

func (e *callError) Error() string {
	if e.owner == "" {
		return fmt.Sprintf("%s %s: %v", e.call, e.what, e.err)
	}
	return fmt.Sprintf("%s %s for %q: %v", e.call, e.what, e.owner, e.err)
}

func (e *callError) Unwrap() error { return e.err }

func allocation(what, owner string, err error) ErrAllocation {
	return &callError{"allocate", what, owner, err}
}

func disabled(f ledger.Family) error {
	if f == ledger.IPv4 {
		return ErrIPv4Disabled
	}
	return ErrIPv6Disabled
}
