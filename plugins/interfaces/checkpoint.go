// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// imported is the checkpoint of another program, as it was read at the first start. It is
// a Checkpointer that is only read.
type imported struct{ data datastore.CheckpointData }

// Checkpoint fails: the ledger keeps the leases.
func (c *imported) Checkpoint(any) error {
	return errors.New("write the imported checkpoint: the ledger keeps the leases")
}

// Restore returns the entries whose leases the ledger does not have yet.
func (c *imported) Restore(into any) error {
	d, ok := into.(*datastore.CheckpointData)
	switch {
	case !ok:
		return fmt.Errorf("restore the imported checkpoint: into is a %T, want a *datastore.CheckpointData", into)
	case len(c.data.Allocations)+len(c.data.Cooling) == 0:
		return fs.ErrNotExist
	}
	*d = c.data
	return nil
}

// dropClaimed leaves out the entries whose block the ledger has: their leases were
// claimed together with it. It reports whether there was one.
func (c *imported) dropClaimed(stats []ledger.BlockStat) bool {
	before := len(c.data.Allocations)
	c.data.Allocations = slices.DeleteFunc(c.data.Allocations, func(e datastore.CheckpointEntry) bool {
		a, err := netip.ParseAddr(e.IPv4 + e.IPv6)
		return err == nil && slices.ContainsFunc(stats, func(b ledger.BlockStat) bool {
			return b.Pool == ipam.PodPool && b.Block.Contains(a)
		})
	})
	c.data.Cooling = nil
	return len(c.data.Allocations) < before
}

// export writes the leases to the file of cadastre.interfaces.export if they have
// changed.
func (p *Interfaces) export() {
	if p.exporter == nil {
		return
	}
	data := p.store.Snapshot()
	if p.exported != nil && sameEntries(p.exported, data) {
		return
	}
	if err := p.exporter.Checkpoint(data); err != nil {
		p.log.Warn("the leases cannot be exported", "file", p.deps.Config.Export, "error", err)
		return
	}
	p.exported = data
}

func sameEntries(a, b *datastore.CheckpointData) bool {
	same := func(x, y datastore.CheckpointEntry) bool {
		return x.IPAMKey == y.IPAMKey && x.IPv4 == y.IPv4 && x.IPv6 == y.IPv6
	}
	return slices.EqualFunc(a.Allocations, b.Allocations, same)
}
