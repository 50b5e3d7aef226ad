// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ipam/datastore"
	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// Grant changes the blocks of the ledger through the event loop. The datastore calls it.
func (p *Interfaces) Grant(ctx context.Context, g datastore.Grant) ([]netip.Prefix, error) {
	next := p.recordsOf(g)
	if err := p.save(ctx, maps.Clone(next), false); err != nil { // before the ledger has the blocks
		return nil, err
	}
	done := make(chan error, 1)
	ev := &ipam.InterfaceChange{
		Grant:  g,
		Found:  p.found && p.isNew(g.Blocks),
		OnDone: func(err error) { done <- err },
	}
	for _, id := range slices.Sorted(maps.Keys(next)) {
		ev.Uplinks = append(ev.Uplinks, next[id].uplink())
	}
	if err := p.deps.EventLoop.PushEventWait(ctx, ev); err != nil {
		return nil, fmt.Errorf("change the blocks of the interfaces: %w", err)
	}
	if err := <-done; err != nil {
		if !p.hasGranted(ev) {
			return nil, fmt.Errorf("change the blocks of the interfaces: %w", err)
		}
		p.log.Warn("the blocks of the interfaces have changed, and a value of the network has failed", "error", err)
	}
	p.refused = ev.Refused
	for _, b := range ev.Kept { // they stay with their interface
		for id, r := range p.records {
			if kept := next[id]; slices.Contains(r.Blocks, b) {
				if kept.Interface.ID == "" {
					kept = r
					kept.Blocks = nil
				}
				kept.Blocks = append(slices.Clip(kept.Blocks), b)
				next[id] = kept
			}
		}
	}
	if err := p.save(ctx, next, true); err != nil {
		p.log.Warn("the records of the interfaces have blocks that the ledger no longer has", "error", err)
	}
	if len(g.Claims) > 0 {
		if err := p.forgetClaimed(ctx); err != nil {
			p.log.Warn("the imported leases are read again at the next start", "error", err)
		}
	}
	return ev.Kept, nil
}

// isNew reports whether the ledger lacks one of the blocks.
func (p *Interfaces) isNew(blocks []datastore.GrantedBlock) bool {
	known := map[netip.Prefix]bool{}
	for _, b := range p.deps.Ledger.Stats() {
		if b.Pool == ipam.PodPool {
			known[b.Block] = true
		}
	}
	return slices.ContainsFunc(blocks, func(b datastore.GrantedBlock) bool { return b.Usable && !known[b.Prefix] })
}

// hasGranted reports whether the ledger has the blocks of an event, although it failed.
func (p *Interfaces) hasGranted(ev *ipam.InterfaceChange) bool {
	g, kept := &ev.Grant, ev.Kept
	active, returning := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, b := range p.deps.Ledger.Stats() {
		switch {
		case b.State != ledger.Active:
		case b.Pool == ipam.PodPool:
			active[b.Block] = true
		case b.Pool == datastore.ReturningPool:
			returning[b.Block] = true
		}
	}
	for _, b := range g.Usable(nil) {
		if slices.ContainsFunc(ev.Refused, func(r ipam.RefusedBlock) bool { return r.Prefix == b }) {
			continue
		}
		if !active[b] {
			return false
		}
		delete(active, b)
	}
	for _, b := range g.Returning {
		if !returning[b] && !slices.Contains(kept, b) {
			return false
		}
	}
	for b := range active {
		if !slices.Contains(kept, b) {
			return false
		}
	}
	return true
}
