// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/cloud"
	"github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
)

// shrink takes excess addresses and interfaces out of the ledger, and returns them.
func (p *Interfaces) shrink(ctx context.Context) error {
	if err := p.store.ReturnUnused(); err != nil {
		return err
	}
	prefixes, excess := p.deps.Config.Prefixes, true
	for _, f := range p.deps.Families {
		if _, err := p.store.Shrink(p.targets, f); err != nil {
			return fmt.Errorf("return addresses to the cloud: %w", err)
		}
		free := p.store.GetIPStats(f).Free()
		perENI := p.view.machine.Limits.Addresses[f]
		excess = excess && (p.targets.ByIP() || prefixes || free >= (p.targets.WarmENI+1)*perENI)
	}
	if excess {
		if id := p.store.RemoveUnusedENI(p.targets); id != "" {
			p.toDelete[id] = true
		}
	}
	return p.giveBack(ctx)
}

// giveBack returns blocks and interfaces to the cloud that the ledger no longer has. An error
// of one does not keep the next ones from it.
func (p *Interfaces) giveBack(ctx context.Context) error {
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(p.toDelete)) {
		switch {
		case p.hasBlocks(id): // the cloud has shown new ones since, which pods may have
			delete(p.toDelete, id)
		case !p.isWanted(id, p.deps.Families):
			errs = append(errs, p.deleteInterface(ctx, id))
		}
	}
	returning := p.store.Returning()
	for _, id := range slices.Sorted(maps.Keys(returning)) {
		blocks := slices.DeleteFunc(returning[id], func(b netip.Prefix) bool {
			return p.isWanted(id, []ledger.Family{ledger.FamilyOf(b.Addr())})
		})
		if i := p.view.find(id); id != "" && i != nil && len(blocks) > 0 { // otherwise the next reading tells
			errs = append(errs, p.unassign(ctx, i, blocks))
		}
	}
	return errors.Join(errs...)
}

// hasBlocks reports whether the store has a block of an interface.
func (p *Interfaces) hasBlocks(id string) bool {
	return slices.ContainsFunc(p.store.Known(), func(b datastore.GrantedBlock) bool { return b.Interface == id })
}

// isWanted reports whether an interface, from which a return has failed, stays as it is. It
// does if pods need addresses again of one of the families: takeBack then takes what the
// interface has.
func (p *Interfaces) isWanted(id string, families []ledger.Family) bool {
	_, failed := p.failedReturns[id]
	return failed && slices.ContainsFunc(families, func(f ledger.Family) bool { return p.short(f) > 0 })
}

// takeBack uses addresses of a family again that the cloud refuses to take. These are
// addresses that a reading shows which is so much younger than the last try that the try
// has no effect any more. Until then nothing goes back from that interface.
func (p *Interfaces) takeBack(f ledger.Family) error {
	for _, id := range slices.Sorted(maps.Keys(p.failedReturns)) {
		n, i := p.short(f), p.view.find(id)
		if n == 0 || i == nil || p.view.began-p.failedReturns[id] < lateness {
			continue
		}
		if p.toDelete[id] {
			delete(p.toDelete, id)
			p.next.reading = 0 // which adds the interface to the store
			continue
		}
		var back []netip.Prefix
		for _, b := range p.store.Returning()[id] {
			if len(back) < n && ledger.FamilyOf(b.Addr()) == f && hasBlock(i, b) {
				back = append(back, b)
			}
		}
		if len(back) == 0 {
			continue
		}
		if err := p.store.AddBlocks(id, back); err != nil {
			return fmt.Errorf("use addresses again that the cloud does not take: %w", err)
		}
		p.log.Info("addresses are used again that the cloud does not take", "interface", id, "blocks", len(back))
	}
	return nil
}

// hasBlock reports whether an interface has a block for pods.
func hasBlock(i *cloud.Interface, p netip.Prefix) bool {
	return slices.ContainsFunc(i.Blocks, func(b cloud.Block) bool { return b.Prefix == p && !b.Primary })
}

// unassign returns blocks of an interface. An own address of the interface counts as returned:
// it never goes back.
func (p *Interfaces) unassign(ctx context.Context, i *cloud.Interface, blocks []netip.Prefix) error {
	var own, rest []netip.Prefix
	for _, b := range blocks {
		if slices.ContainsFunc(i.Blocks, func(x cloud.Block) bool { return x.Primary && x.Prefix == b }) {
			own = append(own, b)
		} else {
			rest = append(rest, b)
		}
	}
	p.store.Returned(own)
	if len(rest) == 0 {
		return nil
	}
	err := p.call(ctx, "unassign addresses", func(ctx context.Context) error {
		return p.cloud.Unassign(ctx, p.instance, i.ID, rest)
	})
	if err != nil {
		p.failedReturns[i.ID] = p.deps.Uptime()
		return err
	}
	delete(p.failedReturns, i.ID)
	var gone []cloud.Block
	for _, b := range rest {
		gone = append(gone, cloud.Block{Prefix: b})
	}
	p.view.change(ownChange{at: p.deps.Uptime(), iface: i, blocks: gone, gone: true})
	p.store.Returned(rest)
	return nil
}

func (p *Interfaces) deleteInterface(ctx context.Context, id string) error {
	err := p.call(ctx, "delete an interface", func(ctx context.Context) error {
		return p.cloud.DeleteInterface(ctx, p.instance, id)
	})
	if err != nil {
		p.failedReturns[id] = p.deps.Uptime()
		return err
	}
	p.log.Info("an unused interface was deleted", "interface", id)
	delete(p.toDelete, id)
	delete(p.failedReturns, id)
	p.view.change(ownChange{at: p.deps.Uptime(), iface: &cloud.Interface{ID: id}, gone: true})
	p.store.Deleted(id)
	return nil
}

// deleteOrphans deletes what calls with a lost reply have left.
func (p *Interfaces) deleteOrphans(ctx context.Context) error {
	var gone []string
	err := p.call(ctx, "delete orphans", func(ctx context.Context) (err error) {
		gone, err = p.cloud.DeleteOrphans(ctx, p.instance, orphanAge)
		return err
	})
	if len(gone) > 0 {
		p.log.Info("interfaces without a machine were deleted", "interfaces", gone)
	}
	return err
}
