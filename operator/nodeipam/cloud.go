// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"context"
	"errors"
	"net/netip"
)

var (
	// ErrNoMachine is wrapped by a Cloud that has no machine for a node (yet).
	ErrNoMachine = errors.New("the cloud has no such machine")
	// ErrRouted is wrapped by AddAlias where another machine has a part of the
	// prefix. Nothing was added then.
	ErrRouted = errors.New("the cloud routes it to another machine")
)

// Machine identifies the machine of a node to a cloud.
type Machine struct {
	Node       string // the Node object's name
	ProviderID string // its spec.providerID; empty if it is not set yet
}

// Cloud represents a cloud for the cloud modes: the prefixes that it routes to a machine
// beside its own addresses ("alias ranges", "prefix delegation", "secondary ranges").
// Clouds offer no transaction over several machines, and no condition on an earlier state,
// so neither does this interface.
//
// Every method may be called from any goroutine. A call that fails may have been
// applied all the same; callers read back.
type Cloud interface {
	// ProviderName names the cloud, for messages.
	ProviderName() string
	// Aliases returns the prefixes of a machine, in the cloud's order.
	Aliases(ctx context.Context, m Machine) ([]netip.Prefix, error)
	// AddAlias adds a prefix to a machine. It succeeds if the machine has the prefix.
	AddAlias(ctx context.Context, m Machine, p netip.Prefix) error
}
