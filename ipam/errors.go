// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"

	"github.com/cadastre/cadastre/ledger"
)

var (
	// ErrIPv4Disabled is the error if IPv4 is disabled.
	ErrIPv4Disabled = errors.New("IPv4 allocation disabled")
	// ErrIPv6Disabled is the error if IPv6 is disabled.
	ErrIPv6Disabled = errors.New("IPv6 allocation disabled")
	// ErrDelegated is the error if a CNI plugin has its own IPAM.
	ErrDelegated = errors.New("operation not supported: the addresses are left to the CNI plugin")
	// ErrBlacklisted is the error for a blacklisted address.
	ErrBlacklisted = errors.New("IP is blacklisted")
	// ErrGivenBack is the error for an address that the operator releases.
	ErrGivenBack = errors.New("IP is marked or ready for release")
)

// ErrAllocation is an error of an allocation.
type ErrAllocation error

// callError adds the call to an error. Error formats the text, since many callers
// only test for an exhausted pool.
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

// allocation returns the error of an allocation, and counts it.
func (m *IPAM) allocation(what, owner string, err error) ErrAllocation {
	m.deps.Metrics.failed(m.deps.Name, err)
	return &callError{"allocate", what, owner, err}
}

func disabled(f ledger.Family) error {
	if f == ledger.IPv4 {
		return ErrIPv4Disabled
	}
	return ErrIPv6Disabled
}
