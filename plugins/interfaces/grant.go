// SPDX-FileCopyrightText: The Cadastre Authors
// SPDX-License-Identifier: Apache-2.0

package interfaces

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cadastre/cadastre/ledger"
	"github.com/cadastre/cadastre/plugins/ipam"
)

// change makes next the machine: its records are written, the event loop changes the
// blocks of the ledger, then blocks that have left go out of the records. more are further
// blocks on their way back. It returns those of them that stay, because an address of them
// is in use. After an error the machine is as before.
func (p *Interfaces) change(
	ctx context.Context,
	next machine,
	more map[netip.Prefix]returning,
) (kept []netip.Prefix, err error) {
	p.dropGone(next)
	for b := range more {
		if a := next.of(b); a != nil {
			a.remove(func(x netip.Prefix) bool { return x == b })
		}
	}
	ev := &ipam.InterfaceChange{Claims: p.claims(next)}
	ev.Blocks = p.blocks(next)
	for _, a := range next.withBlocks().sorted() {
		ev.Uplinks = append(ev.Uplinks, a.uplink())
	}
	has := next.interfaces()
	for _, all := range []map[netip.Prefix]returning{p.returning, more} {
		for b := range all {
			if has[b] == nil { // otherwise the cloud has given it anew since its return
				ev.Returning = append(ev.Returning, b)
			}
		}
	}
	slices.SortFunc(ev.Returning, netip.Prefix.Compare)
	if err := p.grant(ctx, ev, recordsOf(next)); err != nil {
		return nil, err
	}
	for _, b := range ev.Kept { // they stay with their interface
		if was := p.machine.of(b); was != nil && next.of(b) == nil {
			if next[was.Interface.ID] == nil {
				one := *was
				one.Blocks, one.gone = nil, nil
				next[was.Interface.ID] = &one
			}
			next[was.Interface.ID].add(b)
			if slices.Contains(was.gone, b) {
				next[was.Interface.ID].lose(b)
			}
		}
	}
	maps.DeleteFunc(p.returning, func(b netip.Prefix, _ returning) bool { return has[b] != nil })
	for b, r := range more {
		if !slices.Contains(ev.Kept, b) {
			p.returning[b] = r
		}
	}
	p.machine = next
	if err := p.save(ctx, recordsOf(next)); err != nil {
		p.log.Warn("the records of the interfaces have blocks that the ledger no longer has", "error", err)
	}
	if err := p.forgetClaimed(ctx); err != nil {
		p.log.Warn("the imported leases are read again at the next start", "error", err)
	}
	return ev.Kept, nil
}

// grant writes the records of a change, and passes it to the event loop.
func (p *Interfaces) grant(ctx context.Context, ev *ipam.InterfaceChange, records map[string]record) error {
	if err := p.saveBefore(ctx, records); err != nil { // before the ledger has the blocks
		return err
	}
	done := make(chan error, 1)
	ev.OnDone = func(err error) { done <- err }
	ev.Found = p.found && p.isNew(ev.Blocks)
	if err := p.deps.EventLoop.PushEventWait(ctx, ev); err != nil {
		return fmt.Errorf("change the blocks of the interfaces: %w", err)
	}
	if err := <-done; err != nil {
		if !p.hasGranted(ev) {
			return fmt.Errorf("change the blocks of the interfaces: %w", err)
		}
		p.log.Warn("the blocks of the interfaces have changed, and a value of the network has failed", "error", err)
	}
	p.refused = ev.Refused
	return nil
}

// blocks returns the blocks of a machine in the order in which they are filled: the
// interface with the lowest device number first, so that the others run empty.
func (p *Interfaces) blocks(m machine) (all []ipam.InterfaceBlock) {
	for _, a := range m.sorted() {
		for _, b := range a.Blocks {
			all = append(all, ipam.InterfaceBlock{
				Prefix:    b,
				Interface: a.Interface.ID,
				Usable:    a.isUsable(b, p.deps.Config.Prefixes),
			})
		}
	}
	return all
}

// dropGone takes out of a machine what the cloud no longer has and no pod uses.
func (p *Interfaces) dropGone(m machine) {
	used := map[netip.Prefix]bool{}
	for _, b := range p.deps.Ledger.Stats() {
		if b.Pool == ipam.PodPool && b.Held+b.Quarantined > 0 {
			used[b.Block] = true
		}
	}
	for id, a := range m {
		a.remove(func(b netip.Prefix) bool { return a.isGone(b) && !used[b] })
		if a.lost && len(a.Blocks) == 0 {
			delete(m, id)
		}
	}
}

// isNew reports whether the ledger lacks one of the blocks.
func (p *Interfaces) isNew(blocks []ipam.InterfaceBlock) bool {
	known := map[netip.Prefix]bool{}
	for _, b := range p.deps.Ledger.Stats() {
		if b.Pool == ipam.PodPool {
			known[b.Block] = true
		}
	}
	return slices.ContainsFunc(blocks, func(b ipam.InterfaceBlock) bool { return b.Usable && !known[b.Prefix] })
}

// hasGranted reports whether the ledger has the blocks of an event, although it failed.
func (p *Interfaces) hasGranted(ev *ipam.InterfaceChange) bool {
	active, going := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
	for _, b := range p.deps.Ledger.Stats() {
		switch {
		case b.State != ledger.Active:
		case b.Pool == ipam.PodPool:
			active[b.Block] = true
		case b.Pool == ipam.ReturningPool:
			going[b.Block] = true
		}
	}
	for _, b := range ipam.UsablePrefixes(ev.Blocks) {
		if slices.ContainsFunc(ev.Refused, func(r ipam.RefusedBlock) bool { return r.Prefix == b }) {
			continue
		}
		if !active[b] {
			return false
		}
		delete(active, b)
	}
	for _, b := range ev.Returning {
		if !going[b] && !slices.Contains(ev.Kept, b) {
			return false
		}
	}
	for b := range active {
		if !slices.Contains(ev.Kept, b) {
			return false
		}
	}
	return true
}
