// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cadastre/cadastre/ledger"
)

// Mode selects the source of a node's addresses.
type Mode uint8

// Modes.
const (
	HostScope   Mode = iota // one block of each family, known at the start
	ClusterPool             // a list of CIDRs in the NetResourceSet, which grows and shrinks
	Given                   // single addresses in the NetResourceSet
	Delegated               // none: a CNI plugin has its own IPAM
)

func (m Mode) String() string {
	switch m {
	case HostScope:
		return "host scope"
	case ClusterPool:
		return "cluster pool"
	case Given:
		return "custom resource"
	case Delegated:
		return "delegated to plugin"
	}
	return fmt.Sprintf("mode %d", m)
}

// vpcENI names the mode in which an address is useless without its subnet.
const vpcENI = "vpc-eni"

// ParseMode converts the name that Configuration.IPAMMode returns.
func ParseMode(name string) (Mode, error) {
	switch name {
	case "kubernetes", "cluster-pool":
		return HostScope, nil
	case "cluster-pool-v2beta", "vpc-route":
		return ClusterPool, nil
	case "crd", vpcENI, "rdma", "privatecloudbase":
		return Given, nil
	case "delegated-plugin":
		return Delegated, nil
	}
	const names = "kubernetes, cluster-pool, cluster-pool-v2beta, vpc-route, crd, vpc-eni, rdma, privatecloudbase or delegated-plugin"
	return 0, fmt.Errorf("parse IPAM mode %q: want %s", name, names)
}

// Granter changes the blocks of the ledger's pool. In a program with an event loop
// the loop owns the pools, and the Granter pushes an event.
type Granter interface {
	// Grant sets the blocks of the pool, durably, before it returns. A missing block
	// drains, and leases stay. It must not wait for a caller of the IPAM: an event
	// handler that calls Update needs a Granter that commits within the handler.
	Grant(ctx context.Context, pool ledger.Pool, blocks []netip.Prefix) error
}

// DirectGranter is the Granter of the only owner of a ledger's pools. Use
// NewDirectGranter; any goroutine may call its methods.
type DirectGranter struct {
	mu     sync.Mutex
	ledger *ledger.Ledger
}

// NewDirectGranter returns a Granter for l.
func NewDirectGranter(l *ledger.Ledger) *DirectGranter { return &DirectGranter{ledger: l} }

// Grant commits the blocks within the call.
func (d *DirectGranter) Grant(ctx context.Context, pool ledger.Pool, blocks []netip.Prefix) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.ledger.Begin()
	err := context.Cause(ctx)
	if err == nil {
		err = st.SetPool(pool)
	}
	if err == nil {
		err = st.SetBlocks(pool.Name, blocks)
	}
	if err != nil {
		st.Undo()
		return fmt.Errorf("grant blocks to pool %q: %w", pool.Name, err)
	}
	return st.Commit(ctx)
}
