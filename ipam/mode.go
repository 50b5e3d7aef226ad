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

// Mode is where a node's addresses come from.
type Mode uint8

// Modes.
const (
	HostScope   Mode = iota // one block of each family, known at the start
	ClusterPool             // a list of CIDRs in the NetResourceSet, which grows and shrinks
	Given                   // single addresses in the NetResourceSet
	Delegated               // a CNI plugin has an IPAM of its own
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

// vpcENI is the mode in which an address is of no use without its subnet.
const vpcENI = "vpc-eni"

// ParseMode is the Mode of what Configuration.IPAMMode says.
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
	return 0, fmt.Errorf("IPAM mode %q is none of kubernetes, cluster-pool, cluster-pool-v2beta, vpc-route, crd, vpc-eni, rdma, privatecloudbase, delegated-plugin", name)
}

// Granter changes the blocks of the ledger's pool on behalf of the one who owns
// its pools: in a program with an event loop, through that.
type Granter interface {
	// Grant gives the pool exactly these blocks, durably, before it returns. What
	// is missing drains; what is in a block keeps its lease. It must not wait for
	// anybody who waits for the IPAM: a handler of an event loop that calls Update
	// needs a Granter that commits right there.
	Grant(ctx context.Context, pool ledger.Pool, blocks []netip.Prefix) error
}

// DirectGranter is the Granter of a ledger that nobody else changes pools of.
// Use NewDirectGranter; any goroutine may call it.
type DirectGranter struct {
	mu     sync.Mutex
	ledger *ledger.Ledger
}

// NewDirectGranter makes the Granter of l.
func NewDirectGranter(l *ledger.Ledger) *DirectGranter { return &DirectGranter{ledger: l} }

// Grant commits the change.
func (d *DirectGranter) Grant(ctx context.Context, pool ledger.Pool, blocks []netip.Prefix) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.ledger.Begin()
	err := st.SetPool(pool)
	if err == nil {
		err = st.SetBlocks(pool.Name, blocks)
	}
	if err != nil {
		st.Undo()
		return fmt.Errorf("grant blocks to pool %q: %w", pool.Name, err)
	}
	return st.Commit(ctx)
}
