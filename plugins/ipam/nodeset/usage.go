// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package nodeset

import (
	"net/netip"

	"github.com/cadastre/cadastre/api/handshake"
	"github.com/cadastre/cadastre/ledger"
)

// Names returns the texts of a report.
type Names struct {
	// Holder returns the name of the holder of a lease, for people; nil: HolderOf.
	Holder func(l *ledger.Lease) string
	// Edges returns the addresses of a block that are never leased, and their purpose;
	// nil: there are none.
	Edges func(block netip.Prefix) map[netip.Addr]string
}

// Usage holds the use of the blocks of a pool of the ledger.
type Usage struct {
	Blocks map[netip.Prefix]BlockUse
	owners map[netip.Addr]string // holder or purpose of each address that is not free
	keys   map[netip.Addr]string // of the set's pool
	held   spans                 // held addresses, and blocks that contain one
}

// BlockUse counts the addresses of a block.
type BlockUse struct {
	Held uint64 // leased or cooling
	Free uint64
}

// ReadUsage reads the use of a pool of the ledger. Staged leases count as held. Infra leases
// count only as Edges.
func ReadUsage(l *ledger.Ledger, pool string, names Names) Usage {
	u := Usage{
		Blocks: map[netip.Prefix]BlockUse{},
		owners: map[netip.Addr]string{},
		keys:   map[netip.Addr]string{},
	}
	var held []netip.Prefix
	for _, b := range l.Stats() {
		if b.Pool != pool {
			continue
		}
		u.Blocks[b.Block] = BlockUse{uint64(b.Held + b.Quarantined + b.Cooling), b.Free}
		if b.Held+b.Cooling+b.Quarantined == 0 {
			continue
		}
		if b.Held+b.Quarantined > 0 {
			held = append(held, b.Block)
		}
		if names.Edges != nil {
			for a, purpose := range names.Edges(b.Block) { // these cannot be allocated either
				u.owners[a], u.keys[a] = "cadastre/"+purpose, handshake.Key(b.Block)
			}
		}
	}
	holder := names.Holder
	if holder == nil {
		holder = HolderOf
	}
	for _, x := range l.LeasesOf(pool) {
		if x.Purpose == ledger.ForInfra {
			continue
		}
		u.owners[x.Addr], u.keys[x.Addr] = holder(&x), handshake.Key(x.Block)
		held = append(held, netip.PrefixFrom(x.Addr, x.Addr.BitLen()))
	}
	u.held = spansOf(held)
	return u
}

// Leased reports whether a block has a lease, or is within a block that has one.
func (u Usage) Leased(block netip.Prefix) bool { return u.held.overlap(block) }

// HolderOf returns the name of the holder of a lease: its pod, or its key.
func HolderOf(l *ledger.Lease) string {
	name := l.Pod.String()
	if l.Pod.Name == "" {
		name = l.Key.String()
	}
	if l.State != ledger.Held {
		name += " (" + l.State.String() + ")"
	}
	return name
}
